"""Brax sees the environment that we see."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs

pytestmark = pytest.mark.slow


def test_brax_gets_the_observations_and_rewards_of_the_env(standard_promotion):
  pytest.importorskip("brax")
  from benchmarks.legs import brax_ppo

  env = envs.make("cheetah_run", physics="mujoco")
  wrapped = brax_ppo.TaskEnv(env)
  state = jax.jit(env.reset)(jax.random.key(0))
  seen = jax.jit(wrapped.reset)(jax.random.key(0))
  assert wrapped.observation_size == seen.obs.shape[-1]
  for i in range(20):
    np.testing.assert_array_equal(seen.obs, state.obs)
    np.testing.assert_array_equal(seen.reward, state.reward)
    assert seen.done == 0.0
    action = jnp.full((wrapped.action_size,), 0.9 * (-1.0) ** i)
    state = jax.jit(env.step)(state, action)
    seen = jax.jit(wrapped.step)(seen, action)
