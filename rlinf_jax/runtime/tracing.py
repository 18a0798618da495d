"""Macro flows, recorded as programs through `jax.make_jaxpr`.

Each stage is one equation of the jaxpr.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core as jex_core

from rlinf_jax.flow import calls, faults, loops, stages
from rlinf_jax.runtime import names, programs

# Glue of these primitives moves values without rounding any: it gives the same
# bits however it is compiled.
_EXACT = frozenset(
  "broadcast_in_dim concatenate copy copy_p convert_element_type eq ge gt le lt"
  " ne and or not xor shift_left shift_right_logical shift_right_arithmetic"
  " dynamic_slice dynamic_update_slice gather iota neg pad rem reshape rev"
  " select_n slice sort squeeze stop_gradient transpose expand_dims max min"
  " random_bits random_fold_in random_seed random_split random_unwrap"
  " random_wrap threefry2x32 reduce_and reduce_or reduce_max reduce_min argmax"
  " argmin sign abs is_finite clamp split optimization_barrier".split()
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Traced:
  """A macro flow (state, *inputs) -> (state, result), recorded.

  Attributes:
    program: what it does.
    in_tree: of all arguments.
    out_tree: of what it returns.
    num_state: leading inputs, and outputs, that are the state's leaves.
    names: of the inputs, for people, see `names`.
    inexact: glue that rounds, as "primitive at file:line"; a flow with some is
      close under a plan, not bitwise.
  """

  program: programs.Program
  in_tree: Any
  out_tree: Any
  num_state: int
  names: tuple[str, ...]
  inexact: tuple[str, ...]


def trace(fn: Callable[..., Any], *args: Any) -> Traced:
  """Returns a macro flow, recorded.

  Args:
    fn: (state, *inputs) -> (state, result); or -> state.
    *args: example arguments; shapes and dtypes are looked at.

  Raises:
    TypeError: the first result has another structure than the state, or a
      stage is hidden where a plan cannot reach it, or Python needs the value of
      something that is traced (a branch, an index, a NumPy array); names stage
      and line.
  """
  leaves, in_tree = jax.tree.flatten(args)
  out_tree = None

  def flat(*leaves: Any) -> list[Any]:
    nonlocal out_tree
    out, out_tree = jax.tree.flatten(fn(*jax.tree.unflatten(in_tree, leaves)))
    return out

  with faults.named("the macro flow"):
    closed = jax.make_jaxpr(flat)(*calls.as_avals(leaves))
  num_state = _num_state(args, out_tree, closed.out_avals)
  inexact: list[str] = []
  program = _program(closed.jaxpr, closed.consts, inexact)
  return Traced(
    program=program,
    in_tree=in_tree,
    out_tree=out_tree,
    num_state=num_state,
    names=names.of_leaves(fn, args),
    inexact=tuple(dict.fromkeys(inexact)),
  )


def _num_state(args: Any, out_tree: Any, out_avals: Sequence[Any]) -> int:
  if not args:
    raise TypeError("a macro flow takes its state as its first argument")
  out: Any = jax.tree.unflatten(out_tree, out_avals)
  state: Any = jax.tree.structure(args[0])
  if jax.tree.structure(out) == state:
    after = out
  elif isinstance(out, tuple) and out and jax.tree.structure(out[0]) == state:
    after = out[0]
  else:
    raise TypeError(
      "a macro flow (state, *inputs) returns the next state, or (the next"
      f" state, results); its state is {state}, and it returned {out_tree}"
    )
  before = calls.as_avals(jax.tree.leaves(args[0]))
  for x, y in zip(before, jax.tree.leaves(after)):
    if (x.shape, x.dtype) != (y.shape, y.dtype):
      raise TypeError(
        f"a leaf of the state came in as {x.dtype}{list(x.shape)} and went out"
        f" as {y.dtype}{list(y.shape)}; the next iteration could not read it"
      )
  return state.num_leaves


def _program(
  jaxpr: Any, consts: Sequence[Any], inexact: list[str]
) -> programs.Program:
  numbers: dict[Any, int] = {}
  avals: list[Any] = []
  constants: dict[int, Any] = {}

  def number(atom: Any) -> int:
    if isinstance(atom, jex_core.Literal):
      avals.append(atom.aval)
      constants[len(avals) - 1] = np.asarray(atom.val, avals[-1].dtype)
      return len(avals) - 1
    if atom not in numbers:
      numbers[atom] = len(avals)
      avals.append(atom.aval)
    return numbers[atom]

  inputs = tuple(number(v) for v in jaxpr.invars)
  for var, value in zip(jaxpr.constvars, consts):
    constants[number(var)] = value
  producer = {v: e for e in jaxpr.eqns for v in e.outvars}
  slicer = _Slicer(jaxpr, producer, number)
  syncs: dict[int, int] = {}
  nodes: list[programs.Node] = []
  used: dict[str, int] = {}
  for eqn in _needed(jaxpr):
    if eqn.primitive is loops.sync_p:
      for before, after in zip(eqn.invars, eqn.outvars):
        syncs[number(after)] = number(before)
    elif _is_node(eqn):
      name = _name(eqn)
      used[name] = used.get(name, 0) + 1
      if used[name] > 1:
        name = f"{name}#{used[name]}"
      nodes.append(_node(eqn, name, number, slicer, inexact))
    else:
      _check_glue(eqn, inexact)
  outputs = tuple(number(v) for v in jaxpr.outvars)
  return programs.Program(
    inputs=inputs,
    outputs=outputs,
    nodes=tuple(nodes),
    glue=slicer.before(jaxpr.outvars),
    syncs=syncs,
    constants=constants,
    avals=tuple(avals),
  )


def _node(
  eqn: Any, name: str, number: Any, slicer: _Slicer, inexact: list[str]
) -> programs.Node:
  inputs = tuple(number(v) for v in eqn.invars)
  outputs = tuple(number(v) for v in eqn.outvars)
  glue = slicer.before(eqn.invars)
  if eqn.primitive is stages.stage_p:
    return programs.StageNode(
      name=name,
      call=eqn.params["call"],
      axes=eqn.params["axes"],
      out_axis=eqn.params["out_axis"],
      inputs=inputs,
      outputs=outputs,
      glue=glue,
    )
  body = eqn.params["jaxpr"]
  return programs.LoopNode(
    name=name,
    body=_program(body.jaxpr, body.consts, inexact),
    num_consts=eqn.params["num_consts"],
    num_carry=eqn.params["num_carry"],
    length=eqn.params["length"],
    inputs=inputs,
    outputs=outputs,
    glue=glue,
  )


@dataclasses.dataclass(frozen=True)
class _Slicer:
  """Cuts the glue out of a jaxpr that given variables need."""

  jaxpr: Any
  producer: dict[Any, Any]
  number: Callable[[Any], int]

  def before(self, atoms: Sequence[Any]) -> programs.Glue | None:
    """Returns the glue between nodes (or inputs) and these variables."""
    wanted = [a for a in atoms if not isinstance(a, jex_core.Literal)]
    needed, inputs, todo = set(), [], list(wanted)
    while todo:
      var = todo.pop()
      eqn = self.producer.get(var)
      if eqn is None or _is_node(eqn) or eqn.primitive is loops.sync_p:
        inputs.append(var)
        continue
      if id(eqn) not in needed:
        needed.add(id(eqn))
        todo += [v for v in eqn.invars if not isinstance(v, jex_core.Literal)]
    eqns = [e for e in self.jaxpr.eqns if id(e) in needed]
    if not eqns:
      return None
    made = {v for e in eqns for v in e.outvars}
    outvars = list(dict.fromkeys(v for v in wanted if v in made))
    read = {v for e in eqns for v in e.invars
            if not isinstance(v, jex_core.Literal)}  # fmt: skip
    invars = [v for v in dict.fromkeys(inputs) if v in read]
    sub = self.jaxpr.replace(
      constvars=[],
      invars=invars,
      outvars=outvars,
      eqns=eqns,
      debug_info=self.jaxpr.debug_info.with_unknown_names(),
    )
    return programs.Glue(
      jaxpr=jex_core.ClosedJaxpr(sub, ()),
      inputs=tuple(self.number(v) for v in invars),
      outputs=tuple(self.number(v) for v in outvars),
    )


def _is_node(eqn: Any) -> bool:
  return eqn.primitive in (stages.stage_p, loops.loop_p)


def _name(eqn: Any) -> str:
  if eqn.primitive is stages.stage_p:
    return eqn.params["call"].spec.name
  body = eqn.params["jaxpr"].jaxpr
  names = [_name(e) for e in body.eqns if _is_node(e)]
  return "+".join(dict.fromkeys(names))


def _needed(jaxpr: Any) -> list[Any]:
  """Returns the equations whose results are used, or that have effects."""
  live = {v for v in jaxpr.outvars if not isinstance(v, jex_core.Literal)}
  kept = []
  for eqn in reversed(jaxpr.eqns):
    if eqn.effects or any(v in live for v in eqn.outvars):
      kept.append(eqn)
      live |= {v for v in eqn.invars if not isinstance(v, jex_core.Literal)}
    elif _is_node(eqn):
      warnings.warn(
        f"nothing uses what stage '{_name(eqn)}' returns at"
        f" {faults.line_of(eqn)}; it is left out",
        stacklevel=2,
      )
  return kept[::-1]


def _check_glue(eqn: Any, inexact: list[str]) -> None:
  for inner in jex_core.jaxprs_in_params(eqn.params):
    for hidden in inner.eqns:
      if _is_node(hidden) or hidden.primitive is loops.sync_p:
        raise TypeError(
          f"stage '{_hidden_name(hidden)}' is hidden inside"
          f" '{eqn.primitive.name}' at {faults.line_of(eqn)}; a plan sees"
          " stages in the macro flow itself and in flow.loop only"
        )
      _check_glue(hidden, inexact)
  is_float = any(
    np.issubdtype(v.aval.dtype, np.inexact)
    for v in eqn.outvars
    if isinstance(v.aval.dtype, np.dtype)
  )
  has_inner = any(True for _ in jex_core.jaxprs_in_params(eqn.params))
  if is_float and not has_inner and eqn.primitive.name not in _EXACT:
    inexact.append(f"{eqn.primitive.name} at {faults.line_of(eqn)}")


def _hidden_name(eqn: Any) -> str:
  return "sync" if eqn.primitive is loops.sync_p else _name(eqn)
