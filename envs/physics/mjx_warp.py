"""The `warp` backend: MuJoCo Warp behind MJX, the fast one on NVIDIA GPUs.

An optional extra, imported when it is chosen. float32; sums of contact forces
are accumulated by atomics on a GPU, so that results differ in the last bits
from run to run. It also runs on a CPU, to test it: one thread, minutes to
compile its kernels on first use.

Contacts of all simulations share one buffer, which therefore has to grow with
their number: `vmap` tells it here. What does not fit is dropped, and counted in
`overflow`. That the constraint solver stopped at its iteration limit is no
overflow: most models ask for few iterations on purpose. MuJoCo Warp would print
a line for each such step; the model's own option `warn_overflow` turns that
off, and its flags are still set and read here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from jax import custom_batching
from mujoco import mjx
from mujoco.mjx import warp as mjx_warp

from envs.physics import mjx_step
from envs.physics import state as state_lib

# Room per simulation. Contacts: on average over all simulations; 48 is MuJoCo
# Warp's own default. Constraint rows: in any simulation, for this many
# contacts, with all equalities, limits and frictions at once.
_MEAN_CONTACTS = 48
_MAX_CONTACTS = 32
_EQUALITY_ROWS = {
  mujoco.mjtEq.mjEQ_CONNECT: 3,
  mujoco.mjtEq.mjEQ_WELD: 6,
}


def make(
  mj_model: mujoco.MjModel, *, num_substeps: int, fields: Sequence[str] = ()
) -> state_lib.Physics:
  """Returns the physics of `mj_model` on MuJoCo Warp.

  Args:
    mj_model: the model; copied.
    num_substeps: calls of `mjx.step` per step.
    fields: mjData fields that `PhysicsState.data` shall hold besides qpos, qvel
      and time.

  Raises:
    ImportError: if warp-lang is not installed.
    ValueError: on a platform other than CUDA and CPU, or for a field that is
      not supported; from `reset`, for model values that cannot be varied.
    NotImplementedError: by MJX, for a feature of the model that it lacks.
  """
  if not mjx_warp.WARP_INSTALLED:
    raise ImportError(
      "the warp backend needs warp-lang, which is not installed: pip install"
      " 'rlinf_jax[warp]', or choose physics='mjx'"
    )
  platform = jax.default_backend()
  if platform not in ("cpu", "gpu", "cuda"):
    raise ValueError(
      f"the warp backend runs on CUDA devices (or, for tests, CPUs), not on"
      f" {platform}; choose physics='mjx'"
    )
  mjx_model = mjx.put_model(mj_model, impl="warp")
  num_rows = _num_rows(mj_model)

  @functools.cache
  def data_fn(num_simulations: int) -> mjx.Data:
    # Made while a caller is traced, and kept: concrete arrays, not tracers.
    with jax.ensure_compile_time_eval():
      return mjx.make_data(
        mj_model,
        impl="warp",
        naconmax=_MEAN_CONTACTS * num_simulations,
        njmax=num_rows,
      )

  kind = mjx_warp.mjwp_types.OverflowType
  dropped = int(kind.ALL & ~(kind.ITERATIONS | kind.LS_ITERATIONS))

  def overflow(d: mjx.Data) -> jax.Array:
    flags = d._impl.overflow.astype(jnp.int32)
    return (flags & jnp.int32(dropped) != 0).astype(jnp.int32).reshape(())

  return mjx_step.make(
    mj_model,
    backend="warp",
    mjx_model=mjx_model.tree_replace({"opt._impl.warn_overflow": 0}),
    data_fn=data_fn,
    overflow_fn=overflow,
    batch_fn=_by_size,
    num_substeps=num_substeps,
    fields=fields,
  )


def _num_rows(mj_model: mujoco.MjModel) -> int:
  """Returns how many constraint rows one simulation may need."""
  equality = sum(_EQUALITY_ROWS.get(kind, 1) for kind in mj_model.eq_type)
  friction = np.sum(mj_model.dof_frictionloss > 0)
  friction += np.sum(mj_model.tendon_frictionloss > 0)
  limit = np.sum(mj_model.jnt_limited) + np.sum(mj_model.tendon_limited)
  condim = max(mj_model.geom_condim, default=1)
  is_pyramidal = mj_model.opt.cone == mujoco.mjtCone.mjCONE_PYRAMIDAL
  per_contact = 2 * (condim - 1) if is_pyramidal and condim > 1 else condim
  return int(equality + friction + limit + _MAX_CONTACTS * per_contact)


def _by_size(
  of_size: Callable[[int], Callable[..., Any]],
) -> Callable[..., Any]:
  """Returns a function of one simulation that learns its batch from vmap.

  Args:
    of_size: number of simulations -> function of one of them, to be vmapped
      over exactly that many.
  """

  @functools.cache
  def batched(size):
    call = custom_batching.custom_vmap(jax.vmap(of_size(size)))

    @call.def_vmap
    def rule(axis_size, is_batched, *args):
      args = jax.tree.map(
        lambda x, is_in: (
          x if is_in else jnp.broadcast_to(x, (axis_size, *x.shape))
        ),
        args,
        tuple(is_batched),
      )
      flat = jax.tree.map(
        lambda x: x.reshape(axis_size * size, *x.shape[2:]), args
      )
      out = batched(axis_size * size)(*flat)
      out = jax.tree.map(
        lambda x: x.reshape(axis_size, size, *x.shape[1:]), out
      )
      return out, jax.tree.map(lambda _: True, out)

    return call

  def single(*args):
    out = batched(1)(*jax.tree.map(lambda x: x[None], args))
    return jax.tree.map(lambda x: x[0], out)

  return single
