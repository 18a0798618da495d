"""Why a plan is as it is, in words."""

from __future__ import annotations

import collections
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence

from scheduler import cycles, workflows
from scheduler.bounds import Bound
from scheduler.clusters import Cluster
from scheduler.devices import Devices
from scheduler.evaluation import Evaluation
from scheduler.plans import FlatPlan
from scheduler.reports import formatting, rows
from scheduler.workflows import Workflow

_SAME = 1.005  # times that differ less are called equal


def explain(
  evaluated: Evaluation,
  workflow: Workflow,
  cluster: Cluster,
  *,
  alternatives: Mapping[str, Evaluation | str] | None = None,
  bound: Bound | None = None,
) -> str:
  """Returns why a plan places stages as it does, what binds, and how near.

  Args:
    evaluated: the plan's evaluation.
    workflow: what is planned.
    cluster: on what.
    alternatives: other plans by name, such as the collocated one; of one that
      cannot run, why.
    bound: of all plans, see `bounds.lower_bound`.
  """
  flat = evaluated.flat
  known = alternatives or {}
  others = {k: e for k, e in known.items() if isinstance(e, Evaluation)}
  lines = [
    f"Plan {flat.label or 'given'} takes {_s(evaluated)} per iteration of"
    f" {workflow.name} on {formatting.counted(cluster.num_devices, 'device')}."
  ]
  for name, other in known.items():
    lines.append(f"  {name}: {_against(evaluated, other)}")
  lines += ["", "Where stages run, and why"]
  lines += [
    f"  {line}" for line in _placement(evaluated, workflow, cluster, others)
  ]
  lines += ["", "What binds"]
  lines += [f"  {line}" for line in _binding(evaluated)]
  lines += ["", "Devices and memory"]
  lines += [f"  {line}" for line in _usage(evaluated, cluster)]
  if bound is not None:
    lines += ["", "How near to the best"]
    lines += [f"  {line}" for line in _nearness(evaluated, bound)]
  return "\n".join(lines)


def places(flat: FlatPlan) -> dict[str, Devices]:
  """Returns the devices on which each stage computes."""
  found: dict[str, Devices] = {}
  for a in flat.activities:
    if a.kind in rows.COMPUTES:
      for r in a.resources:
        devices = flat.resources[r].devices
        found[a.stage] = found.get(a.stage, Devices()) | devices
  return found


def _s(evaluated: Evaluation) -> str:
  return formatting.seconds(float(evaluated.period_ns))


def _against(evaluated: Evaluation, other: Evaluation | str) -> str:
  if isinstance(other, str):
    return f"cannot run: {other}"
  better = "; it is the better plan" * (other.period_ns < evaluated.period_ns)
  return f"{_s(other)}, {_ratio(evaluated, other)}{better}"


def _ratio(evaluated: Evaluation, other: Evaluation) -> str:
  ratio = float(other.period_ns / evaluated.period_ns)
  if 1 / _SAME < ratio < _SAME:
    return "as long"
  return f"{ratio:.2f} times as long"


def _placement(
  evaluated: Evaluation,
  workflow: Workflow,
  cluster: Cluster,
  others: Mapping[str, Evaluation],
) -> Iterator[str]:
  found = places(evaluated.flat)
  names = [n for n in workflows.topological_order(workflow) if n in found]
  groups = _groups(names, found)
  for group in groups:
    where = _where(group, found, cluster)
    apart = [
      pair
      for pair in itertools.combinations(group, 2)
      if not found[pair[0]].isdisjoint(found[pair[1]])
    ]
    if not apart:
      yield f"{where}."
      continue
    turns = _turns(evaluated.flat, group)
    yield f"{where}, {turns}, {_why(evaluated, others, apart, is_shared=True)}."
  if len(groups) > 1:
    pairs = [
      (a, b)
      for one, two in itertools.combinations(groups, 2)
      for a in one
      for b in two
    ]
    sides = " | ".join(formatting.listed(group) for group in groups)
    why = _why(evaluated, others, pairs, is_shared=False)
    yield f"{sides} have devices of their own, {why}."


def _groups(
  names: Sequence[str], found: Mapping[str, Devices]
) -> list[list[str]]:
  """Returns stages grouped so that those of different groups share nothing."""
  groups: list[list[str]] = []
  for name in names:
    touching = [
      g for g in groups if any(not found[m].isdisjoint(found[name]) for m in g)
    ]
    groups = [g for g in groups if g not in touching]
    groups.append([m for g in touching for m in g] + [name])
  return sorted(groups, key=lambda g: names.index(g[0]))


def _where(
  group: Sequence[str], found: Mapping[str, Devices], cluster: Cluster
) -> str:
  union = functools.reduce(Devices.__or__, (found[name] for name in group))
  noun = f"{_classes(union, cluster)} device"
  count = formatting.counted(len(union), noun)
  if len(group) == 1:
    return f"{group[0]} runs on {count} ({union})"
  text = f"{formatting.listed(group)} share {count} ({union})"
  partial = [
    f"{name} only {found[name]}" for name in group if found[name] != union
  ]
  return text + (f", of which {formatting.listed(partial)}" if partial else "")


def _classes(devices: Devices, cluster: Cluster) -> str:
  names = [
    c.name
    for c in cluster.classes
    if not devices.isdisjoint(cluster.of_class(c.name))
  ]
  return " and ".join(names)


