"""Tables say what the records say."""

from __future__ import annotations

import math

import numpy as np

from benchmarks import tables


def test_what_binds_divides_an_iteration_into_its_parts():
  # Seconds per million steps: 10 in all, 8 to collect, 5 of them physics.
  ours = {
    "parts": {
      "iteration": {"steps_per_s": 1e6 / 10},
      "collecting": {"steps_per_s": 1e6 / 8},
      "physics_only": {"steps_per_s": 1e6 / 5},
    }
  }
  text = tables.what_binds(ours)
  assert "50% of the physics-only rate" in text
  assert "physics 50%, acting, auto-reset and recording 30%" in text
  assert "advantages and updates 20%. physics binds." in text


def test_a_target_is_reached_on_the_line_between_two_points():
  x, y = np.array([10.0, 20.0, 30.0]), np.array([0.0, 5.0, 4.0])
  assert tables.crossing(x, y, 2.0) == 14.0  # 10 + 10 * 2 / 5
  assert tables.crossing(x, y, -1.0) == 10.0
  assert tables.crossing(x, y, 5.0) == 20.0
  assert math.isinf(tables.crossing(x, y, 6.0))


def test_learning_takes_the_mean_over_seeds():
  def record(leg: str, finals: list[float]) -> dict:
    curves = [
      [
        {"step": 100, "seconds": 2.0, "return": 0.0},
        {"step": 200, "seconds": 4.0, "return": final},
      ]
      for final in finals
    ]
    return {"leg": leg, "physics": "mujoco", "curves": curves}

  text = tables.learning([record("ours", [90, 110]), record("sb3", [50, 50])])
  # The target is 90 % of 50; ours gets there at 100 + 100 * 45 / 100.
  assert "steps to return 45" in text
  assert "| 2 | 200 | 100.0 ± 10.0 | 145 | 2.9 s |" in text
  assert "| 2 | 200 | 50.0 ± 0.0 | 190 | 3.8 s |" in text


def test_speeds_are_compared_with_ours():
  def record(leg: str, rate: float) -> dict:
    return {
      "leg": leg,
      "physics": "mujoco",
      "steps_per_s": rate,
      "num_steps": 1000,
      "seconds": 1000 / rate,
    }

  text = tables.speed([record("sb3", 2000.0), record("sbx", 500.0)])
  assert "| mujoco | 2,000 | 1 |  |  | 1,000 in 0.5 s |" in text
  rate = {"steps_per_s": 10_000.0}
  parts = dict(iteration=rate, collecting=rate, physics_only=rate)
  ours = record("ours", 10_000.0) | {"parts": parts}
  five = record("brax_own", 1000.0) | {"num_substeps": 5}
  text = tables.speed([ours, record("sb3", 2000.0), five])
  assert "| mujoco | 2,000 | 1 | 5.00 | 5.00 |" in text
  assert "| mujoco | 1,000 | 5 | 10.00 | 2.00 |" in text
