"""From modes and a sequence of granules to the flat plan that runs them.

Class S needs less than this: there all granules of a stage have one mode, and
no iteration overlaps with the next. Brute force also tries plans in which
granules of one stage run on different groups, and a period in which groups
alternate between iterations.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from scheduler.exact import class_s
from scheduler.exact.class_s import Assignment, Mode, Problem
from scheduler.exact.shops import Starts
from scheduler.plans import Activity, Arc, FlatPlan, Holding, Resource, Slot
from scheduler.workflows import Workflow

Layout = tuple[tuple[int, ...], ...]  # of each stage, of each granule: a mode


class Turn(NamedTuple):
  """A granule's place in a period.

  Attributes:
    stage: index.
    granule: index.
    shift: in period k it is the one of iteration k - shift.
  """

  stage: int
  granule: int
  shift: int = 0


class _Entry(NamedTuple):
  stage: int
  activity: int
  shift: int


def of_schedule(
  problem: Problem, workflow: Workflow, assignment: Assignment, starts: Starts
) -> FlatPlan:
  """Returns the plan whose orders are those of a schedule.

  Args:
    problem: the case.
    workflow: that it was read from.
    assignment: of modes.
    starts: ticks, by stage and granule.
  """
  turns = sorted(
    (start, v, i) for v, own in enumerate(starts) for i, start in enumerate(own)
  )
  layout = tuple((mode,) * problem.num_granules for mode in assignment)
  sequence = [Turn(v, i) for _, v, i in turns]
  return of_sequence(problem, workflow, layout, sequence, label="exact")


def of_sequence(
  problem: Problem,
  workflow: Workflow,
  layout: Layout,
  sequence: Sequence[Turn],
  *,
  label: str,
) -> FlatPlan:
  """Returns the plan in which every group follows a sequence.

  Args:
    problem: the case.
    workflow: that it was read from.
    layout: modes.
    sequence: the granules of one period, in order; each group runs those that
      are its own.
    label: who made the plan.
  """
  return _Builder(problem, workflow, layout, sequence).plan(label)


class _Builder:
  """Activities, orders and holdings, as they are added."""

  def __init__(
    self,
    problem: Problem,
    workflow: Workflow,
    layout: Layout,
    sequence: Sequence[Turn],
  ):
    self.problem, self.workflow = problem, workflow
    self.modes = [
      [own[i] for i in chosen] for own, chosen in zip(problem.modes, layout)
    ]
    self.groups = [_union(own) for own in self.modes]
    self.used = [
      g for g in range(len(problem.groups)) if _union_of(self.groups) >> g & 1
    ]
    self.swapped = class_s.swapped_groups(problem, layout)
    self.activities: list[Activity] = []
    self.holdings: list[Holding] = []
    self.computes = [
      [self._compute(v, i, mode) for i, mode in enumerate(own)]
      for v, own in enumerate(self.modes)
    ]
    self.entries = list(self._entries(sequence))

  def plan(self, label: str) -> FlatPlan:
    orders = [self._order(r) for r in range(len(self.used))]
    return FlatPlan(
      resources=tuple(
        Resource(name=str(devices), devices=devices)
        for devices in (self.problem.groups[g] for g in self.used)
      ),
      activities=tuple(self.activities),
      arcs=tuple(dict.fromkeys((*self._items(), *self._iterations()))),
      orders=tuple(map(tuple, orders)),
      holdings=tuple(self.holdings),
      label=label,
    )

  def _resources(self, groups: int) -> tuple[int, ...]:
    return tuple(r for r, g in enumerate(self.used) if groups >> g & 1)

  def _add(self, activity: Activity) -> int:
    self.activities.append(activity)
    return len(self.activities) - 1

  def _compute(self, v: int, i: int, mode: Mode) -> int:
    size = self.problem.granules[v]
    added = self._add(
      Activity(
        kind="compute",
        stage=self.problem.stages[v],
        resources=self._resources(mode.groups),
        duration_ns=mode.duration * self.problem.tick_ns,
        items=(i * size, (i + 1) * size),
        config=mode.config,
      )
    )
    if mode.transient_bytes:
      self.holdings += [
        Holding(
          resource=r,
          bytes_per_device=mode.transient_bytes,
          what=f"granule of {self.problem.stages[v]}",
          begin=added,
          end=added,
        )
        for r in self._resources(mode.groups)
      ]
    return added

  def _entries(self, sequence: Sequence[Turn]) -> Iterator[_Entry]:
    """Yields computes in order, and applies after the last of their update."""
    last: dict[tuple[int, int], Turn] = {}
    place = {turn: (turn.shift, p) for p, turn in enumerate(sequence)}
    for turn in sequence:
      if (update := self._update(turn)) is not None:
        key = turn.stage, update
        last[key] = max(last.get(key, turn), turn, key=place.__getitem__)
    for turn in sequence:
      v = turn.stage
      yield _Entry(v, self.computes[v][turn.granule], turn.shift)
      update = self._update(turn)
      if update is not None and last[v, update] == turn:
        yield _Entry(v, self._apply(v, update), turn.shift)

  def _update(self, turn: Turn) -> int | None:
    stage = self.workflow.stage(self.problem.stages[turn.stage])
    if stage.kind != "train":
      return None
    return turn.granule * stage.updates // self.problem.num_granules

  def _apply(self, v: int, update: int) -> int:
    return self._add(
      Activity(
        kind="apply",
        stage=self.problem.stages[v],
        resources=self._resources(self.groups[v]),
        duration_ns=0,
        index=update,
        config=self.modes[v][0].config,
      )
    )

  def _on(self, r: int) -> list[_Entry]:
    """Returns what a resource runs, without its swaps."""
    return [
      e for e in self.entries if r in self.activities[e.activity].resources
    ]

  def _order(self, r: int) -> list[Slot]:
    """Returns all that a resource runs, and adds what it holds."""
    entries = self._on(r)
    stages = [entry.stage for entry in entries]
    if not self.swapped >> self.used[r] & 1:
      for v in dict.fromkeys(stages):
        self._hold(r, v)
      return [Slot(activity=e.activity, shift=e.shift) for e in entries]
    visits = [
      list(own) for _, own in itertools.groupby(entries, lambda e: e[0])
    ]
    # A stage with the last and the first visit stays in between.
    stays = visits[0][0].stage == visits[-1][0].stage
    order: list[Slot] = []
    begins: dict[int, Slot] = {}
    ends: dict[int, Slot] = {}
    for k, visit in enumerate(visits):
      v = visit[0].stage
      if k or not stays:
        begins[k] = self._swap("swap_in", r, v, visit[0].shift)
        order.append(begins[k])
      order += [Slot(activity=e.activity, shift=e.shift) for e in visit]
      if k + 1 < len(visits) or not stays:
        ends[k] = self._swap("swap_out", r, v, visit[-1].shift)
        order.append(ends[k])
    for k, begin in begins.items():
      wraps = k not in ends
      end = ends[0] if wraps else ends[k]
      lag = begin.shift - end.shift + int(wraps)
      self._hold(r, visits[k][0].stage, begin.activity, end.activity, lag)
    return order

  def _swap(
    self, kind: Literal["swap_in", "swap_out"], r: int, v: int, shift: int
  ) -> Slot:
    mode, group = self._mode(r, v), self.problem.groups[self.used[r]]
    added = self._add(
      Activity(
        kind=kind,
        stage=self.problem.stages[v],
        resources=(r,),
        duration_ns=mode.swap * self.problem.tick_ns,
        num_bytes=mode.state_bytes * len(group),
        config=mode.config,
      )
    )
    return Slot(activity=added, shift=shift)

  def _hold(
    self,
    r: int,
    v: int,
    begin: int | None = None,
    end: int | None = None,
    lag: int = 0,
  ) -> None:
    if num_bytes := self._mode(r, v).state_bytes:
      self.holdings.append(
        Holding(
          resource=r,
          bytes_per_device=num_bytes,
          what=f"state of {self.problem.stages[v]}",
          begin=begin,
          end=end,
          lag=lag,
        )
      )

  def _mode(self, r: int, v: int) -> Mode:
    """Returns the mode of a stage on a resource, of several the largest."""
    on = [m for m in self.modes[v] if m.groups >> self.used[r] & 1]
    return max(on, key=lambda mode: mode.state_bytes)

  def _items(self) -> Iterator[Arc]:
    """A granule waits for those before it, wherever they run."""
    for v, own in enumerate(self.problem.preds):
      for u, i in itertools.product(own, range(self.problem.num_granules)):
        last = {m.groups: j for j, m in enumerate(self.modes[u][: i + 1])}
        for j in last.values():
          yield Arc(source=self.computes[u][j], target=self.computes[v][i])

  def _iterations(self) -> Iterator[Arc]:
    """Beyond those that may be alive an iteration waits for an earlier one."""
    ends = []
    for r in range(len(self.used)):
      on = sorted(enumerate(self._on(r)), key=lambda e: (e[1].shift, e[0]))
      ends.append((on[0][1].activity, on[-1][1].activity))
    for (_, last), (first, _) in itertools.product(ends, ends):
      yield Arc(source=last, target=first, lag=1 + self.workflow.staleness)


def _union(modes: Sequence[Mode]) -> int:
  return _union_of([mode.groups for mode in modes])


def _union_of(groups: Sequence[int]) -> int:
  return functools.reduce(operator.or_, groups)
