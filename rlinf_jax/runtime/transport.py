"""Sending arrays to where they are needed, by the cheapest way there is.

- What is where it shall be, in the same layout, is not touched.
- NumPy arrays, what lies on one device, and what is divided as it shall be go
  by one batched `jax.device_put`, all leaves together: small ones are fused.
- Of large arrays that shall be divided otherwise only what is missing crosses,
  from device to device, all pieces in flight at once (`redistribution`). Not on
  a CPU: there `jax.device_put`, which goes through the host, copies less.
- To other processes of this host all leaves go by memory that they map too
  (`SharedMemory`), several at once, large ones in pieces.
- To other hosts nothing is sent from here.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import numpy as np

from rlinf_jax.runtime import redistribution, shared_memory

SharedMemory = shared_memory.SharedMemory

# Below, cutting and joining cost more than copying all of an array.
# A guess: it has been measured on a CPU only (`benchmarks.transfers`).
LARGE_BYTES = 1 << 20


def send(tree: Any, to: Any) -> Any:
  """Returns a tree of arrays where `to` says.

  Args:
    tree: JAX or NumPy arrays.
    to: a sharding for all leaves, or a tree of them; None leaves NumPy arrays
      on the host and brings others there. `SharedMemory` is for other
      processes: in place of each array comes its `shared_memory.Place` there.
  """
  if isinstance(to, SharedMemory):
    return _share(tree, to)
  if to is None:
    return jax.tree.map(np.asarray, tree)
  leaves, structure = jax.tree.flatten(tree)
  shape: Any = structure
  targets = (
    [to] * len(leaves)
    if isinstance(to, jax.sharding.Sharding)
    else shape.flatten_up_to(to)
  )
  together = []
  for i, (x, target) in enumerate(zip(leaves, targets)):
    if is_there(x, target):
      continue
    if _is_redistributed(x, target):
      leaves[i] = redistribution.redistribute(x, target)
    else:
      together.append(i)
  if together:
    moved = jax.device_put(
      [leaves[i] for i in together], [targets[i] for i in together]
    )
    for i, x in zip(together, moved):
      leaves[i] = x
  return jax.tree.unflatten(structure, leaves)


def _share(tree: Any, to: SharedMemory) -> Any:
  """Writes a tree over what another process is to read; returns its places."""
  named, structure = jax.tree_util.tree_flatten_with_path(tree)
  names = [
    jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in named
  ]
  to.write(dict(zip(names, (leaf for _, leaf in named))))
  return jax.tree.unflatten(structure, to.places)


def is_there(array: Any, target: jax.sharding.Sharding | None) -> bool:
  """Returns whether `send` leaves an array as it is."""
  # An array that may still go anywhere is another input to `jax.jit` than one
  # that may not: functions would be compiled for both.
  return (
    isinstance(array, jax.Array)
    and array.committed
    and array.sharding == target
  )


def moved_bytes(array: Any, target: jax.sharding.Sharding | None) -> int:
  """Returns the bytes that `send` has to bring to devices that lack them.

  Of an array that is divided anew, over the same devices or others, what a
  device holds already stays. To the host nothing moves from a CPU, whose memory
  it is.
  """
  if not isinstance(array, jax.Array):
    if target is None:
      return 0
    shard = math.prod(target.shard_shape(np.shape(array)))
    return shard * np.dtype(array.dtype).itemsize * len(target.device_set)
  if target is None:
    first: Any = next(iter(array.sharding.device_set))
    return 0 if first.platform == "cpu" else int(array.nbytes)
  if array.sharding == target or jax.dtypes.issubdtype(
    array.dtype, jax.dtypes.prng_key
  ):
    return 0
  num_items = _moved_items(array.shape, array.sharding, target)
  return num_items * array.dtype.itemsize


@functools.lru_cache(maxsize=4096)
def _moved_items(
  shape: tuple[int, ...],
  source: jax.sharding.Sharding,
  target: jax.sharding.Sharding,
) -> int:
  # Asked for by every transfer of every iteration.
  return redistribution.moved_items(shape, source, target)


def _is_redistributed(x: Any, target: jax.sharding.Sharding) -> bool:
  if not isinstance(x, jax.Array) or len(x.sharding.device_set) == 1:
    return False
  if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
    return False
  first: Any = next(iter(x.sharding.device_set))
  if (
    first.platform == "cpu"
    or x.nbytes < LARGE_BYTES
    or not x.is_fully_addressable
  ):
    return False
  return redistribution.is_needed(x.shape, x.sharding, target)
