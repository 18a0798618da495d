"""mjModel fields that may differ between simulations.

Allowed are fields whose change has its effect on every backend without
`mj_setConst`, that is without recompiling what MuJoCo derives from the model.
Derived constants keep the model's values (body_invweight0, dof_invweight0,
tendon_invweight0, which scale the softness of constraints), except for
body_subtreemass, which follows body_mass since centres of mass need it.
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
