"""The workflow of a traced macro flow, as planners see it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from rlinf_jax.runtime import lanes, names, programs, tracing
from scheduler import workflows


@dataclasses.dataclass(frozen=True, kw_only=True)
class Graph:
  """A macro flow as a workflow, and the way back.

  Attributes:
    traced: the macro flow.
    workflow: of which each stage is a node, or a stage of a divisible loop.
    divisions: by node name, how a loop is divided into lanes.
    place: by workflow stage, "mesh", "host" or "process".
    weights: by workflow stage, the state leaves that it reads whole.
  """

  traced: tracing.Traced
  workflow: workflows.Workflow
  divisions: dict[str, lanes.Division]
  place: dict[str, str]
  weights: dict[str, tuple[int, ...]]

  def node_of(self, stage: str) -> programs.Node:
    """Returns the node of the program that a workflow's stage is (part of)."""
    for node in self.traced.program.nodes:
      if stage in _stage_names(node, self.divisions):
        return node
    raise KeyError(stage)


@dataclasses.dataclass(frozen=True, slots=True)
class _Read:
  """A value that a workflow's stage reads.

  Attributes:
    value: of the program.
    axis: of its items; None where it is read whole.
    called: what the stage calls it.
  """

  value: int
  axis: int | None
  called: tuple[str, ...]


def describe(
  traced: tracing.Traced, *, name: str = "flow", staleness: int = 0
) -> Graph:
  """Returns the workflow of a macro flow.

  Args:
    traced: the macro flow.
    name: for people.
    staleness: of what passes `flow.sync`.

  Raises:
    WorkflowError: the flow has no stages; or a staleness without a sync.
  """
  program = traced.program
  divisions = {}
  for node in program.nodes:
    if isinstance(node, programs.LoopNode):
      division = lanes.divide(node)
      if division is not None:
        divisions[node.name] = division
  if staleness and not program.syncs:
    raise workflows.errors.WorkflowError(
      f"staleness is {staleness}, but nothing in the flow passes flow.sync;"
      " mark by it the weights that may be old"
    )
  weights = _weights(traced, divisions)
  place, stages = {}, []
  for node in program.nodes:
    for stage, of_place in _stages(traced, node, divisions, weights):
      stages.append(stage)
      place[stage.name] = of_place
  workflow = workflows.Workflow(
    name=name,
    stages=tuple(stages),
    edges=tuple(_edges(traced, divisions)),
    loops=tuple(
      workflows.Loop(
        name=node.name,
        stages=tuple(inner.name for inner in node.body.nodes),
        turns=node.length,
      )
      for node in program.nodes
      if isinstance(node, programs.LoopNode) and node.name in divisions
    ),
    syncs=tuple(_syncs(traced, divisions)),
    constants=tuple(_constants(traced, divisions)),
    staleness=staleness,
  )
  return Graph(
    traced=traced,
    workflow=workflow,
    divisions=divisions,
    place=place,
    weights=weights,
  )


def num_bytes(aval: Any) -> int:
  """Returns the bytes of an array of this shape and dtype."""
  try:
    size = np.dtype(aval.dtype).itemsize
  except TypeError:  # a key
    size = 16
  return math.prod(aval.shape) * size


def _stage_names(
  node: programs.Node, divisions: dict[str, lanes.Division]
) -> list[str]:
  if isinstance(node, programs.LoopNode) and node.name in divisions:
    return [inner.name for inner in node.body.nodes]
  return [node.name]


def _stages(
  traced: tracing.Traced,
  node: programs.Node,
  divisions: dict[str, lanes.Division],
  weights: dict[str, tuple[int, ...]],
) -> Iterator[tuple[workflows.Stage, str]]:
  program = traced.program
  avals = [program.avals[v] for v in program.inputs]

  def state_bytes(name: str) -> int:
    return sum(num_bytes(avals[i]) for i in weights[name])

  if isinstance(node, programs.LoopNode):
    if node.name not in divisions:
      yield (
        workflows.Stage(
          name=node.name,
          kind="train",
          items=1,
          state_bytes=state_bytes(node.name),
        ),
        "mesh",
      )
      return
    for inner in node.body.nodes:
      assert isinstance(inner, programs.StageNode)
      yield _stage(node.body, inner, state_bytes(inner.name))
    return
  yield _stage(program, node, state_bytes(node.name))


def _stage(
  program: programs.Program, node: programs.StageNode, state_bytes: int
) -> tuple[workflows.Stage, str]:
  spec = node.spec
  kind: workflows.Kind = "infer" if spec.place == "mesh" else "host"
  return (
    workflows.Stage(
      name=node.name,
      kind=kind,
      items=programs.num_items(program, node),
      quantum=math.lcm(spec.quantum or 1, spec.groups),
      granule_min=math.lcm(spec.quantum or 1, spec.groups),
      group=spec.groups,
      state_bytes=state_bytes,
    ),
    spec.place,
  )


