"""Threads that run tasks, and where they take them from."""

from __future__ import annotations

import heapq
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from rlinf_jax.runtime import tasks
from scheduler.devices import Devices


class Pile:
  """Tasks that several workers take, those of most work first."""

  def __init__(self) -> None:
    self._changed = threading.Condition()
    self._heap: list[tuple[tuple[int, float], tasks.Key]] = []
    self._is_closed = False

  def put(self, weighed: list[tuple[float, tasks.Key]] | None) -> None:
    """Adds tasks with their weights; None: there will be no more."""
    with self._changed:
      self._is_closed |= weighed is None
      for weight, key in weighed or ():
        # Of an earlier iteration first, whatever its weight.
        heapq.heappush(self._heap, ((key[0], -weight), key))
      self._changed.notify_all()

  def get(self) -> tasks.Key | None:
    """Returns a task; waits for one. None: there will be no more."""
    with self._changed:
      self._changed.wait_for(lambda: self._heap or self._is_closed)
      return None if self._is_closed else heapq.heappop(self._heap)[1]


class Worker:
  """A thread that runs the tasks of one set of devices.

  Args:
    attempt_fn: runs a task, on devices where it is a shared one.
    keys: of the tasks to run; None is the last.
    task: one of them.
  """

  def __init__(
    self,
    attempt_fn: Callable[[tasks.Key, Devices | None], None],
    keys: queue.SimpleQueue[Any] | Pile,
    task: tasks.Task,
  ) -> None:
    self._attempt_fn, self._keys = attempt_fn, keys
    self._devices = task.devices if task.is_shared else None
    # A daemon: a stage that hangs must not keep the process from ending.
    self.thread = threading.Thread(
      target=self._loop,
      name=f"devices {task.devices}" if task.devices.spans else "link",
      daemon=True,
    )

  def _loop(self) -> None:
    while (key := self._keys.get()) is not None:
      self._attempt_fn(key, self._devices)


class Team:
  """The threads of a run: one for each set of devices, one for each call.

  Args:
    made: the tasks of an iteration.
    attempt_fn: runs a task, on devices where it is a shared one.
    weight_fn: how much work a shared task is.
  """

  def __init__(
    self,
    made: Sequence[tasks.Task],
    attempt_fn: Callable[[tasks.Key, Devices | None], None],
    weight_fn: Callable[[tasks.Key], float],
  ) -> None:
    self._tasks, self._attempt_fn, self._weight_fn = made, attempt_fn, weight_fn
    self._queues: dict[tuple[int, ...], queue.SimpleQueue[Any]] = {}
    self._piles: dict[str, Pile] = {}
    self._workers: dict[tuple[int, ...], Worker] = {}
    self._calls: list[threading.Thread] = []
    self._lock = threading.Lock()
    for task in made:
      if task.is_call or task.resources in self._workers:
        continue
      if task.is_shared:
        keys: Any = self._piles.setdefault(task.stage, Pile())
      else:
        keys = self._queues[task.resources] = queue.SimpleQueue()
      self._workers[task.resources] = Worker(attempt_fn, keys, task)
    for worker in self._workers.values():
      worker.thread.start()

  def hand_out(self, keys: Sequence[tasks.Key]) -> None:
    """Gives tasks to those who run them."""
    shared: dict[str, list[tuple[float, tasks.Key]]] = {}
    for key in keys:
      task = self._tasks[key[1]]
      if task.is_call:
        self._call(key, task)
      elif task.is_shared:
        weighed = shared.setdefault(task.stage, [])
        weighed.append((self._weight_fn(key), key))
      else:
        self._queues[task.resources].put(key)
    for stage, weighed in shared.items():
      # All at once, or a free set of devices would take the first of them.
      self._piles[stage].put(weighed)

  def close(self, patience_s: float) -> None:
    """Ends the threads; those that do not end in time are left to themselves.

    Args:
      patience_s: for all of them together.
    """
    for own in self._queues.values():
      own.put(None)
    for pile in self._piles.values():
      pile.put(None)
    deadline = time.monotonic() + patience_s
    threads = [worker.thread for worker in self._workers.values()]
    for thread in (*threads, *self._calls):
      thread.join(max(0.0, deadline - time.monotonic()))

  def _call(self, key: tasks.Key, task: tasks.Task) -> None:
    call = threading.Thread(
      target=self._attempt_fn,
      args=(key, None),
      name=f"call {task.name}",
      daemon=True,
    )
    with self._lock:
      self._calls = [c for c in self._calls if c.is_alive()]
      self._calls.append(call)
      call.start()
