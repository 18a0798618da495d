"""Stages timed as an executor runs them, each by itself.

One iteration is run once and its values are kept. A stage is then run on them
through the very code that an executor calls: what is timed includes taking a
granule out of its batch, bringing it to the stage's devices, the glue before
it, and handing its results on.
"""

from __future__ import annotations

import dataclasses
import functools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax

from rlinf_jax.flow import calls, granules
from rlinf_jax.runtime import (
  contexts,
  executables,
  executor,
  graphs,
  iterations,
  ledgers,
  machines,
  programs,
  tasks,
  transport,
  values,
  watches,
)
from scheduler.devices import Devices

T = TypeVar("T")

MIN_REPEATS, MAX_REPEATS = 5, 15
SAMPLE_S = 0.05  # of running, after which repeating stops
LANE_S = 1.0  # of running, beyond which only some turns of a loop are run
MIN_TURNS = 8
# A repeat that takes so many times the median is an outlier.
OUTLIER = 2.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timing:
  """What a granule takes.

  Attributes:
    seconds: median of completed runs.
    cores: host cores kept busy meanwhile, by all of this process.
    num_bytes: temporaries and results, per device, by XLA's analysis.
    num_outliers: repeats that took more than twice the median.
  """

  seconds: float
  cores: float = 0.0
  num_bytes: int = 0
  num_outliers: int = 0


