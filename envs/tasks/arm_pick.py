"""Pick a cube up with a 7-joint arm and hold it at a goal in the air.

Observation: a dict of float32. "policy" [44]: what
`envs.tasks.arm.proprioception` returns [32], from the gripper to the spot where
to grasp [3] in m, the cube's x and y axes [6], and from the cube to the goal
[3] in m. "critic" [51]: the same, and what a camera does not show: the cube's
velocity [3] in m/s and turning [3] in rad/s, and how well it is held [1].
Action: [8], steps of the targets of joints and gripper; see `envs.tasks.arm`.
Reward: 0.2 for reaching where to grasp, 1 - tanh(d / 0.2 m); 0.2 for holding
the cube; 0.2 for lifting it, held, by 5 cm; 0.4 for bringing it, held, to the
goal, 1 - tanh(d / 0.2 m); all of it times the cosine of the gripper's tilt from
straight down. The cube is held as far as the gripper is where to grasp (within
5 mm; a bell with 0.1 left 2 cm further), its fingers are at the cube's sides
(within 2 mm; 0.1 left 1 cm further) and would close further (by 1 cm) if they
could.
Where to grasp is 8 mm above the cube's centre, which leaves 1.5 cm between the
fingers and the floor. Each of these conditions was once missing, and PPO found
out: it pressed the cube down, levered it up with its fingers on the floor, or
claimed to hold what the floor's friction kept the fingers from.
Success: the cube's centre is within 4 cm of the goal.
Termination: never.

Source: the task is a common one (e.g. Zakka et al. 2025, "MuJoCo Playground",
arXiv 2502.08844); arm, start and reward are ours.
"""

from __future__ import annotations

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np

from envs import physics as physics_lib
from envs import rewards
from envs import state as state_lib
from envs.tasks import arm

# The open gripper points down at (0.45, 0, 0.15) m.
_HOME = (0.0, 0.04, 0.0, 2.55, 0.0, 0.552, 0.0)
_HALF_M = 0.02  # of the cube, in assets/arm_pick.xml
# From its centre to where to grasp it.
_ABOVE_M = np.asarray([0.0, 0.0, 0.008], np.float32)

randomise_model = arm.randomise_model


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Config:
  """Settings of the task."""

  control_dt_s: float = 0.04
  episode_length: int = 120
  joint_noise_rad: float = 0.05
  cube_low_m: tuple[float, float] = (0.4, -0.1)
  cube_high_m: tuple[float, float] = (0.52, 0.1)
  cube_yaw_rad: float = 0.3
  goal_low_m: tuple[float, float, float] = (0.4, -0.12, 0.12)
  goal_high_m: tuple[float, float, float] = (0.52, 0.12, 0.26)
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
  mj_model = arm.load("arm_pick", has_gripper=True)
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
    fingers = jnp.full((2,), arm.OPEN_M, jnp.float32)
    goal = jax.random.uniform(
      key_goal,
      (3,),
      minval=jnp.asarray(config.goal_low_m),
      maxval=jnp.asarray(config.goal_high_m),
    )
    simulation = sim.reset(
      jnp.concatenate([joints, fingers, draw_cube(key_cube, config)]),
      model_values=randomise_model(key_model, mj_model) if randomise else {},
      mocap_pos=goal[None],
    )
    target = jnp.concatenate([joints, fingers[:1]])
    return state_lib.initial_state(
      observe(simulation, target, goal),
      physics=simulation,
      metrics={"success": 0.0, "distance_m": 0.0, "held": 0.0},
      info={"goal": goal, "target": target},
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
    distance = arm.norm(goal - cube)
    reach = arm.norm(to_grasp(simulation))
    is_held = grip(simulation, target)
    down = -arm.gripper_axes(mj_model, simulation)[2, 2]
    return state_lib.next_state(
      state,
      observe(simulation, target, goal),
      reward=reward(
        reach, is_held, distance, height=cube[2] - _HALF_M, down=down
      ),
      physics=simulation,
      metrics={
        "success": distance < config.success_m,
        "distance_m": distance,
        "held": is_held,
      },
      info={"goal": goal, "target": target},
    )

  def to_grasp(simulation: physics_lib.PhysicsState) -> jax.Array:
    cube, _ = arm.cube(mj_model, simulation)
    return cube + jnp.asarray(_ABOVE_M) - arm.gripper(mj_model, simulation)

  def grip(
    simulation: physics_lib.PhysicsState, target: jax.Array
  ) -> jax.Array:
    opening = arm.positions(mj_model, simulation.data["qpos"])[-1]
    return held(
      arm.norm(to_grasp(simulation)),
      opening=opening,
      squeeze=opening - target[-1],
    )

  def observe(
    simulation: physics_lib.PhysicsState, target: jax.Array, goal: jax.Array
  ) -> dict[str, jax.Array]:
    cube, axes = arm.cube(mj_model, simulation)
    policy = jnp.concatenate(
      [
        arm.proprioception(mj_model, simulation, target),
        to_grasp(simulation),
        axes[:, 0],
        axes[:, 1],
        goal - cube,
      ]
    )
    hidden = [simulation.data["qvel"][-6:], grip(simulation, target)[None]]
    critic = jnp.concatenate([policy, *hidden])
    return {"policy": policy, "critic": critic}

  return state_lib.Env(
    name="arm_pick",
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


def held(
  reach: jax.Array, *, opening: jax.Array, squeeze: jax.Array
) -> jax.Array:
  """Returns how well the cube is held, [] in [0, 1].

  Args:
    reach: from the gripper to where to grasp, m.
    opening: how far each finger is open, m.
    squeeze: how much further it would close if it could, m.
  """
  is_there = rewards.tolerance(reach, bounds=(0.0, 0.005), margin=0.02)
  is_shut = rewards.tolerance(
    opening, bounds=(0.0, _HALF_M + 0.002), margin=0.01
  )
  return is_there * is_shut * jnp.clip(squeeze / 0.01, 0.0, 1.0)


def reward(
  reach: jax.Array,
  is_held: jax.Array,
  distance: jax.Array,
  *,
  height: jax.Array,
  down: jax.Array,
) -> jax.Array:
  """Returns the reward [] in [0, 1].

  Args:
    reach: from the gripper to where to grasp, m.
    is_held: how well the cube is held; see `held`.
    distance: from the cube to the goal, m.
    height: of the cube above the floor, m.
    down: cosine of the gripper's tilt from straight down.
  """
  reached = arm.near(reach, scale_m=0.2)
  lifted = jnp.clip(height / 0.05, 0.0, 1.0)
  place = arm.near(distance, scale_m=0.2)
  parts = 0.2 * reached + is_held * (0.2 + 0.2 * lifted + 0.4 * place)
  return jnp.clip(down, 0.0, 1.0) * parts
