"""The `mjx` backend: MuJoCo in JAX, on any device that JAX has.

float32 at full precision (products are never rounded to TF32 or bfloat16), and
repeatable on one device with one program. Contacts are a static set, so that
nothing overflows, unless the model asks for less by the custom numbers
`max_contact_points` or `max_geom_pairs`: then MJX drops the farthest, and
`overflow` is 1 in every substep in which all slots hold a contact.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import mujoco
from mujoco import mjx

from envs.physics import mjx_step
from envs.physics import state as state_lib


def make(
  mj_model: mujoco.MjModel, *, num_substeps: int, fields: Sequence[str] = ()
) -> state_lib.Physics:
  """Returns the physics of `mj_model` on MJX's JAX implementation.

  Args:
    mj_model: the model; copied.
    num_substeps: calls of `mjx.step` per step.
    fields: mjData fields that `PhysicsState.data` shall hold besides qpos, qvel
      and time.

  Raises:
    ValueError: for a field that is not supported; from `reset`, for model
      values that cannot be varied.
    NotImplementedError: by MJX, for a feature of the model that it lacks.
  """
  is_limited = any(
    mj_model.numeric(i).name in ("max_contact_points", "max_geom_pairs")
    for i in range(mj_model.nnumeric)
  )

  def overflow(d: mjx.Data) -> jax.Array:
    contact = d._impl.contact
    if not is_limited or contact.dist.size == 0:
      return jnp.int32(0)
    return jnp.all(contact.dist < contact.includemargin).astype(jnp.int32)

  blank = mjx.make_data(mj_model, impl="jax")
  return mjx_step.make(
    mj_model,
    backend="mjx",
    mjx_model=mjx.put_model(mj_model, impl="jax"),
    data_fn=lambda _: blank,
    overflow_fn=overflow,
    batch_fn=lambda of_size: of_size(1),
    num_substeps=num_substeps,
    fields=fields,
  )
