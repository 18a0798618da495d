"""`Physics` over MJX data, for both of MJX's implementations.

Between two steps only what MuJoCo integrates is carried. The rest of mjx.Data,
some hundred arrays and the constraint Jacobian among them, is computed anew in
every step and starts from one constant: the same numbers, and nothing for a
scan or an auto-reset to copy.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import chex
import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from mujoco import mjx

from envs.physics import fields as fields_lib
from envs.physics import model_values as model_values_lib
from envs.physics import state as state_lib

_CARRIED = (
  "time",
  "qpos",
  "qvel",
  "act",
  "history",
  "qacc_warmstart",
  "mocap_pos",
  "mocap_quat",
)

OverflowFn = Callable[[mjx.Data], jax.Array]


def make(
  mj_model: mujoco.MjModel,
  *,
  backend: str,
  mjx_model: mjx.Model,
  mjx_data: mjx.Data,
  overflow_fn: OverflowFn,
  num_substeps: int,
  fields: Sequence[str],
) -> state_lib.Physics:
  """Returns the physics of `mjx_model`.

  Args:
    mj_model: the model it was made from.
    backend: "mjx" or "warp".
    mjx_model: the model, on one of MJX's implementations.
    mjx_data: data of that implementation, as `mjx.make_data` leaves it.
    overflow_fn: data after a substep -> how much was dropped in it, [] int32.
    num_substeps: calls of `mjx.step` per step.
    fields: mjData fields that `PhysicsState.data` shall hold besides qpos, qvel
      and time.

  Raises:
    ValueError: for a field that is not supported; from `reset`, for model
      values that cannot be varied.
  """
  shapes = fields_lib.layout(mj_model, fields).shapes

  def model(values: Mapping[str, jax.Array]) -> mjx.Model:
    values = dict(values)
    if "body_mass" in values:
      values["body_subtreemass"] = jnp.dot(
        _descendants(mj_model), values["body_mass"], precision="highest"
      )
    return mjx_model.tree_replace(values)

  def pack(d: mjx.Data, overflow: jax.Array) -> tuple[Any, Any, jax.Array]:
    carried = {name: getattr(d, name) for name in _CARRIED}
    data = {
      name: jnp.reshape(_get(d, name), shape).astype(jnp.float32)
      for name, shape in shapes.items()
    }
    is_bad = _is_bad(d)
    return *_nan_where(is_bad, (carried, data)), overflow

  def reset(
    qpos: jax.Array,
    *,
    qvel: jax.Array | None = None,
    model_values: Mapping[str, jax.Array] | None = None,
    mocap_pos: jax.Array | None = None,
    mocap_quat: jax.Array | None = None,
  ) -> state_lib.PhysicsState:
    qpos, qvel, mocap_pos, mocap_quat = fields_lib.start(
      mj_model, qpos, qvel=qvel, mocap_pos=mocap_pos, mocap_quat=mocap_quat
    )
    values = dict(model_values or {})
    model_values_lib.check(mj_model, values)
    with _as_mjx_expects():
      d = mjx_data.replace(
        qpos=qpos, qvel=qvel, mocap_pos=mocap_pos, mocap_quat=mocap_quat
      )
      d = mjx.forward(model(values), d)
      internal, data, overflow = pack(d, overflow_fn(d))
    return state_lib.PhysicsState(
      internal=internal, data=data, model_values=values, overflow=overflow
    )

  def step(
    state: state_lib.PhysicsState, ctrl: jax.Array
  ) -> state_lib.PhysicsState:
    chex.assert_shape(ctrl, (mj_model.nu,))
    chex.assert_type(ctrl, jnp.float32)

    def substep(_, carry):
      carried, _, overflow = carry
      d = mjx_data.replace(**carried, ctrl=ctrl)
      d = mjx.step(model(state.model_values), d)
      return pack(d, overflow + overflow_fn(d))

    with _as_mjx_expects():
      internal, data, overflow = jax.lax.fori_loop(
        0,
        num_substeps,
        substep,
        (state.internal, state.data, jnp.zeros_like(state.overflow)),
      )
    return state.replace(internal=internal, data=data, overflow=overflow)

  return state_lib.Physics(
    backend=backend,
    mj_model=mj_model,
    num_substeps=num_substeps,
    reset=reset,
    step=step,
  )


@contextlib.contextmanager
def _as_mjx_expects() -> Iterator[None]:
  """Traces with full precision, and with the promotion that MJX relies on."""
  with (
    jax.default_matmul_precision("highest"),
    jax.numpy_dtype_promotion("standard"),
    jax.numpy_rank_promotion("allow"),
  ):
    yield


def _get(d: mjx.Data, name: str) -> jax.Array:
  """Returns a field of the data, or of the implementation's own part."""
  is_public = name in {f.name for f in dataclasses.fields(d)}
  return getattr(d if is_public else d._impl, name)


def _is_bad(d: mjx.Data) -> jax.Array:
  """True where MuJoCo would call the state bad: NaN, or beyond mjMAXVAL."""
  numbers = jnp.concatenate([d.qpos, d.qvel, d.qacc, d.ctrl])
  return ~jnp.all(jnp.abs(numbers) <= mujoco.mjMAXVAL)


def _nan_where(is_bad: jax.Array, tree: Any) -> Any:
  return jax.tree.map(lambda x: jnp.where(is_bad, jnp.nan, x), tree)


def _descendants(mj_model: mujoco.MjModel) -> np.ndarray:
  """Returns [nbody, nbody] float32: 1 where column is row or below it."""
  below = np.eye(mj_model.nbody, dtype=np.float32)
  for body in range(mj_model.nbody - 1, 0, -1):
    below[mj_model.body_parentid[body]] += below[body]
  return below
