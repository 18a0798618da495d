"""humanoid_walk: a humanoid with 21 motors walks at 1 m/s.

Observation, float32 [67]: joint angles (21), height of the head (1), hands and
feet as seen from the chest (12), which way is up as seen from the chest (3),
velocity of the centre of mass (3), and all velocities (27: root linear, root
angular in its own frame, joints). Linear velocities are along the chest's
facing, to its left and up; nothing depends on where it is or faces.
Action, [21] in [-1, 1]: joint torques over their greatest.
Reward: the product of four values in [0, 1]. Standing: 1 where the head is at
least 1.35 m high, 0.1 at three quarters of it. Upright: 1 where the chest is
within 26 degrees of vertical, 0 upside down. Gentle: 0.8 + 0.2 of the mean of
1 - action^2. Walking: a sixth, and five sixths of the speed towards where it
faces over 1 m/s. All but the action as of before the last substep.
Termination: where the head is less than 0.9 m high, as the humanoid of Gym ends
an episode when it falls; the DeepMind Control Suite's never ends one
(`fallen_height_m=-inf`). Episodes have 1,000 steps of 0.025 s.

Source: "humanoid walk" in Tassa et al. 2018, "DeepMind Control Suite" (arXiv
1801.00690). There speed counts in any direction and an episode starts in any
pose; ours starts near the standing pose. The body is our own.
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

_EXTREMITIES = ("left_hand", "right_hand", "left_foot", "right_foot")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Config:
  """Tunables of the task.

  Attributes:
    episode_length: steps.
    num_substeps: physics steps of 5 ms per step.
    standing_height_m: of the head, from where on it stands.
    target_speed_m_per_s: from where on walking is worth 1.
    fallen_height_m: of the head, below which the episode ends; -inf never ends
      it.
    start_spread: joints start uniformly within this part of their ranges.
  """

  episode_length: int = 1000
  num_substeps: int = 5
  standing_height_m: float = 1.35
  target_speed_m_per_s: float = 1.0
  fallen_height_m: float = 0.9
  start_spread: float = 0.05


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
  mj_model = models.load("humanoid_walk")
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
    qvel = 0.05 * jax.random.normal(key_velocity, (mj_model.nv,))
    values = randomise_model(key_model, mj_model) if randomise else {}
    data = sim.reset(qpos.at[2].add(0.02), qvel=qvel, model_values=values)
    return state_lib.initial_state(
      observe(mj_model, data.data),
      physics=data,
      metrics={"height_m": 0.0, "speed_m_per_s": 0.0},
    )

  def step(state: state_lib.State, action: jax.Array) -> state_lib.State:
    action = jnp.clip(action, -1.0, 1.0)
    data = sim.step(state.physics, action)
    height = sensors.read(mj_model, data.data, "head")[2]
    speed = _to_heading(
      mj_model, data.data, sensors.read(mj_model, data.data, "velocity")
    )[0]
    return state_lib.next_state(
      state,
      observe(mj_model, data.data),
      reward=reward(
        height,
        sensors.read(mj_model, data.data, "chest_z")[2],
        speed,
        action,
        config=config,
      ),
      terminated=height < config.fallen_height_m,
      physics=data,
      metrics={"height_m": height, "speed_m_per_s": speed},
    )

  return state_lib.Env(
    name="humanoid_walk",
    reset=reset,
    step=step,
    action=state_lib.Box(size=mj_model.nu),
    episode_length=config.episode_length,
    control_dt_s=config.num_substeps * mj_model.opt.timestep,
    backend=sim.backend,
    render=rendering.mujoco_render_fn(mj_model),
  )


def observe(mj_model: mujoco.MjModel, data: dict[str, jax.Array]) -> jax.Array:
  """Returns the observation [67] of physics data."""
  read = lambda name: sensors.read(mj_model, data, name)
  return jnp.concatenate(
    [
      data["qpos"][7:],
      read("head")[2:],
      *(read(name) for name in _EXTREMITIES),
      jnp.stack([read(f"chest_{axis}")[2] for axis in "xyz"]),
      _to_heading(mj_model, data, read("velocity")),
      _to_heading(mj_model, data, data["qvel"][:3]),
      data["qvel"][3:],
    ]
  )


def reward(
  height_m: jax.Array,
  upright: jax.Array,
  speed_m_per_s: jax.Array,
  action: jax.Array,
  *,
  config: Config,
) -> jax.Array:
  """Returns the reward in [0, 1].

  Args:
    height_m: of the head, [].
    upright: cosine of the angle between the chest and the vertical, [].
    speed_m_per_s: towards where the chest faces, [].
    action: [21] in [-1, 1].
    config: of the task.
  """
  standing = rewards.tolerance(
    height_m,
    bounds=(config.standing_height_m, math.inf),
    margin=config.standing_height_m / 4,
  )
  straight = rewards.tolerance(
    upright,
    bounds=(0.9, math.inf),
    margin=1.9,
    falloff_fn=rewards.linear,
    value_at_margin=0.0,
  )
  calm = rewards.tolerance(
    action, margin=1.0, falloff_fn=rewards.quadratic, value_at_margin=0.0
  )
  walking = rewards.tolerance(
    speed_m_per_s,
    bounds=(config.target_speed_m_per_s, math.inf),
    margin=config.target_speed_m_per_s,
    falloff_fn=rewards.linear,
    value_at_margin=0.0,
  )
  gentle = (4.0 + jnp.mean(calm)) / 5.0
  return standing * straight * gentle * (1.0 + 5.0 * walking) / 6.0


def randomise_model(
  key: chex.PRNGKey, mj_model: mujoco.MjModel
) -> dict[str, jax.Array]:
  """Returns friction, masses, damping and motor strength of one humanoid.

  Args:
    key: consumed.
    mj_model: the model whose values are varied.
  """
  return randomisation.scaled(
    key,
    mj_model,
    friction=(0.7, 1.3),
    mass=(0.9, 1.1),
    damping=(0.8, 1.25),
    strength=(0.9, 1.1),
  )


def _to_heading(
  mj_model: mujoco.MjModel, data: dict[str, jax.Array], vector: jax.Array
) -> jax.Array:
  """Returns `vector` [3] as (towards the chest's facing, to its left, up).

  Where the chest faces straight up or down, the first two are near 0.
  """
  facing = sensors.read(mj_model, data, "chest_x")[:2]
  facing = facing / jnp.maximum(jnp.hypot(facing[0], facing[1]), 0.1)
  ahead = facing[0] * vector[0] + facing[1] * vector[1]
  left = facing[0] * vector[1] - facing[1] * vector[0]
  return jnp.stack([ahead, left, vector[2]])
