"""The optimum of a case of class S, or the best plan with a proven bound.

Outside is a branch and bound over modes (`assignments`): it leaves the shops
whose bound is below the best period known. Inside, the lowest bound first, each
of them is given to CP-SAT (`sequencing`), which finds a shorter schedule or
proves that there is none. What is proven of a shop holds for every other one
that is no easier. The case is closed when no shop is left.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import math
import random
import time
from typing import Literal

from scheduler.clusters import Cluster
from scheduler.exact import (
  assignments,
  class_s,
  dispatch,
  flat,
  modes,
  sequencing,
  shops,
)
from scheduler.exact.assignments import Candidates
from scheduler.exact.certificates import Certificate
from scheduler.exact.class_s import Assignment, Problem
from scheduler.exact.sequencing import Verdict
from scheduler.exact.shops import Shop, Starts
from scheduler.plans import FlatPlan
from scheduler.profiles import Profile
from scheduler.workflows import Workflow

_RESTARTS = 6  # of the local search over modes
_FIRST_SHOPS = 60  # that are scheduled before anything is proven
_MAX_ROWS = 400_000  # assignments that are held at once
# Of CP-SAT on a shop, in turn: how much, and whether it raises the bound. Some
# shops are soon closed from below, others from above.
_EFFORTS = (
  (1.0, False),
  (1.0, True),
  (4.0, False),
  (4.0, True),
  (16.0, False),
  (16.0, True),
  (64.0, False),
  (64.0, True),
)
# A shop whose bound is further than this share below the best period is asked
# to beat it by half of the difference: far targets are decided sooner.
_NEAR = 0.03
_NONE = 1 << 62  # ticks: no plan is known


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Solution:
  """What is known of a case.

  Attributes:
    status: whether the plan is proven to be the best.
    plan: the best plan found.
    period_ns: of the plan.
    bound_ns: no plan of class S has a shorter period.
    first_period_ns: of the best plan by list scheduling, before any proof.
    first_bound_ns: the least bound over all modes, before any proof.
    num_shops: whose bound was below the best period.
    num_decided: how often a shop was given to CP-SAT.
    certificate: from which the result can be checked.
    seconds: that the search took.
  """

  status: Literal["optimal", "bounded"]
  plan: FlatPlan
  period_ns: int
  bound_ns: int
  first_period_ns: int
  first_bound_ns: int
  num_shops: int
  num_decided: int
  certificate: Certificate
  seconds: float

  @property
  def gap(self) -> float:
    """Share of the period that is not proven to be needed."""
    return 1 - self.bound_ns / self.period_ns


def solve(
  workflow: Workflow,
  profile: Profile,
  cluster: Cluster,
  *,
  num_granules: int | None = None,
  time_limit_s: float = 60.0,
  max_decisions: int | None = None,
  workers: int = 1,
  seed: int = 0,
) -> Solution:
  """Returns the best plan of class S, with a proof or a bound.

  Where the time limit does not end the search the result depends on nothing
  but the arguments: efforts are counted, not timed.

  Args:
    workflow: what is planned.
    profile: its durations.
    cluster: divided into groups.
    num_granules: of every stage; None: the only number that it allows.
    time_limit_s: seconds.
    max_decisions: how often a shop may be given to CP-SAT; None: no limit.
    workers: threads.
    seed: of the search.

  Raises:
    OutsideClassError: the case is not in class S.
    InfeasiblePlanError: a stage fits into memory nowhere.
    ProfileError: the profile was not measured where it is needed.
  """
  begin = time.monotonic()
  problem = class_s.read(workflow, profile, cluster, num_granules=num_granules)
  search = Search(
    problem,
    deadline=begin + time_limit_s,
    max_decisions=max_decisions,
    workers=workers,
    seed=seed,
  )
  search.run()
  tick = problem.tick_ns
  return Solution(
    status="optimal" if search.bound == search.period else "bounded",
    plan=flat.of_schedule(problem, workflow, search.assignment, search.starts),
    period_ns=search.period * tick,
    bound_ns=search.bound * tick,
    first_period_ns=search.first_period * tick,
    first_bound_ns=search.first_bound * tick,
    num_shops=search.num_shops,
    num_decided=search.num_decided,
    certificate=search.certificate(),
    seconds=time.monotonic() - begin,
  )


class Search:
  """A search, with the best plan and the bound that it has reached.

  Only plans with a period below the cutoff are looked for, if there is one.

  Attributes:
    period: ticks of the best plan.
    assignment: its modes.
    starts: its schedule.
    bound: ticks.
    first_period: see `Solution`, in ticks.
    first_bound: see `Solution`, in ticks.
    num_shops: see `Solution`.
    num_decided: see `Solution`.
  """

  def __init__(
    self,
    problem: Problem,
    *,
    deadline: float,
    workers: int,
    seed: int,
    max_decisions: int | None = None,
    cutoff: int | None = None,
  ):
    self.problem, self.deadline = problem, deadline
    self.workers, self.seed = workers, seed
    self.max_decisions = max_decisions
    self.period = _NONE if cutoff is None else cutoff
    self.assignment: Assignment = ()
    self.starts: Starts = ()
    self.bound = self.first_bound = self.first_period = 0
    self.num_shops = self.num_decided = 0
    self._proven: list[tuple[Shop, int]] = []

  def run(self) -> None:
    """Searches until the case is closed, or until the deadline."""
    relaxed, _ = modes.relaxed_period(self.problem)
    self.bound = math.ceil(relaxed - 1e-6)
    self._begin()
    self.first_period = self.period
    while self.bound < self.period and not self._is_over():
      limit = self.period - 1
      candidates = self._below(limit)
      while candidates is None and not self._is_over():
        # Too many to hold: what is lower comes first.
        limit = (self.bound + limit) // 2
        has_room = limit > self.bound
        candidates = self._below(limit, _MAX_ROWS if has_room else None)
      if candidates is None:
        break
      least = int(candidates.bounds.min(initial=limit + 1))
      self.first_bound = self.first_bound or least
      self.num_shops = max(self.num_shops, len(candidates))
      self.bound = max(self.bound, self._decide_all(candidates, limit))
    self.first_bound = self.first_bound or self.bound

  def certificate(self) -> Certificate:
    """Returns what the result rests on."""
    return Certificate(
      period=self.period,
      bound=self.bound,
      assignment=self.assignment,
      starts=self.starts,
      refuted=tuple(
        dict.fromkeys(s for s, bound in self._proven if bound >= self.bound)
      ),
    )

  def _is_over(self) -> bool:
    if self.max_decisions is not None:
      if self.num_decided >= self.max_decisions:
        return True
    return time.monotonic() >= self.deadline

  def _below(
    self, limit: int, max_rows: int | None = _MAX_ROWS
  ) -> Candidates | None:
    return assignments.below(
      self.problem, limit, max_rows=max_rows, is_over_fn=self._is_over
    )

  def _begin(self) -> None:
    """Finds good modes by local search, and schedules them."""
    kept = modes.undominated(self.problem)
    rng = random.Random(self.seed)
    bounds: dict[Shop, int] = {}
    chosen: dict[Shop, Assignment] = {}

    def price(assignment: Assignment) -> int:
      shop = shops.of(self.problem, assignment)
      if shop not in bounds:
        bounds[shop], chosen[shop] = shops.bound(shop), assignment
      return bounds[shop]

    for restart in range(_RESTARTS):
      if restart and self._is_over():
        break
      here = tuple(rng.choice(own) for own in kept)
      while True:
        there = min(_neighbours(here, kept), key=price)
        if price(there) >= price(here):
          break
        here = there
    has_plan = self.period < _NONE
    for shop in sorted(bounds, key=bounds.__getitem__)[:_FIRST_SHOPS]:
      if has_plan and self._is_over():
        break
      if bounds[shop] < self.period:
        self._offer(chosen[shop], *dispatch.best(shop))
        has_plan = True

  def _offer(self, assignment: Assignment, period: int, starts: Starts) -> None:
    if period < self.period:
      self.period, self.assignment = period, assignment
      self.starts = starts

  def _decide_all(self, candidates: Candidates, limit: int) -> int:
    """Decides shops until none is open, or time is over; returns a bound."""
    book = _Book(candidates)
    with concurrent.futures.ThreadPoolExecutor(self.workers) as pool:
      while True:
        below = min(self.period - 1, limit)
        rows = book.next(below, self.workers)
        if not rows or self._is_over():
          return book.least(below + 1)
        share = max(1, self.workers // len(rows))
        jobs = [
          pool.submit(self._decide, book, row, below, share) for row in rows
        ]
        for row, job in zip(rows, jobs):
          self._learn(book, row, job.result())

  def _decide(self, book: _Book, row: int, below: int, workers: int) -> Verdict:
    shop, level = book.candidates.shop(row), int(book.levels[row])
    bound = max(int(book.bounds[row]), shops.bound(shop))
    if bound > below:
      return Verdict(status="refuted", bound=bound)
    if not level:
      period, starts = dispatch.best(shop)
      if period <= below:
        return Verdict(status="open", bound=bound, starts=starts)
    target = below
    if below - bound > _NEAR * below:
      target = (bound + below) // 2
    effort, is_from_below = _EFFORTS[min(level, len(_EFFORTS) - 1)]
    return sequencing.decide(
      shop,
      target,
      bound=bound,
      is_from_below=is_from_below,
      effort=effort,
      time_limit_s=max(0.1, self.deadline - time.monotonic()),
      workers=workers,
      seed=self.seed,
    )

  def _learn(self, book: _Book, row: int, verdict: Verdict) -> None:
    shop = book.candidates.shop(row)
    if verdict.is_searched:
      self.num_decided += 1
      self._proven.append((shop, verdict.bound))
      book.levels[row] += verdict.status == "open"
    if verdict.starts is not None:
      assignment = tuple(book.candidates.modes[row].tolist())
      self._offer(
        assignment, shops.period(shop, verdict.starts), verdict.starts
      )
    book.raise_bounds(shop, verdict.bound)


class _Book:
  """What is known of each candidate.

  Attributes:
    candidates: the shops.
    bounds: of their periods, as they rise.
    levels: how often CP-SAT gave up on each.
  """

  def __init__(self, candidates: Candidates):
    import numpy as np

    self.candidates = candidates
    self.bounds = candidates.bounds.copy()
    self.levels = np.zeros(len(candidates), np.int64)

  def next(self, below: int, count: int) -> list[int]:
    """Returns open rows that were tried least, the lowest bounds first."""
    import numpy as np

    rows = (self.bounds <= below).nonzero()[0]
    order = np.lexsort((rows, self.bounds[rows], self.levels[rows]))
    return [int(row) for row in rows[order[:count]]]

  def least(self, otherwise: int) -> int:
    """Returns the lowest bound of all."""
    return min(int(self.bounds.min(initial=otherwise)), otherwise)

  def raise_bounds(self, shop: Shop, bound: int) -> None:
    """Raises the bounds of a shop and of those that are no easier."""
    is_known = self.candidates.no_easier_than(shop) & (self.bounds < bound)
    self.bounds[is_known] = bound


def _neighbours(
  assignment: Assignment, kept: list[list[int]]
) -> list[Assignment]:
  """Returns the assignments that differ in one stage at most."""
  return [
    (*assignment[:v], mode, *assignment[v + 1 :])
    for v, own in enumerate(kept)
    for mode in own
  ]
