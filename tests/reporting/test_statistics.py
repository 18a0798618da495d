"""Intervals worked by hand and by their defining equations."""

import math

import numpy as np
import pytest
from scipy import stats

from rlinf_jax.reporting import statistics


def test_wilson_by_hand_at_one_standard_deviation():
  # z = 1 where confidence = erf(1 / sqrt(2)). With 3 of 4: rate 3/4, z2/n 1/4,
  # center (3/4 + 1/8) / (5/4) = 0.7,
  # half sqrt(3/16 / 4 + 1/16 / 4) / (5/4) = sqrt(1/16) / (5/4) = 0.2.
  confidence = math.erf(1 / math.sqrt(2))
  found = statistics.wilson_interval(3, 4, confidence=confidence)
  assert found.estimate == 0.75
  assert found.low == pytest.approx(0.5, abs=1e-12)
  assert found.high == pytest.approx(0.9, abs=1e-12)


@pytest.mark.parametrize("num_successes", [1, 7, 32, 63])
def test_wilson_bounds_solve_the_score_equation(num_successes):
  # A bound p satisfies (rate - p)^2 = z^2 p (1 - p) / n.
  z = 1.959963984540054
  found = statistics.wilson_interval(num_successes, 64)
  for p in (found.low, found.high):
    squared = (num_successes / 64 - p) ** 2
    assert squared == pytest.approx(z**2 * p * (1 - p) / 64, rel=1e-9)


def test_wilson_of_nothing_and_of_everything():
  # 0 of n: high = z^2 / (n + z^2).
  z2 = 1.959963984540054**2
  none = statistics.wilson_interval(0, 10)
  assert (none.estimate, none.low) == (0.0, 0.0)
  assert none.high == pytest.approx(z2 / (10 + z2))
  everything = statistics.wilson_interval(10, 10)
  assert (everything.estimate, everything.high) == (1.0, 1.0)
  assert everything.low == pytest.approx(1 - none.high)


def test_wilson_without_trials_excludes_nothing():
  found = statistics.wilson_interval(0, 0)
  assert math.isnan(found.estimate)
  assert (found.low, found.high) == (0.0, 1.0)


def test_summary_by_hand():
  # 1, 2, 3, 6: mean 3, squares 4 + 1 + 0 + 9 = 14, variance 14 / 3,
  # error sqrt(14 / 3 / 4) = sqrt(7 / 6).
  found = statistics.summarise(np.asarray([1.0, 2.0, 3.0, 6.0]))
  assert (found.num, found.mean) == (4, 3.0)
  assert found.standard_deviation == pytest.approx(math.sqrt(14 / 3))
  assert found.standard_error == pytest.approx(math.sqrt(7 / 6))
  # Student's t for 3 degrees of freedom and 95 % is 3.18245 in any table.
  half = 3.18245 * math.sqrt(7 / 6)
  assert found.low == pytest.approx(3 - half, abs=1e-5)
  assert found.high == pytest.approx(3 + half, abs=1e-5)


def test_summary_agrees_with_scipy():
  values = np.random.default_rng(0).normal(size=50)
  found = statistics.summarise(values, confidence=0.9)
  expected = stats.t.interval(
    0.9, 49, loc=values.mean(), scale=stats.sem(values)
  )
  assert (found.low, found.high) == pytest.approx(expected)


def test_one_episode_has_no_spread():
  found = statistics.summarise(np.asarray([5.0]))
  assert (found.num, found.mean) == (1, 5.0)
  assert math.isnan(found.standard_error) and math.isnan(found.low)


def test_impossible_counts_and_shapes_are_refused():
  with pytest.raises(ValueError, match="got 5 of 4"):
    statistics.wilson_interval(5, 4)
  with pytest.raises(ValueError, match="confidence"):
    statistics.wilson_interval(1, 4, confidence=95)
  with pytest.raises(ValueError, match=r"shape \[N\], got \(2, 2\)"):
    statistics.summarise(np.ones((2, 2)))
