"""Scores: plans beside bounds, optima and other planners' plans."""

from __future__ import annotations

import collections
import dataclasses
import math
import statistics
from collections.abc import Callable, Iterable, Sequence

from scheduler.comparison.outcomes import Outcome, Status

# How far above the optimum the better of collocated and disaggregated has to
# be for an instance to be no trivial one.
_NON_TRIVIAL = 1.10
_EASY = ("collocated", "disaggregated")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Score:
  """A planner's plan of one problem, beside what is known of the problem.

  Attributes:
    problem: its name.
    workload: what it is one size of.
    num_devices: of its cluster.
    planner: its name.
    status: see `Outcome`; what follows is None unless it is "ok".
    message: why it is not.
    period_s: of the plan.
    to_optimum: period over the proven optimum of class S; None: not known.
    is_trivial: whether the optimum is known before any proof, or one of the
      simple planners comes near it; None: no optimum is known.
    to_bound: period over the bound of all plans.
    binds: which bound that is.
    to_single_mode: period over the bound of plans with one mode per stage.
    over_collocated: period of the collocated plan over this one's.
    over_disaggregated: the same of the disaggregated plan.
    planning_s: that planning took.
    planning_cpu_s: of them, on a processor.
    peak_memory: the largest share of a device's memory that is taken.
  """

  problem: str
  workload: str
  num_devices: int
  planner: str
  status: Status
  message: str = ""
  period_s: float | None = None
  to_optimum: float | None = None
  is_trivial: bool | None = None
  to_bound: float | None = None
  binds: str = ""
  to_single_mode: float | None = None
  over_collocated: float | None = None
  over_disaggregated: float | None = None
  planning_s: float | None = None
  planning_cpu_s: float | None = None
  peak_memory: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
  """A planner over many problems. Means are geometric; None: of nothing.

  Attributes:
    planner: its name.
    num_ok: problems for which its plan can run.
    num_tried: problems.
    to_optimum: mean over closed instances.
    worst_to_optimum: the largest of them.
    num_closed: how many they are.
    to_optimum_non_trivial: mean over those that are not trivial.
    worst_non_trivial: the largest of them.
    num_non_trivial: how many they are.
    to_bound: mean over all with a bound.
    to_single_mode: the same, of the other bound.
    over_collocated: mean.
    over_disaggregated: mean.
    planning_s: median.
    longest_planning_s: the longest.
    growth: exponent with which planning time grows with the devices of a
      workload, by least squares on logarithms.
  """

  planner: str
  num_ok: int
  num_tried: int
  to_optimum: float | None
  worst_to_optimum: float | None
  num_closed: int
  to_optimum_non_trivial: float | None
  worst_non_trivial: float | None
  num_non_trivial: int
  to_bound: float | None
  to_single_mode: float | None
  over_collocated: float | None
  over_disaggregated: float | None
  planning_s: float | None
  longest_planning_s: float | None
  growth: float | None


def to_scores(outcomes: Iterable[Outcome]) -> tuple[Score, ...]:
  """Returns a score for each planner's outcome, in their order."""
  every = list(outcomes)
  bounds = {o.problem: o for o in every if o.work == "bound"}
  optima = {o.problem: o for o in every if o.work == "optimum"}
  plans = [o for o in every if o.work == "plan"]
  period_s = {
    (o.problem, o.planner): o.values["period_s"]
    for o in plans
    if o.status == "ok"
  }
  found = []
  for o in plans:
    simple = [period_s.get((o.problem, name)) for name in _EASY]
    score = Score(
      problem=o.problem,
      workload=o.workload,
      num_devices=o.num_devices,
      planner=o.planner,
      status=o.status,
      message=o.message,
    )
    if o.status == "ok":
      score = _scored(
        score, o, bounds.get(o.problem), optima.get(o.problem), simple
      )
    found.append(score)
  return tuple(found)


def to_standings(
  found: Sequence[Score], *, by: Callable[[Standing], float] | None = None
) -> tuple[Standing, ...]:
  """Returns how each planner stands, the best first.

  Args:
    found: scores.
    by: what is best when least; None: the mean ratio to the bound, or to the
      optimum where there is one.
  """
  by_planner: dict[str, list[Score]] = collections.defaultdict(list)
  for score in found:
    by_planner[score.planner].append(score)
  every = [_standing(name, own) for name, own in by_planner.items()]
  return tuple(sorted(every, key=by or _goodness))


