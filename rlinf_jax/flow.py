"""Stages and loops: what a macro flow is written with.

A macro flow is an ordinary Python function over *stages*. It runs as it
stands, eagerly, one jitted stage at a time, under a debugger; or fused into
one program, on one device or over a mesh, with `fuse`:

    @flow.stage(items={1: 0})
    def act(params, obs_b): ...

    @flow.stage(items={1: 0}, reduces="sum")
    def grad(params, batch_b): ...

    def iteration(state, key):
      ...
      sim_b, step_tb = flow.loop(body, state.sim, key_tb)

    run = flow.fuse(iteration, donate=(0,))

A stage is one equation of the jaxpr of the flow, so that a transformation can
see it. Batch "items" are what may be divided: between granules, quanta and
devices.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core as jex_core
from jax.interpreters import ad, batching, mlir

P = jax.sharding.PartitionSpec
REDUCTIONS = ("sum",)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Spec:
  """What a stage declares about itself.

  Attributes:
    name: for messages, profiles and timelines.
    items: (argument position, axis of items) pairs; other arguments are
      shared by all items.
    out_axis: the axis of items in every result, where nothing is reduced.
    reduces: "sum" where results are summed over the items, else None.
    quantum: the number of items reduced at once. Sums are taken per quantum,
      then over quanta in item order, so that they do not depend on granules or
      devices to the last bit. None reduces each granule at once.
  """

  name: str
  items: tuple[tuple[int, int], ...]
  out_axis: int
  reduces: str | None
  quantum: int | None


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
    call = _Call(self.fn, self.spec, in_tree)
    _check_items(self.spec, leaves, axes)
    out_axis, mesh = self.spec.out_axis, jax.sharding.get_abstract_mesh()
    if not any(isinstance(x, jax.core.Tracer) for x in leaves):
      out = _compiled(call, axes)(*leaves)
    elif not mesh.empty and axes_by_arg:
      out = _run_on_mesh(call, axes, out_axis, mesh, *leaves)
    else:
      out = stage_p.bind(*leaves, call=call, axes=axes, out_axis=out_axis)
    return jax.tree.unflatten(_out_tree(call, _avals(leaves)), out)


def stage(
  fn: Callable[..., Any] | None = None,
  *,
  items: Mapping[int, int] | None = None,
  out_axis: int = 0,
  reduces: str | None = None,
  quantum: int | None = None,
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
    name: the function's own by default.

  Raises:
    ValueError: for an unknown reduction, or a quantum without a reduction.
  """
  if fn is None:
    return functools.partial(
      stage,
      items=items,
      out_axis=out_axis,
      reduces=reduces,
      quantum=quantum,
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
  if quantum is not None and (reduces is None or quantum < 1):
    raise ValueError(
      f"stage '{name}' has quantum={quantum}; a quantum is a positive number of"
      " items and belongs to a stage with reduces='sum'"
    )
  spec = Spec(
    name=name,
    items=tuple(sorted((items or {}).items())),
    out_axis=out_axis,
    reduces=reduces,
    quantum=quantum,
  )
  return Stage(fn, spec)


def loop(
  body: Callable[[Any, Any], tuple[Any, Any]],
  init: Any,
  xs: Any = None,
  *,
  length: int | None = None,
) -> tuple[Any, Any]:
  """Returns what `lax.scan(body, init, xs, length)` does.

  Called with concrete values it is a Python loop, so that each stage of the
  body can be stopped at and looked into.
  """
  if any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves((init, xs))):
    return jax.lax.scan(body, init, xs, length=length)
  sizes = {x.shape[0] for x in jax.tree.leaves(xs)} | (
    set() if length is None else {length}
  )
  if len(sizes) != 1:
    raise ValueError(
      f"flow.loop needs one number of turns, got {sorted(sizes)} from the"
      " leading axes of xs and length"
    )
  carry, ys = init, []
  for i in range(sizes.pop()):
    carry, y = body(carry, jax.tree.map(lambda x, i=i: x[i], xs))
    ys.append(y)
  return carry, jax.tree.map(lambda *y: jnp.stack(y), *ys) if ys else None


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


# The stage primitive. Its parameters: `call`, the function of flat leaves;
# `axes`, the axis of items of each leaf or None; `out_axis`.

stage_p = jex_core.Primitive("stage")
stage_p.multiple_results = True


@dataclasses.dataclass(frozen=True)
class _Call:
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
    return jax.tree.leaves(self.fn(*jax.tree.unflatten(self.in_tree, leaves)))


def _avals(leaves: Sequence[Any]) -> tuple[jax.ShapeDtypeStruct, ...]:
  # A Python scalar is weakly typed; a stage's arguments are arrays.
  return tuple(jax.ShapeDtypeStruct(jnp.shape(x), _dtype(x)) for x in leaves)


