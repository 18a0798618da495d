"""Advantages within groups: by hand, and exactly 0 where nothing differs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlinf_jax import losses


def test_group_advantages_by_hand():
  reward_g = jnp.array([1.0, 3.0, 5.0, 7.0])
  # mean 4; differences -3, -1, 1, 3; variance (9 + 1 + 1 + 9) / 4 = 5
  centred_g = np.array([-3.0, -1.0, 1.0, 3.0])
  np.testing.assert_allclose(losses.group_centred(reward_g), centred_g)
  np.testing.assert_allclose(
    losses.group_standardised(reward_g, epsilon=0.0),
    centred_g / np.sqrt(5.0),
    rtol=1e-6,
  )
  # others' means: 15/3 = 5, 13/3, 11/3, 9/3 = 3
  np.testing.assert_allclose(
    losses.group_leave_one_out(reward_g), [-4.0, -4 / 3, 4 / 3, 4.0], rtol=1e-6
  )


@pytest.mark.parametrize(
  "estimator",
  [
    losses.group_centred,
    losses.group_standardised,
    losses.group_leave_one_out,
  ],
)
def test_a_group_of_equal_rewards_gets_exactly_0(estimator):
  # In float32 the mean of seven times 0.1 is not 0.1.
  reward_g = jnp.full(7, 0.1)
  assert float(jnp.sum(reward_g) / 7) != float(reward_g[0])
  np.testing.assert_array_equal(jax.jit(estimator)(reward_g), np.zeros(7))


def test_standardised_groups_ignore_shift_and_scale_of_rewards():
  reward_g = jax.random.normal(jax.random.key(0), (8,))
  np.testing.assert_allclose(
    losses.group_standardised(reward_g, epsilon=0.0),
    losses.group_standardised(3.0 * reward_g + 5.0, epsilon=0.0),
    rtol=1e-4,
  )


def test_leave_one_out_refuses_a_group_of_one():
  with pytest.raises(ValueError, match="given a group of 1"):
    losses.group_leave_one_out(jnp.ones(1))
