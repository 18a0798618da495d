"""How parameters are laid out on a mesh: whole everywhere, or in parts.

A layout is a pytree of `PartitionSpec` beside the parameters, and holds for
gradients and optimizer states of the same structure. With either, rows of the
batch are divided over the same axis of the mesh:

  replicate   data parallelism: each device holds all parameters; gradients are
              summed over devices
  fsdp        fully sharded: each device holds a part of each matrix. Before a
              block runs, its parameters are gathered, and dropped after it;
              its gradients are summed and scattered
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

P = jax.sharding.PartitionSpec


def replicate(params: Any) -> Any:
  """Returns the layout that holds each leaf whole on every device."""
  return jax.tree.map(lambda x: P(), params)


def fsdp(params: Any, mesh: jax.sharding.Mesh, *, axis: str) -> Any:
  """Returns the layout that divides each matrix over a mesh axis.

  Args:
    params: a model's parameters, or anything that contains leaves of their
      shapes under the same names (gradients, moments), or `jax.eval_shape`'s.
    mesh: where they will be.
    axis: the axis of the mesh to divide over. Of a matrix, the longest
      dimension that it divides is divided; vectors stay whole, and so does a
      matrix that it does not divide.
  """
  num_parts = mesh.shape[axis]
  return jax.tree_util.tree_map_with_path(
    lambda path, x: _spec(x.shape, num_parts, axis, is_stacked=_in_block(path)),
    params,
  )


def gather_fn(mesh: jax.sharding.Mesh, *, axis: str) -> Callable[[Any], Any]:
  """Returns what a `fsdp` model does with parameters just before their use.

  Forward, they are gathered to every device; backward, their gradients are
  summed straight into the parts of `fsdp`. Without it, the partitioner may
  move activations instead.
  """
  whole = jax.NamedSharding(mesh, P())

  @jax.custom_vjp
  def gather(x):
    return jax.lax.with_sharding_constraint(x, whole)

  def forward(x):
    return gather(x), None

  def backward(_, cotangent):
    spec = _spec(cotangent.shape, mesh.shape[axis], axis, is_stacked=False)
    part = jax.NamedSharding(mesh, spec)
    return (jax.lax.with_sharding_constraint(cotangent, part),)

  gather.defvjp(forward, backward)
  return lambda params: jax.tree.map(gather, params)


def by_row(
  fn: Callable[..., Any], mesh: jax.sharding.Mesh, *, axis: str
) -> Callable[..., Any]:
  """Returns `fn`, run by each device on its own rows.

  `token_statistics` wants it: its loop over chunks sums the last layer's
  gradient, which the partitioner would sum over devices in each round. So it
  is summed over devices once, at the end.

  Args:
    fn: (shared, *arrays [B, ...]) -> a pytree of arrays [B, ...].
    mesh: of the devices.
    axis: of the mesh, over which rows are divided.
  """

  def run(shared, *arrays):
    return jax.shard_map(
      fn,
      mesh=mesh,
      in_specs=(P(), *[P(axis)] * len(arrays)),
      out_specs=P(axis),
      check_vma=False,  # checked, the sum would move into the loop again
    )(shared, *arrays)

  return run


def on_mesh(layout: Any, mesh: jax.sharding.Mesh) -> Any:
  """Returns the shardings of a layout, for `jit` and `device_put`."""
  return jax.tree.map(
    lambda spec: jax.NamedSharding(mesh, spec),
    layout,
    is_leaf=lambda x: isinstance(x, P),
  )


def _in_block(path):
  return any(getattr(entry, "key", None) == "blocks" for entry in path)


def _spec(shape, num_parts, axis, *, is_stacked):
  matrix = shape[1:] if is_stacked else shape
  if len(matrix) < 2:
    return P()
  divisible = [size if size % num_parts == 0 else 0 for size in matrix]
  if not any(divisible):
    return P()
  spec: list[str | None] = [None] * len(shape)
  spec[int(np.argmax(divisible)) + len(shape) - len(matrix)] = axis
  return P(*spec)
