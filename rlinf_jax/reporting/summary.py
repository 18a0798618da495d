"""The line with which a run ends."""

from __future__ import annotations

import math

from rlinf_jax.reporting import progress, statistics


def describe_run(
  *,
  returns: statistics.Summary,
  success: statistics.Interval | None,
  num_steps: int,
  wall_time_s: float,
  steps_per_s: float | None = None,
) -> str:
  """Returns one line: return, success, steps, wall time, steps per second.

  Args:
    returns: of the evaluation's episodes.
    success: the share of episodes that succeeded, None where a task has none.
    num_steps: steps of this run, without those before a resume.
    wall_time_s: from start to end, compilation and evaluation included.
    steps_per_s: of training alone; None divides steps by wall time.
  """
  mean = progress.format_number(returns.mean)
  if math.isfinite(returns.low):
    low = progress.format_number(returns.low)
    high = progress.format_number(returns.high)
    mean += f" [{low}, {high}]"
  episodes = "episode" if returns.num == 1 else "episodes"
  parts = [f"return {mean} over {returns.num} {episodes}"]
  if success is not None and math.isfinite(success.estimate):
    parts.append(
      f"success {success.estimate:.1%} [{success.low:.1%}, {success.high:.1%}]"
    )
  if steps_per_s is None:
    steps_per_s = num_steps / wall_time_s if wall_time_s > 0 else math.nan
  parts += [
    f"{num_steps:,} steps in {progress.format_duration(wall_time_s)}",
    f"{progress.format_number(steps_per_s)} steps/s",
  ]
  return "; ".join(parts)