def advantages(
  found: Sequence[Score], planner: str
) -> dict[str, tuple[float, float, int]]:
  """Returns how much longer the plans of others take than a planner's.

  Args:
    found: scores.
    planner: whose plans they are measured against.

  Returns:
    For each other planner the geometric mean of the ratios, the least of them,
    and how many problems both have a plan for.
  """
  own = _periods(found, planner)
  others = dict.fromkeys(s.planner for s in found if s.planner != planner)
  ratios = {
    name: [
      theirs / own[problem]
      for problem, theirs in _periods(found, name).items()
      if problem in own
    ]
    for name in others
  }
  return {
    name: (statistics.geometric_mean(each), min(each), len(each))
    for name, each in ratios.items()
    if each
  }


def _scored(
  score: Score,
  outcome: Outcome,
  bound: Outcome | None,
  optimum: Outcome | None,
  simple: Sequence[float | None],
) -> Score:
  period_s = outcome.values["period_s"]
  collocated_s, disaggregated_s = simple
  score = dataclasses.replace(
    score,
    period_s=period_s,
    over_collocated=_ratio(collocated_s, period_s),
    over_disaggregated=_ratio(disaggregated_s, period_s),
    planning_s=outcome.values["planning_s"],
    planning_cpu_s=outcome.values["planning_cpu_s"],
    peak_memory=outcome.values["peak_memory"],
  )
  if bound is not None and bound.status == "ok":
    score = dataclasses.replace(
      score,
      to_bound=_ratio(period_s, bound.values["bound_s"]),
      binds=bound.words["binds"],
      to_single_mode=_ratio(period_s, bound.values["single_mode_s"]),
    )
  if optimum is not None and is_closed(optimum):
    optimum_s = optimum.values["optimum_s"]
    known = [s for s in simple if s is not None]
    is_trivial = (
      optimum.values["first_s"] <= optimum.values["first_bound_s"]
      or min(known, default=math.inf) < _NON_TRIVIAL * optimum_s
    )
    score = dataclasses.replace(
      score, to_optimum=_ratio(period_s, optimum_s), is_trivial=is_trivial
    )
  return score


def is_closed(optimum: Outcome) -> bool:
  """Returns whether an optimum is proven."""
  values = optimum.values
  return optimum.status == "ok" and values["optimum_s"] <= values["bound_s"]


def _standing(name: str, own: Sequence[Score]) -> Standing:
  fine = [s for s in own if s.status == "ok"]
  closed = [s.to_optimum for s in fine if s.to_optimum is not None]
  hard = [
    s.to_optimum for s in fine if s.to_optimum is not None and not s.is_trivial
  ]
  planning_s = [s.planning_s for s in fine if s.planning_s is not None]
  return Standing(
    planner=name,
    num_ok=len(fine),
    num_tried=len(own),
    to_optimum=_mean(closed),
    worst_to_optimum=max(closed, default=None),
    num_closed=len(closed),
    to_optimum_non_trivial=_mean(hard),
    worst_non_trivial=max(hard, default=None),
    num_non_trivial=len(hard),
    to_bound=_mean([s.to_bound for s in fine]),
    to_single_mode=_mean([s.to_single_mode for s in fine]),
    over_collocated=_mean([s.over_collocated for s in fine]),
    over_disaggregated=_mean([s.over_disaggregated for s in fine]),
    planning_s=statistics.median(planning_s) if planning_s else None,
    longest_planning_s=max(planning_s, default=None),
    growth=_growth(fine),
  )


def _goodness(standing: Standing) -> float:
  for value in (standing.to_optimum, standing.to_bound):
    if value is not None:
      return value
  return math.inf


def _growth(fine: Sequence[Score]) -> float | None:
  """Returns the common slope of log time over log devices, within workloads."""
  points: dict[str, list[tuple[float, float]]] = collections.defaultdict(list)
  for s in fine:
    if s.planning_cpu_s:
      points[s.workload].append(
        (math.log(s.num_devices), math.log(s.planning_cpu_s))
      )
  over, under = 0.0, 0.0
  for own in points.values():
    x0, y0 = (statistics.fmean(axis) for axis in zip(*own))
    over += sum((x - x0) * (y - y0) for x, y in own)
    under += sum((x - x0) ** 2 for x, _ in own)
  return over / under if under else None


def _periods(found: Sequence[Score], planner: str) -> dict[str, float]:
  return {
    s.problem: s.period_s
    for s in found
    if s.planner == planner and s.period_s is not None
  }


def _ratio(over: float | None, under: float) -> float | None:
  return over / under if over is not None and under else None


def _mean(values: Sequence[float | None]) -> float | None:
  known = [value for value in values if value]
  return statistics.geometric_mean(known) if known else None