def _weights(
  traced: tracing.Traced, divisions: dict[str, lanes.Division]
) -> dict[str, tuple[int, ...]]:
  """Returns the state leaves that each stage reads whole."""
  program = traced.program
  position = {v: i for i, v in enumerate(program.inputs[: traced.num_state])}
  weights = {}
  for node in program.nodes:
    for name, reads in _reads(program, node, divisions):
      whole = [read.value for read in reads if read.axis is None]
      found = programs.sources(program, whole) & set(position)
      weights[name] = tuple(sorted(position[v] for v in found))
  return weights


def _reads(
  program: programs.Program,
  node: programs.Node,
  divisions: dict[str, lanes.Division],
) -> Iterator[tuple[str, list[_Read]]]:
  """Yields each workflow stage of a node with what it reads of the program."""
  if isinstance(node, programs.StageNode) or node.name not in divisions:
    axes: Sequence[int | None] = [None] * len(node.inputs)
    if isinstance(node, programs.StageNode):
      axes = node.axes
    yield node.name, list(map(_Read, node.inputs, axes, names.of_inputs(node)))
    return
  body, axis_of = node.body, divisions[node.name].axes
  outer = dict(zip(body.inputs, node.inputs))
  is_stacked = set(body.inputs[node.num_consts + node.num_carry :])
  by_stage = {inner.name: names.read_by(body, inner) for inner in body.nodes}
  # What glue behind the stages reads alone, whichever of them ends a turn.
  ends_turn = programs.sources(body, body.outputs) & set(outer)
  alone = ends_turn - {v for called in by_stage.values() for v in called}
  for name, called in by_stage.items():
    yield (
      name,
      [
        _Read(
          outer[v],
          None if v not in axis_of else axis_of[v] + (v in is_stacked),
          called.get(v, ()),
        )
        for v in sorted(set(called) & set(outer) | alone)
      ],
    )


def out_axis(
  node: programs.Node, value: int, divisions: dict[str, lanes.Division]
) -> int | None:
  """Returns the axis of items of a value that a node makes, or None."""
  if isinstance(node, programs.StageNode):
    if node.is_barrier or node.spec.reduces is not None:
      return None
    return node.out_axis
  if node.name not in divisions:
    return None
  i = node.outputs.index(value)
  axis = divisions[node.name].axes[node.body.outputs[i]]
  return axis + int(i >= node.num_carry)


