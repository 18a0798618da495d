"""The last line of a run."""

import numpy as np

from rlinf_jax.reporting import statistics, summary


def test_the_line_has_return_success_steps_and_time():
  # 3, 5: mean 4, error 1, Student's t for 1 degree of freedom is 12.7062.
  line = summary.describe_run(
    returns=statistics.summarise(np.asarray([3.0, 5.0])),
    success=statistics.Interval(estimate=0.5, low=0.25, high=0.75),
    num_steps=1_000_000,
    wall_time_s=80.0,
  )
  assert line == (
    "return 4 [-8.71, 16.7] over 2 episodes; success 50.0% [25.0%, 75.0%];"
    " 1,000,000 steps in 1 min 20 s; 12,500 steps/s"
  )


def test_what_is_not_known_is_left_out():
  line = summary.describe_run(
    returns=statistics.summarise(np.asarray([812.0])),
    success=None,
    num_steps=1000,
    wall_time_s=2.0,
    steps_per_s=900.0,
  )
  assert line == "return 812 over 1 episode; 1,000 steps in 2.0 s; 900 steps/s"
