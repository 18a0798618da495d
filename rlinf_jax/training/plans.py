"""What a run shows and leaves of the plan that it goes under."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

from rlinf_jax import runtime
from rlinf_jax.reporting import progress


def put(
  iteration: Callable[..., Any],
  transform: Callable[..., runtime.M2Flow],
  display: progress.Progress,
) -> runtime.M2Flow:
  """Returns an iteration under a plan, which it has once it is prepared.

  Args:
    iteration: (state, *inputs) -> (state, metrics).
    transform: see `runtime.m2flow`.
    display: shows which stage is being measured.
  """

  def show(stage: str, num: int, total: int) -> None:
    display.name_phase(f"measure {stage} ({num} of {total})")

  return transform(iteration, notify=show)


def tell_of_resume(planned: runtime.M2Flow, display: progress.Progress) -> None:
  """Says where a run that goes on is not the one that was interrupted."""
  staleness = planned.workflow.staleness
  if staleness:
    display.print(
      f"the staleness of {staleness} begins anew: the first iterations read the"
      " restored weights, not older ones, and the run is not bitwise one that"
      " was never interrupted"
    )


def report(
  planned: runtime.M2Flow,
  directory: pathlib.Path,
  display: progress.Progress,
  *,
  explain: bool,
) -> None:
  """Writes the plan, and what ran when, into a run's folder.

  Args:
    planned: what ran.
    directory: of the run.
    display: says what was written.
    explain: whether to print predicted and real times too.
  """
  if explain:
    display.print(planned.compare())
  for path in planned.write_report(directory / "plan"):
    display.print(f"written: {path}")
