"""cheetah_run: a planar cheetah runs forward, up to 10 m/s.

Observation, float32 [17]: positions but the root's x (height relative to the
start, pitch, 6 joint angles), then the 9 velocities; m, rad, m/s, rad/s.
Action, [6] in [-1, 1]: joint torques over their greatest, hind hip, knee and
ankle, then fore.
Reward: forward speed of the centre of mass over the target speed, within
[0, 1]. It is the speed at the beginning of the step (see `PhysicsState`).
Termination: none. Episodes have 1,000 steps of 0.01 s.

Source: the reward and step length of "cheetah run" in Tassa et al. 2018,
"DeepMind Control Suite" (arXiv 1801.00690), after Wawrzynski 2009. The body is
our own. An episode starts near the standing pose, not from random angles that
have settled: settling would cost 200 physics steps per reset.
"""

from __future__ import annotations

import dataclasses
import math

import chex
import jax
import jax.numpy as jnp
import mujoco

from envs import physics as physics_lib
from envs import randomisation, rendering, rewards, sensors
from envs import state as state_lib
from envs.tasks import models


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Config:
  """Tunables of the task.

  Attributes:
    episode_length: steps.
    target_speed_m_per_s: from where on the reward is 1.
    start_spread: joints start uniformly within this part of their ranges.
  """

  episode_length: int = 1000
  target_speed_m_per_s: float = 10.0
  start_spread: float = 0.2


def default_config() -> Config:
  """Returns the settings of the published task."""
  return Config()


def make(
  config: Config | None = None,
  *,
  physics: str = "auto",
  randomise: bool = False,
  num_threads: int = 0,
) -> state_lib.Env:
  """Returns the environment.

  Args:
    config: None takes the default.
    physics: the backend, one of `envs.physics.BACKENDS`.
    randomise: draw model values at every reset, with `randomise_model`.
    num_threads: of the mujoco backend; 0 takes all cores.

  Raises:
    ValueError: for an unknown backend.
  """
  config = config or default_config()
  mj_model = models.load("cheetah_run")
  sim = physics_lib.make(
    mj_model,
    backend=physics,
    num_substeps=1,
    fields=("sensordata",),
    num_threads=num_threads,
  )

  def reset(key: chex.PRNGKey) -> state_lib.State:
    key_pose, key_velocity, key_model = jax.random.split(key, 3)
    qpos = models.near_rest(key_pose, mj_model, spread=config.start_spread)
    qvel = 0.1 * jax.random.normal(key_velocity, (mj_model.nv,))
    values = randomise_model(key_model, mj_model) if randomise else {}
    data = sim.reset(qpos.at[1].add(0.05), qvel=qvel, model_values=values)
    return state_lib.initial_state(
      observe(data.data), physics=data, metrics={"speed_m_per_s": 0.0}
    )

  def step(state: state_lib.State, action: jax.Array) -> state_lib.State:
    data = sim.step(state.physics, jnp.clip(action, -1.0, 1.0))
    speed = sensors.read(mj_model, data.data, "velocity")[0]
    return state_lib.next_state(
      state,
      observe(data.data),
      reward=reward(speed, config=config),
      physics=data,
      metrics={"speed_m_per_s": speed},
    )

  return state_lib.Env(
    name="cheetah_run",
    reset=reset,
    step=step,
    action=state_lib.Box(size=mj_model.nu),
    episode_length=config.episode_length,
    control_dt_s=mj_model.opt.timestep,
    backend=sim.backend,
    render=rendering.mujoco_render_fn(mj_model),
  )


def observe(data: dict[str, jax.Array]) -> jax.Array:
  """Returns the observation [17] of physics data."""
  return jnp.concatenate([data["qpos"][1:], data["qvel"]])


def reward(speed_m_per_s: jax.Array, *, config: Config) -> jax.Array:
  """Returns the reward in [0, 1] for a forward speed [...]."""
  return rewards.tolerance(
    speed_m_per_s,
    bounds=(config.target_speed_m_per_s, math.inf),
    margin=config.target_speed_m_per_s,
    falloff_fn=rewards.linear,
    value_at_margin=0.0,
  )


def randomise_model(
  key: chex.PRNGKey, mj_model: mujoco.MjModel
) -> dict[str, jax.Array]:
  """Returns friction, masses, damping and motor strength of one cheetah.

  Args:
    key: consumed.
    mj_model: the model whose values are varied.
  """
  return randomisation.scaled(
    key,
    mj_model,
    friction=(0.6, 1.4),
    mass=(0.85, 1.15),
    damping=(0.8, 1.25),
    strength=(0.85, 1.15),
  )
