"""Local search over layouts, seats, orders and trees."""

from __future__ import annotations

import dataclasses
import heapq
import random
from collections.abc import Iterable, Iterator

from scheduler import errors, estimates, plans, prices
from scheduler.clusters import Cluster
from scheduler.planners import (
  collocated,
  disaggregated,
  layouts,
  pareto_dp,
  repair,
  seating,
  selection,
  tree_moves,
)
from scheduler.planners.boards import Board
from scheduler.planners.layouts import Layout
from scheduler.planners.protocol import Budget, Planner
from scheduler.planners.seating import Effort, Seating
from scheduler.planners.trials import Trials
from scheduler.plans import FlatPlan, Plan, TreePlan
from scheduler.prices import Prices
from scheduler.profiles import Profile
from scheduler.workflows import Workflow

_SEEDS: tuple[Planner, ...] = (
  collocated.collocated,
  pareto_dp.pareto_dp,
  disaggregated.disaggregated,
)
# A first look at a layout, on which the search decides where to go.
_GLANCE = Effort(
  width=16, choices=16, starts=0, near=0, beams=0, wide=0, anneals=1, steps=40
)
# Of a layout, how many of the best seatings are evaluated.
_OFFERED = 3
# Windows that CP-SAT may solve; neighbours of a tree that are evaluated.
_WINDOWS, _TRIED = 24, 6


def local_search(
  workflow: Workflow,
  profile: Profile,
  cluster: Cluster,
  budget: Budget,
  seed: int,
) -> Plan:
  """Returns the best plan near those of three other planners.

  It begins with `collocated`, `pareto_dp` and `disaggregated`. Without loops it
  then searches over layouts, seats on them and orders of granules (`layouts`,
  `seating`, `list_scheduling`), which gives flat plans, and repairs the best
  order by CP-SAT where OR-tools is installed; and over trees (`tree_moves`).

  Args:
    workflow: what is planned.
    profile: its durations.
    cluster: on what.
    budget: of plans that are evaluated, and twice as many layouts.
    seed: of all choices.

  Raises:
    InfeasiblePlanError: a stage fits nowhere, or no plan was found that fits.
    ProfileError: a stage is profiled on no class of the cluster.
  """
  trials = Trials(workflow, profile, cluster, budget.iterations)
  small = Budget(iterations=max(1, budget.iterations // 4))
  offer_all(trials, _SEEDS, small, seed)
  improve(trials, num_layouts=2 * budget.iterations, seed=seed, is_quick=False)
  return dataclasses.replace(trials.result(), label="local_search")


def offer_all(
  trials: Trials, planners: Iterable[Planner], budget: Budget, seed: int
) -> None:
  """Offers the plans of some planners.

  Raises:
    InfeasiblePlanError: none of them finds one; why the first does not.
  """
  first_error: errors.InfeasiblePlanError | None = None
  given = (trials.workflow, trials.profile, trials.cluster)
  for planner in planners:
    try:
      trials.offer(planner(*given, budget, seed))
    except errors.InfeasiblePlanError as error:
      first_error = first_error or error
  if trials.best is None and first_error is not None:
    raise first_error


def improve(
  trials: Trials, *, num_layouts: int, seed: int, is_quick: bool
) -> None:
  """Offers plans near the best ones so far.

  Args:
    trials: with some plans.
    num_layouts: how many layouts to look at.
    seed: of all choices.
    is_quick: whether to search the best layout only, without CP-SAT, and trees
      only where none of its flat plans is better.
  """
  costs = prices.of(trials.workflow, trials.profile, trials.cluster)
  trees = [plan for plan in trials.ranked() if isinstance(plan, TreePlan)]
  if layouts.applies_to(costs):
    search = _LayoutSearch(trials, costs, seed)
    search.run(trees, num_layouts, is_quick=is_quick)
  is_beaten = isinstance(trials.best, FlatPlan)
  if trees and trials.left > 0 and not (is_quick and is_beaten):
    _improve_tree(trials, costs, trees[0])


class _LayoutSearch:
  """Looks at layouts, each once, and goes on from the best."""

  def __init__(self, trials: Trials, costs: Prices, seed: int):
    self._trials, self._costs, self._seed = trials, costs, seed
    self._seen: set[Layout] = set()
    self._found: list[tuple[int, int, Layout]] = []

  def run(
    self, trees: list[TreePlan], num_layouts: int, *, is_quick: bool
  ) -> None:
    first = layouts.starts(
      self._costs, [tuple(plans.runs(tree.root)) for tree in trees]
    )
    rng = random.Random(self._seed)
    if len(first) > 1:
      self._look(first, max(1, 3 * num_layouts // 4))
      while self._found and len(self._seen) < num_layouts:
        _, _, start = min(self._found)
        near = list(layouts.neighbours(start, self._costs))
        rng.shuffle(near)
        before = min(self._found)
        self._look(near, num_layouts, until_better=True)
        if min(self._found) == before:
          break
    else:
      self._found = [(0, 0, layout) for layout in first]
    for _, _, layout in heapq.nsmallest(1 if is_quick else 2, self._found):
      board = layout.board(self._costs)
      best = seating.search(board, Effort(), self._seed)
      if best and not is_quick:
        best = [*_repaired(board, best[0], self._seed), *best]
      for entry in best[:_OFFERED]:
        self._trials.offer(seating.flat(board, entry))

  def _look(
    self, found: Iterable[Layout], limit: int, *, until_better: bool = False
  ) -> None:
    """Looks at layouts that were not seen, as far as the limit reaches."""
    best = min(self._found)[0] if self._found else None
    for layout in found:
      if len(self._seen) >= limit:
        return
      if layout in self._seen:
        continue
      self._seen.add(layout)
      time_ns = self._glance(layout)
      if time_ns is None:
        continue
      self._found.append((time_ns, len(self._found), layout))
      if until_better and (best is None or time_ns < best):
        return

  def _glance(self, layout: Layout) -> int | None:
    try:
      found = seating.search(layout.board(self._costs), _GLANCE, self._seed)
    except errors.SchedulerError:
      return None
    return found[0].time_ns if found else None


def _repaired(board: Board, found: Seating, seed: int) -> Iterator[Seating]:
  """Yields a seating with a better order, if CP-SAT finds one."""
  shop = board.shop(found.chosen)
  if shop is None or board.alive > 1 or not repair.is_available():
    return
  time_ns, order = repair.repair(shop, found.order, windows=_WINDOWS, seed=seed)
  if time_ns < found.time_ns:
    yield dataclasses.replace(found, time_ns=time_ns, order=order)


def _improve_tree(trials: Trials, costs: Prices, best: TreePlan) -> None:
  """Goes from tree to better tree, as far as the budget reaches.

  All neighbours are estimated; those that look best are evaluated.
  """
  given = (trials.workflow, trials.profile, trials.cluster)
  best_ns = trials.offer(best)
  is_better = best_ns is not None
  while is_better and trials.left > 0:
    is_better = False
    ranked = []
    for i, tree in enumerate(tree_moves.neighbours(best, costs)):
      try:
        settled = next(selection.variants(tree, *given))
        seconds = estimates.estimate_s(settled, *given)
      except (errors.SchedulerError, StopIteration):
        continue
      ranked.append((seconds, i, tree))
    for _, _, tree in heapq.nsmallest(_TRIED, ranked, key=lambda e: e[:2]):
      if trials.left <= 0:
        return
      period_ns = trials.offer(tree)
      if period_ns is not None and best_ns is not None and period_ns < best_ns:
        best, best_ns, is_better = tree, period_ns, True
        break
