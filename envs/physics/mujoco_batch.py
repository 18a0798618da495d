"""The `mujoco` backend: MuJoCo's C engine as a pure function of arrays.

Many simulations run on a thread pool (`mujoco.batch.Batch`, MuJoCo >= 4) behind
one batched callback. A simulation between two calls is nothing but the arrays
of its `PhysicsState`: its row of the integration state, its model values and,
during a step, its controls. Buffers are pooled; no call can see what an earlier
one left in them.

Two facts shape this file. Callbacks cannot return 64-bit arrays while x64 is
off, so a float64 row of n numbers travels as uint32 [2 n]. And a callback costs
per array, so all that a task reads comes back as one packed float32 vector.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

import chex
import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from jax.experimental import buffer_callback
from mujoco import batch as mujoco_batch

from envs.physics import fields as fields_lib
from envs.physics import model_values as model_values_lib
from envs.physics import state as state_lib

# What a simulation is between two calls. Left out: ctrl, which is the step's
# argument, and qfrc_applied, xfrc_applied and userdata, which stay zero.
_CARRIED = (
  mujoco.mjtState.mjSTATE_FULLPHYSICS
  | mujoco.mjtState.mjSTATE_WARMSTART
  | mujoco.mjtState.mjSTATE_MOCAP_POS
  | mujoco.mjtState.mjSTATE_MOCAP_QUAT
)
# Counters of bad numbers (qpos, qvel, qacc, ctrl) and of full buffers.
_BAD = slice(
  int(mujoco.mjtWarning.mjWARN_BADQPOS),
  int(mujoco.mjtWarning.mjWARN_BADCTRL) + 1,
)
_FULL = slice(
  int(mujoco.mjtWarning.mjWARN_CONTACTFULL),
  int(mujoco.mjtWarning.mjWARN_CNSTRFULL) + 1,
)
# MuJoCo prints a warning, to stderr and to a log file, when its counter is
# zero. Counters that start here are silent and still count; a simulation that
# the engine reset starts again from zero, which is below.
_SILENT = 1 << 20


def make(
  mj_model: mujoco.MjModel,
  *,
  num_substeps: int,
  fields: Sequence[str] = (),
  num_threads: int = 0,
) -> state_lib.Physics:
  """Returns the physics of `mj_model` on MuJoCo's C engine.

  Args:
    mj_model: the model; not to be edited afterwards.
    num_substeps: calls of `mj_step` per step.
    fields: derived mjData fields that `PhysicsState.data` shall hold besides
      qpos, qvel and time.
    num_threads: threads per batch; 0 is one per CPU. Results do not depend on
      it.

  Raises:
    ValueError: for a field or a model that the backend does not support; from
      `reset`, for model values that cannot be varied.
    NotImplementedError: from `reset` and `step` under differentiation.
  """
  if mj_model.opt.enableflags & mujoco.mjtEnableBit.mjENBL_SLEEP:
    raise ValueError(
      "the mujoco backend got a model with sleep enabled, whose simulations"
      " are more than their state rows; remove sleep='enable' from <flag>"
    )
  layout = fields_lib.layout(mj_model, fields)
  pool = _Pool(mj_model, layout=layout, num_threads=num_threads)
  call_reset = _callback(_reset_rows, pool)
  call_step = _callback(
    functools.partial(_step_rows, num_substeps=num_substeps), pool
  )

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
    return advance(call_reset, [jnp.ravel(x) for x in start], values)

  def step(
    state: state_lib.PhysicsState, ctrl: jax.Array
  ) -> state_lib.PhysicsState:
    chex.assert_shape(ctrl, (mj_model.nu,))
    chex.assert_type(ctrl, jnp.float32)
    return advance(call_step, [state.internal, ctrl], state.model_values)

  def advance(call, parts, values):
    names = tuple(sorted(values))
    row, packed = call(names, *(jnp.ravel(values[n]) for n in names), *parts)
    data, overflow = fields_lib.unpack(layout, packed)
    return state_lib.PhysicsState(
      internal=row, data=data, model_values=dict(values), overflow=overflow
    )

  return state_lib.Physics(
    backend="mujoco",
    mj_model=mj_model,
    num_substeps=num_substeps,
    reset=reset,
    step=step,
  )


class _Buffers:
  """A `Batch` of one size, and the views through which calls use it."""

  def __init__(
    self,
    mj_model: mujoco.MjModel,
    size: int,
    *,
    names: tuple[str, ...],
    layout: fields_lib.Layout,
    num_threads: int,
  ):
    self.batch = mujoco_batch.Batch(mj_model, size, nthread=num_threads)
    self._mj_model = mj_model
    self._layout = layout
    self._initial = self.batch.state[0].copy()
    self._carried = _carried(mj_model)
    self._outputs = [
      self.batch.bind(name).reshape(size, -1) for name in layout.shapes
    ]
    self._models = {name: self.batch.expand(name) for name in names}
    inertial = ("body_mass", "body_inertia", "dof_armature")
    self._inertial = {}
    if set(inertial) & set(names):
      # Expanded even if only one varies: what follows depends on all.
      self._inertial = {name: self.batch.expand(name) for name in inertial}
      self._inertia = self.batch.expand("dof_M0")
      self._subtree_mass = self.batch.expand("body_subtreemass")
    self._num_values = sum(x[0].size for x in self._models.values())
    self._written: np.ndarray | None = None

  def load_values(self, bits_b: np.ndarray) -> np.ndarray:
    """Sets the model values, in the order of their names; returns the rest.

    Args:
      bits_b: [B, V + rest] uint32, the bits of V float32 values in front.
    """
    value_b = bits_b[:, : self._num_values]
    rest_b = bits_b[:, self._num_values :]
    if self._written is not None and np.array_equal(value_b, self._written):
      return rest_b
    begin = 0
    for target in self._models.values():
      end = begin + target[0].size
      value = value_b[:, begin:end].view(np.float32)
      target[:] = value.reshape(target.shape)
      begin = end
    if self._inertial:
      self._inertia[:] = model_values_lib.simple_inertia(
        self._mj_model, **self._inertial
      )
      self._subtree_mass[:] = model_values_lib.subtree_mass(
        self._mj_model, self._inertial["body_mass"]
      )
    self._written = value_b.copy()
    return rest_b

  def load_start(self, start_b: np.ndarray) -> None:
    """Sets the initial state, but for qpos, qvel and mocap, [B, S] float32."""
    self.batch.state[:] = self._initial
    begin = 0
    for name in ("qpos", "qvel", "mocap_pos", "mocap_quat"):
      target = self.batch.bind(name)
      end = begin + target[0].size
      target[:] = start_b[:, begin:end].reshape(target.shape)
      begin = end

  def load_rows(self, bits_b: np.ndarray) -> None:
    """Sets the carried state and the controls, [B, 2 R + nu] uint32."""
    ctrl = self.batch.bind("ctrl")
    row_size = bits_b.shape[1] - ctrl.shape[1]
    row_b = bits_b[:, :row_size].view(np.float64)
    begin = 0
    for part in self._carried:
      end = begin + part.stop - part.start
      self.batch.state[:, part] = row_b[:, begin:end]
      begin = end
    ctrl[:] = bits_b[:, row_size:].view(np.float32)

  def run(
    self, call: Callable[[], None], row_b: np.ndarray, packed_b: np.ndarray
  ) -> None:
    """Runs `call` and writes the results, [B, 2 R] and [B, P] uint32.

    A simulation in which the engine raised an error or met a bad number, and
    which it therefore left as it was or reset by itself, comes back as NaN.
    """
    number_b = self.batch.warning[:, :, 1]
    number_b[:] = _SILENT
    with contextlib.suppress(mujoco_batch.SimulationError):
      call()
    row_b, packed_b = row_b.view(np.float64), packed_b.view(np.float32)
    begin = 0
    for part in self._carried:
      end = begin + part.stop - part.start
      row_b[:, begin:end] = self.batch.state[:, part]
      begin = end
    begin = 0
    for output in self._outputs:
      end = begin + output.shape[1]
      packed_b[:, begin:end] = output
      begin = end
    packed_b[:, -1] = 0
    # Nearly always nothing happened, and one comparison is all it costs.
    if self.batch.status.any() or (number_b != _SILENT).any():
      is_bad_b = (number_b[:, _BAD] != _SILENT).any(axis=1)
      is_bad_b |= self.batch.status != 0
      row_b[is_bad_b] = np.nan
      packed_b[is_bad_b] = np.nan
      full_b = number_b[:, _FULL]
      packed_b[:, -1] = np.where(
        full_b < _SILENT, full_b, full_b - _SILENT
      ).sum(axis=1)


class _Pool:
  """Buffers by size and varied fields, lent to one call at a time."""

  def __init__(
    self,
    mj_model: mujoco.MjModel,
    *,
    layout: fields_lib.Layout,
    num_threads: int,
  ):
    self.layout = layout
    self.row_size = 2 * sum(p.stop - p.start for p in _carried(mj_model))
    self._mj_model = mj_model
    self._num_threads = num_threads
    self._lock = threading.Lock()
    self._idle: dict[tuple, list[_Buffers]] = {}

  @contextlib.contextmanager
  def lend(self, size: int, names: tuple[str, ...]) -> Iterator[_Buffers]:
    """Yields buffers that no other call uses meanwhile."""
    with self._lock:
      idle = self._idle.setdefault((size, names), [])
      buffers = idle.pop() if idle else None
    if buffers is None:
      buffers = _Buffers(
        self._mj_model,
        size,
        names=names,
        layout=self.layout,
        num_threads=self._num_threads,
      )
    yield buffers
    with self._lock:
      idle.append(buffers)


def _reset_rows(buffers, bits_b, out):
  buffers.load_start(bits_b.view(np.float32))
  buffers.run(buffers.batch.forward, *out)


def _step_rows(buffers, bits_b, out, *, num_substeps):
  buffers.load_rows(bits_b)
  buffers.run(lambda: buffers.batch.step(nstep=num_substeps), *out)


def _callback(rows_fn, pool):
  """Returns `rows_fn` as a function of traced arrays of one simulation.

  Its arguments are joined into one vector of bits: a callback costs per
  argument and hardly per byte.

  On the CPU the callback works in place on XLA's buffers. `jax.pure_callback`
  would first make JAX arrays of them, by a copy on the very threads that all
  wait for callbacks when eight virtual devices step at once: they never wake
  (seen with jax 0.10.2, 8 devices on 2 cores, arguments above 100 kB). It
  serves the other platforms, where threads that run callbacks are their own.
  """

  def host(names, bits, outs):
    bits, *outs = (
      x.reshape(math.prod(x.shape[:-1]), x.shape[-1]) for x in (bits, *outs)
    )
    with pool.lend(len(bits), names) as buffers:
      rows_fn(buffers, buffers.load_values(bits), outs)

  def in_place(names, context, outs, bits):
    del context
    host(names, np.asarray(bits), [np.asarray(out) for out in outs])

  def copying(names, bits):
    bits = np.asarray(bits)
    outs = [np.empty(bits.shape[:-1] + x.shape, x.dtype) for x in results]
    host(names, bits, outs)
    return outs

  results = [
    jax.ShapeDtypeStruct((size,), jnp.uint32)
    for size in (pool.row_size, pool.layout.size)
  ]

  @functools.cache
  def by_platform(names):
    """Returns the callback on a CPU, and that on other platforms."""
    pure = functools.partial(copying, names)
    in_place_call = buffer_callback.buffer_callback(
      functools.partial(in_place, names), results, vmap_method="broadcast_all"
    )
    return in_place_call, lambda bits: jax.pure_callback(
      pure, results, bits, vmap_method="broadcast_all"
    )

  @functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
  def call(names, *parts):
    bits = jnp.concatenate(
      [jax.lax.bitcast_convert_type(x, jnp.uint32) for x in parts]
    )
    on_cpu, elsewhere = by_platform(names)
    outs = jax.lax.platform_dependent(bits, cpu=on_cpu, default=elsewhere)
    # Callbacks drop what shard_map knows of its argument (over which mesh axes
    # it varies). Joining with zero bits of the argument gives it back; XLA
    # removes the operation.
    zero = bits[:1] & jnp.uint32(0)
    row, packed = (out | jnp.broadcast_to(zero, out.shape) for out in outs)
    return row, jax.lax.bitcast_convert_type(packed, jnp.float32)

  @call.defjvp
  def refuse(names, primals, tangents):
    raise NotImplementedError(
      "the mujoco backend is not differentiable: use jax.lax.stop_gradient"
      " around the simulation, or physics='mjx'"
    )

  return call


def _carried(mj_model: mujoco.MjModel) -> tuple[slice, ...]:
  """Returns the parts of the integration state that a row holds."""
  parts: list[slice] = []
  begin = 0
  for bit in range(int(mujoco.mjtState.mjSTATE_INTEGRATION).bit_length()):
    end = begin + mujoco.mj_stateSize(mj_model, 1 << bit)
    if int(_CARRIED) & (1 << bit) and end > begin:
      if parts and parts[-1].stop == begin:
        parts[-1] = slice(parts[-1].start, end)
      else:
        parts.append(slice(begin, end))
    begin = end
  return tuple(parts)
