"""Losses whose gradient is that of log-probabilities, weighted."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp


def policy_gradient(log_prob_t: jax.Array, advantage_t: jax.Array) -> jax.Array:
  """Returns -A_t log pi(a_t|s_t), the loss of REINFORCE.

  With advantages by `group_leave_one_out` and `sequence_sum` it is RLOO's,
  which takes a whole answer for one action.

  Args:
    log_prob_t: float [T], nats, of the policy that learns, and acted.
    advantage_t: float [T].

  Returns:
    loss_t [T], float; gradient flows to log_prob_t alone.

  Raises:
    AssertionError: an argument is not a float array [T].

  Source: Williams, "Simple Statistical Gradient-Following Algorithms for
    Connectionist Reinforcement Learning", 1992; Ahmadian et al., "Back to
    Basics" (RLOO), arXiv 2402.14740.
  """
  _check(log_prob_t, advantage_t)
  return -jax.lax.stop_gradient(advantage_t) * log_prob_t


def cispo(
  log_prob_t: jax.Array,
  old_log_prob_t: jax.Array,
  advantage_t: jax.Array,
  *,
  clip_low: chex.Numeric = 1.0,
  clip_high: chex.Numeric = 4.0,
) -> jax.Array:
  """Returns the policy gradient's loss under clipped importance weights.

    weight_t = clip(ratio_t, 1 - clip_low, 1 + clip_high)
    loss_t = -stop(weight_t) A_t log pi(a_t|s_t)

  Every token keeps a gradient: what is clipped is its weight, and not, as in
  `clipped_surrogate`, the token.

  Args:
    log_prob_t: float [T], nats, of the policy that learns.
    old_log_prob_t: float [T], nats, of the policy that acted.
    advantage_t: float [T].
    clip_low: in [0, 1]; 1 leaves the weight without a lower bound.
    clip_high: how far above 1 a weight may be.

  Returns:
    loss_t [T], float; gradient flows to log_prob_t alone.

  Raises:
    AssertionError: an argument is not a float array [T].

  Source: MiniMax, "MiniMax-M1", arXiv 2506.13585, eqs. 4 and 5.
  """
  _check(log_prob_t, old_log_prob_t, advantage_t)
  log_ratio_t = jax.lax.stop_gradient(log_prob_t - old_log_prob_t)
  # min before exp: a ratio that overflows is clipped all the same.
  ratio_t = jnp.exp(jnp.minimum(log_ratio_t, jnp.log1p(clip_high)))
  weight_t = jnp.maximum(ratio_t, 1.0 - clip_low)
  return weight_t * policy_gradient(log_prob_t, advantage_t)


def _check(*arrays: jax.Array) -> None:
  chex.assert_rank(arrays, 1)
  chex.assert_equal_shape(arrays)
  chex.assert_type(arrays, float)
