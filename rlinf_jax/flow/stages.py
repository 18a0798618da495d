"""Stages: the pure functions that a macro flow is made of."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex_core
from jax.interpreters import ad, batching, mlir

from rlinf_jax.flow import processes

P = jax.sharding.PartitionSpec
REDUCTIONS = ("sum",)
PLACES = ("mesh", "host", "process")


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


@dataclasses.dataclass(frozen=True, slots=True)
class Stage:
  """One pure function of a workflow; call it as the function it wraps."""

  fn: Callable[..., Any]
  spec: Spec

  def __call__(self, *args: Any) -> Any:
    axes_by_arg = dict(self.spec.items)
    if axes_by_arg and max(axes_by_arg) >= len(args):
      raise ValueError(
        f"stage '{self.spec.name}' takes its items from argument"
        f" {max(axes_by_arg)}, but was called with {len(args)} arguments; pass"
        " them by position"
      )
    leaves, in_tree = jax.tree.flatten(args)
    axes = _flat_axes(args, axes_by_arg)
    call = Call(self.fn, self.spec, in_tree)
    _check_items(self.spec, leaves, axes)
    out = bind(call, axes, self.spec.out_axis, leaves)
    return jax.tree.unflatten(_out_tree(call, as_avals(leaves)), out)


def stage(
  fn: Callable[..., Any] | None = None,
  *,
  items: Mapping[int, int] | None = None,
  out_axis: int = 0,
  reduces: str | None = None,
  quantum: int | None = None,
  groups: int = 1,
  place: str = "mesh",
  out_fn: Callable[..., Any] | None = None,
  deadline_s: float | None = None,
  weight: int | None = None,
  name: str | None = None,
) -> Any:
  """Returns `fn` as a `Stage`; usable as a decorator, bare or with arguments.

  Args:
    fn: a pure function of its positional arguments (pytrees of arrays).
      Concrete arrays that it closes over are constants of the program; a
      traced value that it closes over is refused.
    items: argument position -> axis of items in each leaf of that argument.
      Without it the stage is a barrier: it sees its arguments whole.
    out_axis: the axis of items in each result.
    reduces: "sum" where the results are sums over the items.
    quantum: see `Spec`.
    groups: see `Spec`.
    place: where it can run, see `Spec`.
    out_fn: for place="host" and "process": (arguments, as ShapeDtypeStructs) ->
      pytree of ShapeDtypeStructs of the results.
    deadline_s: for place="host": each call runs in a process that is killed,
      with a TimeoutError, when it has not returned by then. The function is
      imported there, from its module; what it remembers stays there.
    weight: position of an argument in `items`, an array [items] of how much
      work each is; where several sets of devices share a stage, granules of
      more work are taken first.
    name: the function's own by default.

  Raises:
    ValueError: for an unknown reduction or place, a quantum without items, an
      `out_fn` that is missing or has no use, or a deadline of what cannot be
      killed, or a weight that is no argument with items.
  """
  if fn is None:
    return functools.partial(
      stage,
      items=items,
      out_axis=out_axis,
      reduces=reduces,
      quantum=quantum,
      groups=groups,
      place=place,
      out_fn=out_fn,
      deadline_s=deadline_s,
      weight=weight,
      name=name,
    )
  name = name or fn.__name__
  if reduces is not None and reduces not in REDUCTIONS:
    raise ValueError(
      f"stage '{name}' has reduces={reduces!r}; choose from {REDUCTIONS}"
    )
  if reduces is not None and not items:
    raise ValueError(
      f"stage '{name}' reduces, but names no items to reduce over; give items="
    )
  if quantum is not None and (not items or quantum < 1):
    raise ValueError(
      f"stage '{name}' has quantum={quantum}; a quantum is a positive number of"
      " items and belongs to a stage with items="
    )
  if place not in PLACES:
    raise ValueError(
      f"stage '{name}' has place={place!r}; choose from {PLACES}"
    )
  if (place == "mesh") != (out_fn is None):
    raise ValueError(
      f"stage '{name}' has place={place!r} and out_fn={out_fn!r}; a stage on a"
      " mesh has none, as JAX knows the shapes, and every other one needs it"
    )
  if groups < 1 or (groups > 1 and not items):
    raise ValueError(
      f"stage '{name}' has groups={groups}; groups are of at least one item, of"
      " a stage with items="
    )
  if deadline_s is not None:
    if place != "host" or deadline_s <= 0:
      raise ValueError(
        f"stage '{name}' has deadline_s={deadline_s} and place={place!r}; only"
        " a stage with place='host' can be killed, after a positive time"
      )
    fn = processes.Killable(fn, name, deadline_s)
  if weight is not None and (items or {}).get(weight) != 0:
    raise ValueError(
      f"stage '{name}' has weight={weight}; it is the position of an argument"
      " that has its items on axis 0"
    )
  spec = Spec(
    name=name,
    items=tuple(sorted((items or {}).items())),
    out_axis=out_axis,
    reduces=reduces,
    quantum=quantum,
    groups=groups,
    place=place,
    out_fn=out_fn,
    weight=weight,
  )
  return Stage(fn, spec)


# The stage primitive. Its parameters: `call`, the function of flat leaves;
# `axes`, the axis of items of each leaf or None; `out_axis`.

stage_p = jex_core.Primitive("stage")
stage_p.multiple_results = True


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
    return jax.pure_callback(
      self.on_host, shapes, *leaves, vmap_method="sequential"
    )

  def out_shapes(self, avals: Sequence[Any]) -> Any:
    """Returns the pytree of the results' shapes, without vmaps."""
    args = jax.tree.unflatten(self.in_tree, avals)
    if self.spec.out_fn is None:
      return jax.eval_shape(self.fn, *args)
    return self.spec.out_fn(*args)

  def on_host(self, *leaves: Any) -> list[np.ndarray]:
    """Calls a host or process stage with NumPy arrays; checks its results."""
    shapes = jax.tree.leaves(self.out_shapes(as_avals(leaves)))
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


