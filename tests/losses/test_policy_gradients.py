"""Weighted policy gradients: by hand, and as limits of one another."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from rlinf_jax import losses


def gradient(loss_fn, log_prob_t):
  return jax.jit(jax.grad(lambda x: jnp.sum(loss_fn(x))))(log_prob_t)


def test_policy_gradient_by_hand():
  log_prob_t = jnp.array([-1.0, -2.0])
  advantage_t = jnp.array([3.0, -0.5])
  np.testing.assert_allclose(
    losses.policy_gradient(log_prob_t, advantage_t), [3.0, -1.0]
  )
  np.testing.assert_allclose(
    gradient(lambda x: losses.policy_gradient(x, advantage_t), log_prob_t),
    [-3.0, 0.5],
  )


def test_cispo_by_hand():
  # ratios 2, 0.5, 1; weights clipped to [0.75, 1.5]: 1.5, 0.75, 1
  log_prob_t = jnp.log(jnp.array([0.5, 0.25, 0.125]))
  old_log_prob_t = jnp.log(jnp.array([0.25, 0.5, 0.125]))
  advantage_t = jnp.array([2.0, 4.0, -1.0])
  loss_fn = lambda x: losses.cispo(
    x, old_log_prob_t, advantage_t, clip_low=0.25, clip_high=0.5
  )
  # -weight A log pi, in units of log 2: pi = 2^-1, 2^-2, 2^-3
  np.testing.assert_allclose(
    loss_fn(log_prob_t), np.log(2) * np.array([3.0, 6.0, -3.0]), rtol=1e-6
  )
  np.testing.assert_allclose(
    gradient(loss_fn, log_prob_t), [-3.0, -3.0, 1.0], rtol=1e-6
  )


def test_cispo_on_policy_is_the_policy_gradient():
  log_prob_t = jnp.array([-0.1, -3.0, -0.7])
  advantage_t = jnp.array([1.0, -1.0, 0.5])
  np.testing.assert_array_equal(
    losses.cispo(log_prob_t, log_prob_t, advantage_t),
    losses.policy_gradient(log_prob_t, advantage_t),
  )


def test_cispo_within_its_bounds_has_the_gradient_of_ppo():
  log_prob_t = jnp.array([-0.1, -3.0, -0.7])
  old_log_prob_t = log_prob_t + jnp.array([0.1, -0.1, 0.05])
  advantage_t = jnp.array([1.0, -1.0, 0.5])
  np.testing.assert_allclose(
    gradient(
      lambda x: losses.cispo(x, old_log_prob_t, advantage_t), log_prob_t
    ),
    gradient(
      lambda x: losses.clipped_surrogate(x, old_log_prob_t, advantage_t),
      log_prob_t,
    ),
    rtol=1e-6,
  )


def test_cispo_leaves_a_gradient_where_ppo_clips_it_away():
  log_prob_t = jnp.array([-0.1])
  old_log_prob_t = log_prob_t - 100.0  # exp(100) overflows
  advantage_t = jnp.ones(1)
  clipped = gradient(
    lambda x: losses.clipped_surrogate(x, old_log_prob_t, advantage_t),
    log_prob_t,
  )
  kept = gradient(
    lambda x: losses.cispo(x, old_log_prob_t, advantage_t), log_prob_t
  )
  assert float(clipped[0]) == 0.0
  np.testing.assert_allclose(kept, [-5.0], rtol=1e-6)
