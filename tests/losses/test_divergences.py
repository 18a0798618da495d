"""KL estimators: by hand, against one another and against exact values."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlinf_jax import losses

ESTIMATORS = [losses.kl_k1, losses.kl_k2, losses.kl_k3]
P = jnp.log(jnp.array([0.5, 0.3, 0.2]))
Q = jnp.log(jnp.array([0.2, 0.5, 0.3]))


def test_estimates_by_hand():
  # r = 2: -log 2,  (log 2)^2 / 2,  (2 - 1) - log 2
  log_2 = np.log(2.0)
  for estimator, expected in zip(ESTIMATORS, [-log_2, log_2**2 / 2, 1 - log_2]):
    np.testing.assert_allclose(
      estimator(jnp.zeros(1), jnp.log(jnp.array([2.0]))), [expected], rtol=1e-6
    )


def test_k2_and_k3_agree_to_second_order_near_0():
  log_r_t = jnp.array([-1e-3, -1e-4, 1e-4, 1e-3])
  k2_t = losses.kl_k2(jnp.zeros(4), log_r_t)
  k3_t = losses.kl_k3(jnp.zeros(4), log_r_t)
  # k3 = x^2 / 2 + x^3 / 6 + ...: relatively |x| / 3 apart. (In float32 the
  # difference of expm1 and x keeps only half of the digits.)
  np.testing.assert_allclose(
    k3_t[jnp.array([0, 3])], k2_t[jnp.array([0, 3])], rtol=1e-2
  )
  np.testing.assert_allclose(k3_t, k2_t, atol=1e-8)


def test_k2_and_k3_are_never_negative():
  log_r_t = jnp.concatenate([x * jnp.logspace(-8, 1, 400) for x in (-1.0, 1.0)])
  for estimator in (losses.kl_k2, losses.kl_k3):
    assert float(jnp.min(estimator(jnp.zeros(800), log_r_t))) >= 0


@pytest.mark.parametrize("estimator", [losses.kl_k1, losses.kl_k3])
def test_k1_and_k3_are_unbiased(estimator):
  # The expectation over all three actions of pi is exact.
  expectation = jnp.sum(jnp.exp(P) * estimator(P, Q))
  exact = jnp.sum(jnp.exp(P) * (P - Q))
  np.testing.assert_allclose(expectation, exact, rtol=1e-5)


@pytest.mark.parametrize(
  ("estimator", "divergence"),
  [
    (losses.kl_k1, lambda p: 0.0 * jnp.sum(p)),
    (losses.kl_k2, lambda p: jnp.sum(jnp.exp(p) * (p - Q))),
    (losses.kl_k3, lambda p: jnp.sum(jnp.exp(Q) * (Q - p))),
  ],
)
def test_expected_gradients_are_those_the_docstring_names(
  estimator, divergence
):
  log_p = lambda logits: jax.nn.log_softmax(logits)
  # The actions stay those of the sampling policy: weights without gradient.
  expected = lambda logits: jnp.sum(jnp.exp(P) * estimator(log_p(logits), Q))
  np.testing.assert_allclose(
    jax.grad(expected)(P),
    jax.grad(lambda logits: divergence(log_p(logits)))(P),
    atol=1e-6,
  )


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_policy_is_at_distance_0_from_itself(estimator):
  np.testing.assert_array_equal(jax.jit(estimator)(P, P), np.zeros(3))