class Bench:
  """The values of one iteration, and stages that are run on them.

  Args:
    graph: the macro flow.
    machine: its devices.
    args: leaves of the arguments of one real iteration, which is run.
    compiled: where compiled stages are kept.
    deadline_s: how long a call of a stage may take.

  Raises:
    StageError: a stage failed; its cause is what it raised.
    DeadlineError: a stage did not return.
  """

  def __init__(
    self,
    graph: graphs.Graph,
    machine: machines.Machine,
    args: Sequence[Any],
    compiled: executables.Executables,
    *,
    deadline_s: float = executor.DEFAULT_DEADLINE_S,
  ) -> None:
    self._watch = watches.Watch(deadline_s)
    self._graph, self._machine, self._compiled = graph, machine, compiled
    self._program = graph.traced.program
    self._context = contexts.Context(
      graph, machine, _Uncounted(), compiled=compiled
    )
    self._home = executables.place_of(machine.devices[:1])
    self._known: dict[int, Any] = dict(
      zip(self._program.inputs, map(calls.as_array, args))
    )
    self._called_s: dict[str, float] = {}
    self._bytes: dict[str, int] = {}  # of nodes, whole on one device
    self._iterations: dict[int, iterations.Iteration] = {}
    self._glue_s: dict[str, float] = {}
    self._run_once(args)

  def stage(self, stage: str, granule: int, devices: int) -> Timing:
    """Returns what a granule of a stage outside of loops takes.

    Of a process stage the whole batch was timed once, when its values were
    made: its calls share one continuous batch, so that a granule is taken to
    need its share of that.
    """
    items = self._graph.workflow.stage(stage).items
    if stage in self._called_s:
      return Timing(seconds=self._called_s[stage] * granule / items)
    return self._watched(
      stage,
      self._graph.node_of(stage),
      lambda: self._timed(stage, granule, devices),
    )

  def fused(self, node: programs.LoopNode, devices: int) -> Timing:
    """Returns what a loop takes as one program."""
    first = node.body.nodes[0].name
    if node.name not in self._graph.divisions:
      return self.stage(node.name, 1, devices)
    items = self._graph.workflow.stage(first).items
    task = self._task(first, node, items, devices, kind="loop")
    iteration = self._iteration(devices)
    timing = self._watched(
      node.name, node, lambda: self._repeat(lambda: iteration.run(task))
    )
    if not timing.num_bytes and devices == 1:
      timing = dataclasses.replace(timing, num_bytes=self._bytes[node.name])
    return timing

  def lane(
    self, node: programs.LoopNode, granule: int, devices: int
  ) -> dict[str, Timing]:
    """Returns what a turn of one lane takes, by stage of a loop.

    What the last turn does besides, to hand on all of them, is divided among
    the turns. Of a loop of more than `LANE_S` only some turns are run.
    """
    return self._watched(
      node.name, node, lambda: self._timed_lane(node, granule, devices)
    )

  def between_iterations(self) -> float:
    """Returns seconds that beginning and reading out an iteration take."""
    whole = self._home.replicated()

    def read() -> Any:
      return [value.whole(whole) for value in self._make_iteration(1).outputs]

    return self._repeat(read).seconds

  def _timed(self, stage: str, granule: int, devices: int) -> Timing:
    node = self._graph.node_of(stage)
    items = self._graph.workflow.stage(stage).items
    task = self._task(stage, node, granule, devices)
    iteration = self._iteration(self._num_mesh(stage, devices))
    timing = self._repeat(lambda: iteration.run(task))
    if not timing.num_bytes and (granule, devices) == (items, 1):
      timing = dataclasses.replace(timing, num_bytes=self._bytes.get(stage, 0))
    if stage not in self._glue_s:
      first_s = statistics.median(
        self._clocked(functools.partial(fresh.run, task))[0]
        for fresh in (
          self._make_iteration(self._num_mesh(stage, devices))
          for _ in range(MIN_REPEATS)
        )
      )
      self._glue_s[stage] = max(0.0, first_s - timing.seconds)
    # Glue is computed once, by whoever reads it first.
    glue_s = self._glue_s[stage] * granule / items
    return dataclasses.replace(timing, seconds=timing.seconds + glue_s)

  def _timed_lane(
    self, node: programs.LoopNode, granule: int, devices: int
  ) -> dict[str, Timing]:
    made = len(self._compiled.compilations)
    turns = self._turns(node, granule, devices, 2)
    turn_s = sum(seconds[-1] for seconds, _ in turns.values())
    is_short = 2 * turn_s * node.length < LANE_S
    count = node.length if is_short else min(node.length, MIN_TURNS)
    if is_short:
      self._turns(node, granule, devices, count)  # compiles the last turn too
    new = self._compiled.compilations[made:]
    turns = self._turns(node, granule, devices, count)
    found = {}
    for name, (seconds, cpu_s) in turns.items():
      middle = statistics.median(seconds)
      own = [c for c in new if c.stage == name]
      found[name] = Timing(
        seconds=(middle * (count - 1) + seconds[-1]) / count,
        cores=sum(cpu_s) / max(sum(seconds), 1e-9),
        num_bytes=max((c.num_bytes for c in own), default=0),
        num_outliers=_num_outliers(seconds[:-1], middle),
      )
    return found

  def _run_once(self, args: Sequence[Any]) -> None:
    def stage_fn(node: programs.StageNode, leaves: list[Any]) -> Any:
      return self._watched(node.name, node, lambda: run_stage(node, leaves))

    def loop_fn(node: programs.LoopNode, leaves: list[Any]) -> Any:
      return self._watched(node.name, node, lambda: run_loop(node, leaves))

    def run_stage(node: programs.StageNode, leaves: list[Any]) -> Any:
      if node.spec.place != "mesh":
        out = node.call.on_host(*leaves)
        if node.spec.place == "process":
          # Again: the first call may have started what serves it.
          self._called_s[node.name], out = self._clocked(
            functools.partial(node.call.on_host, *leaves)
          )
      else:
        here = transport.send(leaves, self._home.replicated())
        out = self._compiled.stage(node, self._home)(*here)
        self._bytes[node.name] = self._compiled.compilations[-1].num_bytes
        if node.spec.reduces is not None:
          out = [_sum_quanta(x) for x in out]
      self._known.update(zip(node.outputs, out))
      return out

    def run_loop(node: programs.LoopNode, leaves: list[Any]) -> Any:
      here = transport.send(leaves, self._home.replicated())
      out = self._compiled.loop(node, self._home)(*here)
      self._bytes[node.name] = self._compiled.compilations[-1].num_bytes
      self._known.update(zip(node.outputs, out))
      return out

    programs.evaluate(
      self._program,
      args,
      stage_fn=stage_fn,
      loop_fn=loop_fn,
      glue_fn=self._compiled.glue,
    )

  def _watched(self, name: str, node: programs.Node, run: Callable[[], T]) -> T:
    """Runs a node, with a deadline where it calls a user's Python."""
    places = [node] if isinstance(node, programs.StageNode) else [
      inner for _, inner in programs.stage_nodes(node.body)
    ]  # fmt: skip
    may_hang = any(inner.spec.place != "mesh" for inner in places)
    return self._watch.run(name, run, may_hang=may_hang)

  def _iteration(self, devices: int) -> iterations.Iteration:
    if devices not in self._iterations:
      self._iterations[devices] = self._make_iteration(devices)
    return self._iterations[devices]

  def _make_iteration(self, devices: int) -> iterations.Iteration:
    """Returns an iteration that has run, its values laid out on devices.

    They lie as stages on so many devices leave them.
    """
    place = executables.place_of(self._machine.devices[:devices])
    program, num_state = self._program, self._graph.traced.num_state
    source = dict(zip(program.inputs, program.outputs[:num_state]))
    given = []
    for v in program.inputs:
      value = values.Value(
        self._context.board, self._context.ledger, what="input"
      )
      value.put(self._laid_out(v, source.get(v, v), place))
      given.append(value)
    made = iterations.Iteration(self._context, 0, given, given)
    for node in program.nodes:
      for v in node.outputs:
        made.put(v, self._laid_out(v, v, place))
    return made

  def _laid_out(self, v: int, maker: int, place: executables.Place) -> Any:
    """Returns a value where whoever makes `maker` leaves its results."""
    x = self._known[v]
    if not isinstance(x, jax.Array) or maker not in self._program.maker:
      return x
    node = self._program.nodes[self._program.maker[maker]]
    axis = graphs.out_axis(node, maker, self._graph.divisions)
    size = 1 if axis is None else x.shape[axis]
    self._known[v] = x = transport.send(x, place.sharding(axis, size))
    return x

  def _num_mesh(self, stage: str, devices: int) -> int:
    return devices if self._graph.place[stage] == "mesh" else 1

  def _task(
    self,
    stage: str,
    node: programs.Node,
    granule: int,
    devices: int,
    **fields: Any,
  ) -> tasks.Task:
    is_mesh = self._graph.place[stage] == "mesh"
    first = 0 if is_mesh else len(self._machine.devices)
    return tasks.Task(
      **{
        "kind": "compute",
        "stage": stage,
        "node": node,
        "inner": None,
        "items": (0, granule),
        "turn": 0,
        "devices": Devices.span(first, first + devices),
        "resources": (),
        "activities": (),
      }
      | fields
    )

  def _turns(
    self, node: programs.LoopNode, granule: int, devices: int, count: int
  ) -> dict[str, tuple[list[float], list[float]]]:
    """Returns seconds, and seconds of all cores, of each stage's turns."""
    iteration = self._make_iteration(devices)
    slots = self._machine.cluster.num_devices - len(self._machine.devices)
    found: dict[str, tuple[list[float], list[float]]] = {}
    for turn in range(count):
      for inner in node.body.nodes:
        is_mesh = self._graph.place[inner.name] == "mesh"
        on = devices if is_mesh else min(devices, slots)
        task = self._task(inner.name, node, granule, on, inner=inner, turn=turn)
        cpu = time.process_time()
        seconds, _ = self._clocked(functools.partial(iteration.run, task))
        all_s, all_cpu_s = found.setdefault(inner.name, ([], []))
        all_s.append(seconds)
        all_cpu_s.append(time.process_time() - cpu)
    return found

  def _repeat(self, run: Callable[[], Any]) -> Timing:
    made = len(self._compiled.compilations)
    self._clocked(run)
    new = self._compiled.compilations[made:]
    seconds: list[float] = []
    cpu = time.process_time()
    while len(seconds) < MIN_REPEATS or (
      sum(seconds) < SAMPLE_S and len(seconds) < MAX_REPEATS
    ):
      seconds.append(self._clocked(run)[0])
    cpu = time.process_time() - cpu
    middle = statistics.median(seconds)
    return Timing(
      seconds=middle,
      cores=cpu / max(sum(seconds), 1e-9),
      num_bytes=max((c.num_bytes for c in new), default=0),
      num_outliers=_num_outliers(seconds, middle),
    )

  def _clocked(self, run: Callable[[], Any]) -> tuple[float, Any]:
    self._watch.beat()
    start = time.perf_counter()
    out = jax.block_until_ready(run())
    return time.perf_counter() - start, out


class _Uncounted(ledgers.Ledger):
  """Keeps no account, which would keep the arrays of every repeat alive."""

  def add(self, array: Any, what: str) -> None:
    """Does nothing."""

  def remove(self, array: Any) -> None:
    """Does nothing."""


def _num_outliers(seconds: Sequence[float], middle: float) -> int:
  return sum(s > OUTLIER * middle for s in seconds)


_sum_quanta = jax.jit(granules.sum_quanta)
