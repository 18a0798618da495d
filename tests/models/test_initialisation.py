"""Weights from one draw: orthogonal, unlike one another, and only ours."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from rlinf_jax import models
from rlinf_jax.models import initialisation


class Network(nnx.Module):
  def __init__(self, rngs):
    self.tall = initialisation.orthogonal((6, 3), scale=2.0)
    self.wide = initialisation.orthogonal((3, 6), scale=1.0)
    self.window = initialisation.orthogonal((2, 2, 1, 3), scale=1.0)
    self.own = nnx.Linear(3, 6, rngs=rngs)


@functools.cache
def weights(seed=0):
  def init(key):
    module = Network(nnx.Rngs(7))
    initialisation.fill(module, key)
    return nnx.to_pure_dict(nnx.state(module, nnx.Param))

  return jax.jit(init)(jax.random.key(seed))


@pytest.mark.parametrize("name", ["tall", "wide", "window"])
def test_weights_are_orthogonal_and_scaled(name):
  matrix = np.array(weights()[name]).reshape(-1, weights()[name].shape[-1])
  if matrix.shape[0] < matrix.shape[1]:
    matrix = matrix.T
  scale = 2.0 if name == "tall" else 1.0
  np.testing.assert_allclose(
    matrix.T @ matrix, scale**2 * np.eye(matrix.shape[1]), atol=1e-5
  )


def test_layers_and_keys_get_weights_of_their_own():
  tall, wide = weights()["tall"], weights()["wide"]
  assert not np.allclose(tall / 2.0, wide.T, atol=1e-2)
  assert not np.allclose(tall, weights(1)["tall"], atol=1e-2)


def test_signs_are_even():
  # QR alone would give one sign to each diagonal.
  def first(key):
    module = Network(nnx.Rngs(7))
    initialisation.fill(module, key)
    return module.tall[0, 0]

  first_s = jax.jit(jax.vmap(first))(jax.random.split(jax.random.key(0), 400))
  # A fair coin thrown 400 times: 200 heads, give or take 4 deviations of 10.
  assert 160 < int(jnp.sum(first_s > 0)) < 240


def test_other_parameters_keep_their_own_initial_values():
  own = nnx.Linear(3, 6, rngs=nnx.Rngs(7))
  np.testing.assert_array_equal(weights()["own"]["kernel"], own.kernel)


def test_a_network_of_the_users_own_makes_a_policy():
  class Own(nnx.Module):
    def __init__(self, size, num_outputs, rngs):
      self.layer = nnx.Linear(size, num_outputs, rngs=rngs)

    def initial_carry(self):
      return ()

    def __call__(self, obs_t, carry, is_first_t):
      return self.layer(obs_t), carry

  policy = models.actor_critic(
    jnp.zeros(3),
    models.categorical(4),
    lambda obs, num_outputs, *, is_policy, rngs: Own(
      obs.shape[0], num_outputs, rngs
    ),
  )
  params = policy.init(jax.random.key(0))
  obs_t = jnp.arange(6.0).reshape(2, 3)
  outputs_t, _, _ = policy.apply(params, obs_t, (), jnp.zeros(2, bool))
  np.testing.assert_allclose(
    outputs_t, obs_t @ params["policy"]["layer"]["kernel"], rtol=1e-5
  )
  assert np.abs(params["policy"]["layer"]["kernel"]).min() > 0
