"""Weights for samples of another program: by hand, and 1 where it agrees."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlinf_jax.losses import corrections

ALL = [
  corrections.token_truncated,
  corrections.token_masked,
  corrections.sequence_truncated,
  corrections.sequence_masked,
]
# Ratios 1.5, 0.25, 4; the last token, of whatever ratio, does not count.
ENGINE_T = jnp.log(jnp.array([0.2, 0.4, 0.1, 0.5]))
TRAINER_T = jnp.log(jnp.array([0.3, 0.1, 0.4, 0.001]))
MASK_T = jnp.array([True, True, True, False])


def weights(correction, **options):
  return jax.jit(lambda *x: correction(*x, **options))(
    TRAINER_T, ENGINE_T, MASK_T
  )


def test_truncated_tokens_by_hand():
  weight_t, mask_t = weights(corrections.token_truncated, max_weight=2.0)
  np.testing.assert_allclose(weight_t, [1.5, 0.25, 2.0, 0.0], rtol=1e-6)
  np.testing.assert_array_equal(mask_t, MASK_T)


def test_masked_tokens_by_hand():
  weight_t, mask_t = weights(corrections.token_masked, low=0.5, high=2.0)
  np.testing.assert_allclose(weight_t, [1.5, 0.0, 0.0, 0.0], rtol=1e-6)
  np.testing.assert_array_equal(mask_t, [True, False, False, False])


def test_truncated_sequences_by_hand():
  # 1.5 * 0.25 * 4 = 1.5
  for max_weight, expected in ((2.0, 1.5), (1.25, 1.25)):
    weight_t, mask_t = weights(
      corrections.sequence_truncated, max_weight=max_weight
    )
    np.testing.assert_allclose(weight_t, [expected] * 3 + [0.0], rtol=1e-6)
    np.testing.assert_array_equal(mask_t, MASK_T)


def test_masked_sequences_by_hand():
  weight_t, mask_t = weights(corrections.sequence_masked, low=0.5, high=2.0)
  np.testing.assert_allclose(weight_t, [1.5, 1.5, 1.5, 0.0], rtol=1e-6)
  np.testing.assert_array_equal(mask_t, MASK_T)
  weight_t, mask_t = weights(corrections.sequence_masked, low=0.5, high=1.25)
  np.testing.assert_array_equal(weight_t, np.zeros(4))
  np.testing.assert_array_equal(mask_t, np.zeros(4, bool))


@pytest.mark.parametrize("correction", ALL)
def test_where_both_programs_agree_nothing_changes(correction):
  weight_t, mask_t = correction(ENGINE_T, ENGINE_T, MASK_T)
  np.testing.assert_array_equal(weight_t, MASK_T.astype(jnp.float32))
  np.testing.assert_array_equal(mask_t, MASK_T)


@pytest.mark.parametrize("correction", ALL)
def test_of_one_token_the_sequence_is_the_token(correction):
  of_token, of_sequence = (
    (corrections.token_truncated, corrections.sequence_truncated)
    if correction in ALL[::2]
    else (corrections.token_masked, corrections.sequence_masked)
  )
  for log_ratio in (-0.5, 0.0, 0.5):
    arguments = (jnp.array([log_ratio]), jnp.zeros(1), jnp.ones(1, bool))
    for ours, theirs in zip(of_token(*arguments), of_sequence(*arguments)):
      np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("correction", ALL)
def test_weights_have_no_gradient_and_do_not_overflow(correction):
  def total(trainer_t, engine_t):
    return jnp.sum(correction(trainer_t, engine_t, jnp.ones(3, bool))[0])

  far_t = jnp.array([0.0, 300.0, 300.0])
  assert bool(jnp.isfinite(total(far_t, -far_t)))
  for gradient in jax.grad(total, argnums=(0, 1))(far_t, -far_t):
    np.testing.assert_array_equal(gradient, np.zeros(3))
