"""Push a cube over the floor to a goal with the closed gripper of an arm.

Observation: float32 [51], what `envs.tasks.arm.proprioception` returns [30],
from the gripper to the cube [3] and to the spot from which to push it [3] in m,
the cube's x and y axes [6], its velocity [3] in m/s and turning [3] in rad/s,
and from the cube to the goal [3] in m.
Action: [7], steps of the joints' targets; see `envs.tasks.arm`.
Reward: 0.3 for being where one pushes from, 1 - tanh(d / 0.2 m) with d from the
gripper to a spot 2.5 cm behind the cube as seen from the goal, and 0.7 for the
cube, 1 - tanh(d / 0.15 m) with d from the cube to the goal less half of what
counts as success. When the cube has arrived the gripper may be anywhere.
Success: the cube's centre is within 4 cm of the goal.
Termination: never.
Start: the gripper stands between the base and the cube, and the goal lies 10 to
18 cm further away, up to 45 degrees to the left or to the right.

Source: the task is a common one (e.g. Andrychowicz et al. 2017, "Hindsight
Experience Replay", arXiv 1707.01495); arm, start and reward are ours.
"""

from __future__ import annotations

import dataclasses
import math

import chex
import jax
import jax.numpy as jnp

from envs import physics as physics_lib
from envs import state as state_lib
from envs.tasks import arm

# The gripper points down at (0.38, 0, 0.05) m.
_HOME = (0.0, 0.214, 0.0, 2.756, 0.0, 0.172, 0.0)
_HALF_M = 0.025  # of the cube, in assets/arm_push.xml
_BEHIND_M = _HALF_M + 0.025

randomise_model = arm.randomise_model


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Config:
  """Settings of the task."""

  control_dt_s: float = 0.04
  episode_length: int = 120
  joint_noise_rad: float = 0.03
  cube_low_m: tuple[float, float] = (0.46, -0.1)
  cube_high_m: tuple[float, float] = (0.52, 0.1)
  cube_yaw_rad: float = math.pi / 4
  goal_distance_m: tuple[float, float] = (0.1, 0.18)
  goal_angle_rad: float = math.pi / 4
  success_m: float = 0.04


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
  mj_model = arm.load("arm_push", has_gripper=False)
  sim = physics_lib.make(
    mj_model,
    backend=physics,
    num_substeps=round(config.control_dt_s / mj_model.opt.timestep),
    fields=arm.FIELDS,
    num_threads=num_threads,
  )

  def reset(key: jax.Array) -> state_lib.State:
    key_model, key_joints, key_cube, key_goal = jax.random.split(key, 4)
    home = jnp.asarray(_HOME, jnp.float32)
    joints = home + config.joint_noise_rad * jax.random.uniform(
      key_joints, home.shape, minval=-1.0
    )
    pose = draw_cube(key_cube, config)
    goal = draw_goal(key_goal, config, cube=pose[:3])
    simulation = sim.reset(
      jnp.concatenate([joints, pose]),
      model_values=randomise_model(key_model, mj_model) if randomise else {},
      mocap_pos=goal[None],
    )
    return state_lib.initial_state(
      observe(simulation, joints, goal),
      physics=simulation,
      metrics={"success": 0.0, "distance_m": 0.0},
      info={"goal": goal, "target": joints},
    )

  def step(state: state_lib.State, action: jax.Array) -> state_lib.State:
    goal = state.info["goal"]
    target = arm.move_targets(
      mj_model,
      state.info["target"],
      action,
      position=arm.positions(mj_model, state.physics.data["qpos"]),
    )
    simulation = sim.step(state.physics, target)
    cube, _ = arm.cube(mj_model, simulation)
    distance = arm.norm((goal - cube)[:2])
    reach = arm.norm(
      pushing_spot(cube, goal) - arm.gripper(mj_model, simulation)
    )
    return state_lib.next_state(
      state,
      observe(simulation, target, goal),
      reward=reward(reach, distance, success_m=config.success_m),
      physics=simulation,
      metrics={
        "success": distance < config.success_m,
        "distance_m": distance,
      },
      info={"goal": goal, "target": target},
    )

  def observe(
    simulation: physics_lib.PhysicsState, target: jax.Array, goal: jax.Array
  ) -> jax.Array:
    gripper = arm.gripper(mj_model, simulation)
    cube, axes = arm.cube(mj_model, simulation)
    return jnp.concatenate(
      [
        arm.proprioception(mj_model, simulation, target),
        cube - gripper,
        pushing_spot(cube, goal) - gripper,
        axes[:, 0],
        axes[:, 1],
        simulation.data["qvel"][-6:],
        goal - cube,
      ]
    )

  return state_lib.Env(
    name="arm_push",
    reset=reset,
    step=step,
    action=state_lib.Box(size=mj_model.nu),
    episode_length=config.episode_length,
    control_dt_s=config.control_dt_s,
    backend=sim.backend,
    success_metric="success",
    render=arm.render_fn(mj_model),
  )


def draw_cube(key: chex.PRNGKey, config: Config) -> jax.Array:
  """Returns a pose [7] of the cube on the floor; consumes the key."""
  key_xy, key_yaw = jax.random.split(key)
  xy = jax.random.uniform(
    key_xy,
    (2,),
    minval=jnp.asarray(config.cube_low_m),
    maxval=jnp.asarray(config.cube_high_m),
  )
  yaw = config.cube_yaw_rad * jax.random.uniform(key_yaw, minval=-1.0)
  return arm.cube_qpos(xy, yaw=yaw, half_m=_HALF_M)


def draw_goal(
  key: chex.PRNGKey, config: Config, *, cube: jax.Array
) -> jax.Array:
  """Returns a goal [3] on the floor, ahead of the cube [3]."""
  key_distance, key_angle = jax.random.split(key)
  nearest, farthest = config.goal_distance_m
  distance = jax.random.uniform(key_distance, minval=nearest, maxval=farthest)
  angle = config.goal_angle_rad * jax.random.uniform(key_angle, minval=-1.0)
  ahead = jnp.stack([jnp.cos(angle), jnp.sin(angle)])
  return jnp.concatenate([cube[:2] + distance * ahead, jnp.zeros(1)])


def pushing_spot(cube: jax.Array, goal: jax.Array) -> jax.Array:
  """Returns the point [3] behind the cube as seen from the goal."""
  away = (cube - goal)[:2]
  # At the goal there is no behind; the spot then moves into the cube.
  away = away / jnp.maximum(arm.norm(away), 0.01)
  return cube + jnp.concatenate([_BEHIND_M * away, jnp.zeros(1)])


def reward(
  reach: jax.Array, distance: jax.Array, *, success_m: float
) -> jax.Array:
  """Returns the reward [] in [0, 1].

  Args:
    reach: from the gripper to the pushing spot, m.
    distance: from the cube to the goal, m.
    success_m: the distance that is near enough.
  """
  is_there = distance < success_m
  # Half, so that it pays to come well within what counts.
  place = arm.near(jnp.maximum(distance - success_m / 2, 0.0), scale_m=0.15)
  reach = jnp.where(is_there, 1.0, arm.near(reach, scale_m=0.2))
  return 0.3 * reach + 0.7 * place
