"""Bring the gripper of a 7-joint arm to a point in the air, and keep it there.

Observation: float32 [33], what `envs.tasks.arm.proprioception` returns [30] and
the way from the gripper to the goal [3] in m.
Action: [7], steps of the joints' targets; see `envs.tasks.arm`.
Reward: half for the way there, 1 - tanh(distance / 0.3 m), and half for
arriving, a bell over the goal of which 0.1 is left at 10 cm.
Success: the gripper is within 2.5 cm of the goal.
Termination: never.

Source: the task is a common one (e.g. Andrychowicz et al. 2017, "Hindsight
Experience Replay", arXiv 1707.01495, whose reward is sparse); arm, goals and
the dense reward are ours.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from envs import physics as physics_lib
from envs import rewards
from envs import state as state_lib
from envs.tasks import arm

# The gripper points down at (0.45, 0, 0.35) m.
_HOME = (0.0, -0.296, 0.0, 2.319, 0.0, 1.118, 0.0)

randomise_model = arm.randomise_model


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Config:
  """Settings of the task."""

  control_dt_s: float = 0.04
  episode_length: int = 100
  joint_noise_rad: float = 0.2
  goal_low_m: tuple[float, float, float] = (0.3, -0.3, 0.1)
  goal_high_m: tuple[float, float, float] = (0.6, 0.3, 0.5)
  success_m: float = 0.025


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
  mj_model = arm.load("arm_reach", has_gripper=False)
  sim = physics_lib.make(
    mj_model,
    backend=physics,
    num_substeps=round(config.control_dt_s / mj_model.opt.timestep),
    fields=arm.FIELDS,
    num_threads=num_threads,
  )

  def reset(key: jax.Array) -> state_lib.State:
    key_model, key_joints, key_goal = jax.random.split(key, 3)
    home = jnp.asarray(_HOME, jnp.float32)
    joints = home + config.joint_noise_rad * jax.random.uniform(
      key_joints, home.shape, minval=-1.0
    )
    goal = jax.random.uniform(
      key_goal,
      (3,),
      minval=jnp.asarray(config.goal_low_m),
      maxval=jnp.asarray(config.goal_high_m),
    )
    simulation = sim.reset(
      joints,
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
    distance = arm.norm(goal - arm.gripper(mj_model, simulation))
    return state_lib.next_state(
      state,
      observe(simulation, target, goal),
      reward=reward(distance),
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
    return jnp.concatenate(
      [
        arm.proprioception(mj_model, simulation, target),
        goal - arm.gripper(mj_model, simulation),
      ]
    )

  return state_lib.Env(
    name="arm_reach",
    reset=reset,
    step=step,
    action=state_lib.Box(size=mj_model.nu),
    episode_length=config.episode_length,
    control_dt_s=config.control_dt_s,
    backend=sim.backend,
    success_metric="success",
    render=arm.render_fn(mj_model),
  )


def reward(distance: jax.Array) -> jax.Array:
  """Returns the reward at a distance in metres: [] in [0, 1]."""
  way = arm.near(distance, scale_m=0.3)
  return 0.5 * way + 0.5 * rewards.tolerance(distance, margin=0.1)
