"""Weights for tokens that another program sampled than the one that learns.

A rollout engine and a trainer with the same parameters give a token slightly
different probabilities, so that samples are off-policy before any update. Each
function returns weights that multiply a policy loss, and which tokens still
count. With ratio_t = pi_trainer(a_t|s_t) / pi_engine(a_t|s_t), both of the
parameters that sampled, and ratio the product of ratio_t over the sequence:

                      weight                    what still counts
  token_truncated     min(ratio_t, max_weight)  all
  token_masked        ratio_t                   where low <= ratio_t <= high
  sequence_truncated  min(ratio, max_weight)    all
  sequence_masked     ratio                     all if low <= ratio <= high

Weights are 0 where a token does not count, and carry no gradient. Tokens are
judged one by one at the price of a bias that grows with the answer; whole
sequences without bias, at the price of variance.

Sources: truncated, Yao et al., "Your Efficient RL Framework Secretly Brings You
Off-Policy RL Training", 2025; masked, Ling Team, "Every Step Evolves" (IcePop),
arXiv 2510.18855, by token, and Liu et al., "When Speed Kills Stability:
Demystifying RL Collapse from the Training-Inference Mismatch", 2025, by
sequence. What is masked is left out of means here, so that weights of 0 do not
make the others' steps smaller.
"""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp

# exp of more would overflow products in float32; no bound is that wide.
_MAX_LOG_RATIO = 20.0


def token_truncated(
  log_prob_t: jax.Array,
  engine_log_prob_t: jax.Array,
  mask_t: jax.Array,
  *,
  max_weight: chex.Numeric = 2.0,
) -> tuple[jax.Array, jax.Array]:
  """Returns min(ratio_t, max_weight), and the mask unchanged.

  Args:
    log_prob_t: float [T], nats, the trainer's, from before the update.
    engine_log_prob_t: float [T], nats, the engine's.
    mask_t: bool [T], the tokens that count.
    max_weight: more than 0.

  Returns:
    weight_t [T], float, and mask_t [T], bool.

  Raises:
    AssertionError: an argument is not an array [T] of the right dtype.
  """
  ratio_t = jnp.exp(_log_ratio(log_prob_t, engine_log_prob_t, mask_t))
  return jnp.where(mask_t, jnp.minimum(ratio_t, max_weight), 0.0), mask_t


def token_masked(
  log_prob_t: jax.Array,
  engine_log_prob_t: jax.Array,
  mask_t: jax.Array,
  *,
  low: chex.Numeric = 0.5,
  high: chex.Numeric = 5.0,
) -> tuple[jax.Array, jax.Array]:
  """Returns ratio_t, and a mask without the tokens where it is out of bounds.

  Args:
    log_prob_t: as in `token_truncated`.
    engine_log_prob_t: as in `token_truncated`.
    mask_t: bool [T], the tokens that count.
    low: the least ratio that is believed.
    high: the greatest.

  Returns:
    weight_t [T], float, and mask_t [T], bool.

  Raises:
    AssertionError: an argument is not an array [T] of the right dtype.
  """
  ratio_t = jnp.exp(_log_ratio(log_prob_t, engine_log_prob_t, mask_t))
  mask_t = mask_t & (low <= ratio_t) & (ratio_t <= high)
  return jnp.where(mask_t, ratio_t, 0.0), mask_t


def sequence_truncated(
  log_prob_t: jax.Array,
  engine_log_prob_t: jax.Array,
  mask_t: jax.Array,
  *,
  max_weight: chex.Numeric = 2.0,
) -> tuple[jax.Array, jax.Array]:
  """Returns min(ratio, max_weight) for each token, and the mask unchanged.

  Args:
    log_prob_t: as in `token_truncated`.
    engine_log_prob_t: as in `token_truncated`.
    mask_t: bool [T], the tokens that count.
    max_weight: more than 0.

  Returns:
    weight_t [T], float, and mask_t [T], bool.

  Raises:
    AssertionError: an argument is not an array [T] of the right dtype.
  """
  ratio = _sequence_ratio(log_prob_t, engine_log_prob_t, mask_t)
  return jnp.where(mask_t, jnp.minimum(ratio, max_weight), 0.0), mask_t


def sequence_masked(
  log_prob_t: jax.Array,
  engine_log_prob_t: jax.Array,
  mask_t: jax.Array,
  *,
  low: chex.Numeric = 0.5,
  high: chex.Numeric = 2.0,
) -> tuple[jax.Array, jax.Array]:
  """Returns ratio for each token, and an empty mask if it is out of bounds.

  Args:
    log_prob_t: as in `token_truncated`.
    engine_log_prob_t: as in `token_truncated`.
    mask_t: bool [T], the tokens that count.
    low: the least ratio that is believed.
    high: the greatest.

  Returns:
    weight_t [T], float, and mask_t [T], bool.

  Raises:
    AssertionError: an argument is not an array [T] of the right dtype.
  """
  ratio = _sequence_ratio(log_prob_t, engine_log_prob_t, mask_t)
  mask_t = mask_t & ((low <= ratio) & (ratio <= high))
  return jnp.where(mask_t, ratio, 0.0), mask_t


def _log_ratio(
  log_prob_t: jax.Array, engine_log_prob_t: jax.Array, mask_t: jax.Array
) -> jax.Array:
  """Returns log ratio_t [T], 0 where masked, without gradient."""
  arrays = [log_prob_t, engine_log_prob_t, mask_t]
  chex.assert_rank(arrays, 1)
  chex.assert_equal_shape(arrays)
  chex.assert_type(arrays, [float, float, bool])
  log_ratio_t = jnp.where(mask_t, log_prob_t - engine_log_prob_t, 0.0)
  log_ratio_t = jnp.clip(log_ratio_t, -_MAX_LOG_RATIO, _MAX_LOG_RATIO)
  return jax.lax.stop_gradient(log_ratio_t)


def _sequence_ratio(
  log_prob_t: jax.Array, engine_log_prob_t: jax.Array, mask_t: jax.Array
) -> jax.Array:
  log_ratio = jnp.sum(_log_ratio(log_prob_t, engine_log_prob_t, mask_t))
  return jnp.exp(jnp.clip(log_ratio, -_MAX_LOG_RATIO, _MAX_LOG_RATIO))
