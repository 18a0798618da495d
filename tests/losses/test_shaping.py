"""Rewards for length and divergence, by hand."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlinf_jax import losses


def test_overlong_penalty_by_hand():
  # free up to 10 - 4 = 6, then a quarter more for each token
  penalty = jax.jit(
    lambda n: losses.overlong_penalty(n, max_tokens=10, buffer_tokens=4)
  )(jnp.array([0, 6, 7, 9, 10, 11, 99]))
  np.testing.assert_array_equal(
    penalty, [0.0, 0.0, -0.25, -0.75, -1.0, -1.0, -1.0]
  )


@pytest.mark.parametrize("buffer_tokens", [0, 11])
def test_overlong_penalty_refuses_a_buffer_that_does_not_fit(buffer_tokens):
  with pytest.raises(ValueError, match=f"buffer_tokens={buffer_tokens}"):
    losses.overlong_penalty(
      jnp.array(3), max_tokens=10, buffer_tokens=buffer_tokens
    )


def test_token_rewards_and_their_returns_by_hand():
  # The second token (of a tool) and the last two (padding) do not count.
  mask_t = jnp.array([True, False, True, True, False, False])
  kl_t = jnp.array([0.5, 9.0, -0.25, 1.0, 9.0, jnp.nan])
  reward_t = jax.jit(lambda *x: losses.token_rewards(*x, kl_weight=0.2))(
    jnp.array(2.0), kl_t, mask_t
  )
  # -0.2 * 0.5;  0.2 * 0.25;  2 - 0.2
  np.testing.assert_allclose(
    reward_t, [-0.1, 0.0, 0.05, 1.8, 0.0, 0.0], rtol=1e-6
  )
  np.testing.assert_allclose(
    losses.returns_to_go(reward_t), [1.75, 1.85, 1.85, 1.8, 0, 0], rtol=1e-6
  )


def test_an_answer_without_tokens_is_paid_nothing():
  reward_t = losses.token_rewards(
    jnp.array(2.0), jnp.zeros(3), jnp.zeros(3, bool), kl_weight=0.2
  )
  np.testing.assert_array_equal(reward_t, np.zeros(3))


def test_without_divergence_every_token_returns_the_reward():
  mask_t = losses.length_mask(jnp.array(3), 5)
  reward_t = losses.token_rewards(
    jnp.array(0.7), jnp.zeros(5), mask_t, kl_weight=1.0
  )
  np.testing.assert_allclose(
    losses.returns_to_go(reward_t)[:3], [0.7, 0.7, 0.7], rtol=1e-6
  )


def test_returns_to_go_are_gae_of_undiscounted_rewards_without_values():
  reward_t = jnp.array([0.5, -1.0, 2.0, 0.25])
  zero_t, never_t = jnp.zeros(4), jnp.zeros(4, bool)
  advantage_t, _ = losses.gae(
    reward_t, zero_t, zero_t, never_t, never_t, discount=1.0, gae_lambda=1.0
  )
  np.testing.assert_allclose(losses.returns_to_go(reward_t), advantage_t)
