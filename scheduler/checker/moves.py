"""Laws of items: that they are there, and on the devices that read them."""

from __future__ import annotations

import bisect
import collections
from collections.abc import Iterator
from typing import NamedTuple

from scheduler import errors
from scheduler.checker.needs import Need
from scheduler.checker.view import Atoms, Chain, Granule, View
from scheduler.devices import Devices
from scheduler.prices import Interval
from scheduler.workflows import Edge


class Hop(NamedTuple):
  """Granules along an edge; of a loop's edge, in one turn.

  Attributes:
    edge: the edge.
    writers: granules of its source.
    readers: granules of its target.
    is_inside: the edge joins stages of one loop: a lane waits for its own items
      only, and not for those before.
  """

  edge: Edge
  writers: list[Granule]
  readers: list[Granule]
  is_inside: bool


def hops(view: View) -> Iterator[Hop]:
  """Yields all that items flow along."""
  for edge in view.costs.workflow.edges:
    source, target = view.turns[edge.source], view.turns[edge.target]
    loop = view.loop_of(edge.source)
    if loop is None or edge.target not in loop.stages:
      yield Hop(edge, source[-1], target[0], False)
      continue
    later = int(view.costs.workflow.is_back_edge(edge))
    for writers, readers in zip(source, target[later:]):
      yield Hop(edge, writers, readers, True)


