"""Workflows with their loops collapsed, and the cuts of their parts."""

from __future__ import annotations

import dataclasses
import graphlib
from collections.abc import Iterator

from scheduler import errors, workflows
from scheduler.workflows import Loop, Workflow


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Unit:
  """A stage, or a loop with all its stages.

  Attributes:
    name: of the stage or loop.
    stages: its stages; of a loop, in the order of a turn.
    loop: the loop, if it is one.
  """

  name: str
  stages: tuple[str, ...]
  loop: Loop | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Graph:
  """A workflow with its loops collapsed.

  Attributes:
    units: each after those it reads from.
    readers: for each unit the indices of those that read from it.
    waits: pairs (source, target) whose target needs the source's whole batch
      before its first granule.
  """

  units: tuple[Unit, ...]
  readers: tuple[tuple[int, ...], ...]
  waits: frozenset[tuple[int, int]]

  def sources(self, target: int) -> tuple[int, ...]:
    """Returns the indices of the units that a unit reads from."""
    return tuple(i for i, found in enumerate(self.readers) if target in found)


def collapse(workflow: Workflow) -> Graph:
  """Returns the workflow's units.

  Raises:
    InfeasiblePlanError: a stage outside a loop reads from it and is read by it,
      so that the loop is no piece by itself.
  """
  units: dict[str, Unit] = {}
  of_stage: dict[str, str] = {}
  for name in workflows.topological_order(workflow):
    loop = workflow.loop_of(name)
    unit = (
      Unit(name=name, stages=(name,))
      if loop is None
      else Unit(name=f"loop {loop.name}", stages=loop.stages, loop=loop)
    )
    units[unit.name], of_stage[name] = unit, unit.name
  pairs = {
    (of_stage[e.source], of_stage[e.target]) for e in workflow.forward_edges
  }
  whole = {
    (of_stage[e.source], of_stage[e.target])
    for e in workflow.forward_edges
    if e.reads == "all"
    or workflow.stage(e.target).needs_all
    or workflow.loop_of(e.target)
  }
  sorter: graphlib.TopologicalSorter[str] = graphlib.TopologicalSorter()
  for name in units:
    sorter.add(name, *(s for s, t in pairs if t == name and s != name))
  try:
    order = tuple(sorter.static_order())
  except graphlib.CycleError as error:
    raise errors.InfeasiblePlanError(
      f"{' -> '.join(reversed(error.args[1]))} is a cycle of whole loops; a"
      " stage that takes part in the turns of a loop belongs to the loop"
    ) from None
  place = {name: i for i, name in enumerate(order)}
  edges = {(place[s], place[t]) for s, t in pairs if s != t}
  return Graph(
    units=tuple(units[name] for name in order),
    readers=tuple(
      tuple(sorted(t for s, t in edges if s == i)) for i in range(len(order))
    ),
    waits=frozenset((place[s], place[t]) for s, t in whole if s != t),
  )


def downsets(graph: Graph, mask: int) -> Iterator[int]:
  """Yields the proper subsets of some units that read nothing from the rest.

  Args:
    graph: the units.
    mask: of the units, one bit each; subsets are masks too.
  """
  pairs = [
    (s, t)
    for s, found in enumerate(graph.readers)
    for t in found
    if mask >> s & 1 and mask >> t & 1
  ]
  first = (mask - 1) & mask
  while first:
    if not any(first >> t & 1 and not first >> s & 1 for s, t in pairs):
      yield first
    first = (first - 1) & mask


def num_cuts(graph: Graph) -> int:
  """Returns how many cuts there are of a graph and of all its parts."""
  found: dict[int, int] = {}
  left = [(1 << len(graph.units)) - 1]
  while left:
    mask = left.pop()
    if mask in found:
      continue
    firsts = list(downsets(graph, mask))
    found[mask] = len(firsts)
    left += [part for first in firsts for part in (first, mask ^ first)]
  return sum(found.values())
