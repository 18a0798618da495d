"""The mjData fields that tasks may read, and how they travel packed.

Allowed are fields that every backend computes in every step. Others are
refused: the C engine computes `subtree_linvel` or `cacc`, say, only for the
sensors that need them, and otherwise leaves another simulation's values there.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import chex
import jax
import jax.numpy as jnp
import mujoco

ALWAYS = ("qpos", "qvel", "time")
# Part of the state, hence current after a step.
_STATE = ("act", "mocap_pos", "mocap_quat")
# Computed from the state; after a step, from that before the last substep.
_DERIVED = (
  "actuator_force",
  "actuator_length",
  "actuator_velocity",
  "cam_xmat",
  "cam_xpos",
  "cinert",
  "cvel",
  "geom_xmat",
  "geom_xpos",
  "qacc",
  "qacc_smooth",
  "qfrc_actuator",
  "qfrc_bias",
  "qfrc_constraint",
  "qfrc_passive",
  "qfrc_smooth",
  "sensordata",
  "site_xmat",
  "site_xpos",
  "subtree_com",
  "ten_length",
  "ten_velocity",
  "xanchor",
  "xaxis",
  "ximat",
  "xipos",
  "xmat",
  "xpos",
  "xquat",
)
ALLOWED = ALWAYS + _STATE + _DERIVED
_MATRICES = ("cam_xmat", "geom_xmat", "site_xmat", "ximat", "xmat")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
  """Where each field lies in a packed vector whose last entry is `overflow`.

  Attributes:
    shapes: field name -> shape, in packing order.
    size: entries of the packed vector.
  """

  shapes: dict[str, tuple[int, ...]]
  size: int


def layout(mj_model: mujoco.MjModel, fields: Sequence[str]) -> Layout:
  """Returns the layout of qpos, qvel, time and `fields`, each once.

  A matrix field has MuJoCo's C shape: `data["xmat"]` is [nbody, 9].

  Raises:
    ValueError: for a field that is not in `ALLOWED`.
  """
  unknown = sorted(set(fields) - set(ALLOWED))
  if unknown:
    raise ValueError(
      f"physics fields {unknown} are not among those that every backend"
      f" computes in every step: {', '.join(sorted(ALLOWED))}. For a velocity,"
      " a contact or a force, add a sensor to the model and read 'sensordata'"
    )
  mj_data = mujoco.MjData(mj_model)
  shapes = {
    name: tuple(int(n) for n in jnp.shape(getattr(mj_data, name)))
    for name in dict.fromkeys((*ALWAYS, *fields))
  }
  size = sum(math.prod(shape) for shape in shapes.values()) + 1
  return Layout(shapes=shapes, size=size)


def unpack(
  where: Layout, packed: jax.Array
) -> tuple[dict[str, jax.Array], jax.Array]:
  """Returns the fields of `packed` [size] by name, and overflow [] int32."""
  data, begin = {}, 0
  for name, shape in where.shapes.items():
    end = begin + math.prod(shape)
    data[name] = jnp.reshape(packed[begin:end], shape)
    begin = end
  return data, packed[begin].astype(jnp.int32)


def start(
  mj_model: mujoco.MjModel,
  qpos: jax.Array,
  *,
  qvel: jax.Array | None,
  mocap_pos: jax.Array | None,
  mocap_quat: jax.Array | None,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
  """Returns qpos, qvel, mocap_pos and mocap_quat, with defaults filled in.

  Args:
    mj_model: the model.
    qpos: [nq] float32.
    qvel: [nv] float32; zeros by default.
    mocap_pos: [nmocap, 3] float32; by default where the model has the bodies.
    mocap_quat: [nmocap, 4] float32; likewise.
  """
  mj_data = mujoco.MjData(mj_model)
  if qvel is None:
    qvel = jnp.zeros(mj_model.nv, jnp.float32)
  if mocap_pos is None:
    mocap_pos = jnp.asarray(mj_data.mocap_pos, jnp.float32)
  if mocap_quat is None:
    mocap_quat = jnp.asarray(mj_data.mocap_quat, jnp.float32)
  chex.assert_shape(qpos, (mj_model.nq,))
  chex.assert_shape(qvel, (mj_model.nv,))
  chex.assert_shape(mocap_pos, (mj_model.nmocap, 3))
  chex.assert_shape(mocap_quat, (mj_model.nmocap, 4))
  chex.assert_type([qpos, qvel, mocap_pos, mocap_quat], jnp.float32)
  return qpos, qvel, mocap_pos, mocap_quat
