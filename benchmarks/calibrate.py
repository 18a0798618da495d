r"""Shows how well the workloads' laws meet published figures, and refits them.

  python -m benchmarks.calibrate
  python -m benchmarks.calibrate --leave_out=False   # without the slow part

Prints a markdown table of every figure of `scheduler.workloads.figures` with
what the laws say of it, the error of each fitted figure when it is left out of
the fit, and the constants as they stand in `scheduler.workloads.constants`.
Takes 20 s of one core.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from absl import app, flags

from scheduler.workloads import fitting

FLAGS = flags.FLAGS
flags.DEFINE_bool(
  "leave_out", True, "Whether to refit without each figure and row in turn."
)

_DIGITS = 4


def main(argv: list[str]) -> None:
  """Fits, and prints what came out."""
  del argv
  fitted = _rounded(fitting.fit())
  own = _rounded(fitting.fit_own(fitted))
  found = fitting.residuals(fitted, own)
  for use, title in (
    ("fit", "Fitted together: 9 constants"),
    ("own", "One constant each: no measure of accuracy"),
    ("test", "Not fitted"),
  ):
    print(f"\n{title}\n")
    print(_table(r for r in found if r.figure.use == use))
  if FLAGS.leave_out:
    print("\nEach figure predicted by a fit to the others\n")
    print(_table(fitting.leave_one_out(fitted)))
    print("\nEach row with published lengths predicted by the other rows\n")
    print(_table(fitting.leave_row_out(fitted)))
  for name, values in (("FITTED", fitted), ("OWN", own)):
    print(f"\n{name} = {type(values).__name__}(")
    for field, value in dataclasses.asdict(values).items():
      print(f"  {field}={value!r},")
    print(")")


def _table(residuals: Iterable[fitting.Residual]) -> str:
  lines = ["| figure | published | laws | error |", "| --- | --- | --- | --- |"]
  lines += [
    f"| {r.figure.name} | {r.figure.seconds:.1f} s | {r.predicted_s:.1f} s"
    f" | {r.error:+.1%} |"
    for r in residuals
  ]
  return "\n".join(lines)


def _rounded(values: Any) -> Any:
  return dataclasses.replace(
    values,
    **{
      name: float(f"{value:.{_DIGITS}g}")
      for name, value in dataclasses.asdict(values).items()
    },
  )


if __name__ == "__main__":
  app.run(main)
