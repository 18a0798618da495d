"""Surrogate objectives: policy losses that importance weights keep honest."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp

# exp of more would overflow products in float32; no clip range is that wide.
_MAX_LOG_RATIO = 20.0


def clipped_surrogate(
  log_prob_t: jax.Array,
  old_log_prob_t: jax.Array,
  advantage_t: jax.Array,
  *,
  clip_low: chex.Numeric = 0.2,
  clip_high: chex.Numeric = 0.2,
  dual_clip: chex.Numeric | None = None,
) -> jax.Array:
  """Returns PPO's loss: the pessimistic one of two weighted advantages.

    ratio_t = pi(a_t|s_t) / pi_old(a_t|s_t)
    loss_t = -min(ratio_t A_t, clip(ratio_t, 1 - clip_low, 1 + clip_high) A_t)

  and with `dual_clip` c, where A_t < 0,

    loss_t = -max(min(...), c A_t)

  Args:
    log_prob_t: float [T], nats, of the policy that learns.
    old_log_prob_t: float [T], nats, of the policy that acted.
    advantage_t: float [T].
    clip_low: how far below 1 the ratio is rewarded for falling, in [0, 1].
    clip_high: how far above 1 it is rewarded for rising; more than clip_low
      leaves room for unlikely actions (DAPO's "clip higher").
    dual_clip: more than 1; bounds the loss of a bad action that has become
      likely. None does not bound it.

  Returns:
    loss_t [T], float. Its gradient is that of -ratio_t A_t inside the clip
    range and 0 where clipping binds. No gradient flows to old_log_prob_t or
    advantage_t.

  Raises:
    AssertionError: an argument is not a float array [T].

  Source: Schulman et al., "Proximal Policy Optimization Algorithms", arXiv
    1707.06347, eq. 7. Two bounds: Yu et al., "DAPO", arXiv 2503.14476, section
    3.1.
    Dual clip: Ye et al., "Mastering Complex Control in MOBA Games with Deep
    Reinforcement Learning", arXiv 1912.09729.
  """
  advantage_t = jax.lax.stop_gradient(advantage_t)
  ratio_t = _ratio(log_prob_t, old_log_prob_t)
  chex.assert_equal_shape([ratio_t, advantage_t])
  chex.assert_type(advantage_t, float)
  clipped_t = jnp.clip(ratio_t, 1.0 - clip_low, 1.0 + clip_high)
  objective_t = jnp.minimum(ratio_t * advantage_t, clipped_t * advantage_t)
  if dual_clip is not None:
    bounded_t = jnp.maximum(objective_t, dual_clip * advantage_t)
    objective_t = jnp.where(advantage_t < 0, bounded_t, objective_t)
  return -objective_t


def is_clipped(
  log_prob_t: jax.Array,
  old_log_prob_t: jax.Array,
  *,
  clip_low: chex.Numeric = 0.2,
  clip_high: chex.Numeric = 0.2,
) -> jax.Array:
  """Returns 1 where the ratio left the clip range; its mean is a diagnostic.

  Args:
    log_prob_t: float [T], nats, of the policy that learns.
    old_log_prob_t: float [T], nats, of the policy that acted.
    clip_low: as in `clipped_surrogate`.
    clip_high: as in `clipped_surrogate`.

  Returns:
    float [T], 0 or 1, without gradient.

  Raises:
    AssertionError: an argument is not a float array [T].
  """
  ratio_t = jax.lax.stop_gradient(_ratio(log_prob_t, old_log_prob_t))
  is_outside_t = (ratio_t < 1.0 - clip_low) | (ratio_t > 1.0 + clip_high)
  return is_outside_t.astype(ratio_t.dtype)


def _ratio(log_prob_t: jax.Array, old_log_prob_t: jax.Array) -> jax.Array:
  """Returns pi / pi_old [T], finite, with gradient to the former alone."""
  chex.assert_rank([log_prob_t, old_log_prob_t], 1)
  chex.assert_equal_shape([log_prob_t, old_log_prob_t])
  chex.assert_type([log_prob_t, old_log_prob_t], float)
  log_ratio_t = log_prob_t - jax.lax.stop_gradient(old_log_prob_t)
  return jnp.exp(jnp.clip(log_ratio_t, -_MAX_LOG_RATIO, _MAX_LOG_RATIO))