def _turns(flat: FlatPlan, group: Sequence[str]) -> str:
  """Returns how often stages take turns on what they share."""
  most = 0
  for order in flat.orders:
    stages = [
      flat.activities[slot.activity].stage
      for slot in order
      if flat.activities[slot.activity].kind in rows.COMPUTES
      and flat.activities[slot.activity].stage in group
    ]
    changes = sum(a != b for a, b in itertools.pairwise([*stages, *stages[:1]]))
    most = max(most, changes)
  if most <= len(group):
    return "one after the other"
  return f"changing {most:,} times per iteration"


def _why(
  evaluated: Evaluation,
  others: Mapping[str, Evaluation],
  pairs: Sequence[tuple[str, str]],
  *,
  is_shared: bool,
) -> str:
  """Returns what the best alternative that does otherwise takes, and why."""
  how = "apart" if is_shared else "together"
  against = {}
  for name, other in others.items():
    found = places(other.flat)
    differs = [
      (a, b)
      for a, b in pairs
      if a in found
      and b in found
      and found[a].isdisjoint(found[b]) == is_shared
    ]
    if differs:
      against[name] = differs
  if not against:
    return f"and no alternative that is known has them {how}"
  name = min(against, key=lambda name: others[name].period_ns)
  other = others[name]
  stages = list(dict.fromkeys(s for pair in against[name] for s in pair))
  conjunction = (
    "because" if other.period_ns >= evaluated.period_ns else "although"
  )
  subject = formatting.listed(stages) if len(stages) < 4 else "some of them"
  return (
    f"{conjunction} with {subject} {how} ({name}) an iteration takes"
    f" {_s(other)}, {_ratio(evaluated, other)}: there {_weakness(other)}"
  )


def _weakness(evaluated: Evaluation) -> str:
  """Returns what costs a plan most: waiting, swapping or moving."""
  idlest, idle = "", 0.0
  for name, spent in _by_kind(evaluated).items():
    if (left := 1 - sum(spent.values())) > idle:
      idlest, idle = name, left
  moving = {
    name: sum(v for k, v in spent.items() if k not in rows.COMPUTES)
    for name, spent in _by_kind(evaluated).items()
  }
  most = max(moving, key=moving.__getitem__)
  if moving[most] > max(idle, 0.01):
    lost = formatting.share(moving[most])
    return f"{rows.named(most)} spend {lost} of the time on swaps and weights"
  if idle > 0.01:
    return f"{rows.named(idlest)} wait {formatting.share(idle)} of the time"
  return f"{formatting.listed(evaluated.critical_stages)} leave no time idle"


def _by_kind(evaluated: Evaluation) -> dict[str, dict[str, float]]:
  """Returns the shares of the period that each kind takes, by device set."""
  flat, period = evaluated.flat, float(evaluated.period_ns) or 1.0
  found = {}
  for resource, order in zip(flat.resources, flat.orders):
    spent: collections.Counter[str] = collections.Counter()
    for slot in order:
      a = flat.activities[slot.activity]
      spent[a.kind] += a.duration_ns
    if resource.kind == "devices":
      found[resource.name] = {k: v / period for k, v in spent.items()}
  return found


def _binding(evaluated: Evaluation) -> Iterator[str]:
  flat, period = evaluated.flat, evaluated.period_ns
  cycle = [flat.activities[i] for i in cycles.schedule(flat).cycle]
  total = sum(a.duration_ns for a in cycle)
  spent: collections.Counter[str] = collections.Counter()
  for a in cycle:
    kind = "compute" if a.kind in rows.COMPUTES else a.kind
    spent[rows.describe(kind, a.stage, a.target)] += a.duration_ns
  chain = " -> ".join(evaluated.critical_stages)
  yield f"The period is set by {chain}, which wait for each other in turn."
  if not total or total % period:
    return  # some wait for others' starts: their durations are no sum
  parts = [
    f"{what} {formatting.seconds(ns)}" for what, ns in spent.most_common(6)
  ]
  around = total // period
  over = formatting.counted(int(around), "iteration")
  yield f"Along the way, in {over}: {formatting.listed(parts)}."


def _usage(evaluated: Evaluation, cluster: Cluster) -> Iterator[str]:
  by_kind = _by_kind(evaluated)
  for resource in evaluated.flat.resources:
    if resource.kind != "devices":
      continue
    spent = by_kind[resource.name]
    computing = sum(spent.get(kind, 0.0) for kind in rows.COMPUTES)
    moving = sum(spent.values()) - computing
    memory = cluster.class_of(resource.devices).memory_bytes
    peak = evaluated.peak_bytes.get(resource.name, 0)
    yield (
      f"{resource.name}: computes {formatting.share(computing)}, moves"
      f" {formatting.share(moving)}, idle"
      f" {formatting.share(max(0.0, 1 - computing - moving))}; memory at most"
      f" {formatting.num_bytes(peak)} of {formatting.num_bytes(memory)}"
      f" ({formatting.share(peak / memory)})"
    )
  swapped = {
    a.stage: a.duration_ns
    for a in evaluated.flat.activities
    if a.kind in rows.SWAPS
  }
  if swapped:
    yield f"Swapped, as memory does not hold all: {', '.join(swapped)}."


def _nearness(evaluated: Evaluation, bound: Bound) -> Iterator[str]:
  times = (
    ""
    if not bound.ns
    else (
      f"; this one takes {float(evaluated.period_ns) / bound.ns:.3f} times that"
    )
  )
  yield (
    f"No plan takes less than {formatting.seconds(bound.ns)}"
    f" ({bound.binds} binds){times}."
  )
  values = [
    f"{name} {formatting.seconds(ns)}"
    for name, ns in sorted(bound.values_ns.items(), key=lambda item: -item[1])
    if name != bound.binds
  ]
  if values:
    yield f"Other bounds: {formatting.listed(values)}."
