from __future__ import annotations

import pytest

from benchmarks import planning_time


def test_the_exponent_is_the_slope_between_logarithms():
  # From 64 devices on: 1 s, 8 s for four times as many, 64 s for 16 times.
  found = planning_time.exponent([8, 64, 256, 1024], [99, 1, 8, 64])
  assert found == pytest.approx(1.5)
  assert planning_time.exponent([8, 64], [1, 2]) is None


def test_a_plan_is_made_and_evaluated_in_a_process_of_its_own():
  planning_s, period_s = planning_time.measured("collocated", 8)
  assert planning_s > 0
  # As `experiments.compare_planners` says of grpo_1_5b on 8 H100.
  assert 300 < period_s < 400
