"""The environment in the documentation works as it says."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs

FILE = pathlib.Path(__file__).parents[2] / "docs" / "my_env.py"


def test_the_documented_file_is_an_environment_that_a_controller_solves():
  env = envs.make(f"{FILE}:MyEnv", physics="mujoco", num_threads=1)
  reset, step = jax.jit(jax.vmap(env.reset)), jax.jit(jax.vmap(env.step))
  state = reset(jax.random.split(jax.random.key(0), 4))
  np.testing.assert_array_equal(state.obs[:, 0], state.info["flag"])
  for _ in range(env.episode_length):
    # Spring and damper, in units of 5 N on 1 kg: critical at 2 sqrt(5 k) / 5.
    force = 0.8 * state.obs[:, :1] - 0.8 * state.obs[:, 1:2]
    state = step(state, force)
  assert (state.metrics["is_there"] == 1.0).all()
  assert (state.reward > 0.99).all()
  assert not state.terminated.any()


def test_a_setting_that_the_file_does_not_name_is_refused():
  with pytest.raises(ValueError, match="takes no argument 'randomise'"):
    envs.make(f"{FILE}:MyEnv", randomise=True)


def test_the_flag_is_where_the_observation_says():
  env = envs.make(f"{FILE}:MyEnv", physics="mujoco", num_threads=1)
  state = jax.jit(env.reset)(jax.random.key(1))
  pushed = jax.jit(env.step)(state, jnp.ones(1))
  assert pushed.obs[1] > 0.0  # a push to the right is a velocity to the right
  position = pushed.physics.data["qpos"][0]
  np.testing.assert_allclose(
    pushed.obs[0], state.info["flag"] - position, rtol=1e-6
  )
