"""Sums with weights."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from rlinf_jax import losses


def test_masked_sum_leaves_out_what_is_masked():
  total, weight = losses.masked_sum(
    jnp.array([1.0, jnp.nan, 4.0]), jnp.array([True, False, True])
  )
  assert (float(total), float(weight)) == (5.0, 2.0)


def test_sums_of_parts_are_the_sum_of_the_whole():
  loss_bt = jnp.arange(12.0).reshape(3, 4)
  mask_bt = loss_bt % 3 > 0
  total_b, weight_b = jax.jit(jax.vmap(losses.masked_sum))(loss_bt, mask_bt)
  # 66 in all, less 0 + 3 + 6 + 9
  np.testing.assert_allclose(jnp.sum(total_b), 48.0)
  np.testing.assert_allclose(jnp.sum(weight_b), 8.0)
