"""The models of the tasks: loading, and poses to begin from."""

from __future__ import annotations

import pathlib

import chex
import jax
import jax.numpy as jnp
import mujoco

_ASSETS = pathlib.Path(__file__).with_name("assets")


def load(name: str) -> mujoco.MjModel:
  """Returns the model of assets/NAME.xml.

  Raises:
    ValueError: if there is no such file, or MuJoCo cannot compile it.
  """
  return mujoco.MjModel.from_xml_path(str(_ASSETS / f"{name}.xml"))


def near_rest(
  key: chex.PRNGKey, mj_model: mujoco.MjModel, *, spread: float
) -> jax.Array:
  """Returns the model's rest pose with its limited joints moved, [nq] float32.

  Args:
    key: consumed.
    mj_model: the model; its rest pose must respect the joints' ranges.
    spread: in [0, 1]; each limited hinge or slide lies uniformly within this
      part of the way from rest to its limits.
  """
  rest = jnp.asarray(mj_model.qpos0, jnp.float32)
  is_limited = mj_model.jnt_limited.astype(bool)
  address = mj_model.jnt_qposadr[is_limited]
  low, high = jnp.asarray(mj_model.jnt_range[is_limited], jnp.float32).T
  drawn = jax.random.uniform(key, low.shape, minval=low, maxval=high)
  moved = rest[address] + spread * (drawn - rest[address])
  return rest.at[address].set(moved)
