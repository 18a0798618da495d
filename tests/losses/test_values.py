"""Value losses by hand."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlinf_jax import losses


def test_value_loss_is_half_the_squared_error():
  # 3^2 / 2, 1^2 / 2
  np.testing.assert_allclose(
    losses.value_loss(jnp.array([3.0, 1.0]), jnp.array([0.0, 2.0])), [4.5, 0.5]
  )


def test_huber_loss_is_linear_beyond_delta():
  value_t = jnp.array([0.5, -3.0])
  # 0.5^2 / 2 = 0.125;  1 * (3 - 1 / 2) = 2.5
  np.testing.assert_allclose(
    losses.value_loss(value_t, jnp.zeros(2), huber_delta=1.0), [0.125, 2.5]
  )
  total = lambda x: jnp.sum(losses.value_loss(x, jnp.zeros(2), huber_delta=1.0))
  np.testing.assert_allclose(jax.grad(total)(value_t), [0.5, -1.0])


def test_huber_loss_with_a_large_delta_is_the_squared_error():
  value_t, target_t = jax.random.normal(jax.random.key(0), (2, 10))
  np.testing.assert_allclose(
    losses.value_loss(value_t, target_t, huber_delta=100.0),
    losses.value_loss(value_t, target_t),
    rtol=1e-5,
  )


def test_huber_gradient_is_0_at_the_target():
  gradient = jax.grad(
    lambda x: losses.value_loss(x, jnp.zeros(1), huber_delta=1.0)[0]
  )
  np.testing.assert_array_equal(gradient(jnp.zeros(1)), [0.0])


def test_clipped_value_loss_is_the_worse_of_near_and_far():
  value_t = jnp.array([2.0, 2.0, 0.5])
  target_t = jnp.array([3.0, 1.0, 1.0])
  options = dict(old_value_t=jnp.zeros(3), clip=1.0)
  # near = 1, 1, 0.5
  # max((2-3)^2, (1-3)^2) / 2 = 2,  max((2-1)^2, 0) / 2 = 0.5,  0.5^2 / 2
  np.testing.assert_allclose(
    losses.value_loss(value_t, target_t, **options), [2.0, 0.5, 0.125]
  )
  total = lambda x: jnp.sum(losses.value_loss(x, target_t, **options))
  # The first has moved its allowance towards the target: no more gradient.
  np.testing.assert_allclose(jax.grad(total)(value_t), [0.0, 1.0, -0.5])


def test_gradient_flows_to_the_value_only():
  total = lambda v, target, old: jnp.sum(
    losses.value_loss(v, target, old_value_t=old, clip=0.5)
  )
  arguments = [jnp.array([x]) for x in (0.1, 1.0, 0.0)]
  value, target, old = jax.grad(total, argnums=(0, 1, 2))(*arguments)
  assert float(value[0]) != 0
  assert float(target[0]) == float(old[0]) == 0


def test_clip_and_old_value_go_together():
  with pytest.raises(ValueError, match="Given clip without old_value_t"):
    losses.value_loss(jnp.zeros(2), jnp.zeros(2), clip=0.5)
  with pytest.raises(ValueError, match="Given old_value_t without clip"):
    losses.value_loss(jnp.zeros(2), jnp.zeros(2), old_value_t=jnp.zeros(2))
