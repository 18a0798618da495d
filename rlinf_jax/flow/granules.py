"""Computing a stage's items: all or some, by quanta, divided over a mesh."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core as jex_core

from rlinf_jax.flow import calls

P = jax.sharding.PartitionSpec


def run_whole(
  call: calls.Call,
  axes: tuple[int | None, ...],
  *leaves: jax.Array,
) -> list[jax.Array]:
  """Runs a stage over all its items, on one device."""
  if call.spec.quantum is None:
    return _eval(call, leaves)
  if call.spec.reduces is not None:
    return _summed(call, axes, leaves)
  quanta = _quanta(call, axes, leaves)
  out_axis = call.spec.out_axis + len(call.mapped)
  return [_joined(x, out_axis) for x in quanta]


def run_on_mesh(
  call: calls.Call,
  axes: tuple[int | None, ...],
  out_axis: int,
  mesh: Any,
  *leaves: jax.Array,
) -> list[jax.Array]:
  """Runs a stage with its items divided over a mesh."""
  _check_divides(call, axes, mesh, leaves)
  (name,) = mesh.axis_names

  def local(*parts: jax.Array) -> list[jax.Array]:
    if call.spec.reduces is None:
      return run_whole(call, axes, *parts)
    if call.spec.quantum is None:
      return [jax.lax.psum(x, name) for x in _eval(call, parts)]
    quanta = _quanta(call, axes, parts)
    return [
      _ordered_sum(jax.lax.all_gather(x, name, tiled=True)) for x in quanta
    ]

  out_spec = P(*[None] * out_axis, name) if call.spec.reduces is None else P()
  # The ordered sum of gathered quanta is the same everywhere, which the
  # replication checker cannot know.
  sharded = jax.shard_map(
    local,
    mesh=mesh,
    in_specs=_in_specs(axes, name),
    out_specs=out_spec,
    check_vma=False,
  )
  return sharded(*leaves)


def run_granule(
  call: calls.Call,
  axes: tuple[int | None, ...],
  out_axis: int,
  leaves: Sequence[jax.Array],
  *,
  is_whole: bool,
) -> list[jax.Array]:
  """Runs a stage on some of its items; to be traced, under a mesh or none.

  Args:
    call: the stage.
    axes: of items, in each input.
    out_axis: of items, in each output.
    leaves: the inputs.
    is_whole: whether these are all items, so that no other sum has to be added
      between those of their quanta.

  Returns:
    Its results; of a reducing stage the sums of each quantum, or one of all,
    stacked along a new first axis, for `sum_quanta`.
  """
  mesh = jax.sharding.get_abstract_mesh()
  has_items = any(axis is not None for axis in axes)
  if call.spec.reduces is None:
    if mesh.empty or not has_items:
      return run_whole(call, axes, *leaves)
    return run_on_mesh(call, axes, out_axis, mesh, *leaves)
  if mesh.empty:
    if is_whole and call.spec.quantum is not None:
      return [x[None] for x in _summed(call, axes, leaves)]
    return _stacked(call, axes, leaves)
  _check_divides(call, axes, mesh, leaves)
  (name,) = mesh.axis_names
  is_exact = call.spec.quantum is not None

  def local(*parts: jax.Array) -> list[jax.Array]:
    stacked = _stacked(call, axes, parts)
    return stacked if is_exact else [jax.lax.psum(x, name) for x in stacked]

  sharded = jax.shard_map(
    local,
    mesh=mesh,
    in_specs=_in_specs(axes, name),
    out_specs=P(name) if is_exact else P(),
    check_vma=False,
  )
  return sharded(*leaves)


def sum_quanta(stacked: jax.Array) -> jax.Array:
  """Returns the sum over the first axis, in its order."""
  return _ordered_sum(stacked)


def _stacked(
  call: calls.Call, axes: tuple[int | None, ...], leaves: Sequence[jax.Array]
) -> list[jax.Array]:
  if call.spec.quantum is None:
    return [x[None] for x in _eval(call, leaves)]
  return _quanta(call, axes, leaves)


def _quanta(
  call: calls.Call, axes: tuple[int | None, ...], leaves: Sequence[jax.Array]
) -> list[jax.Array]:
  """Returns each result of every quantum, stacked along a new first axis."""
  return jax.lax.map(
    lambda parts: _one_quantum(call, leaves, parts),
    _divided(call, axes, leaves),
  )


def _summed(
  call: calls.Call, axes: tuple[int | None, ...], leaves: Sequence[jax.Array]
) -> list[jax.Array]:
  """Returns what `_ordered_sum` makes of `_quanta`, in memory one at a time."""
  divided = _divided(call, axes, leaves)
  first = [None if x is None else x[0] for x in divided]
  shapes = jax.eval_shape(lambda: _one_quantum(call, leaves, first))
  zeros = [jnp.zeros(x.shape, x.dtype) for x in shapes]
  num = next(x.shape[0] for x in divided if x is not None)

  def add(totals: list[jax.Array], turn: Any) -> tuple[list[jax.Array], None]:
    i, parts = turn
    found = _one_quantum(call, leaves, parts)
    # The first is not added to 0, which would make 0 of -0.
    return [jnp.where(i == 0, x, t + x) for t, x in zip(totals, found)], None

  totals, _ = jax.lax.scan(add, zeros, (jnp.arange(num), divided))
  return totals


def _divided(
  call: calls.Call, axes: tuple[int | None, ...], leaves: Sequence[jax.Array]
) -> list[jax.Array | None]:
  size = call.spec.quantum or 1
  return [
    None if axis is None else _split_axis(x, axis, size)
    for x, axis in zip(leaves, axes)
  ]


def _one_quantum(
  call: calls.Call, leaves: Sequence[jax.Array], parts: Sequence[Any]
) -> list[jax.Array]:
  # XLA unrolls a loop of one turn: between barriers it compiles the body as it
  # does in a loop of several, so that granules do not differ in bits.
  parts = jax.lax.optimization_barrier(parts)
  whole = [x if p is None else p for x, p in zip(leaves, parts)]
  return jax.lax.optimization_barrier(_eval(call, whole))


def _eval(call: calls.Call, leaves: Sequence[jax.Array]) -> list[jax.Array]:
  jaxpr = calls.traced(call, calls.as_avals(leaves))
  return jex_core.jaxpr_as_fun(jaxpr)(*leaves)


def _joined(x_q: jax.Array, axis: int) -> jax.Array:
  """Puts quanta, stacked along axis 0, side by side along their items."""
  x = jnp.moveaxis(x_q, 0, axis)
  return x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])


def _split_axis(x: jax.Array, axis: int, size: int) -> jax.Array:
  shape = x.shape[:axis] + (x.shape[axis] // size, size) + x.shape[axis + 1 :]
  return jnp.moveaxis(x.reshape(shape), axis, 0)


def _ordered_sum(x_q: jax.Array) -> jax.Array:
  total, _ = jax.lax.scan(lambda s, x: (s + x, None), x_q[0], x_q[1:])
  return total


def _in_specs(axes: tuple[int | None, ...], name: str) -> tuple[Any, ...]:
  return tuple(P() if a is None else P(*[None] * a, name) for a in axes)


def _check_divides(
  call: calls.Call,
  axes: tuple[int | None, ...],
  mesh: Any,
  leaves: Sequence[Any],
) -> None:
  (size,) = {x.shape[a] for x, a in zip(leaves, axes) if a is not None}
  if size % mesh.size:
    raise ValueError(
      f"stage '{call.spec.name}' has {size} items, which {mesh.size} devices do"
      " not divide evenly; change the number of items or of devices"
    )
  if call.spec.quantum and (size // mesh.size) % call.spec.quantum:
    raise ValueError(
      f"stage '{call.spec.name}' has {size // mesh.size} items per device,"
      f" which its quantum of {call.spec.quantum} does not divide; lower the"
      " quantum or use fewer devices"
    )
