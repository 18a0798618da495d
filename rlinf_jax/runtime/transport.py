"""Sending arrays to where they are needed, by the cheapest way there is.

On the same devices in the same layout nothing moves; on the same devices in
another layout, and between meshes of one process, `jax.device_put` moves shards
directly. A NumPy array is copied once, to its devices.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np


def send(tree: Any, to: Any) -> Any:
  """Returns a tree of arrays where `to` says.

  Args:
    tree: JAX or NumPy arrays.
    to: a sharding for all leaves, or a tree of them; None leaves NumPy arrays
      on the host and brings others there.
  """
  if to is None:
    return jax.tree.map(np.asarray, tree)
  leaves, structure = jax.tree.flatten(tree)
  shape: Any = structure
  targets = (
    [to] * len(leaves)
    if isinstance(to, jax.sharding.Sharding)
    else shape.flatten_up_to(to)
  )
  moves = [
    i
    for i, (x, target) in enumerate(zip(leaves, targets))
    if not (isinstance(x, jax.Array) and x.sharding == target)
  ]
  if moves:
    moved = jax.device_put(
      [leaves[i] for i in moves], [targets[i] for i in moves]
    )
    for i, x in zip(moves, moved):
      leaves[i] = x
  return jax.tree.unflatten(structure, leaves)
