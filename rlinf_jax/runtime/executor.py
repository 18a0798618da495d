"""Executes a flat plan: one thread for each set of devices.

A task is handed to its devices' thread when everything that it waits for has
happened: the plan's arcs and the cyclic orders of its resources, across
iterations. The thread runs it and waits for its results, so that a task's end
is the end of its computation; what the plan lets overlap runs on other devices,
on other threads. Each call of a process stage has a thread of its own, and ends
as `streams` says.
"""

from __future__ import annotations

import contextlib
import dataclasses
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from rlinf_jax.flow import calls
from rlinf_jax.runtime import (
  assignments,
  channels,
  contexts,
  donation,
  elasticity,
  executables,
  graphs,
  iterations,
  ledgers,
  machines,
  prefetching,
  readiness,
  tasks,
  workers,
)
from rlinf_jax.runtime import values as values_lib
from scheduler import timelines
from scheduler.devices import Devices

DEFAULT_DEADLINE_S = 600.0
KEPT_ITERATIONS = 512  # of a timeline, which would grow for days
JOIN_S = 5.0


class StageError(RuntimeError):
  """A stage failed; `__cause__` is what it raised."""


class DeadlineError(TimeoutError):
  """A flow did not go on within its deadline."""


@dataclasses.dataclass(frozen=True, slots=True)
class Done:
  """One finished iteration.

  Attributes:
    index: from 0.
    outputs: of the program, flat.
  """

  index: int
  outputs: tuple[Any, ...]


class Executor:
  """Runs iterations of a macro flow under a plan.

  Args:
    graph: the macro flow.
    plan: what runs when and where.
    machine: on what.
    budget_bytes: per device, see `ledgers.Ledger`; None: no limit.
    deadline_s: how long nothing may happen before the flow is given up.
    compiled: stages that are compiled already.
    channel_budget: see `channels.Channels`.
    seconds_fn: predicts a granule; with it, devices that have nothing left to
      do in an iteration are given to a stage that has.
    donate: whether stages may write over the state that they read last, see
      `donation.donors`.

  Attributes:
    timeline: what the last `KEPT_ITERATIONS` of the last call did.
  """

  def __init__(
    self,
    graph: graphs.Graph,
    plan: tasks.TaskPlan,
    machine: machines.Machine,
    *,
    compiled: executables.Executables,
    seconds_fn: elasticity.SecondsFn | None = None,
    budget_bytes: int | None = None,
    deadline_s: float = DEFAULT_DEADLINE_S,
    channel_budget: float | None = None,
    donate: bool = False,
  ) -> None:
    self.donors = donation.donors(plan, graph) if donate else {}
    self.channel_budget = channel_budget
    self.graph, self.plan, self.machine = graph, plan, machine
    self.deadline_s = deadline_s
    host_bytes = machine.cluster.nodes[0].host_bytes
    self.ledger = ledgers.Ledger(budget_bytes, host_bytes)
    self.context = contexts.Context(
      graph, machine, self.ledger, compiled=compiled
    )
    self.assignments = assignments.Assignments(plan, graph, machine, seconds_fn)
    self.timeline = timelines.Timeline(source="measured", events=())

  def scale(self, stage: str, devices: Devices | None) -> None:
    """Gives a stage other devices, for granules that have not begun.

    Of iterations under way too; the plan's orders and granules stay. What the
    stage reads is brought to the new devices when it is first read there.

    Args:
      stage: of the workflow; a loop that runs as one program moves whole.
      devices: cluster numbers, all of the stage's kind. Others may use them:
        one task at a time has a device. None: as the plan says.

    Raises:
      ValueError: there is no such stage, or it cannot be there.
    """
    self.assignments.scale(stage, devices)

  def iterate(
    self, state: Sequence[Any], inputs: Iterator[Sequence[Any]]
  ) -> Iterator[Done]:
    """Yields iterations in order; up to 1 + staleness of them overlap.

    Args:
      state: the first state's leaves.
      inputs: the other arguments' leaves of each iteration.

    Raises:
      StageError: a stage failed. Nothing is left running.
      DeadlineError: nothing has happened for `deadline_s`.
    """
    run = _Run(self, state, inputs)
    del state  # it is not to stay in memory as long as this runs
    try:
      yield from run.iterations()
    finally:
      run.close()
      self.timeline = run.timeline()


