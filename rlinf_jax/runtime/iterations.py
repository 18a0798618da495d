"""One iteration of a program: its values, and how each node is run in it."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rlinf_jax.runtime import (
  executables,
  graphs,
  lanes,
  ledgers,
  machines,
  tasks,
  tracing,
  transport,
  values,
)


class Context:
  """What all iterations of an executor share.

  Args:
    graph: the macro flow.
    machine: its devices.
    ledger: of what is resident.
  """

  def __init__(
    self,
    graph: graphs.Graph,
    machine: machines.Machine,
    ledger: ledgers.Ledger,
  ) -> None:
    self.graph, self.machine, self.ledger = graph, machine, ledger
    self.program = graph.traced.program
    self.compiled = executables.Executables(self.program)
    self.board = values.Board()
    self.pool = futures.ThreadPoolExecutor(
      max(1, machine.cluster.num_devices - len(machine.devices)),
      thread_name_prefix="host-stage",
    )

  def place(self, task: tasks.Task) -> executables.Place:
    """Returns the devices that a task computes on."""
    return executables.place_of(self.machine.jax_devices(task.devices))


class Iteration:
  """The values of one iteration.

  Args:
    context: see `Context`.
    index: from 0.
    given: a Value of each input of the program.
    stale: the inputs of the iteration whose state this one's syncs read.
  """

  def __init__(
    self,
    context: Context,
    index: int,
    given: Sequence[values.Value],
    stale: Sequence[values.Value],
  ) -> None:
    self.index = index
    self._context = context
    program = context.program
    self.given = list(given)
    self._values: dict[int, values.Value] = dict(zip(program.inputs, given))
    self._loops: dict[str, _LoopState] = {}
    self._lock = threading.Lock()
    for v, constant in program.constants.items():
      self._values[v] = self._value(f"constant {v}")
      self._values[v].put(constant)
    old = dict(zip(program.inputs, stale))
    for after, before in program.syncs.items():
      self._values[after] = old.get(before) or self._sync_of_glue(before, old)
    for node in program.nodes:
      for v in node.outputs:
        self._values[v] = self._of_node(node, v)
    for node in program.nodes:
      self._add_glue(node.glue, self._values)
    self._add_glue(program.glue, self._values)
    self.outputs = [self._values[v] for v in program.outputs]

  def run(self, task: tasks.Task) -> Any:
    """Runs a task; returns arrays whose completion is the task's.

    Raises:
      whatever the stage raises; `OverBudgetError`; `Stopped`.
    """
    node = task.node
    if node is None or task.kind in ("apply", "transfer", "reshard"):
      return ()
    if task.kind == "weight_sync":
      return ()
    if task.kind in ("swap_in", "swap_out"):
      return self._swap(task)
    if isinstance(node, tracing.LoopNode):
      if task.inner is None:
        return self._run_loop(task, node)
      return self._loop_state(node).run(task)
    return self._run_stage(task, node)

  def release(self, keep: Sequence[values.Value]) -> None:
    """Forgets every value but those to keep."""
    kept = {id(v) for v in (*keep, *self.given)}
    for value in self._values.values():
      if id(value) not in kept:
        value.release()
    self._loops.clear()

  def _value(self, what: str, **kwargs: Any) -> values.Value:
    return values.Value(
      self._context.board, self._context.ledger, what=what, **kwargs
    )

  def _of_node(self, node: tracing.Node, v: int) -> values.Value:
    axis = graphs.out_axis(node, v, self._context.graph.divisions)
    aval = self._context.program.avals[v]
    is_sum = (
      isinstance(node, tracing.StageNode) and node.spec.reduces is not None
    )
    num_items = 1 if axis is None else int(aval.shape[axis])
    if is_sum:
      assert isinstance(node, tracing.StageNode)
      num_items = graphs.num_items(self._context.program, node)
    return self._value(
      f"result of {node.name}", axis=axis, num_items=num_items, is_sum=is_sum
    )

  def _add_glue(
    self, glue: tracing.Glue | None, known: dict[int, values.Value]
  ) -> None:
    """Adds the values that glue makes, computed when they are first read."""
    if glue is None:
      return
    lock = threading.Lock()
    made: list[Any] = []

    def make(i: int) -> Any:
      with lock:
        if not made:
          given = [known[v].whole(self._home()) for v in glue.inputs]
          made.extend(self._context.compiled.glue(glue)(*given))
      return made[i]

    for i, v in enumerate(glue.outputs):
      if v not in known:
        known[v] = self._value("glue", make_fn=lambda i=i: make(i))

  def _sync_of_glue(
    self, before: int, old: dict[int, values.Value]
  ) -> values.Value:
    """Returns what glue made of the older state, for a sync of it."""
    program = self._context.program
    known = dict(old)
    for v, constant in program.constants.items():
      known[v] = self._value(f"constant {v}")
      known[v].put(constant)
    for glue in [n.glue for n in program.nodes] + [program.glue]:
      if glue is not None and all(v in known for v in glue.inputs):
        self._add_glue(glue, known)
    if before not in known:
      raise ValueError(
        "flow.sync was given what a stage has computed in this iteration; give"
        " it (parts of) the state that the flow was called with"
      )
    return known[before]

  def _home(self) -> jax.sharding.Sharding:
    first = self._context.machine.devices[0]
    return jax.sharding.SingleDeviceSharding(first)

  def _run_stage(self, task: tasks.Task, node: tracing.StageNode) -> Any:
    start, stop = task.items
    if node.spec.place != "mesh":
      return self._run_on_host(task, node)
    place = self._context.place(task)
    if not node.is_barrier:
      place = executables.for_items(place, stop - start, node.spec.quantum)
    leaves = []
    for v, axis in zip(node.inputs, node.axes):
      if axis is None:
        leaves.append(self._values[v].whole(place.replicated()))
      else:
        layout = place.sharding(axis, stop - start)
        leaves.append(self._values[v].read(start, stop, axis, layout))
    out = self._context.compiled.stage(node, place)(*leaves)
    self._give(node, start, stop, out)
    return out

  def _run_on_host(self, task: tasks.Task, node: tracing.StageNode) -> Any:
    start, stop = task.items
    slots = max(1, min(len(task.devices), stop - start))
    size = -(-(stop - start) // slots)
    parts = [(a, min(a + size, stop)) for a in range(start, stop, size)]
    if node.is_barrier:
      parts = [task.items]

    def run(part: tuple[int, int]) -> list[np.ndarray]:
      leaves = [
        self._values[v].whole(None)
        if axis is None
        else self._values[v].read(*part, axis, None)
        for v, axis in zip(node.inputs, node.axes)
      ]
      return node.call.on_host(*leaves)

    for part, out in zip(parts, self._context.pool.map(run, parts)):
      self._give(node, *part, out)
    return ()

  def _give(
    self, node: tracing.StageNode, start: int, stop: int, out: Sequence[Any]
  ) -> None:
    for v, x in zip(node.outputs, out):
      if node.is_barrier:
        self._values[v].put(x)
      else:
        self._values[v].add(start, stop, x)

  def _run_loop(self, task: tasks.Task, node: tracing.LoopNode) -> Any:
    place = self._context.place(task)
    division = self._context.graph.divisions.get(node.name)
    if division is not None:
      quanta = [n.spec.quantum or 1 for n in tracing.stage_nodes(node.body)]
      place = executables.for_items(place, division.items, math.lcm(*quanta))
    leaves = []
    for i, v in enumerate(node.inputs):
      axis = _outer_axis(node, i, division)
      size = 1 if division is None else division.items
      leaves.append(self._values[v].whole(place.sharding(axis, size)))
    out = self._context.compiled.loop(node, place)(*leaves)
    for v, x in zip(node.outputs, out):
      self._values[v].put(x)
    return out

  def _loop_state(self, node: tracing.LoopNode) -> _LoopState:
    with self._lock:
      if node.name not in self._loops:
        self._loops[node.name] = _LoopState(self._context, node, self._values)
      return self._loops[node.name]

  def _swap(self, task: tasks.Task) -> Any:
    """Moves the state that a stage reads to host memory, or back."""
    kind = "pinned_host" if task.kind == "swap_out" else None
    device = self._context.machine.devices[0]
    kind = kind or device.default_memory().kind

    def target(sharding: Any) -> Any:
      return sharding.with_memory_kind(kind)

    for i in self._context.graph.weights[task.stage]:
      self.given[i].move(target)
    return ()


class _LoopState:
  """A loop that runs stage by stage, in lanes.

  Args:
    context: see `Context`.
    node: the loop.
    outer: the iteration's values.
  """

  def __init__(
    self,
    context: Context,
    node: tracing.LoopNode,
    outer: dict[int, values.Value],
  ) -> None:
    self._context, self._node, self._outer = context, node, outer
    division = context.graph.divisions[node.name]
    self._axes, self._items = division.axes, division.items
    self._lanes: dict[tuple[int, int], dict[int, Any]] = {}
    self._ys: dict[tuple[int, int], list[list[Any]]] = {}
    self._lock = threading.Lock()

  def run(self, task: tasks.Task) -> Any:
    """Runs one stage of one turn of one lane."""
    assert task.inner is not None
    lane, inner, body = task.items, task.inner, self._node.body
    with self._lock:
      known = self._lanes.setdefault(lane, {})
    if inner is body.nodes[0]:
      self._begin_turn(known, lane, task.turn)
    fn_inputs = _needs(inner)
    if inner.spec.place == "mesh":
      place = executables.for_items(
        self._context.place(task), lane[1] - lane[0], inner.spec.quantum
      )
      given = [self._read(known, v, lane, task.turn, place) for v in fn_inputs]
      run = self._context.compiled.custom(
        ("turn", self._node.name, inner.name, place), _glued(inner), place
      )
      out = run(*given)
    else:
      given = [self._read(known, v, lane, task.turn, None) for v in fn_inputs]
      at = dict(zip(fn_inputs, given))
      if inner.glue is not None:
        made = self._context.compiled.glue(inner.glue)(
          *[at[v] for v in inner.glue.inputs]
        )
        at |= dict(zip(inner.glue.outputs, made))
      out = inner.call.on_host(
        *[at.get(v, body.constants.get(v)) for v in inner.inputs]
      )
    known.update(zip(inner.outputs, out))
    if inner is body.nodes[-1]:
      out = [*out, *self._end_turn(known, lane, task)]
    return out

  def _begin_turn(
    self, known: dict[int, Any], lane: tuple[int, int], turn: int
  ) -> None:
    node, body = self._node, self._node.body
    first = node.num_consts
    carry = body.inputs[first : first + node.num_carry]
    if turn:
      handed_on = [known[v] for v in body.outputs[: node.num_carry]]
      known.clear()
      known.update(zip(carry, handed_on))
    else:
      known.clear()

  def _read(
    self,
    known: dict[int, Any],
    v: int,
    lane: tuple[int, int],
    turn: int,
    place: executables.Place | None,
  ) -> Any:
    node, body = self._node, self._node.body
    axis, size = self._axes.get(v), lane[1] - lane[0]
    layout = None if place is None else place.sharding(axis, size)
    if v in known:
      return transport.send(known[v], layout)
    if v in body.constants:
      return transport.send(body.constants[v], layout)
    i = body.inputs.index(v)
    outer = self._outer[node.inputs[i]]
    if i < node.num_consts:
      return outer.whole(layout)
    if i < node.num_consts + node.num_carry:
      assert axis is not None
      known[v] = outer.read(*lane, axis, layout)
      return known[v]
    if axis is None:
      known[v] = transport.send(outer.whole(self._flat(place))[turn], layout)
    else:
      whole = outer.whole(self._flat(place))
      known[v] = transport.send(_turn_of(whole, turn, axis, lane), layout)
    return known[v]

  def _flat(self, place: executables.Place | None) -> Any:
    return None if place is None else place.replicated()

  def _end_turn(
    self, known: dict[int, Any], lane: tuple[int, int], task: tasks.Task
  ) -> list[Any]:
    node, body = self._node, self._node.body
    place = None
    assert task.inner is not None
    if task.inner.spec.place == "mesh":
      place = executables.for_items(
        self._context.place(task),
        lane[1] - lane[0],
        task.inner.spec.quantum,
      )
    if body.glue is not None:
      given = [
        self._read(known, v, lane, task.turn, place) for v in body.glue.inputs
      ]
      made = self._context.compiled.glue(body.glue)(*given)
      known.update(zip(body.glue.outputs, made))
    for v in body.outputs:
      if v not in known:
        known[v] = self._read(known, v, lane, task.turn, place)
    ys = [known[v] for v in body.outputs[node.num_carry :]]
    with self._lock:
      self._ys.setdefault(lane, []).append(ys)
    if task.turn + 1 < node.length:
      return ys
    return self._finish(known, lane)

  def _finish(self, known: dict[int, Any], lane: tuple[int, int]) -> list[Any]:
    node, body = self._node, self._node.body
    out = [known[v] for v in body.outputs[: node.num_carry]]
    out += [_stack(list(y_t)) for y_t in zip(*self._ys.pop(lane))]
    for v, x in zip(node.outputs, out):
      self._outer[v].add(*lane, x)
    return out


def _outer_axis(
  node: tracing.LoopNode, position: int, division: lanes.Division | None
) -> int | None:
  if division is None:
    return None
  axis = division.axes.get(node.body.inputs[position])
  if axis is None:
    return None
  return axis + int(position >= node.num_consts + node.num_carry)


def _needs(node: tracing.StageNode) -> list[int]:
  made = set(node.glue.outputs) if node.glue else set()
  reads = [*(node.glue.inputs if node.glue else ())]
  reads += [v for v in node.inputs if v not in made]
  return list(dict.fromkeys(reads))


def _glued(node: tracing.StageNode) -> Callable[..., list[Any]]:
  """Returns a stage with the glue before it, as a function of what it needs."""
  needs = _needs(node)

  def run(*leaves: Any) -> list[Any]:
    known = dict(zip(needs, leaves))
    if node.glue is not None:
      glue = executables.jex_core.jaxpr_as_fun(node.glue.jaxpr)
      made = glue(*[known[v] for v in node.glue.inputs])
      known |= dict(zip(node.glue.outputs, made))
    given = [known[v] for v in node.inputs]
    return executables.stages.run_granule(
      node.call, node.axes, node.out_axis, given
    )

  return run


def _turn_of(whole: Any, turn: int, axis: int, lane: tuple[int, int]) -> Any:
  if isinstance(whole, np.ndarray):
    return whole[turn][(slice(None),) * axis + (slice(*lane),)]
  return _turn_of_device(whole, turn, axis, lane)


def _turn_of_device(
  whole: Any, turn: int, axis: int, lane: tuple[int, int]
) -> Any:
  return _take_turn(whole, turn, axis=axis, start=lane[0], stop=lane[1])


def _take(whole: Any, turn: Any, *, axis: int, start: int, stop: int) -> Any:
  row = jax.lax.dynamic_index_in_dim(whole, turn, 0, keepdims=False)
  return jax.lax.slice_in_dim(row, start, stop, axis=axis)


_take_turn = jax.jit(_take, static_argnames=("axis", "start", "stop"))


def _stack(rows: list[Any]) -> Any:
  if all(isinstance(row, np.ndarray) for row in rows):
    return np.stack(rows)
  return _stack_on_device(*rows)


@jax.jit
def _stack_on_device(*rows: Any) -> Any:
  return jnp.stack(rows)
