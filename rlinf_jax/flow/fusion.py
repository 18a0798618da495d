"""Fusing a macro flow into one program."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax


def fuse(
  fn: Callable[..., Any],
  *,
  mesh: jax.sharding.Mesh | None = None,
  donate: Sequence[int] = (),
) -> Any:
  """Returns the macro flow `fn` as one jitted program.

  Args:
    fn: the macro flow.
    mesh: a mesh with one axis. Each stage divides its items over it by
      `shard_map`; stages without items and the glue between stages run as the
      partitioner chooses. None: one device.
    donate: positions of the arguments whose buffers the program may reuse.

  Returns:
    What `jax.jit` returns.
  """
  if mesh is None:
    return jax.jit(fn, donate_argnums=tuple(donate))
  if len(mesh.axis_names) != 1:
    raise ValueError(
      f"flow.fuse divides items over a mesh of one axis, got {mesh.axis_names}"
    )

  @functools.wraps(fn)
  def on_mesh(*args: Any) -> Any:
    # The ambient mesh, rather than a variable of ours: jit's caches know it.
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
      return fn(*args)

  return jax.jit(on_mesh, donate_argnums=tuple(donate))