def _edges(
  traced: tracing.Traced, divisions: dict[str, lanes.Division]
) -> Iterator[workflows.Edge]:
  program, unchanging = traced.program, _unchanging(traced)
  for node in program.nodes:
    for name, reads in _reads(program, node, divisions):
      found: dict[str, workflows.Edge] = {}
      called: dict[str, list[str]] = {}
      carried: dict[str, int] = {}
      for read in reads:
        for source in programs.sources(program, [read.value]):
          if source not in program.maker:
            continue
          maker = program.nodes[program.maker[source]]
          by_items = (
            source == read.value
            and read.axis is not None
            and read.axis == out_axis(maker, source, divisions)
          )
          is_same = source in unchanging
          size = num_bytes(program.avals[source])
          items = _num_items(program, maker, divisions)
          for origin in _origins(maker, source, divisions):
            if origin == name:
              continue
            called.setdefault(origin, []).extend(read.called)
            carried[origin] = carried.get(origin, 0) + size
            before = found.get(origin)
            is_whole = not by_items or (before and before.reads == "all")
            found[origin] = workflows.Edge(
              source=origin,
              target=name,
              item_bytes=-(-carried[origin] // items),
              reads="all" if is_whole else "items",
              name=names.joined(called[origin]),
              is_invariant=is_same and (not before or before.is_invariant),
            )
      yield from found.values()
    if isinstance(node, programs.LoopNode) and node.name in divisions:
      yield from _loop_edges(node, divisions[node.name])


def _origins(
  node: programs.Node, value: int, divisions: dict[str, lanes.Division]
) -> tuple[str, ...]:
  """Returns the workflow stages that have ended when a node's value is made."""
  if isinstance(node, programs.LoopNode) and node.name in divisions:
    return node.makers[node.outputs.index(value)]
  return (node.name,)


def _unchanging(traced: tracing.Traced) -> set[int]:
  """Returns values that are the same in every iteration.

  State that comes back as it went in, and what nodes make of such state alone.
  """
  program = traced.program
  handed_on = zip(program.inputs, program.outputs[: traced.num_state])
  found = {before for before, after in handed_on if before == after}
  found |= set(program.constants)
  for node in program.nodes:
    if programs.sources(program, node.inputs) <= found:
      found |= set(node.outputs)
  return found


def _constants(
  traced: tracing.Traced, divisions: dict[str, lanes.Division]
) -> Iterator[workflows.Constant]:
  """Yields the state that a stage reads and that no iteration changes."""
  program = traced.program
  called = dict(zip(program.inputs, traced.names))
  fixed = _unchanging(traced) & set(program.inputs)
  for node in program.nodes:
    for name, reads in _reads(program, node, divisions):
      values = [read.value for read in reads]
      found = sorted(programs.sources(program, values) & fixed)
      if found:
        yield workflows.Constant(
          target=name,
          name=names.joined(called[v] for v in found),
          num_bytes=sum(num_bytes(program.avals[v]) for v in found),
        )


def _num_items(
  program: programs.Program,
  node: programs.Node,
  divisions: dict[str, lanes.Division],
) -> int:
  """Returns the items of the workflow stage that hands on a node's results."""
  if isinstance(node, programs.StageNode):
    return programs.num_items(program, node)
  division = divisions.get(node.name)
  return 1 if division is None else division.items


def _loop_edges(
  node: programs.LoopNode, division: lanes.Division
) -> Iterator[workflows.Edge]:
  """Yields what passes between a loop's stages, in a turn and to the next."""
  body = node.body
  carry = body.inputs[node.num_consts : node.num_consts + node.num_carry]
  pairs: dict[tuple[str, str], int] = {}
  called: dict[tuple[str, str], list[str]] = {}
  for inner in body.nodes:
    for source, names_of in names.read_by(body, inner).items():
      if source not in body.maker and source not in carry:
        continue
      # What goes forward over a turn is an edge within one: a turn later than
      # it needs to, but in the order of the stages.
      for origin in node.made_by([source]) - {inner.name}:
        size = num_bytes(body.avals[source]) // division.items
        key = (origin, inner.name)
        pairs[key] = pairs.get(key, 0) + size
        called.setdefault(key, []).extend(names_of)
  for (origin, target), size in pairs.items():
    yield workflows.Edge(
      source=origin,
      target=target,
      item_bytes=size,
      name=names.joined(called[origin, target]),
    )


def _syncs(
  traced: tracing.Traced, divisions: dict[str, lanes.Division]
) -> Iterator[workflows.WeightSync]:
  """Yields which stage's results another reads, one iteration or more later.

  What is read both through `flow.sync` and beside it is fresh.
  """
  program = traced.program
  position = {v: i for i, v in enumerate(program.inputs[: traced.num_state])}
  moved: dict[tuple[str, str], int] = {}
  called: dict[tuple[str, str], list[str]] = {}
  fresh: set[tuple[str, str]] = set()
  for node in program.nodes:
    for name, reads in _reads(program, node, divisions):
      every = [read.value for read in reads]
      whole = {read.value for read in reads if read.axis is None}
      synced = _synced(program, every)
      for leaf in sorted(synced | _unsynced(program, every) & set(position)):
        for origin in _makers(program, position[leaf], divisions):
          if origin in _stage_names(node, divisions):
            continue
          size = num_bytes(program.avals[leaf])
          if leaf not in synced:
            fresh.add((origin, name))
            # What is read by items goes where it is read item by item.
            size *= bool(leaf in _unsynced(program, whole))
          moved[origin, name] = moved.get((origin, name), 0) + size
          called.setdefault((origin, name), []).append(traced.names[leaf])
  for (origin, target), size in moved.items():
    yield workflows.WeightSync(
      source=origin,
      target=target,
      num_bytes=size,
      is_fresh=(origin, target) in fresh,
      name=names.joined(called[origin, target]),
    )


def _makers(
  program: programs.Program, leaf: int, divisions: dict[str, lanes.Division]
) -> Iterator[str]:
  """Yields the stages that make a state leaf's next value."""
  for source in programs.sources(program, [program.outputs[leaf]]):
    if source in program.maker:
      maker = program.nodes[program.maker[source]]
      yield from _origins(maker, source, divisions)


def _unsynced(program: programs.Program, values: Iterable[int]) -> set[int]:
  """Returns the inputs that values read otherwise than through `flow.sync`."""
  found = programs.sources(program, values, with_synced=False)
  return found & set(program.inputs)


def _synced(program: programs.Program, values: Sequence[int]) -> set[int]:
  """Returns the state leaves that values read through `flow.sync`."""
  passed = set()
  for after, before in program.syncs.items():
    # A value that no longer reaches the leaf once the sync is cut reads it.
    if any(_reaches(program, v, after) for v in values):
      passed |= programs.sources(program, [before]) & set(program.inputs)
  return passed


def _reaches(program: programs.Program, value: int, target: int) -> bool:
  makers: dict[int, programs.Glue] = {}
  for glue in [n.glue for n in program.nodes] + [program.glue]:
    if glue is not None:
      makers |= dict.fromkeys(glue.outputs, glue)
  todo, seen = [value], set()
  while todo:
    v = todo.pop()
    if v == target:
      return True
    if v in seen or v in program.maker:
      continue
    seen.add(v)
    if v in program.syncs:
      todo.append(program.syncs[v])
    elif v in makers:
      todo += makers[v].inputs
  return False
