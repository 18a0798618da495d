"""Means and success rates of episodes, with their uncertainty."""

from __future__ import annotations

import dataclasses
import math
import statistics

import numpy as np
from scipy import special


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
  """An estimate between two bounds."""

  estimate: float
  low: float
  high: float


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
  """The mean of `num` numbers and how sure it is.

  `low` and `high` bound the mean with the confidence asked for; they are NaN,
  like the spread and the error, where too few numbers say nothing.
  """

  num: int
  mean: float
  standard_deviation: float
  standard_error: float
  low: float
  high: float


def wilson_interval(
  num_successes: int, num_trials: int, *, confidence: float = 0.95
) -> Interval:
  """Returns a success rate with Wilson's score interval.

  Unlike the normal approximation it stays within [0, 1] and is not empty where
  every trial succeeded. Without a trial it is [0, 1] and the rate NaN.

  Raises:
    ValueError: not 0 <= num_successes <= num_trials, or not
      0 < confidence < 1.

  Source: Wilson, "Probable Inference, the Law of Succession, and Statistical
    Inference", JASA 22 (1927), without continuity correction.
  """
  if not 0 <= num_successes <= num_trials:
    raise ValueError(
      "Successes are between 0 and the number of trials, got"
      f" {num_successes} of {num_trials}."
    )
  _check_confidence(confidence)
  if num_trials == 0:
    return Interval(estimate=math.nan, low=0.0, high=1.0)
  z = statistics.NormalDist().inv_cdf((1 + confidence) / 2)
  rate = num_successes / num_trials
  z2_n = z * z / num_trials
  center = (rate + z2_n / 2) / (1 + z2_n)
  half = z * math.sqrt(rate * (1 - rate) / num_trials + z2_n / (4 * num_trials))
  half /= 1 + z2_n
  # The bounds are exact at the ends; rounding may leave them 1e-17 off.
  return Interval(
    estimate=rate,
    low=0.0 if num_successes == 0 else center - half,
    high=1.0 if num_successes == num_trials else center + half,
  )


def summarise(values: np.ndarray, *, confidence: float = 0.95) -> Summary:
  """Returns the mean of `values` [N] with Student's interval.

  The episodes are taken as independent draws; the standard deviation is that
  of a sample (divided by N - 1).

  Raises:
    ValueError: `values` is not of rank 1, or not 0 < confidence < 1.

  Source: Student, "The Probable Error of a Mean", Biometrika 6 (1908).
  """
  values = np.asarray(values, np.float64)
  if values.ndim != 1:
    raise ValueError(f"Expected values of shape [N], got {values.shape}.")
  _check_confidence(confidence)
  num = values.size
  mean = float(values.mean()) if num else math.nan
  if num < 2:
    nan = math.nan
    return Summary(
      num=num,
      mean=mean,
      standard_deviation=nan,
      standard_error=nan,
      low=nan,
      high=nan,
    )
  deviation = float(values.std(ddof=1))
  error = deviation / math.sqrt(num)
  t = float(special.stdtrit(num - 1, (1 + confidence) / 2))
  return Summary(
    num=num,
    mean=mean,
    standard_deviation=deviation,
    standard_error=error,
    low=mean - t * error,
    high=mean + t * error,
  )


def _check_confidence(confidence: float) -> None:
  if not 0 < confidence < 1:
    raise ValueError(f"confidence is between 0 and 1, got {confidence}.")
