"""Granules that end in any order, taken by who reads them as they are finished.

The calls of a process stage share one continuous batch: they are in flight
together and end in any order. So do granules of a stage that several sets of
devices share. A plan lists their granules in one order, and
everything it says (arcs, orders, channels, memory) depends on it. So the plan
is not changed but its granules are renamed: what it says of the k-th granule is
done with the k-th that is finished. Granules that are alike can be exchanged,
and results lie where their items do, so no number depends on it.

What is renamed is a *span*: a part of the items at whose borders every stage
that takes granules as they come has a border too.
"""

from __future__ import annotations

import dataclasses
import fractions
from collections.abc import Sequence

from rlinf_jax.runtime import graphs, tasks
from scheduler import workflows


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stream:
  """A stage whose granules end in any order, and the stages that take them.

  Attributes:
    spans: the stage's tasks, span by span, in the plan's order.
    num_alike: the leading spans that may take each other's places; 0 keeps
      the plan's order.
    span_of: of each task of the stages that take granules.
    size_of: items of one span, of each such task's stage.
  """

  spans: tuple[tuple[int, ...], ...]
  num_alike: int = 0
  span_of: dict[int, int] = dataclasses.field(default_factory=dict)
  size_of: dict[int, int] = dataclasses.field(default_factory=dict)


class Arrivals:
  """Which spans of a stream have come, in one iteration.

  Args:
    stream: see `Stream`.
  """

  def __init__(self, stream: Stream) -> None:
    self._stream = stream
    self._left = [len(span) for span in stream.spans]
    self._span_of = {t: b for b, ts in enumerate(stream.spans) for t in ts}
    self._come: list[int] = []  # spans, by the places that they took

  def finish(self, task: int) -> tuple[int, ...]:
    """Notes a finished call; returns the tasks that have ended by it."""
    alike, first = self._stream.num_alike, len(self._come)
    span = self._span_of[task]
    self._left[span] -= 1
    if span < alike and not self._left[span]:
      self._come.append(span)
    while len(self._come) >= alike and len(self._come) < len(self._left):
      if self._left[len(self._come)]:
        break
      self._come.append(len(self._come))
    places = range(first, len(self._come))
    return tuple(t for place in places for t in self._stream.spans[place])

  def has_come(self, task: int) -> bool:
    """Returns whether it is known which items a task handles."""
    return self._stream.span_of[task] < len(self._come)

  def items(self, task: int, items: tuple[int, int]) -> tuple[int, int]:
    """Returns the items that a task handles, which the plan calls `items`."""
    place = self._stream.span_of[task]
    shift = (self._come[place] - place) * self._stream.size_of[task]
    return items[0] + shift, items[1] + shift


def of_plan(plan: tasks.TaskPlan, graph: graphs.Graph) -> tuple[Stream, ...]:
  """Returns the streams of a plan, one for each such stage.

  Granules keep the plan's order where they are not alike, where a stage that
  takes them is in a loop or reads granules of an unrelated stage too, and of a
  stage whose readers read another such stage's as well.
  """
  of_stage: dict[str, list[int]] = {}
  for t, task in enumerate(plan.tasks):
    if task.kind in ("compute", "loop"):
      # A loop that is one program is one task of all its stages.
      for name in {plan.plan.activities[a].stage for a in task.activities}:
        of_stage.setdefault(name, []).append(t)
  found, taken = [], set[str]()
  for name in workflows.topological_order(graph.workflow):
    calls = [
      t
      for t in of_stage[name]
      if plan.tasks[t].is_call or plan.tasks[t].is_shared
    ]
    if not calls:
      continue
    readers = _readers(graph.workflow, name, of_stage)
    in_order = Stream(spans=tuple((t,) for t in calls))
    if name in taken or taken & readers:
      found.append(in_order)
      continue
    taken |= {name, *readers}
    stages = {stage: of_stage[stage] for stage in (name, *sorted(readers))}
    stream = None
    if _is_free(graph, name, readers, of_stage):
      stream = _in_spans(plan, graph.workflow, name, stages)
    found.append(stream or in_order)
  return tuple(found)


def _readers(
  workflow: workflows.Workflow, name: str, of_stage: dict[str, list[int]]
) -> set[str]:
  """Returns the stages that read items of a stage granule by granule."""
  found, todo = set[str](), [name]
  while todo:
    stage = todo.pop()
    for edge in workflow.forward_edges:
      if edge.source == stage and _is_divided(edge, of_stage):
        if edge.target not in found:
          found.add(edge.target)
          todo.append(edge.target)
  return found


def _is_divided(edge: workflows.Edge, of_stage: dict[str, list[int]]) -> bool:
  # A single granule waits for all items, in whatever order they come.
  return edge.reads == "items" and len(of_stage[edge.target]) > 1


def _is_free(
  graph: graphs.Graph,
  name: str,
  readers: set[str],
  of_stage: dict[str, list[int]],
) -> bool:
  """Whether all that the readers read comes with this stage, or before it."""
  workflow = graph.workflow
  if any(workflow.loop_of(stage) for stage in (name, *readers)):
    return False
  before, todo = {name}, [name]
  while todo:
    stage = todo.pop()
    for edge in workflow.forward_edges:
      if edge.target == stage and edge.source not in before:
        before.add(edge.source)
        todo.append(edge.source)
  return all(
    edge.source in before | readers
    for edge in workflow.forward_edges
    if edge.target in readers and _is_divided(edge, of_stage)
  )


def _in_spans(
  plan: tasks.TaskPlan,
  workflow: workflows.Workflow,
  name: str,
  stages: dict[str, list[int]],
) -> Stream | None:
  """Returns a stream whose spans can be exchanged; None where none can."""
  borders: set[fractions.Fraction] | None = None
  for stage, of_one in stages.items():
    items = workflow.stage(stage).items
    own = {fractions.Fraction(plan.tasks[t].items[0], items) for t in of_one}
    borders = own if borders is None else borders & own
  cuts = sorted(borders or ())
  if len(cuts) < 2 or cuts[0] != 0:
    return None
  sizes = [b - a for a, b in zip(cuts, [*cuts[1:], fractions.Fraction(1)])]
  num_alike = len(sizes) if sizes[-1] == sizes[0] else len(sizes) - 1
  if any(size != sizes[0] for size in sizes[:num_alike]):
    return None
  span_of: dict[int, int] = {}
  size_of: dict[int, int] = {}
  for stage, of_one in stages.items():
    size = int(sizes[0] * workflow.stage(stage).items)
    parts: list[list[tuple[int, int]]] = [[] for _ in sizes]
    last = 0
    for t in of_one:
      start, stop = plan.tasks[t].items
      span_of[t], size_of[t] = start // size, size
      parts[start // size].append((start % size, stop - start))
      if stage == name and start // size < last:
        return None  # not in the order of the items
      last = start // size
    if any(part != parts[0] for part in parts[:num_alike]):
      return None
  return Stream(
    spans=_grouped(stages[name], span_of, len(sizes)),
    num_alike=num_alike,
    span_of={t: b for t, b in span_of.items() if t not in stages[name]},
    size_of=size_of,
  )


def _grouped(
  calls: Sequence[int], span_of: dict[int, int], count: int
) -> tuple[tuple[int, ...], ...]:
  return tuple(
    tuple(t for t in calls if span_of[t] == span) for span in range(count)
  )
