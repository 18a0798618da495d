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


def decoupled_surrogate(
  log_prob_t: jax.Array,
  proximal_log_prob_t: jax.Array,
  behaviour_log_prob_t: jax.Array,
  advantage_t: jax.Array,
  *,
  clip_low: chex.Numeric = 0.2,
  clip_high: chex.Numeric = 0.2,
  max_weight: chex.Numeric | None = None,
) -> jax.Array:
  """Returns PPO's loss near one policy of actions that another one took.

    weight_t = pi_prox(a_t|s_t) / pi_behav(a_t|s_t)
    loss_t = weight_t clipped_surrogate(pi, pi_prox, A)_t

  PPO's old policy plays two roles: it acted, and the new one must stay near
  it. In asynchronous training an older policy acted, and staying near that
  would hold learning back. With pi_prox = pi_behav this is
  `clipped_surrogate`.

  Args:
    log_prob_t: float [T], nats, of the policy that learns.
    proximal_log_prob_t: float [T], nats, of the one it must stay near: itself
      before the update.
    behaviour_log_prob_t: float [T], nats, of the one that acted.
    advantage_t: float [T].
    clip_low: as in `clipped_surrogate`.
    clip_high: as in `clipped_surrogate`.
    max_weight: bounds weight_t. None does not bound it.

  Returns:
    loss_t [T], float; gradient flows to log_prob_t alone.

  Raises:
    AssertionError: an argument is not a float array [T].

  Source: Hilton et al., "Batch Size-Invariance for Policy Optimization", arXiv
    2110.00641, section 3; Fu et al., "AReaL", arXiv 2505.24298, section 5.2.
  """
  weight_t = jax.lax.stop_gradient(
    _ratio(proximal_log_prob_t, behaviour_log_prob_t)
  )
  if max_weight is not None:
    weight_t = jnp.minimum(weight_t, max_weight)
  return weight_t * clipped_surrogate(
    log_prob_t,
    proximal_log_prob_t,
    advantage_t,
    clip_low=clip_low,
    clip_high=clip_high,
  )


def sequence_surrogate(
  log_prob_t: jax.Array,
  old_log_prob_t: jax.Array,
  advantage_t: jax.Array,
  mask_t: jax.Array,
  *,
  clip_low: chex.Numeric = 3e-4,
  clip_high: chex.Numeric = 4e-4,
) -> jax.Array:
  """Returns PPO's loss with one ratio for a whole sequence.

    s = (prod_t ratio_t)^(1 / T)       over the T tokens that count
    s_t = stop(s) pi(a_t|s_t) / stop(pi(a_t|s_t))
    loss_t = -min(s_t A_t, clip(s_t, 1 - clip_low, 1 + clip_high) A_t)

  s_t has the value of s. Where A_t is one number, the mean over the sequence
  (`sequence_mean`) has the value and gradient of -min(s A, clip(s) A): a
  sequence is clipped whole or not at all. At T = 1 it is `clipped_surrogate`.

  Args:
    log_prob_t: float [T], nats, of the policy that learns.
    old_log_prob_t: float [T], nats, of the policy that acted.
    advantage_t: float [T].
    mask_t: bool [T], the tokens that count.
    clip_low: as in `clipped_surrogate`; s is far nearer to 1 than ratio_t.
    clip_high: as in `clipped_surrogate`.

  Returns:
    loss_t [T], float; gradient flows to log_prob_t alone.

  Raises:
    AssertionError: an argument is not an array [T] of the right dtype.

  Source: Zheng et al., "Group Sequence Policy Optimization", arXiv 2507.18071,
    eqs. 5, 7, 13 and 14.
  """
  arrays = [log_prob_t, old_log_prob_t, advantage_t, mask_t]
  chex.assert_rank(arrays, 1)
  chex.assert_equal_shape(arrays)
  chex.assert_type(arrays, [float, float, float, bool])
  advantage_t = jax.lax.stop_gradient(advantage_t)
  log_ratio_t = jnp.where(mask_t, log_prob_t - old_log_prob_t, 0.0)
  num_tokens = jnp.maximum(jnp.sum(mask_t, dtype=log_prob_t.dtype), 1.0)
  log_ratio = jnp.sum(log_ratio_t) / num_tokens
  ratio = jnp.exp(jnp.clip(log_ratio, -_MAX_LOG_RATIO, _MAX_LOG_RATIO))
  one_t = jnp.exp(log_prob_t - jax.lax.stop_gradient(log_prob_t))
  ratio_t = jax.lax.stop_gradient(ratio) * one_t
  clipped_t = jnp.clip(ratio_t, 1.0 - clip_low, 1.0 + clip_high)
  return -jnp.minimum(ratio_t * advantage_t, clipped_t * advantage_t)


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