def reads(view: View, edge: Edge, items: Interval) -> Interval:
  """Returns the source's items that some items of the target read.

  Groups are complete together: where one member is read, all are waited for.
  """
  source, target = (
    view.costs.stages[edge.source],
    view.costs.stages[edge.target],
  )
  if edge.reads == "all":
    return 0, source.items
  start = items[0] * source.items // target.items // source.group
  stop = -(-items[1] * source.items // target.items)
  stop = -(-stop // source.group)
  return start * source.group, min(source.items, stop * source.group)


def receives(view: View, edge: Edge, reader: Granule) -> Interval | None:
  """Returns the source's items that are brought to a granule's devices.

  A decode takes those of its whole cohort when that begins, and none later.
  """
  cohort = view.cohorts[reader.activity]
  if cohort is None:
    return reads(view, edge, (reader.start, reader.stop))
  return reads(view, edge, cohort) if reader.start == cohort[0] else None


def waits_for(view: View, hop: Hop, reader: Granule) -> Interval:
  """Returns the source's items that must be there before a granule starts."""
  source = view.costs.stages[hop.edge.source]
  if view.costs.stages[hop.edge.target].needs_all:
    return 0, source.items
  # A decode works on its whole cohort from the start.
  items = view.cohorts[reader.activity] or (reader.start, reader.stop)
  start, stop = reads(view, hop.edge, items)
  return (start if hop.is_inside else 0), stop


def items_are_ready(view: View) -> Iterator[Need]:
  """Yields that granules wait for those whose items they read."""
  for hop in hops(view):
    edge = hop.edge
    chains = view.chains(hop.writers)
    for reader in hop.readers:
      start, stop = waits_for(view, hop, reader)
      for chain in chains:
        if (last := chain.last(start, stop)) is not None:
          yield Need(
            last,
            reader.activity,
            0,
            f"reads items [{start}, {stop}) of {edge.source!r}",
          )


class Carriage(NamedTuple):
  """Transfers from one set of devices to another along a hop.

  Attributes:
    hop: the hop.
    ends: the source's and the target's devices.
    readers: those on the target's devices.
    moved: the transfers, each a granule of items that it brings.
  """

  hop: Hop
  ends: tuple[Devices, Devices]
  readers: Chain
  moved: list[Granule]


def items_are_moved(view: View) -> None:
  """Items that are read on other devices are brought there by transfers."""
  view.once(carriages)


def links_are_shared(view: View) -> None:
  """Transfers between the same devices are one at a time."""
  known: dict[tuple[Devices, Devices], Atoms] = {}
  for carriage in view.once(carriages):
    for g in carriage.moved:
      link = known.setdefault(carriage.ends, g.atoms)
      if link != g.atoms:
        source, target = carriage.ends
        names = [view.plan.resources[r].name for r in link]
        raise errors.InfeasiblePlanError(
          f"{view.words(g.activity)} is not on {names}, as others are from"
          f" '{source}' to '{target}'; one link joins them, which carries one"
          " transfer at a time"
        )


def items_have_arrived(view: View) -> Iterator[Need]:
  """Yields that granules wait for the transfers that bring their items."""
  for carriage in view.once(carriages):
    hop, chains = carriage.hop, view.chains(carriage.moved)
    for reader in carriage.readers.granules:
      start, stop = receives(view, hop.edge, reader) or (0, 0)
      for chain in chains:
        if (last := chain.last(start, stop)) is not None:
          yield Need(
            last,
            reader.activity,
            0,
            f"reads items [{start}, {stop}) that {hop.edge.source!r} made"
            " elsewhere",
          )


def carriages(view: View) -> list[Carriage]:
  """Returns the transfers between any two sets of devices that need some.

  Raises:
    InfeasiblePlanError: there are too few, or they take another time.
  """
  leaving, fed, made = _leaving(view), _fed(view), []
  for hop in hops(view):
    if hop.edge.item_bytes == 0:
      continue
    for source in view.chains(hop.writers):
      for target in view.chains(hop.readers):
        pair = (view.devices(source.atoms), view.devices(target.atoms))
        if view.costs.edge_ns(*pair, hop.edge.item_bytes) == 0:
          continue
        parts = {receives(view, hop.edge, g) for g in target.granules}
        wanted = sorted(part for part in parts if part is not None)
        moved: list[Granule] = []
        for g in source.granules:
          usable = [
            view.granule(i, view.plan.activities[i].resources)
            for i in leaving[g.activity, hop.edge.target]
            if target.atoms in fed[view.plan.activities[i].resources]
          ]
          moved += _cover(view, hop.edge, g, target, wanted, usable)
        for g in moved:
          first, last = view.plan.activities[g.activity].items
          num_bytes = (last - first) * hop.edge.item_bytes
          expected = view.costs.edge_ns(*pair, num_bytes)
          if (
            found := view.plan.activities[g.activity].duration_ns
          ) != expected:
            raise errors.InfeasiblePlanError(
              f"{view.words(g.activity)} takes {found} ns; {num_bytes} bytes"
              f" from '{pair[0]}' to '{pair[1]}' take {expected} ns"
            )
        made.append(Carriage(hop, pair, target, moved))
  return made


def _leaving(view: View) -> dict[tuple[int, str], list[int]]:
  """Returns the transfers that wait for a granule, by it and their target."""
  found: dict[tuple[int, str], list[int]] = collections.defaultdict(list)
  for arc in view.plan.arcs:
    a, b = view.plan.activities[arc.source], view.plan.activities[arc.target]
    if (
      (a.kind, b.kind, a.stage) == ("compute", "transfer", b.stage)
      and (arc.lag, arc.after) == (0, "end")
      and a.items[0] <= b.items[0] < b.items[1] <= a.items[1]
      and b.resources
    ):
      found[arc.source, b.target].append(arc.target)
  return found


def _fed(view: View) -> dict[Atoms, set[Atoms]]:
  """Returns on which devices transfers over the same links are waited for."""
  found: dict[Atoms, set[Atoms]] = collections.defaultdict(set)
  for arc in view.plan.arcs:
    a, b = view.plan.activities[arc.source], view.plan.activities[arc.target]
    if (a.kind, b.kind, a.target) == ("transfer", "compute", b.stage):
      found[a.resources].add(view.atoms[arc.target])
  return found


def _cover(
  view: View,
  edge: Edge,
  g: Granule,
  target: Chain,
  wanted: list[Interval],
  usable: list[Granule],
) -> list[Granule]:
  """Returns transfers of a granule that bring all that the target reads.

  Of each it keeps the items that no other before it has brought.
  """
  chosen: list[Granule] = []
  reached = g.start
  # What is read ascends in both its ends.
  low = bisect.bisect_right(wanted, g.start, key=lambda part: part[1])
  high = bisect.bisect_left(wanted, g.stop, key=lambda part: part[0])
  for start, stop in wanted[low:high]:
    reached = max(reached, start)
    for transfer in sorted(usable, key=lambda t: (t.start, t.stop)):
      if transfer.start <= reached < min(transfer.stop, stop):
        chosen.append(transfer._replace(start=reached))
        reached = transfer.stop
    if reached < min(stop, g.stop):
      raise errors.InfeasiblePlanError(
        f"no transfer that waits for {view.words(g.activity)} brings its items"
        f" [{reached}, {min(stop, g.stop)}) to {edge.target!r} on"
        f" '{view.devices(target.atoms)}', where they are read"
      )
  return chosen
