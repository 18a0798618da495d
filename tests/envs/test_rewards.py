"""`rewards.tolerance`: bounds, margins and falloffs by hand-worked numbers."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs import rewards

FALLOFFS = (
  rewards.gaussian,
  rewards.long_tail,
  rewards.linear,
  rewards.quadratic,
)


def test_without_margin_only_the_closed_interval_is_rewarded():
  x = jnp.array([0.99, 1.0, 1.5, 2.0, 2.01])
  reward = rewards.tolerance(x, bounds=(1.0, 2.0))
  np.testing.assert_array_equal(reward, [0.0, 1.0, 1.0, 1.0, 0.0])


@pytest.mark.parametrize("falloff_fn", FALLOFFS)
def test_value_at_margin_is_reached_at_the_margin_on_both_sides(falloff_fn):
  x = jnp.array([0.5, 1.0, 2.0, 2.5])
  reward = rewards.tolerance(
    x,
    bounds=(1.0, 2.0),
    margin=0.5,
    falloff_fn=falloff_fn,
    value_at_margin=0.2,
  )
  np.testing.assert_allclose(reward, [0.2, 1.0, 1.0, 0.2], rtol=1e-6)


@pytest.mark.parametrize(
  "falloff_fn, halfway",
  [
    (rewards.gaussian, 0.0625 ** (1 / 4)),  # exp(log(v) / 4)
    (rewards.long_tail, 1 / (1 + 15 / 4)),  # 1 / (1 + (1 / v - 1) / 4)
    (rewards.linear, 1 - 0.9375 / 2),
    (rewards.quadratic, 1 - 0.9375 / 4),
  ],
)
def test_falloff_halfway_to_the_margin(falloff_fn, halfway):
  reward = rewards.tolerance(
    jnp.float32(1.0),
    margin=2.0,
    falloff_fn=falloff_fn,
    value_at_margin=0.0625,
  )
  np.testing.assert_allclose(reward, halfway, rtol=1e-6)


@pytest.mark.parametrize("falloff_fn", FALLOFFS)
def test_reward_never_rises_with_distance_and_stays_in_the_unit_interval(
  falloff_fn,
):
  x = jnp.linspace(0.0, 50.0, 501)
  reward = np.asarray(rewards.tolerance(x, margin=3.0, falloff_fn=falloff_fn))
  assert (np.diff(reward) <= 0).all()
  assert reward[0] == 1 and (0 <= reward).all()


def test_speed_over_target_saturates_with_an_infinite_upper_bound():
  speed = jnp.array([-1.0, 0.0, 2.5, 10.0, 99.0])
  reward = jax.jit(
    lambda x: rewards.tolerance(
      x,
      bounds=(10.0, math.inf),
      margin=10.0,
      falloff_fn=rewards.linear,
      value_at_margin=0.0,
    )
  )(speed)
  np.testing.assert_allclose(reward, [0, 0, 0.25, 1, 1], atol=1e-6)


@pytest.mark.parametrize(
  "arguments, message",
  [
    (dict(bounds=(2.0, 1.0)), "in order"),
    (dict(margin=-1.0), "at least 0"),
    (dict(value_at_margin=0.0), r"\(0, 1\)"),
    (dict(value_at_margin=1.0, falloff_fn=rewards.linear), r"\[0, 1\)"),
  ],
)
def test_arguments_out_of_range_are_refused(arguments, message):
  with pytest.raises(ValueError, match=message):
    rewards.tolerance(jnp.float32(0.0), **arguments)
