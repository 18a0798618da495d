"""Loops whose items can be divided into lanes.

A loop over a simulator and a policy handles each item by itself: its items can
run in lanes, one lane in the simulator while another is in the policy. A loop
of updates cannot: each turn reads what the whole batch made of the last.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
from jax.extend import core as jex_core

from rlinf_jax.runtime import programs

# Glue that treats each item by itself, whatever axis items are on.
_ITEMWISE = frozenset(
  "add sub mul div neg abs sign max min exp log log1p expm1 tanh sqrt rsqrt"
  " pow integer_pow square floor ceil round clamp select_n convert_element_type"
  " copy copy_p stop_gradient eq ne lt le gt ge and or not xor is_finite"
  " random_wrap random_unwrap optimization_barrier".split()
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Division:
  """How a loop's values are divided into lanes.

  Attributes:
    items: of each turn.
    axes: the axis of items of each value of the body; absent: shared.
  """

  items: int
  axes: dict[int, int]


def divide(node: programs.LoopNode) -> Division | None:
  """Returns how a loop can be divided into lanes; None where it cannot."""
  body = node.body
  if not all(isinstance(inner, programs.StageNode) for inner in body.nodes):
    return None
  axes = _axes(node)
  if axes is None:
    return None
  items = {body.avals[v].shape[a] for v, a in axes.items()}
  # What a turn hands on must be a lane's own.
  first = node.num_consts
  carry = body.inputs[first : first + node.num_carry]
  if len(items) != 1 or any(v not in axes for v in carry):
    return None
  if any(v not in axes for v in body.outputs):
    return None
  return Division(items=items.pop(), axes=axes)


def _axes(node: programs.LoopNode) -> dict[int, int] | None:
  body = node.body
  axes: dict[int, int] = {}
  for inner in body.nodes:
    assert isinstance(inner, programs.StageNode)
    if inner.spec.reduces is not None or inner.is_barrier:
      return None
    axes |= {v: a for v, a in zip(inner.inputs, inner.axes) if a is not None}
    axes |= dict.fromkeys(inner.outputs, inner.out_axis)
  carried = list(
    zip(
      body.inputs[node.num_consts : node.num_consts + node.num_carry],
      body.outputs[: node.num_carry],
    )
  )
  glues = [n.glue for n in body.nodes] + [body.glue]
  changed = True
  while changed:
    before = dict(axes)
    for value_in, value_out in carried:
      for a, b in ((value_in, value_out), (value_out, value_in)):
        if a in axes:
          axes.setdefault(b, axes[a])
    for glue in glues:
      if glue is not None and not _through(glue, axes):
        return None
    changed = axes != before
  shared = set(body.inputs[: node.num_consts])
  for inner in body.nodes:
    assert isinstance(inner, programs.StageNode)
    for v, axis in zip(inner.inputs, inner.axes):
      # A constant cannot be divided, an item cannot be shared.
      if (axis is None) == (v in axes) or (axis is not None and v in shared):
        return None
  return axes


def _through(glue: programs.Glue, axes: dict[int, int]) -> bool:
  """Carries axes of items through glue; False where it mixes items."""
  jaxpr = glue.jaxpr.jaxpr
  of_var: dict[Any, int] = {
    var: axes[v] for var, v in zip(jaxpr.invars, glue.inputs) if v in axes
  }
  # Backwards once: an input of which only a copy is used as items.
  for var, v in zip(jaxpr.outvars, glue.outputs):
    if v in axes and not isinstance(var, jex_core.Literal):
      of_var.setdefault(var, axes[v])
  for eqn in reversed(jaxpr.eqns):
    if eqn.primitive.name in _ITEMWISE:
      for out in eqn.outvars:
        for var in eqn.invars:
          if (
            out in of_var
            and not isinstance(var, jex_core.Literal)
            and getattr(var.aval, "ndim", 0) == out.aval.ndim
          ):
            of_var.setdefault(var, of_var[out])
  for eqn in jaxpr.eqns:
    reads = [
      v
      for v in eqn.invars
      if not isinstance(v, jex_core.Literal) and v in of_var
    ]
    if not reads:
      continue
    axis = of_var[reads[0]]
    if eqn.primitive.name not in _ITEMWISE and not _keeps(eqn, axis):
      return False
    for out in eqn.outvars:
      of_var.setdefault(out, axis)
  for var, v in zip(jaxpr.invars, glue.inputs):
    if var in of_var:
      axes.setdefault(v, of_var[var])
  for var, v in zip(jaxpr.outvars, glue.outputs):
    if not isinstance(var, jex_core.Literal) and var in of_var:
      axes.setdefault(v, of_var[var])
  return True


def _keeps(eqn: Any, axis: int) -> bool:
  """Returns whether an operation leaves axis `axis`, and items, apart."""
  name, params = eqn.primitive.name, eqn.params
  if name == "broadcast_in_dim":
    dims = params["broadcast_dimensions"]
    return axis < len(dims) and dims[axis] == axis
  if name.startswith("reduce_") or name in ("argmax", "argmin"):
    return min(params["axes"]) > axis
  if name in ("squeeze",):
    return min(params["dimensions"]) > axis
  if name == "slice":
    operand = eqn.invars[0].aval.shape
    starts, limits = params["start_indices"], params["limit_indices"]
    whole = starts[axis] == 0 and limits[axis] == operand[axis]
    return bool(whole and params["strides"] is None)
  if name == "concatenate":
    return bool(params["dimension"] != axis)
  return False


def part(value: jax.Array, axis: int, start: int, stop: int) -> jax.Array:
  """Returns the items [start, stop) of an array."""
  if start == 0 and stop == value.shape[axis]:
    return value
  return jax.lax.slice_in_dim(value, start, stop, axis=axis)
