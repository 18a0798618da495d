"""Stages: the pure functions that a macro flow is made of."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core as jex_core
from jax.interpreters import ad, batching, mlir

from rlinf_jax.flow import calls, faults, granules, processes

REDUCTIONS = ("sum",)
PLACES = ("mesh", "host", "process")


@dataclasses.dataclass(frozen=True, slots=True)
class Stage:
  """One pure function of a workflow; call it as the function it wraps."""

  fn: Callable[..., Any]
  spec: calls.Spec

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
    call = calls.Call(self.fn, self.spec, in_tree)
    _check_items(self.spec, leaves, axes)
    out = bind(call, axes, self.spec.out_axis, leaves)
    return jax.tree.unflatten(calls.out_tree(call, calls.as_avals(leaves)), out)


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
    ValueError: for an unknown reduction or place, a reduction that is not on a
      mesh, a quantum without items, an `out_fn` that is missing or has no use,
      or a deadline of what cannot be killed, or a weight that is no argument
      with items.
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
  if reduces is not None and place != "mesh":
    raise ValueError(
      f"stage '{name}' has reduces={reduces!r} and place={place!r}; return a"
      " result for each item, and sum them in a stage on a mesh"
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
  spec = calls.Spec(
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


@functools.lru_cache(maxsize=1024)
def _compiled(
  call: calls.Call, axes: tuple[int | None, ...]
) -> Callable[..., list[jax.Array]]:
  return jax.jit(functools.partial(granules.run_whole, call, axes))


def bind(
  call: calls.Call,
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
    return granules.run_on_mesh(call, axes, out_axis, mesh, *leaves)
  return stage_p.bind(*leaves, call=call, axes=axes, out_axis=out_axis)


def _eagerly(
  call: calls.Call, axes: tuple[int | None, ...], leaves: Sequence[Any]
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
  spec: calls.Spec, leaves: Sequence[Any], axes: Sequence[int | None]
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


def _abstract_eval(*avals: Any, call: calls.Call, **params: Any) -> list[Any]:
  del params
  return calls.traced(call, calls.as_avals(avals)).out_avals


def _batch(
  leaves: Sequence[Any],
  dims: Sequence[Any],
  *,
  call: calls.Call,
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


def _jvp(
  primals: Any, tangents: Any, *, call: calls.Call, **params: Any
) -> Any:
  raise TypeError(
    f"a gradient was taken through stage '{call.spec.name}', at"
    f" {faults.line_now()}; take it inside a stage (a reducing stage that"
    " returns gradients), not of the macro flow"
  )


stage_p.def_abstract_eval(_abstract_eval)
stage_p.def_impl(
  lambda *leaves, call, axes, out_axis: _compiled(call, axes)(*leaves)
)
mlir.register_lowering(
  stage_p,
  mlir.lower_fun(
    lambda *leaves, call, axes, out_axis: granules.run_whole(
      call, axes, *leaves
    ),
    multiple_results=True,
  ),
)
batching.primitive_batchers[stage_p] = _batch
ad.primitive_jvps[stage_p] = _jvp
