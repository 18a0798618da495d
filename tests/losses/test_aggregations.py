"""Sums with weights."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

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


def test_each_aggregation_of_two_answers_by_hand():
  loss_bt = jnp.array([[1.0, 2.0, 3.0, 6.0], [10.0, jnp.nan, jnp.nan, 0.0]])
  mask_bt = jax.vmap(lambda n: losses.length_mask(n, 4))(jnp.array([4, 1]))

  def batch_mean(aggregation_fn):
    total_b, weight_b = jax.jit(jax.vmap(aggregation_fn))(loss_bt, mask_bt)
    return float(jnp.sum(total_b) / jnp.sum(weight_b))

  # 12 over four tokens and 10 over one: 22 / 5
  np.testing.assert_allclose(batch_mean(losses.masked_sum), 4.4, rtol=1e-6)
  # (12 / 4 + 10 / 1) / 2
  np.testing.assert_allclose(batch_mean(losses.sequence_mean), 6.5)
  # (12 + 10) / 2, and a quarter of that
  np.testing.assert_allclose(batch_mean(losses.sequence_sum), 11.0)
  np.testing.assert_allclose(
    batch_mean(lambda *x: losses.sequence_sum(*x, divisor=4.0)), 2.75
  )


@pytest.mark.parametrize(
  "aggregation_fn",
  [
    losses.sequence_mean,
    lambda *x: losses.sequence_sum(*x, divisor=3.0),
  ],
)
def test_answers_of_equal_length_average_to_the_mean_of_tokens(aggregation_fn):
  loss_bt = jnp.arange(20.0).reshape(4, 5)
  mask_bt = jnp.tile(losses.length_mask(jnp.array(3), 5), (4, 1))
  total_b, weight_b = jax.vmap(losses.masked_sum)(loss_bt, mask_bt)
  other_total_b, other_weight_b = jax.vmap(aggregation_fn)(loss_bt, mask_bt)
  np.testing.assert_allclose(
    jnp.sum(other_total_b) / jnp.sum(other_weight_b),
    jnp.sum(total_b) / jnp.sum(weight_b),
    rtol=1e-6,
  )


@pytest.mark.parametrize(
  "aggregation_fn",
  [losses.masked_sum, losses.sequence_mean, losses.sequence_sum],
)
def test_an_answer_of_which_nothing_counts_weighs_nothing(aggregation_fn):
  total, weight = aggregation_fn(jnp.full(3, jnp.nan), jnp.zeros(3, bool))
  assert (float(total), float(weight)) == (0.0, 0.0)