def array_dtype(x: Any) -> Any:
  """Returns the dtype that `x` has as an array, without a weak type."""
  return x.dtype if hasattr(x, "dtype") else jnp.result_type(x)


def _traced(call: Call, avals: tuple[Any, ...]) -> Any:
  return _traced_under(call, avals, jax.sharding.get_abstract_mesh())


@functools.lru_cache(maxsize=1024)
def _traced_under(call: Call, avals: tuple[Any, ...], mesh: Any) -> Any:
  del mesh  # the ambient one; a jaxpr belongs to the mesh it was traced under
  jaxpr = jax.make_jaxpr(call)(*avals)
  if any(isinstance(c, jax.core.Tracer) for c in jaxpr.consts):
    raise ValueError(
      f"stage '{call.spec.name}' closes over a traced value; pass it as an"
      " argument, so that the workflow shows where it comes from"
    )
  return jaxpr


@functools.lru_cache(maxsize=1024)
def _out_tree(call: Call, avals: tuple[Any, ...]) -> Any:
  return jax.tree.structure(call.out_shapes(avals))


@functools.lru_cache(maxsize=1024)
def _compiled(
  call: Call, axes: tuple[int | None, ...]
) -> Callable[..., list[jax.Array]]:
  return jax.jit(functools.partial(_run, call, axes))


def bind(
  call: Call,
  axes: tuple[int | None, ...],
  out_axis: int,
  leaves: Sequence[Any],
) -> list[Any]:
  """Runs a stage on flat leaves: at once, or as one equation of a trace."""
  mesh = jax.sharding.get_abstract_mesh()
  if not any(isinstance(x, jax.core.Tracer) for x in leaves):
    return _eagerly(call, axes, leaves)
  has_items = any(axis is not None for axis in axes)
  if not mesh.empty and has_items and call.spec.place == "mesh":
    return _run_on_mesh(call, axes, out_axis, mesh, *leaves)
  return stage_p.bind(*leaves, call=call, axes=axes, out_axis=out_axis)


def _eagerly(
  call: Call, axes: tuple[int | None, ...], leaves: Sequence[Any]
) -> list[Any]:
  """Runs a stage on concrete leaves: jitted, or on the host as it stands."""
  if call.spec.out_fn is None or call.mapped:
    return _compiled(call, axes)(*leaves)
  return call.on_host(*leaves)


def _flat_axes(
  args: tuple[Any, ...], axes_by_arg: Mapping[int, int]
) -> tuple[int | None, ...]:
  return tuple(
    axes_by_arg.get(i)
    for i, arg in enumerate(args)
    for _ in jax.tree.leaves(arg)
  )


def _check_items(
  spec: Spec, leaves: Sequence[Any], axes: Sequence[int | None]
) -> None:
  sizes = set()
  for x, axis in zip(leaves, axes):
    if axis is None:
      continue
    if jnp.ndim(x) <= axis:
      raise ValueError(
        f"stage '{spec.name}' has its items on axis {axis}, but got an argument"
        f" of shape {jnp.shape(x)}"
      )
    sizes.add(jnp.shape(x)[axis])
  if len(sizes) > 1:
    raise ValueError(
      f"stage '{spec.name}' got arguments with {sorted(sizes)} items; all must"
      " have the same number"
    )
  if spec.quantum and sizes and (n := sizes.pop()) % spec.quantum:
    raise ValueError(
      f"stage '{spec.name}' has {n} items in quanta of {spec.quantum}; use a"
      " quantum that divides the number of items"
    )


def _run(
  call: Call,
  axes: tuple[int | None, ...],
  *leaves: jax.Array,
) -> list[jax.Array]:
  """Runs a stage over all its items, on one device."""
  if call.spec.quantum is None:
    return _eval(call, leaves)
  quanta = _quanta(call, axes, leaves)
  if call.spec.reduces is not None:
    return [_ordered_sum(x) for x in quanta]
  out_axis = call.spec.out_axis + len(call.mapped)
  return [_joined(x, out_axis) for x in quanta]


