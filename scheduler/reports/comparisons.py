"""Predicted timelines beside measured ones, activity by activity."""

from __future__ import annotations

import collections
import dataclasses
import statistics

from scheduler.reports import formatting, rows
from scheduler.timelines import Timeline

# What an activity is known by: its kind, stage, target, items and resources,
# and which of an iteration's activities with these it is.
_Key = tuple[str, str, str, tuple[int, int], tuple[str, ...], int]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Activity:
  """One activity in both timelines.

  Attributes:
    kind: see `plans.Activity`.
    stage: its stage.
    target: of transfers and weight syncs, the stage that receives.
    items: half-open interval of the stage's items.
    resources: that it occupies.
    turn: which of an iteration's activities that are alike in all of these.
    predicted_ns: its median duration in the first timeline; None: not there.
    measured_ns: in the second.
  """

  kind: str
  stage: str
  target: str
  items: tuple[int, int]
  resources: tuple[str, ...]
  turn: int
  predicted_ns: float | None
  measured_ns: float | None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
  """Two timelines of one plan.

  Attributes:
    predicted_ns: from one iteration's end to the next one's, on average.
    measured_ns: the same of the second timeline.
    activities: in the order of the first timeline, then those that only the
      second has.
  """

  predicted_ns: float
  measured_ns: float
  activities: tuple[Activity, ...]

  @property
  def error(self) -> float:
    """How much longer the measured iteration took, as a share."""
    return self.measured_ns / self.predicted_ns - 1 if self.predicted_ns else 0


def compare_timelines(
  predicted: Timeline, measured: Timeline, *, skip: int = 1
) -> Comparison:
  """Returns how long each activity took beside what was predicted.

  Args:
    predicted: usually simulated.
    measured: of the same plan.
    skip: first iterations that do not count, of a timeline that has more.
  """
  before, after = _medians(predicted, skip), _medians(measured, skip)
  return Comparison(
    predicted_ns=_iteration_ns(predicted, skip),
    measured_ns=_iteration_ns(measured, skip),
    activities=tuple(
      Activity(
        kind=key[0],
        stage=key[1],
        target=key[2],
        items=key[3],
        resources=key[4],
        turn=key[5],
        predicted_ns=before.get(key),
        measured_ns=after.get(key),
      )
      for key in dict.fromkeys([*before, *after])
    ),
  )


def format_comparison(comparison: Comparison, *, limit: int = 20) -> str:
  """Returns a comparison as text: stages, then what differs most.

  Args:
    comparison: see `compare_timelines`.
    limit: activities that are listed.
  """
  lines = [
    f"an iteration took {formatting.seconds(comparison.measured_ns)};"
    f" {formatting.seconds(comparison.predicted_ns)} were predicted"
    f" ({comparison.error:+.1%})"
  ]
  sums: dict[str, list[float]] = {}
  for a in comparison.activities:
    if a.predicted_ns is not None and a.measured_ns is not None:
      both = sums.setdefault(rows.describe(a.kind, a.stage, a.target), [0, 0])
      both[0] += a.predicted_ns
      both[1] += a.measured_ns
  for what, (expected_ns, took_ns) in sums.items():
    lines.append(f"  {what}: {_both(expected_ns, took_ns)}")
  differences = format_differences(comparison, limit=limit)
  return "\n".join([*lines, differences] if differences else lines)


def format_differences(comparison: Comparison, *, limit: int = 20) -> str:
  """Returns which activities took other times than predicted, as text.

  Those that differ most come first, then those that only one timeline has; ""
  where there are none.

  Args:
    comparison: see `compare_timelines`.
    limit: activities that are listed.
  """
  lines = []
  both_known = [a for a in comparison.activities if _difference(a)]
  both_known.sort(key=_difference, reverse=True)
  if both_known:
    lines.append("activities that differ most:")
  for a in both_known[:limit]:
    assert a.predicted_ns is not None and a.measured_ns is not None
    lines.append(f"  {_name(a)}: {_both(a.predicted_ns, a.measured_ns)}")
  activities = comparison.activities
  alone = {
    "predicted": [a for a in activities if a.measured_ns is None],
    "measured": [a for a in activities if a.predicted_ns is None],
  }
  for where, some in alone.items():
    if some:
      names = ", ".join(_name(a) for a in some[:limit])
      more = f" and {len(some) - limit} more" if len(some) > limit else ""
      lines.append(f"only {where}: {names}{more}")
  return "\n".join(lines)


def _medians(timeline: Timeline, skip: int) -> dict[_Key, float]:
  first = skip if timeline.num_iterations > skip else 0
  found: dict[_Key, list[int]] = {}
  seen: collections.Counter = collections.Counter()
  for e in timeline.events:
    resources = tuple(sorted(e.resources))
    alike = (e.kind, e.stage, e.target, e.items, resources)
    turn = seen[e.iteration, alike]
    seen[e.iteration, alike] += 1
    if e.iteration >= first:
      found.setdefault((*alike, turn), []).append(e.stop_ns - e.start_ns)
  return {key: statistics.median(each) for key, each in found.items()}


def _iteration_ns(timeline: Timeline, skip: int) -> float:
  n = timeline.num_iterations
  if n < 2:
    return float(timeline.stop_ns)
  first = min(max(skip - 1, 0), n - 2)
  spent_ns = timeline.iteration_stop_ns(n - 1) - timeline.iteration_stop_ns(
    first
  )
  return spent_ns / (n - 1 - first)


def _difference(a: Activity) -> float:
  if a.predicted_ns is None or a.measured_ns is None:
    return 0.0
  return abs(a.measured_ns - a.predicted_ns)


def _both(expected_ns: float, took_ns: float) -> str:
  # Of next to nothing no share says anything.
  is_much = expected_ns > 1e-3 * took_ns
  change = f", {took_ns / expected_ns - 1:+.0%}" if is_much else ""
  return (
    f"{formatting.seconds(took_ns)}, {formatting.seconds(expected_ns)}"
    f" predicted{change}"
  )


def _name(a: Activity) -> str:
  items = f" [{a.items[0]:,}, {a.items[1]:,})" if any(a.items) else ""
  turn = f" ({a.turn})" if a.turn else ""
  where = f" on {', '.join(a.resources)}" if a.resources else ""
  return f"{rows.describe(a.kind, a.stage, a.target)}{items}{turn}{where}"
