"""When a run stops before its end."""

from __future__ import annotations

import time

from rlinf_jax.reporting import interrupts, progress


def must_stop(
  interrupt: interrupts.Interrupt,
  display: progress.Progress,
  *,
  start_s: float,
  max_minutes: float | None,
) -> bool:
  """Returns whether a run was interrupted, or is out of time, and says so.

  Args:
    interrupt: Ctrl-C.
    display: where it is said.
    start_s: `time.monotonic()` when the run began.
    max_minutes: of wall time; None is for ever.
  """
  if interrupt.is_requested:
    return True
  elapsed_s = time.monotonic() - start_s
  if max_minutes is None or elapsed_s < 60 * max_minutes:
    return False
  display.print(f"stopping after --max_minutes={max_minutes:g}")
  return True
