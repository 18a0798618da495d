"""Sums with weights: a batch's mean is one division, made where all meet.

Each function returns a sequence's share (sum, weight); the loss of a batch is
the sum of its sums over the sum of its weights. By the names that are used for
language models,

  token-mean           `masked_sum`: every token of the batch weighs the same
  seq-mean-token-mean  `sequence_mean`: every sequence weighs the same
  seq-mean-token-sum   `sequence_sum`: a sequence weighs what its tokens do

A sequence of which no step counts has weight 0.
"""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp


def masked_sum(
  loss_t: jax.Array, mask_t: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Returns the sum of a loss over the steps that count, and how many do.

  Sums and weights of sequences, granules and devices add up; dividing one by
  the other is left to the barrier that sees the whole batch.

  Args:
    loss_t: float [T]; may be NaN where mask_t is False. (Its gradient then is
      NaN too, unless what made it NaN was replaced before.)
    mask_t: bool [T].

  Returns:
    sum [] and weight [], float.

  Raises:
    AssertionError: not of shape [T], or of the wrong dtype.
  """
  chex.assert_rank([loss_t, mask_t], 1)
  chex.assert_equal_shape([loss_t, mask_t])
  chex.assert_type([loss_t, mask_t], [float, bool])
  weight = jnp.sum(mask_t, dtype=loss_t.dtype)
  return jnp.sum(jnp.where(mask_t, loss_t, 0.0)), weight


def sequence_mean(
  loss_t: jax.Array, mask_t: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Returns the mean of a loss over the steps that count, and weight 1.

  A token of a long answer so weighs less than one of a short answer.

  Args:
    loss_t: float [T], as in `masked_sum`.
    mask_t: bool [T].

  Returns:
    sum [] and weight [], float.

  Raises:
    AssertionError: not of shape [T], or of the wrong dtype.

  Source: Shao et al., "DeepSeekMath" (GRPO), arXiv 2402.03300, eq. 3.
  """
  total, count = masked_sum(loss_t, mask_t)
  return total / jnp.maximum(count, 1.0), jnp.minimum(count, 1.0)


def sequence_sum(
  loss_t: jax.Array, mask_t: jax.Array, *, divisor: chex.Numeric = 1.0
) -> tuple[jax.Array, jax.Array]:
  """Returns the sum of a loss over the steps that count, and weight 1.

  Args:
    loss_t: float [T], as in `masked_sum`.
    mask_t: bool [T].
    divisor: of the sum; one number for all sequences, such as the longest
      answer's number of tokens, so that the loss is of the size of a mean.

  Returns:
    sum [] and weight [], float.

  Raises:
    AssertionError: not of shape [T], or of the wrong dtype.

  Source: Liu et al., "Understanding R1-Zero-Like Training" (Dr. GRPO), arXiv
    2503.20783, section 3.2: a divisor that depended on the answer would favour
    short right answers and long wrong ones.
  """
  total, count = masked_sum(loss_t, mask_t)
  return total / divisor, jnp.minimum(count, 1.0)


def length_mask(num_tokens: jax.Array, size: int) -> jax.Array:
  """Returns which of `size` padded places the first tokens fill, bool [size].

  Args:
    num_tokens: int [], at most `size`.
    size: T.

  Raises:
    AssertionError: num_tokens is not an integer scalar.
  """
  chex.assert_rank(num_tokens, 0)
  chex.assert_type(num_tokens, int)
  return jnp.arange(size) < num_tokens
