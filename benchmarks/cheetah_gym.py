"""`cheetah_run` as a gymnasium environment: plain mujoco and numpy, no JAX.

The twin that Stable-Baselines3 and SBX learn on. Model, observation, reward
and the distribution of first poses are those of `envs.tasks.cheetah_run`;
tests/benchmarks/test_cheetah_gym.py holds the two together.
"""

from __future__ import annotations

import pathlib
from typing import Any

import gymnasium
import mujoco
import numpy as np

_MODEL = pathlib.Path(__file__).parents[1] / "envs/tasks/assets/cheetah_run.xml"
_TARGET_SPEED_M_PER_S = 10.0
_START_SPREAD = 0.2


class CheetahRun(gymnasium.Env):
  """One planar cheetah."""

  metadata = {"render_modes": []}

  def __init__(self, *, episode_length: int = 1000, reward_scale: float = 1.0):
    """Loads the model.

    Args:
      episode_length: steps after which an episode is truncated.
      reward_scale: rewards are multiplied by it.
    """
    self._mj_model = mujoco.MjModel.from_xml_path(str(_MODEL))
    self._data = mujoco.MjData(self._mj_model)
    self._velocity = self._mj_model.sensor("velocity").adr[0]
    self._is_limited = self._mj_model.jnt_limited.astype(bool)
    self._episode_length = episode_length
    self._reward_scale = reward_scale
    self._num_steps = 0
    size = self._mj_model.nq - 1 + self._mj_model.nv
    self.observation_space = gymnasium.spaces.Box(
      -np.inf, np.inf, (size,), np.float32
    )
    self.action_space = gymnasium.spaces.Box(
      -1.0, 1.0, (self._mj_model.nu,), np.float32
    )

  def reset(
    self, *, seed: int | None = None, options: dict[str, Any] | None = None
  ) -> tuple[np.ndarray, dict[str, Any]]:
    """Returns the first observation, float32 [17], of a new episode."""
    super().reset(seed=seed, options=options)
    qpos = self._mj_model.qpos0.copy()
    address = self._mj_model.jnt_qposadr[self._is_limited]
    low, high = self._mj_model.jnt_range[self._is_limited].T
    drawn = self.np_random.uniform(low, high)
    qpos[address] += _START_SPREAD * (drawn - qpos[address])
    qpos[1] += 0.05
    qvel = 0.1 * self.np_random.standard_normal(self._mj_model.nv)
    return self.place(qpos, qvel), {}

  def place(self, qpos: np.ndarray, qvel: np.ndarray) -> np.ndarray:
    """Begins an episode at qpos [9] and qvel [9]; returns the observation."""
    mujoco.mj_resetData(self._mj_model, self._data)
    self._data.qpos[:] = qpos
    self._data.qvel[:] = qvel
    mujoco.mj_forward(self._mj_model, self._data)
    self._num_steps = 0
    return self._observe()

  def step(
    self, action: np.ndarray
  ) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
    """Returns what gymnasium says; action is [6]."""
    self._data.ctrl[:] = np.clip(action, -1.0, 1.0)
    mujoco.mj_step(self._mj_model, self._data)
    self._num_steps += 1
    speed = self._data.sensordata[self._velocity]
    reward = min(max(speed / _TARGET_SPEED_M_PER_S, 0.0), 1.0)
    return (
      self._observe(),
      float(reward) * self._reward_scale,
      False,
      self._num_steps >= self._episode_length,
      {},
    )

  def _observe(self) -> np.ndarray:
    data = self._data
    return np.concatenate([data.qpos[1:], data.qvel], dtype=np.float32)
