"""Loops over stages, and the syncs that weights pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.extend import core as jex_core
from jax.interpreters import ad, batching, mlir

from rlinf_jax.flow import calls, faults, stages

T = TypeVar("T")


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
    return _traced_loop(body, init, xs, length)
  carry, ys = init, []
  for i in range(_num_turns(jax.tree.leaves(xs), length)):
    carry, y = body(carry, jax.tree.map(lambda x, i=i: x[i], xs))
    ys.append(y)
  return carry, jax.tree.map(lambda *y: jnp.stack(y), *ys) if ys else None


def sync(weights: T) -> T:
  """Returns `weights`, as those that a rollout reads.

  Marks where parameters leave the trainer: with a staleness of s, what is read
  through it is s updates old, and only that. Under a plan it is a weight sync.
  """
  leaves, tree = jax.tree.flatten(weights)
  if not any(isinstance(x, jax.core.Tracer) for x in leaves):
    return weights
  return jax.tree.unflatten(tree, sync_p.bind(*leaves))


# The loop primitive. Its operands: constants of the body, carry, xs. Its
# parameters: `jaxpr`, the body (constants, carry, x) -> (carry, y), all flat;
# `num_consts`, `num_carry`, `length`. It exists so that a transformation can
# see loops over stages without reading what scan calls its own parameters.

loop_p = jex_core.Primitive("loop")
loop_p.multiple_results = True


def _traced_loop(
  body: Callable[[Any, Any], tuple[Any, Any]],
  init: Any,
  xs: Any,
  length: int | None,
) -> tuple[Any, Any]:
  # Weak types would make the carry change its type after the first turn.
  init = jax.tree.map(
    lambda x: jax.lax.convert_element_type(x, calls.array_dtype(x)), init
  )
  carry, carry_tree = jax.tree.flatten(init)
  x_leaves, xs_tree = jax.tree.flatten(xs)
  one = [
    jax.ShapeDtypeStruct(jnp.shape(x)[1:], calls.array_dtype(x))
    for x in x_leaves
  ]
  num_carry = len(carry)
  out_tree = None

  def flat_body(*leaves: Any) -> list[Any]:
    nonlocal out_tree
    out = body(
      jax.tree.unflatten(carry_tree, leaves[:num_carry]),
      jax.tree.unflatten(xs_tree, leaves[num_carry:]),
    )
    flat, out_tree = jax.tree.flatten(out)
    return flat

  closed = jax.make_jaxpr(flat_body)(*calls.as_avals(carry), *one)
  if not _has_stages(closed.jaxpr):
    return jax.lax.scan(body, init, xs, length=length)
  _check_carry(init, out_tree, closed.out_avals)
  out = loop_p.bind(
    *closed.consts,
    *carry,
    *x_leaves,
    jaxpr=jex_core.ClosedJaxpr(_closed_over(closed), ()),
    num_consts=len(closed.consts),
    num_carry=num_carry,
    length=_num_turns(x_leaves, length),
  )
  return jax.tree.unflatten(out_tree, out)


def _closed_over(closed: Any) -> Any:
  """Returns a jaxpr whose constants are its first arguments."""
  jaxpr = closed.jaxpr
  return jaxpr.replace(
    constvars=[],
    invars=[*jaxpr.constvars, *jaxpr.invars],
    debug_info=jaxpr.debug_info.with_unknown_names(),
  )


def _has_stages(jaxpr: Any) -> bool:
  return any(
    e.primitive in (stages.stage_p, loop_p, sync_p) for e in jaxpr.eqns
  )


def _num_turns(xs: Sequence[Any], length: int | None) -> int:
  sizes = {jnp.shape(x)[0] for x in xs}
  if length is not None:
    sizes.add(length)
  if len(sizes) != 1:
    raise ValueError(
      f"flow.loop needs one number of turns, got {sorted(sizes)} from the"
      " leading axes of xs and length"
    )
  return sizes.pop()


def _check_carry(init: Any, out_tree: Any, out_avals: Sequence[Any]) -> None:
  carry = jax.tree.unflatten(out_tree, out_avals)[0]
  given: Any = jax.tree.structure(init)
  returned: Any = jax.tree.structure(carry)
  if given != returned:
    raise TypeError(
      f"the body of flow.loop was given a carry of structure {given} and"
      f" returned {returned}; they must be equal"
    )
  for before, after in zip(jax.tree.leaves(init), jax.tree.leaves(carry)):
    if (before.shape, before.dtype) != (after.shape, after.dtype):
      raise TypeError(
        "the body of flow.loop changed a leaf of its carry from"
        f" {before.dtype}{list(before.shape)} to"
        f" {after.dtype}{list(after.shape)}; they must be equal"
      )


def _scan(
  *args: Any, jaxpr: Any, num_consts: int, num_carry: int, length: int
) -> list[Any]:
  consts = args[:num_consts]
  run = jex_core.jaxpr_as_fun(jaxpr)

  def body(carry: Any, x: Any) -> Any:
    out = run(*consts, *carry, *x)
    return out[:num_carry], out[num_carry:]

  first = num_consts + num_carry
  init, xs = list(args[num_consts:first]), list(args[first:])
  carry, ys = jax.lax.scan(body, init, xs, length=length)
  return [*carry, *ys]


def _loop_out_avals(
  *avals: Any, jaxpr: Any, num_consts: int, num_carry: int, length: int
) -> list[Any]:
  carry, ys = jaxpr.out_avals[:num_carry], jaxpr.out_avals[num_carry:]
  return [*carry, *(y.update(shape=(length, *y.shape)) for y in ys)]


def _batch_loop(
  args: Sequence[Any],
  dims: Sequence[Any],
  *,
  jaxpr: Any,
  num_consts: int,
  num_carry: int,
  length: int,
) -> tuple[list[Any], list[int]]:
  """A vmap of a loop is a loop over the vmap of its body."""
  (size,) = {x.shape[d] for x, d in zip(args, dims) if d is not None}
  first = num_consts + num_carry
  moved, in_axes = [], []
  for i, (x, d) in enumerate(zip(args, dims)):
    axis = 1 if i >= first else 0  # xs have turns on axis 0
    if d is None and num_consts <= i < first:
      x, d = jnp.broadcast_to(x, (size, *jnp.shape(x))), 0
    moved.append(x if d is None else jnp.moveaxis(x, d, axis))
    in_axes.append(None if d is None else 0)
  body = jax.vmap(jex_core.jaxpr_as_fun(jaxpr), in_axes=tuple(in_axes))
  avals = [
    jax.ShapeDtypeStruct(jnp.shape(x)[1:] if i >= first else jnp.shape(x),
                         calls.array_dtype(x))
    for i, x in enumerate(moved)
  ]  # fmt: skip
  closed = jax.make_jaxpr(body)(*avals)
  out = loop_p.bind(
    *closed.consts,
    *moved,
    jaxpr=jex_core.ClosedJaxpr(_closed_over(closed), ()),
    num_consts=len(closed.consts) + num_consts,
    num_carry=num_carry,
    length=length,
  )
  return out, [0] * num_carry + [1] * (len(out) - num_carry)


def _loop_jvp(primals: Any, tangents: Any, *, jaxpr: Any, **params: Any) -> Any:
  names = [e.params["call"].spec.name for e in jaxpr.jaxpr.eqns
           if e.primitive is stages.stage_p]  # fmt: skip
  raise TypeError(
    f"a gradient was taken through a loop over the stages {names}, at"
    f" {faults.line_now()}; take it inside a stage, not of the macro flow"
  )


loop_p.def_abstract_eval(_loop_out_avals)
loop_p.def_impl(_scan)
mlir.register_lowering(loop_p, mlir.lower_fun(_scan, multiple_results=True))
batching.primitive_batchers[loop_p] = _batch_loop
ad.primitive_jvps[loop_p] = _loop_jvp

sync_p = jex_core.Primitive("sync")
sync_p.multiple_results = True

sync_p.def_abstract_eval(lambda *avals: list(avals))
sync_p.def_impl(lambda *leaves: list(leaves))
mlir.register_lowering(
  sync_p, mlir.lower_fun(lambda *leaves: list(leaves), multiple_results=True)
)
batching.primitive_batchers[sync_p] = lambda args, dims: (
  sync_p.bind(*args),
  list(dims),
)
ad.primitive_jvps[sync_p] = lambda primals, tangents: (
  sync_p.bind(*primals),
  list(tangents),
)
