"""hopper_hop: a planar one-legged robot hops forward at 2 m/s.

Observation, float32 [15]: positions but the root's x (height relative to the
start, pitch, 4 joint angles), the 7 velocities, and log(1 + force) of the toe's
and the heel's touch sensor; m, rad, m/s, rad/s, N.
Action, [4] in [-1, 1]: torques of waist, hip, knee and ankle over their
greatest.
Reward: standing times (0.2 + 0.8 hopping), each in [0, 1]. Standing is 1 where
the torso is at least 0.6 m above the foot and falls to 0.1 at 0.3 m; hopping is
the forward speed of the centre of mass over 2 m/s. Both as of before the last
substep.
Termination: where the torso is less than 0.3 m above the foot, as the hoppers
of Gym end an episode; the DeepMind Control Suite's never ends one
(`fallen_height_m=-inf`). Episodes have 1,000 steps of 0.02 s.

Source: "hopper hop" in Tassa et al. 2018, "DeepMind Control Suite" (arXiv
1801.00690). There standing is 1 or 0 and worth nothing by itself, and an
episode starts from any pose. Ours starts near the standing pose; without the
0.2, PPO learned in 1.5 million steps to dive forward for a second. The body is
our own.
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
    num_substeps: physics steps of 5 ms per step.
    standing_height_m: of the torso above the foot, from where on it stands.
    standing_margin_m: so far below that standing is worth 0.1; 0 for a cliff.
    standing_share: of the reward, for standing without any speed.
    target_speed_m_per_s: from where on hopping is worth 1.
    fallen_height_m: of the torso above the foot, below which the episode ends;
      -inf never ends it.
    start_spread: joints start uniformly within this part of their ranges.
  """

  episode_length: int = 1000
  num_substeps: int = 4
  standing_height_m: float = 0.6
  standing_margin_m: float = 0.3
  standing_share: float = 0.2
  target_speed_m_per_s: float = 2.0
  fallen_height_m: float = 0.3
  start_spread: float = 0.2


def default_config() -> Config:
  """Returns the settings that this module's docstring describes."""
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
  mj_model = models.load("hopper_hop")
  sim = physics_lib.make(
    mj_model,
    backend=physics,
    num_substeps=config.num_substeps,
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
      observe(mj_model, data.data),
      physics=data,
      metrics={"height_m": 0.0, "speed_m_per_s": 0.0},
    )

  def step(state: state_lib.State, action: jax.Array) -> state_lib.State:
    data = sim.step(state.physics, jnp.clip(action, -1.0, 1.0))
    height, speed = height_and_speed(mj_model, data.data)
    return state_lib.next_state(
      state,
      observe(mj_model, data.data),
      reward=reward(height, speed, config=config),
      terminated=height < config.fallen_height_m,
      physics=data,
      metrics={"height_m": height, "speed_m_per_s": speed},
    )

  return state_lib.Env(
    name="hopper_hop",
    reset=reset,
    step=step,
    action=state_lib.Box(size=mj_model.nu),
    episode_length=config.episode_length,
    control_dt_s=config.num_substeps * mj_model.opt.timestep,
    backend=sim.backend,
    render=rendering.mujoco_render_fn(mj_model),
  )


def observe(mj_model: mujoco.MjModel, data: dict[str, jax.Array]) -> jax.Array:
  """Returns the observation [15] of physics data."""
  force = jnp.concatenate(
    [sensors.read(mj_model, data, name) for name in ("toe", "heel")]
  )
  return jnp.concatenate([data["qpos"][1:], data["qvel"], jnp.log1p(force)])


def height_and_speed(
  mj_model: mujoco.MjModel, data: dict[str, jax.Array]
) -> tuple[jax.Array, jax.Array]:
  """Returns the torso's height above the foot, m [], and the speed, m/s []."""
  torso = sensors.read(mj_model, data, "torso")
  foot = sensors.read(mj_model, data, "foot")
  velocity = sensors.read(mj_model, data, "velocity")
  return torso[2] - foot[2], velocity[0]


def reward(
  height_m: jax.Array, speed_m_per_s: jax.Array, *, config: Config
) -> jax.Array:
  """Returns the reward in [0, 1] of a height [] and a forward speed []."""
  standing = rewards.tolerance(
    height_m,
    bounds=(config.standing_height_m, math.inf),
    margin=config.standing_margin_m,
  )
  hopping = rewards.tolerance(
    speed_m_per_s,
    bounds=(config.target_speed_m_per_s, math.inf),
    margin=config.target_speed_m_per_s,
    falloff_fn=rewards.linear,
    value_at_margin=0.0,
  )
  share = config.standing_share
  return standing * (share + (1.0 - share) * hopping)


def randomise_model(
  key: chex.PRNGKey, mj_model: mujoco.MjModel
) -> dict[str, jax.Array]:
  """Returns friction, masses, damping and motor strength of one hopper.

  Args:
    key: consumed.
    mj_model: the model whose values are varied.
  """
  return randomisation.scaled(
    key,
    mj_model,
    friction=(0.7, 1.3),
    mass=(0.85, 1.15),
    damping=(0.8, 1.25),
    strength=(0.9, 1.1),
  )
