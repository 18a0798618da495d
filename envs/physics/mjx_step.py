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
BatchFn = Callable[[Callable[[int], Callable[..., Any]]], Callable[..., Any]]


def make(
  mj_model: mujoco.MjModel,
  *,
  backend: str,
  mjx_model: mjx.Model,
  data_fn: Callable[[int], mjx.Data],
  overflow_fn: OverflowFn,
  batch_fn: BatchFn,
  num_substeps: int,
  fields: Sequence[str],
) -> state_lib.Physics:
  """Returns the physics of `mjx_model`.

  Args:
    mj_model: the model it was made from.
    backend: "mjx" or "warp".
    mjx_model: the model, on one of MJX's implementations.
    data_fn: number of simulations that will share it -> data of that
      implementation, as `mjx.make_data` leaves it.
    overflow_fn: data after a substep -> how much was dropped in it, [] int32.
    batch_fn: number of simulations -> function of one simulation, to that
      function with the number filled in when it is vmapped.
    num_substeps: calls of `mjx.step` per step.
    fields: mjData fields that `PhysicsState.data` shall hold besides qpos, qvel
      and time.

  Raises:
    ValueError: for a field that is not supported; from `reset`, for model
      values that cannot be varied.
  """
  shapes = fields_lib.layout(mj_model, fields).shapes

  def calling(mjx_fn):
    """Returns `mjx_fn` from (values, fields that are set) to what we keep."""

    def of_size(num_simulations):
      blank = data_fn(num_simulations)

      def call(values, given):
        model = mjx_model.tree_replace(_complete(mj_model, values))
        return _keep(mjx_fn(model, blank.replace(**given)), shapes, overflow_fn)

      return call

    return batch_fn(of_size)

  forward, substep = calling(mjx.forward), calling(mjx.step)

  def reset(
    qpos: jax.Array,
    *,
    qvel: jax.Array | None = None,
    model_values: Mapping[str, jax.Array] | None = None,
    mocap_pos: jax.Array | None = None,
    mocap_quat: jax.Array | None = None,
  ) -> state_lib.PhysicsState:
    start = fields_lib.start(
      mj_model, qpos, qvel=qvel, mocap_pos=mocap_pos, mocap_quat=mocap_quat
    )
    values = dict(model_values or {})
    model_values_lib.check(mj_model, values)
    names = ("qpos", "qvel", "mocap_pos", "mocap_quat")
    with _as_mjx_expects():
      internal, data, overflow = forward(values, dict(zip(names, start)))
    return state_lib.PhysicsState(
      internal=internal, data=data, model_values=values, overflow=overflow
    )

  def step(
    state: state_lib.PhysicsState, ctrl: jax.Array
  ) -> state_lib.PhysicsState:
    chex.assert_shape(ctrl, (mj_model.nu,))
    chex.assert_type(ctrl, jnp.float32)

    def body(_, carry):
      given, _, overflow = carry
      kept = substep(state.model_values, {**given, "ctrl": ctrl})
      return *kept[:2], overflow + kept[2]

    # The derived fields of the last substep replace those of the others.
    carry = (state.internal, state.data, jnp.zeros_like(state.overflow))
    with _as_mjx_expects():
      internal, data, overflow = jax.lax.fori_loop(0, num_substeps, body, carry)
    return state_lib.PhysicsState(
      internal=internal,
      data=data,
      model_values=state.model_values,
      overflow=overflow,
    )

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


def _complete(
  mj_model: mujoco.MjModel, values: Mapping[str, jax.Array]
) -> dict[str, jax.Array]:
  """Returns the values, with what follows from them and the world at rest."""
  completed = dict(values)
  for name in ("body_pos", "body_quat"):
    if name in values:  # MuJoCo ignores the world's own; MJX would move it
      rest = jnp.asarray(getattr(mj_model, name)[0], jnp.float32)
      completed[name] = values[name].at[0].set(rest)
  if "body_mass" in values:
    is_below = np.eye(mj_model.nbody, dtype=np.float32)  # column below row
    for body in range(mj_model.nbody - 1, 0, -1):
      is_below[mj_model.body_parentid[body]] += is_below[body]
    completed["body_subtreemass"] = jnp.dot(is_below, values["body_mass"])
  return completed


def _keep(
  d: mjx.Data, shapes: Mapping[str, tuple[int, ...]], overflow_fn: OverflowFn
) -> tuple[dict[str, jax.Array], dict[str, jax.Array], jax.Array]:
  """Returns what is carried, what tasks read, and the overflow.

  NaN where MuJoCo would call the state bad: not a number, or beyond mjMAXVAL.
  """
  numbers = jnp.concatenate([d.qpos, d.qvel, d.qacc, d.ctrl])
  is_good = jnp.all(jnp.abs(numbers) <= mujoco.mjMAXVAL)
  public = {field.name for field in dataclasses.fields(d)}
  carried = {name: getattr(d, name) for name in _CARRIED}
  data = {
    name: jnp.reshape(getattr(d if name in public else d._impl, name), shape)
    for name, shape in shapes.items()
  }
  carried, data = jax.tree.map(
    lambda x: jnp.where(is_good, x.astype(jnp.float32), jnp.nan),
    (carried, data),
  )
  return carried, data, overflow_fn(d)
