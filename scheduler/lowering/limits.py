"""How large an iteration may be."""

from __future__ import annotations

from scheduler import errors

MAX_ACTIVITIES = 200_000


def too_many(count: int) -> errors.InfeasiblePlanError:
  """Returns the error for an iteration of so many activities."""
  return errors.InfeasiblePlanError(
    f"an iteration of {count:,} activities; at most {MAX_ACTIVITIES:,} are"
    " lowered: use larger granules, or fewer lanes"
  )
