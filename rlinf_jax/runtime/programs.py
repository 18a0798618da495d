"""Programs: stages, loops and syncs, with glue between them.

Each stage and each loop over stages is a node. What stands between them is
glue: it has no node of its own, and each node that needs some of it computes it
for itself. Values are numbered; a program's inputs come first.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
from jax.extend import core as jex_core

from rlinf_jax import flow
from rlinf_jax.flow import calls, stages


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

  @functools.cached_property
  def parts(self) -> dict[int, Glue]:
    """For each output the glue that it alone needs."""
    return {v: self._part(i) for i, v in enumerate(self.outputs)}

  def _part(self, position: int) -> Glue:
    jaxpr = self.jaxpr.jaxpr
    needed, eqns = {jaxpr.outvars[position]}, []
    for eqn in reversed(jaxpr.eqns):
      if not needed.isdisjoint(eqn.outvars):
        eqns.append(eqn)
        needed |= {v for v in eqn.invars if isinstance(v, jex_core.Var)}
    read = [i for i, v in enumerate(jaxpr.invars) if v in needed]
    part = jaxpr.replace(
      invars=[jaxpr.invars[i] for i in read],
      outvars=[jaxpr.outvars[position]],
      eqns=eqns[::-1],
      debug_info=jaxpr.debug_info.with_unknown_names(),
    )
    return Glue(
      jaxpr=jex_core.ClosedJaxpr(part, self.jaxpr.consts),
      inputs=tuple(self.inputs[i] for i in read),
      outputs=(self.outputs[position],),
    )


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

  @functools.cached_property
  def makers(self) -> tuple[tuple[str, ...], ...]:
    """For each output the stages that it is made of, in some turn.

    All stages, for an output that none of them makes.
    """
    every = tuple(inner.name for inner in self.body.nodes)
    found = (self.made_by([v]) for v in self.body.outputs)
    return tuple(tuple(n for n in every if n in own) or every for own in found)

  def made_by(self, values: Iterable[int]) -> set[str]:
    """Returns the stages that values of the body come from.

    Not only of the turn that reads them: what is handed on is looked through.
    """
    body = self.body
    carry = body.inputs[self.num_consts : self.num_consts + self.num_carry]
    handed_on = dict(zip(carry, body.outputs[: self.num_carry]))
    found, seen, todo = set[str](), set[int](), list(values)
    while todo:
      for v in sources(body, [todo.pop()]) - seen:
        seen.add(v)
        if v in body.maker:
          found.add(body.nodes[body.maker[v]].name)
        elif v in handed_on:
          todo.append(handed_on[v])
    return found


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


def weight_of(node: StageNode) -> tuple[int, int]:
  """Returns the value that a stage's items weigh by, and its axis of items."""
  assert node.spec.weight is not None
  leaves: Any = range(len(node.inputs))
  i = jax.tree.unflatten(node.call.in_tree, leaves)[node.spec.weight]
  axis = node.axes[i]
  assert axis is not None
  return node.inputs[i], axis


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
