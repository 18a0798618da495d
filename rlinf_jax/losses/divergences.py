"""Estimators of the Kullback-Leibler divergence from samples.

The actions were sampled from pi, to which the first argument belongs, and the
divergence is KL(pi || other), in nats. With r = other / pi:

  k1 = -log r             unbiased, of great variance, often negative
  k2 = (log r)^2 / 2      biased, of small variance, never negative
  k3 = (r - 1) - log r    unbiased, of small variance, never negative

How far a policy has moved since it acted is `kl_k3(old_log_prob_t,
log_prob_t)`: the old policy sampled. To penalise the distance to a reference
policy, give `kl_k3(log_prob_t, reference_log_prob_t)` a weight in the loss. An
unbiased estimate need not have an unbiased gradient: on samples of pi, the
gradient of k2 is in expectation that of KL(pi || other), that of k1 is 0, and
that of k3 is the one of KL(other || pi).

Source: Schulman, "Approximating KL Divergence", 2020, joschu.net/blog.
"""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp


def kl_k1(log_prob_t: jax.Array, other_log_prob_t: jax.Array) -> jax.Array:
  """Returns the estimate -log r.

  Args:
    log_prob_t: float [T], nats, of the policy pi that sampled.
    other_log_prob_t: float [T], nats, of the other policy.

  Returns:
    float [T], nats.

  Raises:
    AssertionError: an argument is not a float array [T].
  """
  return -_log_ratio(log_prob_t, other_log_prob_t)


def kl_k2(log_prob_t: jax.Array, other_log_prob_t: jax.Array) -> jax.Array:
  """Returns the estimate (log r)^2 / 2; arguments as those of `kl_k1`."""
  return 0.5 * jnp.square(_log_ratio(log_prob_t, other_log_prob_t))


def kl_k3(log_prob_t: jax.Array, other_log_prob_t: jax.Array) -> jax.Array:
  """Returns the estimate (r - 1) - log r; arguments as those of `kl_k1`."""
  log_ratio_t = _log_ratio(log_prob_t, other_log_prob_t)
  # expm1: near log r = 0 the terms cancel to the second order.
  return jnp.expm1(log_ratio_t) - log_ratio_t


def _log_ratio(log_prob_t, other_log_prob_t):
  arrays = [log_prob_t, other_log_prob_t]
  chex.assert_rank(arrays, 1)
  chex.assert_equal_shape(arrays)
  chex.assert_type(arrays, float)
  return other_log_prob_t - log_prob_t
