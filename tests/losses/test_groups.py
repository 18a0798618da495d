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


def standardised_without_epsilon(reward_g):
  return losses.group_standardised(reward_g, epsilon=0.0)


def standardised_over_the_batch(reward_g):
  return losses.batch_standardised(
    reward_g, jnp.ones_like(reward_g, bool), epsilon=0.0
  )


@pytest.mark.parametrize(
  "estimator",
  [
    losses.group_centred,
    losses.group_standardised,
    standardised_without_epsilon,
    losses.group_leave_one_out,
    standardised_over_the_batch,
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


def test_a_batch_is_standardised_over_what_counts_by_hand():
  advantage = jnp.array([[1.0, 3.0], [jnp.nan, 8.0]])
  mask = jnp.array([[True, True], [False, True]])
  # mean (1 + 3 + 8) / 3 = 4; variance (9 + 1 + 16) / 3 = 26/3
  scale = np.sqrt(26 / 3)
  np.testing.assert_allclose(
    jax.jit(losses.batch_standardised)(advantage, mask),
    np.array([[-3.0, -1.0], [0.0, 4.0]]) / scale,
    rtol=1e-5,
  )


def test_a_batch_in_which_nothing_counts_gets_0():
  result = losses.batch_standardised(jnp.ones(3), jnp.zeros(3, bool))
  np.testing.assert_array_equal(result, np.zeros(3))


def test_groups_with_signal_are_those_whose_rewards_differ():
  reward_pg = jnp.array([[0.0, 1.0], [1.0, 1.0], [0.0, 0.0], [0.1, 0.2]])
  np.testing.assert_array_equal(
    jax.jit(jax.vmap(losses.has_signal))(reward_pg), [True, False, False, True]
  )


def test_a_group_has_signal_where_its_advantages_are_not_all_0():
  for reward_g in ([0.1] * 7, [0.1] * 6 + [0.1000001], [0.0, 0.0, 1.0]):
    reward_g = jnp.array(reward_g)
    advantage_g = losses.group_centred(reward_g)
    assert bool(losses.has_signal(reward_g)) == bool(jnp.any(advantage_g != 0))
