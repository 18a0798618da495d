"""The fit of the laws' constants to published figures."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from scheduler.workloads import calibration, constants, figures

# Where the search begins and how far it may go.
_DECODE_START = {
  "decode_t0_s": (5e-3, 1e-4, 1e-2),
  "decode_efficiency": (0.8, 0.3, 1.0),
  "sigma_1_5b": (0.4, 0.1, 1.5),
  "sigma_7b": (0.45, 0.1, 1.5),
  "median_dynarl_tokens": (7000.0, 500.0, 20_000.0),
  "median_paper_tokens": (5000.0, 500.0, 20_000.0),
}
_COMPUTE_START = {
  "fixed_params": (1e9, 1e7, 1e10),
  "infer_efficiency": (0.3, 0.05, 1.0),
  "train_efficiency": (0.3, 0.05, 1.0),
}
# Lengths are whole numbers: smaller differences would see their rounding.
_DIFF_STEP = 1e-2


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Residual:
  """A figure beside what the laws say of it.

  Attributes:
    figure: the figure.
    predicted_s: seconds.
  """

  figure: figures.Figure
  predicted_s: float

  @property
  def error(self) -> float:
    """Prediction over figure, less one."""
    return self.predicted_s / self.figure.seconds - 1


def residuals(
  fitted: constants.Constants = constants.FITTED,
  own: constants.OwnConstants = constants.OWN,
) -> tuple[Residual, ...]:
  """Returns every figure's residual."""
  return tuple(
    Residual(
      figure=figure, predicted_s=calibration.predict_s(figure, fitted, own)
    )
    for figure in figures.FIGURES
  )


def fit(
  fitting: Sequence[figures.Figure] | None = None,
  *,
  start: constants.Constants | None = None,
) -> constants.Constants:
  """Returns the constants that minimise the squared log ratios.

  First those of the decode and of the lengths, then, with these lengths, those
  of the operations.

  Args:
    fitting: figures of use "fit"; None: all of them.
    start: where to begin; None: far from the result.
  """
  if fitting is None:
    fitting = [f for f in figures.FIGURES if f.use == "fit"]
  found = start or constants.Constants(
    **{k: v[0] for k, v in (_DECODE_START | _COMPUTE_START).items()}
  )
  decodes = [f for f in fitting if f.phase == "generation"]
  computes = [f for f in fitting if f.phase != "generation"]
  found = _minimise(decodes, found, _DECODE_START)
  return _minimise(computes, found, _COMPUTE_START)


def fit_own(fitted: constants.Constants) -> constants.OwnConstants:
  """Returns the constants that meet one figure each."""
  by_name = {f.name: f for f in figures.FIGURES}
  own = dataclasses.replace(
    constants.OWN,
    reward_s=by_name["rlinf_7b reward"].seconds
    / figures.ROWS["rlinf_7b"].sequences,
  )
  # Below the mean and the sigma at which sequences reach the longest.
  for name, field, low, high in (
    ("rlinf_placement generation", "placement_mean_tokens", 2e3, 1.5e4),
    ("verl_32 generation", "verl_sigma", 0.3, 0.9),
  ):
    own = _solve(by_name[name], field, low, high, fitted, own)
  for name, field in (
    ("rlinf_placement infer", "placement_infer_efficiency"),
    ("rlinf_placement train", "placement_train_efficiency"),
    ("verl_32 infer", "h20_infer_efficiency"),
    ("verl_32 train", "h20_train_efficiency"),
  ):
    ratio = (
      calibration.predict_s(by_name[name], fitted, own) / by_name[name].seconds
    )
    own = dataclasses.replace(own, **{field: getattr(own, field) * ratio})
  return own


def leave_one_out(
  fitted: constants.Constants = constants.FITTED,
  phases: Sequence[str] = ("generation", "infer", "train"),
) -> tuple[Residual, ...]:
  """Returns each fitted figure, predicted by a fit to the others.

  Args:
    fitted: the fit to all, from which each search begins.
    phases: whose figures are left out.
  """
  fitting = [f for f in figures.FIGURES if f.use == "fit"]
  return tuple(
    Residual(
      figure=left_out,
      predicted_s=calibration.predict_s(
        left_out, fit([f for f in fitting if f is not left_out], start=fitted)
      ),
    )
    for left_out in fitting
    if left_out.phase in phases
  )


def leave_row_out(
  fitted: constants.Constants = constants.FITTED,
) -> tuple[Residual, ...]:
  """Returns the figures of rows left out whole, predicted from the others.

  Only rows with published lengths can be: the others' medians are theirs
  alone. With one of the two out, nothing tells what each token costs from what
  each parameter does: `fixed_params` is then 0.
  """
  found = []
  for name in ("rlinf_1_5b", "rlinf_7b"):
    fitting = [f for f in figures.FIGURES if f.use == "fit"]
    rest = [f for f in fitting if f.row != name]
    start = dataclasses.replace(fitted, fixed_params=0.0)
    ranges = {k: v for k, v in _COMPUTE_START.items() if k != "fixed_params"}
    decodes = [f for f in rest if f.phase == "generation"]
    computes = [f for f in rest if f.phase != "generation"]
    others = _minimise(decodes, start, _DECODE_START)
    others = _minimise(computes, others, ranges)
    found += [
      Residual(figure=f, predicted_s=calibration.predict_s(f, others))
      for f in fitting
      if f.row == name
    ]
  return tuple(found)


def _minimise(
  fitting: Sequence[figures.Figure],
  start: constants.Constants,
  ranges: dict[str, tuple[float, float, float]],
) -> constants.Constants:
  import scipy.optimize  # a second to import, and only a fit needs it

  names = list(ranges)
  x_0 = [getattr(start, name) for name in names]

  def at(x: Sequence[float]) -> constants.Constants:
    values = {name: float(value) for name, value in zip(names, x)}
    return dataclasses.replace(start, **values)

  def log_ratios(x: Sequence[float]) -> list[float]:
    fitted = at(x)
    return [
      math.log(calibration.predict_s(f, fitted) / f.seconds) for f in fitting
    ]

  result = scipy.optimize.least_squares(
    log_ratios,
    x_0,
    bounds=([ranges[n][1] for n in names], [ranges[n][2] for n in names]),
    x_scale=x_0,
    diff_step=_DIFF_STEP,
    xtol=1e-5,
    ftol=1e-6,
  )
  return at(result.x)


def _solve(
  figure: figures.Figure,
  field: str,
  low: float,
  high: float,
  fitted: constants.Constants,
  own: constants.OwnConstants,
) -> constants.OwnConstants:
  """Returns `own` with the value of `field` at which a figure is met."""
  for _ in range(40):
    middle = (low + high) / 2
    own = dataclasses.replace(own, **{field: middle})
    if calibration.predict_s(figure, fitted, own) < figure.seconds:
      low = middle
    else:
      high = middle
  return own
