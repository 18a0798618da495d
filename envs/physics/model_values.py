"""mjModel fields that may differ between simulations.

Allowed are fields whose change has its effect on every backend without
`mj_setConst`, that is without recompiling what MuJoCo derives from the model.
Of that, two constants follow: body_subtreemass, which centres of mass need,
and, in the C engine, dof_M0, which it takes for the inertia of free bodies and
the like. The others keep the model's values: body_invweight0, dof_invweight0
and tendon_invweight0, which scale the softness of constraints.
"""

from __future__ import annotations

from collections.abc import Mapping

import chex
import jax
import jax.numpy as jnp
import mujoco
import numpy as np

ALLOWED = (
  "actuator_biasprm",
  "actuator_forcerange",
  "actuator_gainprm",
  "actuator_gear",
  "body_inertia",
  "body_mass",
  "body_pos",
  "body_quat",
  "dof_armature",
  "dof_damping",
  "dof_frictionloss",
  "geom_friction",
  "geom_solimp",
  "geom_solref",
  "jnt_range",
  "jnt_stiffness",
  "opt.gravity",
  "qpos_spring",
)


def template(mj_model: mujoco.MjModel, name: str) -> np.ndarray:
  """Returns the model's own value of a field; "opt.x" is in mjOption."""
  if name.startswith("opt."):
    return np.asarray(getattr(mj_model.opt, name.removeprefix("opt.")))
  return np.asarray(getattr(mj_model, name))


def check(mj_model: mujoco.MjModel, values: Mapping[str, jax.Array]) -> None:
  """Checks names, shapes and types of one simulation's model values.

  Raises:
    ValueError: for a field that cannot be varied.
    AssertionError: for a shape that is not the model's, or not float32.
  """
  unknown = sorted(set(values) - set(ALLOWED))
  if unknown:
    raise ValueError(
      f"model values {unknown} cannot differ between simulations; these can:"
      f" {', '.join(ALLOWED)}"
    )
  for name, value in values.items():
    chex.assert_shape(value, template(mj_model, name).shape)
    chex.assert_type(value, jnp.float32)


def subtree_mass(mj_model: mujoco.MjModel, body_mass: np.ndarray) -> np.ndarray:
  """Returns body_subtreemass [..., nbody] of body_mass [..., nbody].

  Sums in the order of MuJoCo's own `mj_setConst`, hence to the same bits.
  """
  total = np.array(body_mass)
  for body in range(mj_model.nbody - 1, 0, -1):
    total[..., mj_model.body_parentid[body]] += total[..., body]
  return total


def simple_inertia(
  mj_model: mujoco.MjModel,
  *,
  body_mass: np.ndarray,
  body_inertia: np.ndarray,
  dof_armature: np.ndarray,
) -> np.ndarray:
  """Returns dof_M0 [..., nv], the inertia of each degree of freedom at rest.

  Computed for those that MuJoCo calls simple, whose bodies have no children and
  move along or about their principal axes; the others keep the model's value,
  which the engine does not read.

  Args:
    mj_model: the model.
    body_mass: [..., nbody].
    body_inertia: [..., nbody, 3].
    dof_armature: [..., nv].
  """
  total = np.array(np.broadcast_to(mj_model.dof_M0, dof_armature.shape))
  for dof in np.flatnonzero(mj_model.dof_simplenum):
    body, joint = mj_model.dof_bodyid[dof], mj_model.dof_jntid[dof]
    kind = mj_model.jnt_type[joint]
    axis = dof - mj_model.jnt_dofadr[joint]
    inertia = body_inertia[..., body, :]
    if kind == mujoco.mjtJoint.mjJNT_SLIDE:
      moved = body_mass[..., body]
    elif kind == mujoco.mjtJoint.mjJNT_HINGE:
      moved = (inertia * mj_model.jnt_axis[joint] ** 2).sum(axis=-1)
    elif kind == mujoco.mjtJoint.mjJNT_BALL:
      moved = inertia[..., axis]
    else:  # free: three translations, then three rotations
      moved = body_mass[..., body] if axis < 3 else inertia[..., axis - 3]
    total[..., dof] = moved + dof_armature[..., dof]
  return total