class _Run:
  """The moving parts of one call of `Executor.iterate`."""

  def __init__(
    self,
    executor: Executor,
    state: Sequence[Any],
    inputs: Iterator[Sequence[Any]],
  ) -> None:
    self._x = executor
    self._plan = executor.plan
    self._tasks = executor.plan.tasks
    self._context = executor.context
    self._board = values_lib.Board()
    self._context.board = self._board
    self._inputs = inputs
    self._staleness = executor.graph.workflow.staleness
    self._num_state = executor.graph.traced.num_state
    given = executor.graph.traced.program.inputs
    donated = {v for values in executor.donors.values() for v in values}
    # The first state is the caller's: it is not written over.
    self._state0 = [
      self._given(x.copy() if v in donated else x, "state")
      for v, x in zip(given, map(calls.as_array, state))
    ]
    self._alive: dict[int, iterations.Iteration] = {}
    self._assignments = executor.assignments
    self._assignments.clear()
    self._states: dict[int, list[values_lib.Value]] = {0: self._state0}
    self._begun = 0
    self._is_last: int | None = None
    self._readiness = readiness.Readiness(executor.plan)
    self._channels = channels.Channels(
      executor.plan, executor.graph, executor.channel_budget
    )
    self._prefetching = prefetching.Prefetching(
      executor.plan,
      executor.machine,
      executor.ledger,
      executor.context.compiled,
    )
    self._left: dict[int, int] = {}
    self._finished: queue.Queue[int | None] = queue.Queue()
    self._lock = threading.Lock()
    self._devices = [
      threading.Lock() for _ in range(executor.machine.cluster.num_devices)
    ]
    self._error: BaseException | None = None
    self._is_stalled = False
    self._progress_s = time.monotonic()
    self._running: dict[int, str] = {}
    self._events: list[timelines.Event] = []
    self._zero_ns = time.perf_counter_ns()
    self._team = workers.Team(self._tasks, self.attempt, self._weight)

  def iterations(self) -> Iterator[Done]:
    for _ in range(1 + self._staleness):
      self._begin()
    index = 0
    while self._is_last is None or index < self._is_last:
      self._wait_for(index)
      yield Done(index, self._read(self._alive[index].outputs))
      self._retire(index)
      self._begin()
      index += 1

  @property
  def is_stopped(self) -> bool:
    return self._board.is_stopped

  def close(self) -> None:
    self._board.stop()
    # A stage that stalls does not come back: it is left to its daemon thread.
    self._team.close(0.1 if self._is_stalled else JOIN_S)
    held = [v for state in self._states.values() for v in state]
    for iteration in self._alive.values():
      iteration.release(())
      held += iteration.given
    for value in held:
      value.release()

  def timeline(self) -> timelines.Timeline:
    events = tuple(
      sorted(self._events, key=lambda e: (e.start_ns, e.stop_ns, e.index))
    )
    whole = timelines.Timeline(
      source="measured", events=events, label=self._plan.plan.label
    )
    return timelines.last_iterations(whole, KEPT_ITERATIONS)

  def run_task(self, key: tasks.Key, devices: Devices | None) -> None:
    """Runs one task of one iteration on the calling thread.

    Args:
      key: iteration and task.
      devices: that take it, where several share its stage.
    """
    iteration, t = key
    with self._lock:
      if devices is not None:
        self._assignments.take(key, devices)
      task = self._assignments.task(key)
      self._running[threading.get_ident()] = (
        f"{task.name}, iteration {iteration}"
      )
      ready = self._readiness.start(key)
    self._channels.taken(key, task, self._alive[iteration])
    self._hand_out(ready)
    with self._held(task):
      start_ns = time.perf_counter_ns() - self._zero_ns
      self._board.take_moved()
      self._prefetch(key, task)
      jax.block_until_ready(self._result_of(key, task))
      stop_ns = time.perf_counter_ns() - self._zero_ns
    self._channels.made(key, task, self._alive[iteration])
    first = self._plan.plan.activities[task.activities[0]]
    event = timelines.Event(
      kind=first.kind,
      stage=task.stage,
      iteration=iteration,
      resources=self._assignments.resources(task),
      start_ns=start_ns,
      stop_ns=stop_ns,
      items=task.items,
      index=task.activities[0],
      target=first.target,
      num_bytes=self._board.take_moved(),
    )
    ready = []
    with self._lock:
      if self.is_stopped:
        return  # late: the next run may have begun
      self._events.append(event)
      self._running.pop(threading.get_ident(), None)
      self._progress_s = time.monotonic()
      ended = self._assignments.finish(key)
      for t in ended:
        ready += self._readiness.end((iteration, t))
      if len(self._alive) == 1:  # those that overlap need all devices
        self._assignments.grow(
          iteration, self._readiness.ended, self._readiness.started
        )
      self._left[iteration] -= len(ended)
      is_done = bool(ended) and self._left[iteration] == 0
    self._hand_out(ready)
    if is_done:
      self._finished.put(iteration)

  def attempt(self, key: tasks.Key, devices: Devices | None = None) -> None:
    """Runs a task, unless the flow is stopped; its error is the flow's."""
    if self.is_stopped:
      return
    try:
      self.run_task(key, devices)
    except BaseException as error:  # noqa: BLE001
      # Whatever a user's stage raises is the flow's error, and is raised
      # where the flow was called.
      self.fail(key, error)

  def fail(self, key: tasks.Key, error: BaseException) -> None:
    """Keeps the first error and stops everyone."""
    with self._lock:
      if self._error is None and not isinstance(error, values_lib.Stopped):
        iteration, task = key[0], self._assignments.task(key)
        self._error = StageError(
          f"stage '{task.stage}' failed on items {task.items[0]} to"
          f" {task.items[1]} of iteration {iteration}, on devices"
          f" '{task.devices}': {type(error).__name__}: {error}"
        )
        self._error.__cause__ = error
    self._board.stop()
    self._finished.put(None)

  @contextlib.contextmanager
  def _held(self, task: tasks.Task) -> Iterator[None]:
    """Holds a task's devices: the plan's orders do not know of scaling."""
    locks = [] if task.is_call else [self._devices[i] for i in task.devices]
    for lock in locks:  # of rising devices: nobody waits in a circle
      lock.acquire()
    try:
      yield
    finally:
      for lock in locks:
        lock.release()

  def _result_of(self, key: tasks.Key, task: tasks.Task) -> Any:
    """Runs a task; returns arrays whose completion is the task's."""
    iteration, t = key
    alive = self._alive[iteration]
    out = alive.run(task, self._x.donors.get(t, ()))
    if t not in self._plan.ahead:
      return out
    with self._lock:
      readers = [
        self._assignments.task((iteration, r))
        for r in self._plan.ahead[t]
        if self._assignments.is_known((iteration, r))
      ]
    return [alive.send_ahead(task, reader) for reader in readers]

  def _prefetch(self, key: tasks.Key, task: tasks.Task) -> None:
    """Starts the swaps that come after a task, if there is room for them."""
    for t, lag in self._prefetching.behind(key[1]):
      later = self._alive.get(key[0] + lag)
      swap = self._tasks[t]
      num_bytes = 0 if later is None else later.swapped_bytes(swap)
      if later and num_bytes and self._prefetching.has_room(task, num_bytes):
        later.swap_early(swap)

  def _given(self, x: Any, what: str) -> values_lib.Value:
    value = values_lib.Value(self._board, self._context.ledger, what=what)
    value.put(calls.as_array(x))
    return value

  def _read(self, outputs: Sequence[values_lib.Value]) -> tuple[Any, ...]:
    """Returns what an iteration has made, all of it in one place."""
    home = self._home(outputs[: self._num_state])
    try:
      return tuple(value.given_to_caller(home) for value in outputs)
    except values_lib.Stopped:
      raise self._error or RuntimeError("the flow was stopped") from None

  def _home(
    self, state: Sequence[values_lib.Value]
  ) -> jax.sharding.Sharding | None:
    """Returns where the caller finds results: with most of the state's bytes.

    In host memory (None) if devices have a budget: on them a copy might not
    fit, and no planner knows of it.
    """
    if self._x.ledger.budget_bytes is not None:
      return None
    sizes: dict[frozenset[Any], int] = {}
    for array in (value.held for value in state):
      if isinstance(array, jax.Array):
        where = frozenset(array.sharding.device_set)
        sizes[where] = sizes.get(where, 0) + array.nbytes
    known = self._x.machine.devices
    most = max(sizes, key=lambda k: sizes[k], default=frozenset(known[:1]))
    there = tuple(device for device in known if device in most)
    return executables.place_of(there or known[:1]).replicated()

  def _begin(self) -> None:
    """Lets one more iteration run, if there is input for it."""
    if self._is_last is not None:
      return
    try:
      given = next(self._inputs)
    except StopIteration:
      self._stop_at(self._begun)
      return
    i = self._begun
    state = self._states[i]
    inputs = [self._given(x, "input") for x in given]
    stale = self._states[max(i - self._staleness, 0)]
    iteration = iterations.Iteration(
      self._context, i, [*state, *inputs], [*stale, *inputs]
    )
    self._states[i + 1] = iteration.outputs[: self._num_state]
    with self._lock:
      self._progress_s = time.monotonic()
      self._alive[i] = iteration
      self._assignments.begin(i)
      self._left[i] = len(self._tasks)
      self._begun += 1
      ready = self._readiness.begin(i)
    self._hand_out(ready)

  def _stop_at(self, count: int) -> None:
    """No iteration from `count` on will run: nobody waits for one."""
    with self._lock:
      self._is_last = count
      freed = self._readiness.stop_at(count)
    self._hand_out(freed)

  def _hand_out(self, ready: Sequence[tasks.Key]) -> None:
    with self._lock:
      admitted = self._channels.admit(ready, self._readiness)
    self._team.hand_out(admitted)

  def _weight(self, key: tasks.Key) -> float:
    with self._lock:
      task = self._assignments.task(key)
    return self._alive[key[0]].weight(task)

  def _wait_for(self, index: int) -> None:
    while self._left.get(index, 0):
      patience = self._progress_s + self._x.deadline_s - time.monotonic()
      try:
        if self._finished.get(timeout=max(patience, 0.01)) is None:
          raise self._error or RuntimeError("the flow was stopped")
      except queue.Empty:
        if time.monotonic() - self._progress_s < self._x.deadline_s:
          continue
        with self._lock:
          running = sorted(self._running.values())
          waiting = [
            f"{self._tasks[t].name}, iteration {i}"
            for i, t in (*self._channels.held, *self._readiness.waiting())
          ]
        self._board.stop()
        self._is_stalled = True
        raise DeadlineError(
          f"nothing has finished for {self._x.deadline_s:g} s; running:"
          f" {running or 'nothing'}; waiting: {waiting[:4] or 'nothing'}"
        ) from None

  def _retire(self, index: int) -> None:
    """Forgets what later iterations do not read."""
    oldest = max(index + 1 - self._staleness, 0)
    keep = [v for i, s in self._states.items() if i >= oldest for v in s]
    done = self._alive.pop(index)
    done.release(keep)
    for value in done.given[self._num_state :]:
      value.release()
    kept = {id(v) for v in keep}
    for i in [i for i in self._states if i < oldest]:
      for value in self._states.pop(i):
        if id(value) not in kept:
          value.release()
    with self._lock:
      if index % KEPT_ITERATIONS == 0:
        oldest = index - KEPT_ITERATIONS
        self._events = [e for e in self._events if e.iteration > oldest]
      self._assignments.retire(index)
      self._readiness.retire(index)
      self._channels.retire(index)
