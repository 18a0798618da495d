"""The arm that arm_reach, arm_push and arm_pick share, and how it is moved.

Seven joints and a parallel gripper stand at the origin and face +x. An action
moves the *targets* of position actuators: a_i in [-1, 1] adds a_i times the
largest step of joint i. So a policy that outputs nothing holds still, and its
noise is a random walk rather than a trembling.
"""

from __future__ import annotations

import pathlib
from typing import Any

import chex
import jax
import jax.numpy as jnp
import mujoco
import numpy as np

from envs import physics as physics_lib
from envs import randomisation, rendering
from envs import state as state_lib

FIELDS = ("site_xpos", "site_xmat", "xpos", "xmat")
NUM_JOINTS = 7
OPEN_M = 0.04  # how far each finger opens

_ASSETS = pathlib.Path(__file__).with_name("assets")
# At 25 steps a second, 1.5 rad/s for the joints that carry the arm and 2 rad/s
# for the wrist; a quarter of the gripper's way.
_STEP = np.asarray([0.06] * 4 + [0.08] * 3 + [0.01], np.float32)
# A target does not run further ahead of its joint than the joint lags at full
# speed, so that one that is blocked obeys at once when told to turn back. (With
# twice as much PPO learned to press a held cube to the floor and stopped there,
# for a lift first had to undo four steps.) A closed gripper may press.
_LEAD = np.asarray([0.12] * NUM_JOINTS + [np.inf], np.float32)


def load(name: str, *, has_gripper: bool) -> mujoco.MjModel:
  """Returns the model of assets/NAME.xml.

  Args:
    name: of a scene that includes arm.xml.
    has_gripper: whether the fingers move; otherwise they are closed for good,
      which saves two degrees of freedom and an actuator.

  Raises:
    ValueError: if there is no such file, or MuJoCo cannot compile it.
  """
  spec = mujoco.MjSpec.from_file(str(_ASSETS / f"{name}.xml"))
  if not has_gripper:
    for part in (
      spec.actuator("gripper"),
      spec.equality("gripper"),
      spec.tendon("gripper"),
      spec.joint("left_finger"),
      spec.joint("right_finger"),
    ):
      spec.delete(part)
  return spec.compile()


def move_targets(
  mj_model: mujoco.MjModel,
  target: jax.Array,
  action: jax.Array,
  *,
  position: jax.Array,
) -> jax.Array:
  """Returns the actuators' next targets.

  U actuators: seven joints in rad, and the gripper's opening in m if it moves.

  Args:
    mj_model: gives the targets' limits.
    target: [U] the present targets.
    action: [U] what to add, in largest steps; clipped to [-1, 1].
    position: [U] where the joints are; see `positions`.
  """
  num = mj_model.nu
  chex.assert_shape([target, action, position], (num,))
  low, high = jnp.asarray(mj_model.actuator_ctrlrange, jnp.float32).T
  lead = jnp.asarray(_LEAD[:num])
  target = target + jnp.asarray(_STEP[:num]) * jnp.clip(action, -1.0, 1.0)
  target = jnp.clip(target, position - lead, position + lead)
  return jnp.clip(target, low, high)


def positions(mj_model: mujoco.MjModel, qpos: jax.Array) -> jax.Array:
  """Returns what the actuators control, [U]: joint angles, mean opening."""
  joints = qpos[:NUM_JOINTS]
  if mj_model.nu == NUM_JOINTS:
    return joints
  opening = jnp.mean(qpos[NUM_JOINTS : NUM_JOINTS + 2])
  return jnp.concatenate([joints, opening[None]])


def proprioception(
  mj_model: mujoco.MjModel,
  simulation: physics_lib.PhysicsState,
  target: jax.Array,
) -> jax.Array:
  """Returns what the arm knows of itself: float32 [2 U + 7 + 9].

  In this order: positions [U] (rad, m), how far their targets are ahead [U],
  joint velocities [7] (rad/s), gripper [3] (m), and the directions in which its
  fingers open [3] and point [3].
  """
  position = positions(mj_model, simulation.data["qpos"])
  axes = gripper_axes(mj_model, simulation)
  return jnp.concatenate(
    [
      position,
      target - position,
      simulation.data["qvel"][:NUM_JOINTS],
      gripper(mj_model, simulation),
      axes[:, 1],
      axes[:, 2],
    ]
  )


def gripper(
  mj_model: mujoco.MjModel, simulation: physics_lib.PhysicsState
) -> jax.Array:
  """Returns the point between the fingertips, [3] m."""
  return simulation.data["site_xpos"][mj_model.site("gripper").id]


def gripper_axes(
  mj_model: mujoco.MjModel, simulation: physics_lib.PhysicsState
) -> jax.Array:
  """Returns the gripper's axes as columns, [3, 3]: y opens, z points."""
  site = mj_model.site("gripper").id
  return simulation.data["site_xmat"][site].reshape(3, 3)


def cube(
  mj_model: mujoco.MjModel, simulation: physics_lib.PhysicsState
) -> tuple[jax.Array, jax.Array]:
  """Returns the cube's centre [3] in m and its axes as columns [3, 3]."""
  body = mj_model.body("cube").id
  rotation = simulation.data["xmat"][body].reshape(3, 3)
  return simulation.data["xpos"][body], rotation


def cube_qpos(xy: jax.Array, *, yaw: jax.Array, half_m: float) -> jax.Array:
  """Returns the pose [7] of a cube that lies on the floor, turned by yaw."""
  zero = jnp.zeros((), jnp.float32)
  # A tenth of a millimetre into the floor: at exactly 0 rounding decides
  # whether they touch, and differently on each engine.
  height = jnp.full((), half_m - 1e-4, jnp.float32)
  turn = jnp.stack([jnp.cos(yaw / 2), zero, zero, jnp.sin(yaw / 2)])
  return jnp.concatenate([xy, height[None], turn])


def near(distance: jax.Array, *, scale_m: float) -> jax.Array:
  """Returns 1 - tanh(distance / scale): 1 at 0, with a slope everywhere."""
  return 1.0 - jnp.tanh(distance / scale_m)


def norm(vector: jax.Array) -> jax.Array:
  """Returns the length of a vector [N]."""
  return jnp.sqrt(jnp.sum(jnp.square(vector)))


def randomise_model(
  key: chex.PRNGKey, mj_model: mujoco.MjModel
) -> dict[str, jax.Array]:
  """Returns friction, masses, damping and gains of one simulation.

  Within the ranges a held cube stays held, and a joint's gains stay below the
  bound that the explicit integrator sets; see assets/arm.xml.

  Args:
    key: consumed.
    mj_model: the model whose values are scaled.
  """
  return randomisation.scaled(
    key,
    mj_model,
    friction=(0.7, 1.3),
    mass=(0.7, 1.3),
    damping=(0.5, 1.5),
    strength=(0.8, 1.2),
  )


def render_fn(mj_model: mujoco.MjModel) -> state_lib.RenderFn:
  """Returns the `render` of an Env whose `info["goal"]` is its mocap body."""

  def mocap(state: state_lib.State) -> tuple[Any, Any]:
    return state.info["goal"][None], np.asarray([[1.0, 0.0, 0.0, 0.0]])

  return rendering.mujoco_render_fn(mj_model, mocap_fn=mocap)