def _dtype(x: Any) -> Any:
  return x.dtype if hasattr(x, "dtype") else jnp.result_type(x)


def _traced(call: _Call, avals: tuple[Any, ...]) -> Any:
  return _traced_under(call, avals, jax.sharding.get_abstract_mesh())


@functools.lru_cache(maxsize=1024)
def _traced_under(call: _Call, avals: tuple[Any, ...], mesh: Any) -> Any:
  del mesh  # the ambient one; a jaxpr belongs to the mesh it was traced under
  jaxpr = jax.make_jaxpr(call)(*avals)
  if any(isinstance(c, jax.core.Tracer) for c in jaxpr.consts):
    raise ValueError(
      f"stage '{call.spec.name}' closes over a traced value; pass it as an"
      " argument, so that the workflow shows where it comes from"
    )
  return jaxpr


@functools.lru_cache(maxsize=1024)
def _out_tree(call: _Call, avals: tuple[Any, ...]) -> Any:
  whole = jax.tree.unflatten(call.in_tree, avals)
  return jax.tree.structure(jax.eval_shape(call.fn, *whole))


@functools.lru_cache(maxsize=1024)
def _compiled(
  call: _Call, axes: tuple[int | None, ...]
) -> Callable[..., list[jax.Array]]:
  return jax.jit(functools.partial(_run, call, axes))


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
      f"stage '{spec.name}' sums {n} items in quanta of {spec.quantum};"
      " quantum that divides the number of items"
    )


def _run(
  call: _Call,
  axes: tuple[int | None, ...],
  *leaves: jax.Array,
) -> list[jax.Array]:
  """Runs a stage over all its items, on one device."""
  if call.spec.quantum is None:
    return _eval(call, leaves)
  return [_ordered_sum(x) for x in _quanta(call, axes, leaves)]


def _eval(call: _Call, leaves: Sequence[jax.Array]) -> list[jax.Array]:
  return jex_core.jaxpr_as_fun(_traced(call, _avals(leaves)))(*leaves)


def _quanta(
  call: _Call, axes: tuple[int | None, ...], leaves: Sequence[jax.Array]
) -> list[jax.Array]:
  """Returns each result of every quantum, stacked along a new first axis."""
  size = call.spec.quantum or 1
  divided = [
    None if axis is None else _split_axis(x, axis, size)
    for x, axis in zip(leaves, axes)
  ]

  def one_quantum(parts: list[Any]) -> list[jax.Array]:
    whole = [x if p is None else p for x, p in zip(leaves, parts)]
    return _eval(call, whole)

  return jax.lax.map(one_quantum, divided)


def _split_axis(x: jax.Array, axis: int, size: int) -> jax.Array:
  shape = x.shape[:axis] + (x.shape[axis] // size, size) + x.shape[axis + 1 :]
  return jnp.moveaxis(x.reshape(shape), axis, 0)


def _ordered_sum(x_q: jax.Array) -> jax.Array:
  total, _ = jax.lax.scan(lambda s, x: (s + x, None), x_q[0], x_q[1:])
  return total


def _run_on_mesh(
  call: _Call,
  axes: tuple[int | None, ...],
  out_axis: int,
  mesh: Any,
  *leaves: jax.Array,
) -> list[jax.Array]:
  """Runs a stage with its items divided over a mesh."""
  (name,) = mesh.axis_names
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

  def local(*parts: jax.Array) -> list[jax.Array]:
    if call.spec.reduces is None:
      return _eval(call, parts)
    if call.spec.quantum is None:
      return [jax.lax.psum(x, name) for x in _eval(call, parts)]
    quanta = _quanta(call, axes, parts)
    return [
      _ordered_sum(jax.lax.all_gather(x, name, tiled=True)) for x in quanta
    ]

  in_specs = tuple(P() if a is None else P(*[None] * a, name) for a in axes)
  out_spec = P(*[None] * out_axis, name) if call.spec.reduces is None else P()
  # The ordered sum of gathered quanta is the same everywhere, which the
  # replication checker cannot know.
  sharded = jax.shard_map(
    local, mesh=mesh, in_specs=in_specs, out_specs=out_spec, check_vma=False
  )
  return sharded(*leaves)


def _abstract_eval(*avals: Any, call: _Call, **params: Any) -> list[Any]:
  del params
  return _traced(call, _avals(avals)).out_avals


def _batch(
  leaves: Sequence[Any],
  dims: Sequence[Any],
  *,
  call: _Call,
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


def _jvp(primals: Any, tangents: Any, *, call: _Call, **params: Any) -> Any:
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
