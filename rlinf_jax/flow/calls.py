"""Stages as functions of flat leaves, and what is known of them untraced."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rlinf_jax.flow import faults


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Spec:
  """What a stage declares about itself.

  Attributes:
    name: for messages, profiles and timelines.
    items: (argument position, axis of items) pairs; other arguments are
      shared by all items.
    out_axis: the axis of items in every result, where nothing is reduced.
    reduces: "sum" where results are summed over the items, else None.
    quantum: the number of items computed at once, so that no bit depends on
      granules or devices: the shapes of products do not, and sums are taken per
      quantum, then over quanta in item order. None computes each granule at
      once, which is faster, and close.
    groups: items that must be complete together before one of them is used.
    place: "mesh" for a function of JAX arrays; "host" for one of NumPy arrays
      that runs on host cores; "process" for one that another process group
      serves.
    out_fn: of a stage that is not on a mesh, the shapes of its results.
    weight: the argument position of an array with one number for each item, of
      how much work it is (tokens); None: all are alike.
  """

  name: str
  items: tuple[tuple[int, int], ...]
  out_axis: int = 0
  reduces: str | None = None
  quantum: int | None = None
  groups: int = 1
  place: str = "mesh"
  out_fn: Callable[..., Any] | None = None
  weight: int | None = None


@dataclasses.dataclass(frozen=True)
class Call:
  """A stage's function on flat leaves, under `num_maps` leading vmaps."""

  fn: Callable[..., Any]
  spec: Spec
  in_tree: Any
  mapped: tuple[tuple[bool, ...], ...] = ()  # one entry per vmap, inner first

  def __call__(self, *leaves: jax.Array) -> list[jax.Array]:
    flat_fn = self._on_leaves
    for is_mapped in self.mapped:
      in_axes = tuple(0 if m else None for m in is_mapped)
      flat_fn = jax.vmap(flat_fn, in_axes=in_axes)
    return flat_fn(*leaves)

  def _on_leaves(self, *leaves: jax.Array) -> list[jax.Array]:
    if self.spec.out_fn is None:
      return jax.tree.leaves(self.fn(*jax.tree.unflatten(self.in_tree, leaves)))
    shapes = jax.tree.leaves(self.out_shapes(as_avals(leaves)))
    one = dataclasses.replace(self, mapped=())
    return jax.pure_callback(
      one.on_host, shapes, *leaves, vmap_method="sequential"
    )

  def out_shapes(self, avals: Sequence[Any]) -> Any:
    """Returns the pytree of the results' shapes, without vmaps."""
    args = jax.tree.unflatten(self.in_tree, avals)
    if self.spec.out_fn is None:
      return jax.eval_shape(self.fn, *args)
    return self.spec.out_fn(*args)

  def on_host(self, *leaves: Any) -> list[np.ndarray]:
    """Calls a host or process stage with NumPy arrays; checks its results.

    Under a vmap it is called once for each index, as a fused flow does.
    """
    if self.mapped:
      *inner, is_mapped = self.mapped  # the outermost is the last
      one = dataclasses.replace(self, mapped=tuple(inner))
      pairs = list(zip(map(np.asarray, leaves), is_mapped))
      (size,) = {len(x) for x, m in pairs if m}
      rows = [
        one.on_host(*(x[i] if m else x for x, m in pairs)) for i in range(size)
      ]
      return [np.stack(column) for column in zip(*rows)]
    shapes = _out_leaves(self, as_avals(leaves))
    arrays = [np.asarray(x) for x in leaves]
    out = jax.tree.leaves(self.fn(*jax.tree.unflatten(self.in_tree, arrays)))
    given = [(np.shape(x), str(getattr(x, "dtype", type(x)))) for x in out]
    asked = [(x.shape, str(x.dtype)) for x in shapes]
    if given != asked:
      raise ValueError(
        f"stage '{self.spec.name}' returned {given}, but its out_fn says"
        f" {asked}"
      )
    return [np.asarray(x) for x in out]


def as_avals(leaves: Sequence[Any]) -> tuple[jax.ShapeDtypeStruct, ...]:
  """Returns shapes and dtypes; a Python scalar counts as an array."""
  return tuple(
    jax.ShapeDtypeStruct(jnp.shape(x), array_dtype(x)) for x in leaves
  )


def as_array(x: Any) -> Any:
  """Returns an array as it is; a Python scalar as the array it counts as."""
  return x if hasattr(x, "dtype") else np.asarray(x, array_dtype(x))


def array_dtype(x: Any) -> Any:
  """Returns the dtype that `x` has as an array, without a weak type."""
  return x.dtype if hasattr(x, "dtype") else jnp.result_type(x)


def traced(call: Call, avals: tuple[Any, ...]) -> Any:
  """Returns a call's jaxpr under the ambient mesh; traces it once.

  Raises:
    ValueError: the stage closes over a traced value.
    TypeError: its Python needs the value of something that is traced.
  """
  return _traced_under(call, avals, jax.sharding.get_abstract_mesh())


@functools.lru_cache(maxsize=1024)
def _traced_under(call: Call, avals: tuple[Any, ...], mesh: Any) -> Any:
  del mesh  # the ambient one; a jaxpr belongs to the mesh it was traced under
  with faults.named(f"stage '{call.spec.name}'"):
    jaxpr = jax.make_jaxpr(call)(*avals)
  if any(isinstance(c, jax.core.Tracer) for c in jaxpr.consts):
    raise ValueError(
      f"stage '{call.spec.name}' closes over a traced value; pass it as an"
      " argument, so that the workflow shows where it comes from"
    )
  return jaxpr


@functools.lru_cache(maxsize=1024)
def _out_leaves(call: Call, avals: tuple[Any, ...]) -> list[Any]:
  return jax.tree.leaves(call.out_shapes(avals))


@functools.lru_cache(maxsize=1024)
def out_tree(call: Call, avals: tuple[Any, ...]) -> Any:
  """Returns the tree structure of a call's results."""
  return jax.tree.structure(call.out_shapes(avals))
