"""Move the tip of a flat two-link arm to a target, and keep it there.

Observation: float32 [8], (cos and sin of the shoulder, cos and sin of the
elbow, their velocities in rad/s, from fingertip to target along x and y in m).
Action: [2], torques as shares of the strongest.
Reward: half for the way there, 1 - distance / 0.8 m, and half for arriving, a
bell over the target of which 0.1 is left at 10 cm.
Success: the fingertip is within 2 cm of the target.
Termination: never.

Source: Tassa et al. 2018, "DeepMind Control Suite" (arXiv 1801.00690), task
reacher, whose reward is 1 on the target and 0 elsewhere. Arm and reward are
ours: the slope makes it learnable from few steps.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import mujoco

from envs import physics as physics_lib
from envs import randomisation, rendering, rewards
from envs import state as state_lib
from envs.tasks import models

_HEIGHT_M = 0.06  # of arm and target


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Config:
  """Settings of the task."""

  episode_length: int = 200
  num_substeps: int = 2  # of 10 ms
  nearest_target_m: float = 0.1
  farthest_target_m: float = 0.38
  success_m: float = 0.02


def default_config() -> Config:
  """Returns the settings that `make` takes when given none."""
  return Config()


def make(
  config: Config | None = None,
  *,
  physics: str = "auto",
  randomise: bool = False,
  num_threads: int = 0,
) -> state_lib.Env:
  """Returns the task; arguments as in `envs.make`.

  Raises:
    ValueError: if there is no such backend.
  """
  config = config or default_config()
  mj_model = models.load("reacher")
  fingertip = mj_model.site("fingertip").id
  sim = physics_lib.make(
    mj_model,
    backend=physics,
    num_substeps=config.num_substeps,
    fields=("site_xpos",),
    num_threads=num_threads,
  )

  def reset(key: jax.Array) -> state_lib.State:
    key_model, key_qpos, key_target = jax.random.split(key, 3)
    simulation = sim.reset(
      jax.random.uniform(key_qpos, (2,), minval=-1.0)
      * jnp.asarray([jnp.pi, 2.5]),
      model_values=randomise_model(key_model, mj_model) if randomise else {},
    )
    target = draw_target(key_target, config)
    return state_lib.initial_state(
      observe(simulation, to_target(simulation, target)),
      physics=simulation,
      metrics={"success": 0.0, "distance_m": 0.0},
      info={"target": target},
    )

  def step(state: state_lib.State, action: jax.Array) -> state_lib.State:
    simulation = sim.step(state.physics, jnp.clip(action, -1.0, 1.0))
    gap = to_target(simulation, state.info["target"])
    distance = jnp.sqrt(jnp.sum(jnp.square(gap)))
    return state_lib.next_state(
      state,
      observe(simulation, gap),
      reward=reward(distance),
      physics=simulation,
      metrics={
        "success": distance < config.success_m,
        "distance_m": distance,
      },
    )

  def to_target(
    simulation: physics_lib.PhysicsState, target: jax.Array
  ) -> jax.Array:
    return (target - simulation.data["site_xpos"][fingertip])[:2]

  def mocap(state: state_lib.State) -> tuple[jax.Array, jax.Array]:
    return state.info["target"][None], jnp.asarray([[1.0, 0.0, 0.0, 0.0]])

  return state_lib.Env(
    name="reacher",
    reset=reset,
    step=step,
    action=state_lib.Box(size=2),
    episode_length=config.episode_length,
    control_dt_s=config.num_substeps * mj_model.opt.timestep,
    backend=sim.backend,
    success_metric="success",
    render=rendering.mujoco_render_fn(mj_model, mocap_fn=mocap),
  )


def randomise_model(
  key: jax.Array, mj_model: mujoco.MjModel
) -> dict[str, jax.Array]:
  """Returns masses, damping and strengths within 30 %; consumes the key."""
  return randomisation.scaled(
    key, mj_model, mass=(0.7, 1.3), damping=(0.7, 1.3), strength=(0.7, 1.3)
  )


def draw_target(key: jax.Array, config: Config) -> jax.Array:
  """Returns a point [3] that the arm reaches, even over the ring's area."""
  key_angle, key_radius = jax.random.split(key)
  angle = jax.random.uniform(key_angle, minval=-jnp.pi, maxval=jnp.pi)
  radius = jnp.sqrt(
    jax.random.uniform(
      key_radius,
      minval=config.nearest_target_m**2,
      maxval=config.farthest_target_m**2,
    )
  )
  return jnp.stack(
    [radius * jnp.cos(angle), radius * jnp.sin(angle), _HEIGHT_M]
  )


def observe(simulation: physics_lib.PhysicsState, gap: jax.Array) -> jax.Array:
  """Returns what this module's docstring says, of the way left, `gap` [2]."""
  shoulder, elbow = simulation.data["qpos"]
  turns = [f(angle) for angle in (shoulder, elbow) for f in (jnp.cos, jnp.sin)]
  return jnp.concatenate([jnp.stack(turns), simulation.data["qvel"], gap])


def reward(distance: jax.Array) -> jax.Array:
  """Returns the reward at a distance in metres: [] in [0, 1]."""
  way = rewards.tolerance(
    distance, margin=0.8, falloff_fn=rewards.linear, value_at_margin=0.0
  )
  return 0.5 * way + 0.5 * rewards.tolerance(distance, margin=0.1)
