"""Regret: how much longer than the best plan in a world that nobody knew."""

from __future__ import annotations

import collections
import dataclasses
import statistics
from collections.abc import Iterable

from scheduler.comparison.outcomes import Outcome


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Regret:
  """A planner's plans in worlds whose profile is wrong by one noise.

  Attributes:
    planner: its name.
    noise: share by which each stage's time may be wrong.
    mean: of the regrets: 0.1 where plans take 10 % longer than the best of all
      planners' plans in the same world.
    worst: the largest mean of one problem.
    num_problems: that it has a plan for.
    change: mean of how much longer its plans take than they were planned to.
  """

  planner: str
  noise: float
  mean: float
  worst: float
  num_problems: int
  change: float


def to_regrets(outcomes: Iterable[Outcome]) -> tuple[Regret, ...]:
  """Returns regrets by planner and noise, the least noise first."""
  every = list(outcomes)
  worlds = [o for o in every if o.work == "realism" and o.status == "ok"]
  planned_s = {
    (o.problem, o.planner): o.values["period_s"]
    for o in every
    if o.work == "plan" and o.status == "ok"
  }
  best_s: dict[tuple[str, str], float] = {}
  for o in worlds:
    for world, seconds in o.values.items():
      known = best_s.get((o.problem, world), seconds)
      best_s[o.problem, world] = min(known, seconds)
  # (planner, noise) -> problem -> regrets in its worlds
  found: dict[tuple[float, str], dict[str, list[float]]]
  found = collections.defaultdict(lambda: collections.defaultdict(list))
  changes: dict[tuple[float, str], list[float]] = collections.defaultdict(list)
  for o in worlds:
    for world, seconds in o.values.items():
      key = float(world.split()[0]), o.planner
      best = best_s[o.problem, world]
      found[key][o.problem].append(seconds / best - 1 if best else 0.0)
      if expected := planned_s.get((o.problem, o.planner)):
        changes[key].append(seconds / expected - 1)
  return tuple(
    Regret(
      planner=planner,
      noise=noise,
      mean=statistics.fmean(map(statistics.fmean, own.values())),
      worst=max(map(statistics.fmean, own.values())),
      num_problems=len(own),
      change=statistics.fmean(changes[noise, planner] or [0.0]),
    )
    for (noise, planner), own in sorted(found.items())
  )
