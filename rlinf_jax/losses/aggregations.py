"""Sums with weights: a batch's mean is one division, made where all meet."""

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
