"""The numpy twin is `cheetah_run`."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import envs
from benchmarks import cheetah_gym, settings
from envs.tasks import cheetah_run


@pytest.fixture(scope="module")
def env() -> envs.Env:
  env = envs.make("cheetah_run", physics="mujoco")
  return env._replace(reset=jax.jit(env.reset), step=jax.jit(env.step))


def test_observations_and_rewards_are_those_of_the_task(env: envs.Env):
  twin = cheetah_gym.CheetahRun()
  rewards = []
  for seed in range(4):
    state = env.reset(jax.random.key(seed))
    physics = jax.device_get(state.physics.data)
    obs = twin.place(physics["qpos"], physics["qvel"])
    np.testing.assert_array_equal(obs, state.obs)
    # Beyond the range of actions, too.
    actions = np.random.default_rng(seed).uniform(-1.3, 1.3, (40, 6))
    for action in actions.astype(np.float32):
      state = env.step(state, action)
      obs, reward, terminated, truncated, _ = twin.step(action)
      np.testing.assert_array_equal(obs, state.obs)
      # 1 - (10 - speed) / 10 in float32 is rounded near 1.
      np.testing.assert_allclose(reward, state.reward, rtol=0, atol=2e-7)
      assert (terminated, truncated) == (False, False)
      rewards.append(reward)
  assert min(rewards) == 0.0 < max(rewards)


def test_first_poses_spread_as_those_of_the_task(env: envs.Env):
  # Least and greatest of 256 draws are within 3 % of the range's ends nearly
  # always: (1 - 0.03)^256 = 4e-4 per joint and end.
  twin = cheetah_gym.CheetahRun()
  keys = jax.random.split(jax.random.key(0), 256)
  ours = np.asarray(jax.jit(jax.vmap(env.reset))(keys).obs)
  theirs = np.stack([twin.reset(seed=i)[0] for i in range(256)])
  joints = slice(2, 8)
  width = np.ptp(ours[:, joints], axis=0)
  assert (width > 0.2).all()
  for reduce in (np.min, np.max):
    difference = reduce(ours, axis=0) - reduce(theirs, axis=0)
    assert (np.abs(difference[joints]) < 0.03 * width).all()
  np.testing.assert_array_equal(ours[:, :2], theirs[:, :2])
  velocities = slice(8, 17)
  np.testing.assert_allclose(theirs[:, velocities].std(), 0.1, rtol=0.1)
  np.testing.assert_allclose(ours[:, velocities].std(), 0.1, rtol=0.1)


def test_an_episode_ends_by_truncation_and_rewards_are_scaled():
  twin = cheetah_gym.CheetahRun(episode_length=3, reward_scale=0.5)
  twin.reset(seed=0)
  velocity = np.zeros(9)
  velocity[0] = 4.0  # the whole body moves at 4 m/s of 10: reward 0.4
  twin.place(np.array([0.0, 1.0, *[0.0] * 7]), velocity)
  steps = [twin.step(np.zeros(6)) for _ in range(3)]
  assert [step[3] for step in steps] == [False, False, True]
  np.testing.assert_allclose(steps[0][1], 0.5 * 0.4, rtol=1e-6)


def test_the_sizes_that_settings_state_are_the_tasks(env: envs.Env):
  assert env.reset(jax.random.key(0)).obs.shape == (settings.OBS_SIZE,)
  assert env.action.size == settings.ACTION_SIZE
  config = cheetah_run.default_config()
  assert config.episode_length == settings.EPISODE_LENGTH
