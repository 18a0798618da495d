"""Every plan of a tiny case, evaluated: an oracle for tests and doubters.

Nothing here is shared with the search but the reading of the case and the
building of flat plans: no shop, no bound, no symmetry. It goes further than
class S where it is told to: to a staleness above 0, where a period mixes
iterations, and to replicas, where each granule of a stage has a mode of its
own, so that replicas of different sizes take different numbers of granules.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from fractions import Fraction

from scheduler import cycles, errors
from scheduler.clusters import Cluster
from scheduler.exact import class_s, flat
from scheduler.exact.class_s import Problem
from scheduler.exact.flat import Layout, Turn
from scheduler.plans import FlatPlan
from scheduler.profiles import Profile
from scheduler.workflows import Workflow

MAX_STAGES, MAX_GRANULES = 3, 4


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Best:
  """The best of all plans.

  Attributes:
    plan: the first of the best.
    period_ns: its period.
    num_plans: that were evaluated.
  """

  plan: FlatPlan
  period_ns: Fraction
  num_plans: int


def brute_force(
  workflow: Workflow,
  profile: Profile,
  cluster: Cluster,
  *,
  num_granules: int | None = None,
  has_replicas: bool = False,
) -> Best:
  """Returns the best plan, having evaluated all.

  Args:
    workflow: up to 3 stages; its staleness may be above 0.
    profile: its durations.
    cluster: divided into groups.
    num_granules: up to 4; None: the only number that stages allow.
    has_replicas: whether granules of a stage may have different modes.

  Raises:
    OutsideClassError: the case is too large, or outside class S in other ways.
    InfeasiblePlanError: a stage fits into memory nowhere.
  """
  problem = class_s.read(
    dataclasses.replace(workflow, staleness=0),
    profile,
    cluster,
    num_granules=num_granules,
  )
  if len(problem.stages) > MAX_STAGES or problem.num_granules > MAX_GRANULES:
    raise errors.OutsideClassError(
      f"{len(problem.stages)} stages of {problem.num_granules} granules are too"
      f" many to try all plans; up to {MAX_STAGES} of {MAX_GRANULES} can be"
    )
  best: tuple[Fraction, FlatPlan] | None = None
  count = 0
  for layout in _layouts(problem, has_replicas):
    seen = set()
    for sequence in _sequences(problem, layout, workflow.staleness):
      plan = flat.of_sequence(
        problem, workflow, layout, sequence, label="brute force"
      )
      if plan.orders in seen:
        continue
      seen.add(plan.orders)
      count += 1
      try:
        period_ns = cycles.period_ns(plan)
      except errors.InfeasiblePlanError:
        continue  # activities wait for each other: no schedule has this order
      if best is None or period_ns < best[0]:
        best = period_ns, plan
  assert best is not None
  return Best(plan=best[1], period_ns=best[0], num_plans=count)


def _layouts(problem: Problem, has_replicas: bool) -> Iterator[Layout]:
  n = problem.num_granules
  each = [
    itertools.product(range(len(own)), repeat=n)
    if has_replicas
    else ((i,) * n for i in range(len(own)))
    for own in problem.modes
  ]
  return itertools.product(*each)


def _sequences(
  problem: Problem, layout: Layout, staleness: int
) -> Iterator[list[Turn]]:
  """Yields the orders of a period in which granules follow what they read.

  A granule is placed at a time in [shift, shift + 1) periods, so that order
  and shift tell when it runs relative to others.
  """
  n = problem.num_granules
  turns = [(v, i) for v in range(len(problem.stages)) for i in range(n)]
  before = {(v, i): _waits(problem, layout, v, i) for v, i in turns}

  def extended(
    sequence: list[Turn], left: frozenset[tuple[int, int]]
  ) -> Iterator[list[Turn]]:
    if not left:
      if _is_ordered(sequence, before):
        yield sequence
      return
    for v, i in sorted(left):
      # Without a staleness nothing may be placed before what it waits for.
      if not staleness and not left.isdisjoint(before[v, i]):
        continue
      for shift in range(staleness + 1):
        yield from extended([*sequence, Turn(v, i, shift)], left - {(v, i)})

  first = Turn(0, 0)  # where a period begins is free
  rest = frozenset(turns) - {(0, 0)}
  return extended([first], rest)


def _is_ordered(
  sequence: list[Turn], before: dict[tuple[int, int], set[tuple[int, int]]]
) -> bool:
  time = {
    (turn.stage, turn.granule): (turn.shift, p)
    for p, turn in enumerate(sequence)
  }
  return all(time[b] < time[a] for a, own in before.items() for b in own)


def _waits(
  problem: Problem, layout: Layout, v: int, i: int
) -> set[tuple[int, int]]:
  """Returns what a granule waits for: what it reads, and its replica's last."""
  mine = problem.modes[v][layout[v][i]].groups
  found = {(u, j) for u in problem.preds[v] for j in range(i + 1)}
  return found | {
    (v, j) for j in range(i) if problem.modes[v][layout[v][j]].groups & mine
  }