def _joined(x_q: jax.Array, axis: int) -> jax.Array:
  """Puts quanta, stacked along axis 0, side by side along their items."""
  x = jnp.moveaxis(x_q, 0, axis)
  return x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])


def _eval(call: Call, leaves: Sequence[jax.Array]) -> list[jax.Array]:
  return jex_core.jaxpr_as_fun(_traced(call, as_avals(leaves)))(*leaves)


def _quanta(
  call: Call, axes: tuple[int | None, ...], leaves: Sequence[jax.Array]
) -> list[jax.Array]:
  """Returns each result of every quantum, stacked along a new first axis."""
  size = call.spec.quantum or 1
  divided = [
    None if axis is None else _split_axis(x, axis, size)
    for x, axis in zip(leaves, axes)
  ]

  def one_quantum(parts: list[Any]) -> list[jax.Array]:
    # XLA unrolls a loop of one turn: between barriers it compiles the body as
    # it does in a loop of several, so that granules do not differ in bits.
    parts = jax.lax.optimization_barrier(parts)
    whole = [x if p is None else p for x, p in zip(leaves, parts)]
    return jax.lax.optimization_barrier(_eval(call, whole))

  return jax.lax.map(one_quantum, divided)


def run_granule(
  call: Call,
  axes: tuple[int | None, ...],
  out_axis: int,
  leaves: Sequence[jax.Array],
) -> list[jax.Array]:
  """Runs a stage on some of its items; to be traced, under a mesh or none.

  Returns:
    Its results; of a reducing stage the sums of each quantum, stacked along a
    new first axis, for `sum_quanta`.
  """
  mesh = jax.sharding.get_abstract_mesh()
  has_items = any(axis is not None for axis in axes)
  if call.spec.reduces is None:
    if mesh.empty or not has_items:
      return _run(call, axes, *leaves)
    return _run_on_mesh(call, axes, out_axis, mesh, *leaves)
  if mesh.empty:
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
  call: Call, axes: tuple[int | None, ...], leaves: Sequence[jax.Array]
) -> list[jax.Array]:
  if call.spec.quantum is None:
    return [x[None] for x in _eval(call, leaves)]
  return _quanta(call, axes, leaves)


def _split_axis(x: jax.Array, axis: int, size: int) -> jax.Array:
  shape = x.shape[:axis] + (x.shape[axis] // size, size) + x.shape[axis + 1 :]
  return jnp.moveaxis(x.reshape(shape), axis, 0)


def _ordered_sum(x_q: jax.Array) -> jax.Array:
  total, _ = jax.lax.scan(lambda s, x: (s + x, None), x_q[0], x_q[1:])
  return total


def _run_on_mesh(
  call: Call,
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
      return _run(call, axes, *parts)
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


def _in_specs(axes: tuple[int | None, ...], name: str) -> tuple[Any, ...]:
  return tuple(P() if a is None else P(*[None] * a, name) for a in axes)


def _check_divides(
  call: Call, axes: tuple[int | None, ...], mesh: Any, leaves: Sequence[Any]
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


def _abstract_eval(*avals: Any, call: Call, **params: Any) -> list[Any]:
  del params
  return _traced(call, as_avals(avals)).out_avals


def _batch(
  leaves: Sequence[Any],
  dims: Sequence[Any],
  *,
  call: Call,
  axes: tuple[int | None, ...],
  out_axis: int,
) -> tuple[list[Any], list[int]]:
  """A vmap of a flow is a flow whose stages are vmapped, items and all."""
  mapped = tuple(d is not None for d in dims)
  leaves = [
    jnp.moveaxis(x, d, 0) if m else x for x, d, m in zip(leaves, dims, mapped)
  ]
  axes = tuple(a if a is None or not m else a + 1 for a, m in zip(axes, mapped))
  call = dataclasses.replace(call, mapped=(*call.mapped, mapped))
  out = stage_p.bind(*leaves, call=call, axes=axes, out_axis=out_axis + 1)
  return out, [0] * len(out)


def _jvp(primals: Any, tangents: Any, *, call: Call, **params: Any) -> Any:
  raise TypeError(
    f"a gradient was taken through stage '{call.spec.name}'; take it inside a"
    " stage (a reducing stage that returns gradients), not of the macro flow"
  )


stage_p.def_abstract_eval(_abstract_eval)
stage_p.def_impl(
  lambda *leaves, call, axes, out_axis: _compiled(call, axes)(*leaves)
)
mlir.register_lowering(
  stage_p,
  mlir.lower_fun(
    lambda *leaves, call, axes, out_axis: _run(call, axes, *leaves),
    multiple_results=True,
  ),
)
batching.primitive_batchers[stage_p] = _batch
ad.primitive_jvps[stage_p] = _jvp
