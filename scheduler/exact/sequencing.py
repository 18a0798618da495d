"""Shops by CP-SAT: a schedule that is short enough, or a proof of none.

Granules of a stage are alike and first in, first out, so that "granule j of v
is before granule i of u" implies the same of every smaller j and larger i: the
order of two stages is a staircase, and its steps are the only decisions. On a
group that is swapped every further visit of a stage costs its swaps, which are
added up in one redundant constraint.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal

from scheduler.exact import shops
from scheduler.exact.shops import EXCLUSIVE, SWAPPED, Shop, Starts

# CP-SAT's types are known only where it is imported, as it is used.
Step = Any  # a literal


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
  """What is known of a shop.

  Attributes:
    status: "optimal" with the shortest schedule, "refuted" where none is short
      enough, else "open".
    bound: no schedule has a shorter period.
    starts: the best schedule that was found, if any.
    is_searched: whether CP-SAT was needed.
  """

  status: Literal["optimal", "refuted", "open"]
  bound: int
  starts: Starts | None = None
  is_searched: bool = False


def decide(
  shop: Shop,
  target: int,
  *,
  bound: int | None = None,
  is_from_below: bool = False,
  effort: float = 10.0,
  time_limit_s: float = 60.0,
  workers: int = 1,
  seed: int = 0,
) -> Verdict:
  """Returns the shortest schedule whose period is at most `target`.

  Args:
    shop: what to schedule.
    target: longer periods are of no interest.
    bound: a lower bound that is known already.
    is_from_below: whether to raise the bound until there is a schedule, rather
      than to shorten schedules until there is none.
    effort: deterministic time, about seconds of one worker.
    time_limit_s: seconds; where it ends the search, results do not reproduce.
    workers: threads.
    seed: of the search.
  """
  bound = max(bound or 0, shops.bound(shop))
  if bound > target:
    return Verdict(status="refuted", bound=bound)
  return _Model(shop, target, bound).solve(
    is_from_below=is_from_below,
    effort=effort,
    time_limit_s=time_limit_s,
    workers=workers,
    seed=seed,
  )


class _Model:
  """The constraints of one shop."""

  def __init__(self, shop: Shop, target: int, bound: int):
    from ortools.sat.python import cp_model

    self.shop, self.target = shop, target
    self.model = cp_model.CpModel()
    self.before, self.after = _windows(shop)
    # (u, v, i, j): granule j of v is before granule i of u.
    self.is_before: dict[tuple[int, int], dict[tuple[int, int], Step]] = {}
    n, d = range(shop.num_granules), shop.durations
    self.start = [
      [
        self.model.new_int_var(
          self.before[v][i],
          target - self.after[v][i] - d[v],
          "",
        )
        for i in n
      ]
      for v in range(shop.size)
    ]
    self.period = self.model.new_int_var(bound, target, "")
    self._precede()
    self._exclude()
    self._swap()
    self.model.minimize(self.period)

  def _precede(self) -> None:
    shop, d = self.shop, self.shop.durations
    for v, own in enumerate(shop.preds):
      for i, start in enumerate(self.start[v]):
        if i:
          self.model.add(start >= self.start[v][i - 1] + d[v])
        for u in own:
          self.model.add(start >= self.start[u][i] + d[u])
      if not own:
        self.model.add(self.start[v][0] == 0)
      if not shops.readers(shop.preds)[v]:
        self.model.add(self.period >= self.start[v][-1] + d[v])
    for u in range(shop.size):
      for v in range(shop.size):
        if u != v and shop.gap(u, v):
          end = self.start[u][-1] + d[u] + shop.gap(u, v)
          self.model.add(self.period >= end - self.start[v][0])

  def _exclude(self) -> None:
    shop, d = self.shop, self.shop.durations
    intervals = [
      [self.model.new_fixed_size_interval_var(s, d[v], "") for s in own]
      for v, own in enumerate(self.start)
    ]
    for clique in shops.maximal_cliques(shop, EXCLUSIVE):
      self.model.add_no_overlap([x for v in clique for x in intervals[v]])
    for v in range(shop.size):
      for u in range(v):
        if shop.conflicts[u][v] != shops.APART:
          self._order(u, v)

  def _order(self, u: int, v: int) -> None:
    """Adds the staircase of two stages, of which u may precede v."""
    shop, model, d = self.shop, self.model, self.shop.durations
    there, back = d[u] + shop.gap(u, v), d[v] + shop.gap(v, u)
    is_ancestor = u in shops.ancestors(shop.preds)[v]
    steps: dict[tuple[int, int], Step] = {}
    for i, s in enumerate(self.start[u]):
      for j, t in enumerate(self.start[v]):
        if is_ancestor and j >= i:
          if j == i and shop.gap(u, v):
            model.add(t >= s + there)
          continue
        step = model.new_bool_var("")
        if self._is_late(u, i, v, j, there):
          model.add(step == 1)
        if self._is_late(v, j, u, i, back):
          model.add(step == 0)
        model.add(s >= t + back).only_enforce_if(step)
        model.add(t >= s + there).only_enforce_if(~step)
        steps[i, j] = step
    for (i, j), step in steps.items():
      for following in ((i + 1, j), (i, j - 1)):
        if following in steps:
          model.add_implication(step, steps[following])
    self.is_before[u, v] = steps

  def _is_late(self, u: int, i: int, v: int, j: int, wait: int) -> bool:
    """Returns whether granule i of u cannot be before granule j of v."""
    end = self.target - self.after[v][j] - self.shop.durations[v]
    return self.before[u][i] + wait > end

  def _swap(self) -> None:
    """Adds up the swaps of every visit."""
    shop = self.shop
    before, after = shops.heads(shop), shops.tails(shop)
    for clique in shops.maximal_cliques(shop, SWAPPED):
      terms = []
      for u in clique:
        for i in range(shop.num_granules - 1):
          is_left = self.model.new_bool_var("")
          for v in clique:
            if v != u:
              self._leave(u, v, i, is_left)
          terms.append(2 * shop.swaps[u] * is_left)
      work = shop.num_granules * sum(shop.durations[v] for v in clique)
      work += 2 * sum(shop.swaps[v] for v in clique)
      work += min(before[v] - shop.swaps[v] for v in clique)
      work += min(after[v] - shop.swaps[v] for v in clique)
      self.model.add(self.period >= work + sum(terms))

  def _leave(self, u: int, v: int, i: int, is_left: Step) -> None:
    """Makes `is_left` true if v runs between granules i and i + 1 of u."""
    for j in range(self.shop.num_granules):
      earlier, later = self._step(u, v, i, j), self._step(u, v, i + 1, j)
      # v's granule j is before u's i + 1, and not before u's i.
      clause: list[Step] = [is_left]
      if earlier is True or later is False:
        continue
      if not isinstance(earlier, bool):
        clause.append(earlier)
      if not isinstance(later, bool):
        clause.append(~later)
      self.model.add_bool_or(clause)

  def _step(self, u: int, v: int, i: int, j: int) -> Step | bool:
    """Returns whether granule j of v is before granule i of u."""
    if u < v:
      return self.is_before[u, v].get((i, j), False)
    step = self.is_before[v, u].get((j, i), False)
    return True if isinstance(step, bool) else ~step

  def solve(
    self,
    *,
    is_from_below: bool,
    effort: float,
    time_limit_s: float,
    workers: int,
    seed: int,
  ) -> Verdict:
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    p = solver.parameters
    p.num_workers = workers
    p.random_seed = seed
    p.max_deterministic_time = effort
    p.max_time_in_seconds = time_limit_s
    # Probing thousands of steps and looking for symmetries costs seconds and
    # gains nothing; a linear relaxation of orders is useless.
    p.cp_model_probing_level = 0
    p.symmetry_level = 0
    p.linearization_level = 0
    p.optimize_with_core = is_from_below
    status = solver.solve(self.model)
    if status == cp_model.INFEASIBLE:
      return Verdict(status="refuted", bound=self.target + 1, is_searched=True)
    proven = math.ceil(solver.best_objective_bound - 1e-6)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
      return Verdict(status="open", bound=proven, is_searched=True)
    starts = tuple(tuple(solver.value(x) for x in own) for own in self.start)
    return Verdict(
      status="optimal" if status == cp_model.OPTIMAL else "open",
      bound=proven,
      starts=starts,
      is_searched=True,
    )


def _windows(shop: Shop) -> tuple[list[list[int]], list[list[int]]]:
  """Returns the least time before and after each granule, by stage."""
  n, d = shop.num_granules, shop.durations
  before = [[0] * n for _ in d]
  after = [[0] * n for _ in d]
  for v in range(shop.size):
    for i in range(n):
      waits = [before[u][i] + d[u] for u in shop.preds[v]]
      waits += [before[v][i - 1] + d[v]] if i else []
      before[v][i] = max(waits, default=0)
  readers = shops.readers(shop.preds)
  for v in reversed(range(shop.size)):
    for i in reversed(range(n)):
      waits = [after[w][i] + d[w] for w in readers[v]]
      waits += [after[v][i + 1] + d[v]] if i + 1 < n else []
      after[v][i] = max(waits, default=0)
  return before, after
