"""Domain randomisation: model values drawn anew for each simulation."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp
import mujoco
import numpy as np

Range = tuple[float, float]  # (low, high) of a factor


def scaled(
  key: chex.PRNGKey,
  mj_model: mujoco.MjModel,
  *,
  friction: Range = (1.0, 1.0),
  mass: Range = (1.0, 1.0),
  damping: Range = (1.0, 1.0),
  strength: Range = (1.0, 1.0),
) -> dict[str, jax.Array]:
  """Returns the model's values times factors drawn uniformly from the ranges.

  Args:
    key: consumed.
    mj_model: the model whose values are scaled.
    friction: one factor for all geoms, as if the floor were another.
    mass: one factor per body, for its mass and its inertia alike.
    damping: one factor per degree of freedom.
    strength: one factor per actuator, for the whole of its force (gain and
      bias; not for muscles, whose force is not proportional to these).

  Returns:
    mjModel field -> float32 values of one simulation, in MuJoCo's shapes, of
    the fields whose range is not (1, 1).

  Raises:
    ValueError: if a range is not 0 <= low <= high.
  """
  table = (
    (friction, 1, ("geom_friction",)),
    (mass, mj_model.nbody, ("body_mass", "body_inertia")),
    (damping, mj_model.nv, ("dof_damping",)),
    (strength, mj_model.nu, ("actuator_gainprm", "actuator_biasprm")),
  )
  values = {}
  for key_row, (limits, num, fields) in zip(jax.random.split(key, 4), table):
    factor = _draw(key_row, limits, num)
    if limits != (1.0, 1.0):
      for field in fields:
        values[field] = _scale(getattr(mj_model, field), factor)
  return values


def _draw(key: chex.PRNGKey, limits: Range, num: int) -> jax.Array:
  low, high = limits
  if not 0 <= low <= high:
    raise ValueError(f"A range of factors is 0 <= low <= high, not {limits}.")
  return jax.random.uniform(key, (num,), minval=low, maxval=high)


def _scale(values: np.ndarray, factor: jax.Array) -> jax.Array:
  """Returns values [N, ...] times factor, [N] or [1]."""
  factor = factor.reshape((-1,) + (1,) * (values.ndim - 1))
  shape = np.broadcast_shapes(factor.shape, values.shape)
  return jnp.asarray(values, jnp.float32) * jnp.broadcast_to(factor, shape)
