"""Macro flows as programs: stages, loops and syncs, with glue between them.

`trace` records a macro flow through `jax.make_jaxpr`, in which each stage is
one equation. What stands between stages is glue: it has no node of its own, and
each node that needs some of it computes it for itself.

Letters: values are numbered; a program's inputs come first.
"""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core as jex_core

from rlinf_jax import flow
from rlinf_jax.flow import calls, loops, stages

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
class Glue:
  """Plain JAX between nodes.

  Attributes:
    jaxpr: closed, from `inputs` to `outputs`.
    inputs: values read.
    outputs: values made.
  """

  jaxpr: Any
  inputs: tuple[int, ...]
  outputs: tuple[int, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class StageNode:
  """One call of a stage.

  Attributes:
    name: unique in its program: the stage's, with #2, #3 ... for later calls.
    call: the stage's function of flat leaves.
    axes: the axis of items of each input, or None.
    out_axis: the axis of items of each output.
    inputs: values read.
    outputs: values made.
    glue: what has to be computed before, of values that nodes make.
  """

  name: str
  call: calls.Call
  axes: tuple[int | None, ...]
  out_axis: int
  inputs: tuple[int, ...]
  outputs: tuple[int, ...]
  glue: Glue | None = None

  @property
  def spec(self) -> flow.Spec:
    return self.call.spec

  @functools.cached_property
  def is_barrier(self) -> bool:
    return all(axis is None for axis in self.axes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoopNode:
  """A loop over stages.

  Attributes:
    name: the names of its stages, joined by "+".
    body: (constants, carry, x) -> (carry, y).
    num_consts: leading inputs that every turn sees alike.
    num_carry: inputs after them, and leading outputs, that each turn hands on.
    length: turns.
    inputs: values read.
    outputs: values made.
    glue: see `StageNode`.
  """

  name: str
  body: Program
  num_consts: int
  num_carry: int
  length: int
  inputs: tuple[int, ...]
  outputs: tuple[int, ...]
  glue: Glue | None = None


Node = StageNode | LoopNode


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
  """A traced macro flow, or the body of a loop.

  Attributes:
    inputs: values that it is given.
    outputs: values that it returns.
    nodes: in an order in which each reads only what earlier ones made.
    glue: what has to be computed after the nodes, for the outputs.
    syncs: values that came through `flow.sync` -> what they were before.
    constants: values known when it was traced.
    avals: shape and dtype of each value.
  """

  inputs: tuple[int, ...]
  outputs: tuple[int, ...]
  nodes: tuple[Node, ...]
  glue: Glue | None
  syncs: dict[int, int]
  constants: dict[int, Any]
  avals: tuple[Any, ...]

  @functools.cached_property
  def maker(self) -> dict[int, int]:
    """The node, by position, that makes a value; glue and inputs have none."""
    return {v: i for i, node in enumerate(self.nodes) for v in node.outputs}

  @functools.cached_property
  def by_name(self) -> dict[str, Node]:
    """Nodes by their names."""
    return {node.name: node for node in self.nodes}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Traced:
  """A macro flow (state, *inputs) -> (state, result), recorded.

  Attributes:
    program: what it does.
    in_tree: of all arguments.
    out_tree: of what it returns.
    num_state: leading inputs, and outputs, that are the state's leaves.
    names: of the inputs, for people.
    inexact: glue that rounds, as "primitive at file:line"; a flow with some is
      close under a plan, not bitwise.
  """

  program: Program
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
      stage is hidden where a plan cannot reach it, or a Python branch depends
      on a traced value.
  """
  leaves, in_tree = jax.tree.flatten(args)
  out_tree = None

  def flat(*leaves: Any) -> list[Any]:
    nonlocal out_tree
    out, out_tree = jax.tree.flatten(fn(*jax.tree.unflatten(in_tree, leaves)))
    return out

  try:
    closed = jax.make_jaxpr(flat)(*calls.as_avals(leaves))
  except jax.errors.ConcretizationTypeError as error:
    raise TypeError(
      "the macro flow branches in Python on a value that is known only when it"
      " runs; use jnp.where, or put the branch into a stage.\n"
      f"{str(error).splitlines()[0]}"
    ) from error
  num_state = _num_state(args, out_tree, closed.out_avals)
  paths = jax.tree_util.tree_flatten_with_path(args)[0]
  names = tuple(_readable(path) for path, _ in paths)
  inexact: list[str] = []
  program = _program(closed.jaxpr, closed.consts, inexact)
  return Traced(
    program=program,
    in_tree=in_tree,
    out_tree=out_tree,
    num_state=num_state,
    names=names,
    inexact=tuple(dict.fromkeys(inexact)),
  )


def evaluate(
  program: Program,
  args: Sequence[Any],
  *,
  stage_fn: Callable[[StageNode, list[Any]], Sequence[Any]],
  loop_fn: Callable[[LoopNode, list[Any]], Sequence[Any]],
  glue_fn: Callable[[Glue], Callable[..., Sequence[Any]]] | None = None,
) -> list[Any]:
  """Returns a program's outputs, running each node by a function.

  Args:
    program: what to run.
    args: the values of its inputs.
    stage_fn: runs one stage.
    loop_fn: runs one loop.
    glue_fn: makes glue a function; by default each operation runs by itself.
  """
  glue_fn = glue_fn or (lambda glue: jex_core.jaxpr_as_fun(glue.jaxpr))
  known = dict(zip(program.inputs, args)) | program.constants
  for after, before in program.syncs.items():
    if before in known:
      known[after] = known[before]

  def run(glue: Glue | None) -> None:
    if glue is not None:
      given = [known[v] for v in glue.inputs]
      known.update(zip(glue.outputs, glue_fn(glue)(*given)))
      for after, before in program.syncs.items():
        if before in known and after not in known:
          known[after] = known[before]

  for node in program.nodes:
    run(node.glue)
    given = [known[v] for v in node.inputs]
    out = (
      stage_fn(node, given)
      if isinstance(node, StageNode)
      else loop_fn(node, given)
    )
    known.update(zip(node.outputs, out))
  run(program.glue)
  return [known[v] for v in program.outputs]


def call_stage(node: StageNode, args: Sequence[Any]) -> list[Any]:
  """Runs a stage as the flow itself does: eagerly, or traced, on any mesh."""
  return stages.bind(node.call, node.axes, node.out_axis, args)


def call_loop(node: LoopNode, args: Sequence[Any]) -> list[Any]:
  """Runs a loop as one `scan`."""
  consts = args[: node.num_consts]
  first = node.num_consts + node.num_carry

  def body(carry: Any, x: Any) -> Any:
    out = evaluate(
      node.body,
      [*consts, *carry, *x],
      stage_fn=call_stage,
      loop_fn=call_loop,
    )
    return out[: node.num_carry], out[node.num_carry :]

  carry, ys = jax.lax.scan(
    body,
    list(args[node.num_consts : first]),
    list(args[first:]),
    length=node.length,
  )
  return [*carry, *ys]


def stage_nodes(program: Program) -> Iterator[tuple[Program, StageNode]]:
  """Yields every stage, those in loops too, with the program it is part of."""
  for node in program.nodes:
    if isinstance(node, StageNode):
      yield program, node
    else:
      yield from stage_nodes(node.body)


def num_items(program: Program, node: StageNode) -> int:
  """Returns a stage's items; 1 of a barrier."""
  for v, axis in zip(node.inputs, node.axes):
    if axis is not None:
      return int(program.avals[v].shape[axis])
  return 1


def sources(
  program: Program, values: Iterable[int], *, with_synced: bool = True
) -> set[int]:
  """Returns the nodes and inputs that values come from, as the values made.

  Glue and syncs are looked through: each result is a value that a node makes,
  an input, or a constant.

  Args:
    program: what the values are of.
    values: by number.
    with_synced: whether to look behind syncs, or to leave out what is there.
  """
  makers: dict[int, Glue] = {}
  for glue in [n.glue for n in program.nodes] + [program.glue]:
    if glue is not None:
      makers |= dict.fromkeys(glue.outputs, glue)
  found, todo, seen = set(), list(values), set()
  while todo:
    v = todo.pop()
    if v in seen:
      continue
    seen.add(v)
    if v in program.syncs:
      todo += [program.syncs[v]] * with_synced
    elif v in makers and v not in program.maker:
      todo += makers[v].inputs
    else:
      found.add(v)
  return found


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


def _program(jaxpr: Any, consts: Sequence[Any], inexact: list[str]) -> Program:
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
  nodes: list[Node] = []
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
  return Program(
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
) -> Node:
  inputs = tuple(number(v) for v in eqn.invars)
  outputs = tuple(number(v) for v in eqn.outvars)
  glue = slicer.before(eqn.invars)
  if eqn.primitive is stages.stage_p:
    return StageNode(
      name=name,
      call=eqn.params["call"],
      axes=eqn.params["axes"],
      out_axis=eqn.params["out_axis"],
      inputs=inputs,
      outputs=outputs,
      glue=glue,
    )
  body = eqn.params["jaxpr"]
  return LoopNode(
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

  def before(self, atoms: Sequence[Any]) -> Glue | None:
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
    return Glue(
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
        f"nothing uses what stage '{_name(eqn)}' returns at {_line(eqn)}; it is"
        " left out",
        stacklevel=2,
      )
  return kept[::-1]


def _check_glue(eqn: Any, inexact: list[str]) -> None:
  for inner in jex_core.jaxprs_in_params(eqn.params):
    for hidden in inner.eqns:
      if _is_node(hidden) or hidden.primitive is loops.sync_p:
        raise TypeError(
          f"stage '{_hidden_name(hidden)}' is hidden inside"
          f" '{eqn.primitive.name}' at {_line(eqn)}; a plan sees stages in the"
          " macro flow itself and in flow.loop only"
        )
      _check_glue(hidden, inexact)
  is_float = any(
    np.issubdtype(v.aval.dtype, np.inexact)
    for v in eqn.outvars
    if isinstance(v.aval.dtype, np.dtype)
  )
  has_inner = any(True for _ in jex_core.jaxprs_in_params(eqn.params))
  if is_float and not has_inner and eqn.primitive.name not in _EXACT:
    inexact.append(f"{eqn.primitive.name} at {_line(eqn)}")


def _hidden_name(eqn: Any) -> str:
  return "sync" if eqn.primitive is loops.sync_p else _name(eqn)


def _line(eqn: Any) -> str:
  frames = eqn.source_info.traceback
  for frame in frames.frames if frames else ():
    if "/jax/" not in frame.file_name and "/rlinf_jax/runtime/" not in (
      frame.file_name
    ):
      return f"{frame.file_name}:{frame.line_num}"
  return "an unknown line"


def _readable(path: Any) -> str:
  return jax.tree_util.keystr(path, simple=True, separator=".")
