"""What `gymnasium:NAME` makes of gymnasium's environments."""

from __future__ import annotations

import importlib.util

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
from envs import rendering, validation
from envs.adapters import foreign, simulators
from envs.adapters import gymnasium as adapter

pytestmark = pytest.mark.slow


def test_a_mujoco_env_equals_a_plain_gymnasium_loop_exactly():
  env = envs.make("gymnasium:HalfCheetah-v5", num_threads=1)
  validation.check(env, source="HalfCheetah-v5")
  assert env.action == envs.Box(size=6)
  assert env.episode_length is None and not env.is_resumable
  assert env.control_dt_s == pytest.approx(0.05)
  state = env.reset(jax.random.key(0))
  theirs = gymnasium.make("HalfCheetah-v5")
  theirs.reset(seed=int(state.physics.seed))
  step = jax.jit(env.step)
  for t in range(5):
    action = jax.random.uniform(jax.random.key(t), (6,), minval=-1, maxval=1)
    state = step(state, action)
    obs, reward, *_ = theirs.step(np.asarray(action))
    np.testing.assert_array_equal(state.obs, np.float32(obs))
    assert state.reward == np.float32(reward)


def test_actions_are_rescaled_to_the_limits_and_clipped():
  # Pendulum takes torques in [-2, 2]: 0.25 means 0.5, and 7 means 2.
  env = envs.make("gymnasium:Pendulum-v1", num_threads=1)
  state = env.reset(jax.random.key(0))
  theirs = gymnasium.make("Pendulum-v1")
  theirs.reset(seed=int(state.physics.seed))
  for ours, torque in ((0.25, 0.5), (7.0, 2.0), (-1.0, -2.0)):
    state = env.step(state, jnp.asarray([ours], jnp.float32))
    obs, *_ = theirs.step(np.asarray([torque], np.float32))
    np.testing.assert_array_equal(state.obs, np.float32(obs))


def test_a_discrete_observation_is_one_hot():
  env = envs.make("gymnasium:FrozenLake-v1", num_threads=1)
  obs = env.reset(jax.random.key(0)).obs
  np.testing.assert_array_equal(obs, np.eye(16, dtype=np.float32)[0])


def test_an_unknown_name_is_told_the_near_one():
  with pytest.raises(ValueError, match="HalfCheeta.*Did you mean"):
    envs.make("gymnasium:HalfCheeta-v5")


def test_a_package_that_the_environment_misses_is_named():
  if importlib.util.find_spec("Box2D"):
    pytest.skip("Box2D is installed")
  with pytest.raises(foreign.MissingExtraError, match="LunarLander.*Box2D"):
    envs.make("gymnasium:LunarLander-v3")


def test_a_child_reports_an_unknown_name_as_this_process_does():
  config = adapter.Config(num_processes=1)
  with pytest.raises(ValueError, match="HalfCheeta.*Did you mean"):
    envs.make("gymnasium:HalfCheeta-v5", config=config)


def test_a_child_that_ends_by_itself_is_told_apart_from_an_answer():
  child = simulators.Child("CartPole-v1", {})
  child._process.kill()
  with pytest.raises(RuntimeError, match="ended by itself"):
    child.summary(0)


@pytest.mark.parametrize(
  "settings", [{"physics": "mujoco"}, {"randomise": True}]
)
def test_a_setting_that_would_be_ignored_is_refused(settings):
  with pytest.raises(ValueError, match="its own physics"):
    envs.make("gymnasium:CartPole-v1", **settings)


@pytest.mark.parametrize(
  ("space", "message"),
  [
    (gymnasium.spaces.MultiDiscrete([2, 3]), "a Box or Discrete space"),
    (gymnasium.spaces.Box(-np.inf, np.inf, (2,)), "has no limits"),
  ],
)
def test_an_action_space_without_an_equivalent_is_refused(space, message):
  with pytest.raises(ValueError, match=message):
    adapter._action_spec("X-v0", space)


def test_frames_are_drawn_by_replaying_the_episode():
  env = envs.make("gymnasium:HalfCheetah-v5", num_threads=1)
  states = [env.reset(jax.random.key(0))]
  for _ in range(2):
    states.append(env.step(states[-1], jnp.ones(6)))
  states = jax.device_get(states)
  with pytest.raises(ValueError, match="from the first on"):
    env.render(states[2:])
  try:
    frames = env.render(states)
  except rendering.RenderingUnavailableError as error:
    pytest.skip(str(error))
  assert frames.shape[0] == 3 and frames.shape[-1] == 3
  assert frames.dtype == np.uint8
  assert (frames[0] != frames[2]).any()
