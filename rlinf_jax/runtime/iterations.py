"""One iteration of a program: its values, and how each node is run in it."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import numpy as np

from rlinf_jax.runtime import (
  contexts,
  graphs,
  lanes,
  ledgers,
  programs,
  tasks,
  turns,
  values,
)


class Iteration:
  """The values of one iteration.

  Args:
    context: see `contexts.Context`.
    index: from 0.
    given: a Value of each input of the program.
    stale: the inputs of the iteration whose state this one's syncs read.
  """

  def __init__(
    self,
    context: contexts.Context,
    index: int,
    given: Sequence[values.Value],
    stale: Sequence[values.Value],
  ) -> None:
    self.index = index
    self._context = context
    program = context.program
    self.given = list(given)
    self._values: dict[int, values.Value] = dict(zip(program.inputs, given))
    self._loops: dict[str, turns.LoopState] = {}
    # Bytes that swaps which began early have brought.
    self._brought: dict[tasks.Task, int] = {}
    self._lock = threading.Lock()
    self._values |= context.constants
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

  def run(self, task: tasks.Task, last: Collection[int] = ()) -> Any:
    """Runs a task; returns arrays whose completion is the task's.

    What moves to readers is for `send_ahead` to move.

    Args:
      task: what to run.
      last: values that nobody reads after it: it may write over them.

    Raises:
      whatever the stage raises; `OverBudgetError`; `Stopped`.
    """
    node = task.node
    if node is None or task.kind not in (
      "compute", "loop", "swap_in", "swap_out"
    ):  # fmt: skip
      return ()
    if task.kind in ("swap_in", "swap_out"):
      return self._swap(task)
    if isinstance(node, programs.LoopNode):
      if task.inner is None:
        return self._run_loop(task, node, last)
      return self._loop_state(node).run(task)
    return self._run_stage(task, node, last)

  def weight(self, task: tasks.Task) -> float:
    """Returns how much work a task is, by its stage's weights; 0 without."""
    node = task.node
    if not isinstance(node, programs.StageNode) or node.spec.weight is None:
      return 0.0
    return self.weigh(*programs.weight_of(node), task.items)

  def weigh(self, value: int, axis: int, items: tuple[int, int]) -> float:
    """Returns the sum of some items of an array; waits until they have come."""
    return float(np.sum(self._values[value].read(*items, axis, None)))

  def put(self, value: int, array: Any) -> None:
    """Gives a whole value, in place of the node that makes it."""
    self._values[value].put(array)

  def release(self, keep: Sequence[values.Value]) -> None:
    """Forgets every value but those to keep."""
    constants = self._context.constants.values()
    kept = {id(v) for v in (*keep, *self.given, *constants)}
    for value in self._values.values():
      if id(value) not in kept:
        value.release()
    for loop in self._loops.values():
      loop.release()
    self._loops.clear()

  def _value(self, what: str, **kwargs: Any) -> values.Value:
    return values.Value(
      self._context.board, self._context.ledger, what=what, **kwargs
    )

  def _of_node(self, node: programs.Node, v: int) -> values.Value:
    axis = graphs.out_axis(node, v, self._context.graph.divisions)
    aval = self._context.program.avals[v]
    is_sum = (
      isinstance(node, programs.StageNode) and node.spec.reduces is not None
    )
    num_items = 1 if axis is None else int(aval.shape[axis])
    if is_sum:
      assert isinstance(node, programs.StageNode)
      num_items = programs.num_items(self._context.program, node)
    return self._value(
      f"result of {node.name}", axis=axis, num_items=num_items, is_sum=is_sum
    )

  def _add_glue(
    self, glue: programs.Glue | None, known: dict[int, values.Value]
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
    known = old | self._context.constants
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

  def send_ahead(self, move: tasks.Task, reader: tasks.Task) -> list[Any]:
    """Brings what a task will read to where it reads it; returns it.

    Args:
      move: a weight sync, which brings what is read whole, as far as it has
        come; a swap, of this the state; or a transfer, which brings what its
        stage has made.
      reader: the task that will read it.
    """
    is_weights = move.kind != "transfer"
    weights = self._context.graph.weights[move.stage]
    state = [self.given[i] for i in weights]
    assert move.node is not None
    node = reader.node
    place = self._context.place_of(reader)
    if isinstance(node, programs.LoopNode):
      consts = node.inputs[: node.num_consts] if is_weights else ()
      given: list[tuple[int, int | None]] = [(v, None) for v in consts]
    else:
      assert node is not None
      given = [
        (v, axis)
        for v, axis in zip(node.inputs, node.axes)
        if (axis is None) == (is_weights or node.is_barrier)
        and (is_weights or v in move.node.outputs)
      ]
    start, stop = reader.items
    found = []
    for v, axis in given:
      value = self._values[v]
      if move.kind == "swap_in" and value not in state:
        continue
      layout = None if place is None else place.sharding(axis, stop - start)
      if axis is None and value.is_complete():
        found.append(value.whole(layout))
      elif axis is not None and value.is_complete(start, stop, axis):
        found.append(value.send_ahead(start, stop, axis, layout))
    return found

  def _run_stage(
    self, task: tasks.Task, node: programs.StageNode, last: Collection[int]
  ) -> Any:
    start, stop = task.items
    place = self._context.place_of(task)
    if place is None:
      return self._run_on_host(task, node)
    leaves = []
    for v, axis in zip(node.inputs, node.axes):
      if axis is None:
        leaves.append(self._values[v].whole(place.replicated()))
      else:
        layout = place.sharding(axis, stop - start)
        leaves.append(self._values[v].read(start, stop, axis, layout))
    free = self._free(node, leaves, last)
    out = self._context.compiled.stage(node, place, free)(*leaves)
    self._give(node, start, stop, out)
    return out

  def _run_on_host(self, task: tasks.Task, node: programs.StageNode) -> Any:
    parts = [task.items]
    if not (node.is_barrier or task.is_call):
      whole = math.lcm(node.spec.quantum or 1, node.spec.groups)
      parts = _divided(task.items, len(task.devices), whole)

    def run(part: tuple[int, int]) -> None:
      leaves = [
        self._values[v].whole(None)
        if axis is None
        else self._values[v].read(*part, axis, None)
        for v, axis in zip(node.inputs, node.axes)
      ]
      self._give(node, *part, node.call.on_host(*leaves))

    _side_by_side(run, parts)
    return ()

  def _give(
    self, node: programs.StageNode, start: int, stop: int, out: Sequence[Any]
  ) -> None:
    for v, x in zip(node.outputs, out):
      if node.is_barrier:
        self._values[v].put(x)
      else:
        self._values[v].add(start, stop, x)

  def _free(
    self, node: programs.Node, leaves: Sequence[Any], last: Collection[int]
  ) -> tuple[int, ...]:
    """Forgets what is read for the last time; returns what to write over.

    By position. Only now, when all has been read: glue may have needed it.
    """
    return tuple(
      i
      for i, v in enumerate(node.inputs)
      if v in last and self._values[v].give_up(leaves[i])
    )

  def _run_loop(
    self, task: tasks.Task, node: programs.LoopNode, last: Collection[int]
  ) -> Any:
    place = self._context.place_of(task)
    assert place is not None
    division = self._context.graph.divisions.get(node.name)
    leaves = []
    for i, v in enumerate(node.inputs):
      axis = _outer_axis(node, i, division)
      size = 1 if division is None else division.items
      leaves.append(self._values[v].whole(place.sharding(axis, size)))
    free = self._free(node, leaves, last)
    out = self._context.compiled.loop(node, place, free)(*leaves)
    for v, x in zip(node.outputs, out):
      self._values[v].put(x)
    return out

  def _loop_state(self, node: programs.LoopNode) -> turns.LoopState:
    with self._lock:
      if node.name not in self._loops:
        self._loops[node.name] = turns.LoopState(
          self._context, node, self._values
        )
      return self._loops[node.name]

  def _swap(self, task: tasks.Task) -> Any:
    """Moves the state that a stage reads to host memory, or back.

    What the stage has made goes out in place of what it was made from, which
    is let go of where nobody else reads it.
    """
    known = self._context.machine.devices
    devices = frozenset(known[i] for i in task.devices if i < len(known))
    kind = _device_kind(known)
    made = self._context.made_state.get(task.stage, {})
    moved = []
    for i in self._context.graph.weights[task.stage]:
      value = self.given[i]
      if (
        task.kind == "swap_out" and i in made and self.outputs[i].is_complete()
      ):
        if made[i]:
          value.release()
        value = self.outputs[i]
      moved.append(value)
    if task.kind == "swap_out":
      kind = ledgers.SWAPPED_KIND
    num_bytes = values.swap(moved, devices, kind)
    if task.kind == "swap_in":
      num_bytes += self._brought.pop(task, 0)
    self._context.board.add_moved(num_bytes)
    return [value.held for value in moved if value.held is not None]

  def swapped_bytes(self, task: tasks.Task) -> int:
    """Returns the bytes that a swap would bring to each of its devices."""
    held = (value.held for value in self._swapped_out(task))
    return sum(ledgers.device_bytes(array) for array in held)

  def swap_early(self, task: tasks.Task) -> None:
    """Starts to bring back a stage's state; does not wait for it."""
    known = self._context.machine.devices
    devices = frozenset(known[i] for i in task.devices)
    self._brought[task] = values.swap(
      self._swapped_out(task), devices, _device_kind(known), wait=False
    )

  def _swapped_out(self, task: tasks.Task) -> list[values.Value]:
    weights = self._context.graph.weights[task.stage]
    return [
      value
      for value in (self.given[i] for i in weights)
      if isinstance(value.held, jax.Array)
      and value.held.sharding.memory_kind == ledgers.SWAPPED_KIND
    ]


def _device_kind(devices: Sequence[jax.Device]) -> str:
  return devices[0].default_memory().kind


def _divided(
  items: tuple[int, int], num_parts: int, whole: int
) -> list[tuple[int, int]]:
  """Returns items in at most so many equal parts, each of whole quanta."""
  start, stop = items
  size = -(-(stop - start) // (num_parts * whole)) * whole
  return [(a, min(a + size, stop)) for a in range(start, stop, size)]


def _side_by_side(
  run: Callable[[tuple[int, int]], None], parts: Sequence[tuple[int, int]]
) -> None:
  """Calls a function for each part, each on a thread; the first on this one.

  Threads are daemons: one that hangs does not keep the process from ending, as
  one of an executor of `concurrent.futures` does.
  """
  errors: list[BaseException] = []

  def catch(part: tuple[int, int]) -> None:
    try:
      run(part)
    except BaseException as error:  # noqa: BLE001  raised below
      errors.append(error)

  threads = [
    threading.Thread(target=catch, args=(part,), name="host", daemon=True)
    for part in parts[1:]
  ]
  for thread in threads:
    thread.start()
  catch(parts[0])
  for thread in threads:
    thread.join()
  if errors:
    raise errors[0]


def _outer_axis(
  node: programs.LoopNode, position: int, division: lanes.Division | None
) -> int | None:
  if division is None:
    return None
  axis = division.axes.get(node.body.inputs[position])
  if axis is None:
    return None
  return axis + int(position >= node.num_consts + node.num_carry)
