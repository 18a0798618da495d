"""Which links of a cluster the bytes of a plan cross."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Literal

from scheduler import durations, errors, plans
from scheduler.clusters import Cluster
from scheduler.devices import Devices
from scheduler.simulation import fairness

_SWAPS = ("swap_in", "swap_out")
_COMPUTES = ("compute", "apply")
# Links of a node: to and from its host, to and from other nodes.
_Direction = Literal["to_host", "from_host", "leaving", "entering"]
_Link = tuple[_Direction, int]
# For how many nanoseconds a byte takes all of a link.
_Crossing = dict[_Link, float]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Routes:
  """What a plan's activities move, and over what.

  Attributes:
    flows: each kind of them once; rates are bytes per nanosecond.
    of_activity: of each activity the index of its flow; None: nothing that
      others could slow down.
    lengths_ns: of each activity that is a flow, when nothing else moves.
  """

  flows: tuple[fairness.Flow, ...]
  of_activity: tuple[int | None, ...]
  lengths_ns: tuple[int, ...]


def routes(plan: plans.FlatPlan, cluster: Cluster) -> Routes:
  """Returns the flows of a plan on a cluster.

  State that is swapped crosses the links between its nodes and their hosts, a
  cap for each direction. Items and weights leave the nodes of their source and
  enter those of their target, spread evenly over the devices of both. What
  stays within a node is held up by its own duration alone. Flows share a link
  in proportion to the devices that take part.

  By itself a flow takes the duration of its activity; a swap, whose duration
  allows for all other devices of its nodes, as long as its devices' own links
  need.

  Raises:
    InfeasiblePlanError: the plan uses devices that the cluster lacks.
  """
  for resource in plan.resources:
    if not resource.devices.issubset(cluster.devices):
      raise errors.InfeasiblePlanError(
        f"plan {plan.label!r} uses devices"
        f" '{resource.devices - cluster.devices}'; the cluster has"
        f" '{cluster.devices}'"
      )
  ends = _ends(plan)
  # Links that every flow uses alike are one: of thousands of nodes few remain.
  crossings = {
    (a.kind, *ends[k]): _crossing(cluster, a.kind, *ends[k])
    for k, a in enumerate(plan.activities)
    if k in ends and a.num_bytes and a.duration_ns
  }
  columns: dict[_Link, list[tuple[int, float]]] = {}
  for number, crossing in enumerate(crossings.values()):
    for link, amount in crossing.items():
      columns.setdefault(link, []).append((number, amount))
  unlike = {tuple(column): link for link, column in columns.items()}
  kept = set(unlike.values())

  flows: dict[fairness.Flow, int] = {}
  of_activity: list[int | None] = []
  lengths_ns: list[int] = []
  for k, a in enumerate(plan.activities):
    length_ns, number_of = a.duration_ns, None
    source, target = ends.get(k, (Devices(), Devices()))
    if crossing := crossings.get((a.kind, source, target), {}):
      if a.kind in ("swap_in", "swap_out"):
        length_ns = _swap_ns(cluster, source, a.num_bytes)
      cap = a.num_bytes / length_ns
      flow = fairness.Flow(
        cap=cap,
        # Alone no flow is held up, whatever its duration was made of.
        uses=tuple(
          (link, min(amount, 1 / cap))
          for link, amount in crossing.items()
          if link in kept
        ),
        weight=min(len(source), len(target)),
      )
      number_of = flows.setdefault(flow, len(flows))
    of_activity.append(number_of)
    lengths_ns.append(length_ns)
  return Routes(
    flows=tuple(flows),
    of_activity=tuple(of_activity),
    lengths_ns=tuple(lengths_ns),
  )


def _ends(plan: plans.FlatPlan) -> dict[int, tuple[Devices, Devices]]:
  """Returns from where to where each activity that moves bytes moves them.

  Of items and weights the arcs tell: they come from what they wait for, and go
  to what waits for them. What is moved in turn on the same resources has the
  same ends, as only the last of it may be waited for.
  """
  own = [
    _union(plan.resources[r].devices for r in a.resources)
    for a in plan.activities
  ]
  way = [(a.kind, a.stage, a.target, a.resources) for a in plan.activities]
  sources: dict[tuple, set[Devices]] = {}
  targets: dict[tuple, set[Devices]] = {}
  for arc in plan.arcs:
    before, after = plan.activities[arc.source], plan.activities[arc.target]
    if before.kind in _COMPUTES and before.stage == after.stage:
      sources.setdefault(way[arc.target], set()).add(own[arc.source])
    if after.kind in _COMPUTES and after.stage == before.target:
      targets.setdefault(way[arc.source], set()).add(own[arc.target])
  ends = {}
  for k, a in enumerate(plan.activities):
    if a.kind in _SWAPS:
      ends[k] = (own[k], own[k])
    elif a.kind not in _COMPUTES:
      source = _union(sources.get(way[k], [own[k]]))
      target = _union(targets.get(way[k], [own[k]]))
      if source.spans and target.spans:
        ends[k] = (source, target)
  return ends


def _crossing(
  cluster: Cluster, kind: plans.ActivityKind, source: Devices, target: Devices
) -> _Crossing:
  """Returns what a byte takes of each link that it crosses."""
  links = cluster.links
  sent, received = _counts(cluster, source), _counts(cluster, target)
  bytes_of: _Crossing = {}
  if kind in _SWAPS:
    direction: _Direction = "to_host" if kind == "swap_out" else "from_host"
    cap = links.host_cap_bytes_per_s
    for node, count in sent.items():
      bytes_of[direction, node] = count / len(source)
  else:
    cap = links.inter_node_bytes_per_s
    # Of weights every node needs all; they are passed on within it.
    is_copied = kind == "weight_sync"
    for node, count in sent.items():
      elsewhere = (len(target) - received.get(node, 0)) / len(target)
      wanted = float(elsewhere > 0) if is_copied else elsewhere
      bytes_of["leaving", node] = wanted * count / len(source)
    for node, count in received.items():
      elsewhere = (len(source) - sent.get(node, 0)) / len(source)
      wanted = 1.0 if is_copied else count / len(target)
      bytes_of["entering", node] = elsewhere * wanted
  return {
    link: num_bytes * durations.NS_PER_S / cap
    for link, num_bytes in bytes_of.items()
    if num_bytes
  }


def _counts(cluster: Cluster, devices: Devices) -> dict[int, int]:
  """Returns how many of the devices each node has, where it has any."""
  counts: dict[int, int] = {}
  start, first = 0, 0
  for kind in cluster.nodes:
    size = kind.devices_per_node
    stop = start + kind.num_nodes * size
    for a, b in (devices & Devices.span(start, stop)).spans:
      for node in range((a - start) // size, (b - 1 - start) // size + 1):
        low, high = start + node * size, start + (node + 1) * size
        part = min(b, high) - max(a, low)
        counts[first + node] = counts.get(first + node, 0) + part
    start, first = stop, first + kind.num_nodes
  return counts


def _swap_ns(cluster: Cluster, devices: Devices, num_bytes: int) -> int:
  """Returns how long a swap takes when no other device of its nodes moves."""
  links, fullest = cluster.links, max(_counts(cluster, devices).values())
  rate = min(links.host_bytes_per_s, links.host_cap_bytes_per_s / fullest)
  return durations.to_ns(links.latency_s + num_bytes / (len(devices) * rate))


def _union(sets: Iterable[Devices]) -> Devices:
  union = Devices()
  for devices in sets:
    union = union | devices
  return union
