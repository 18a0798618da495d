"""Threads that run tasks, and where they take them from."""

from __future__ import annotations

import heapq
import queue
import threading
from collections.abc import Callable
from typing import Any

from rlinf_jax.runtime import assignments, tasks
from scheduler.devices import Devices


class Pile:
  """Tasks that several workers take, those of most work first."""

  def __init__(self) -> None:
    self._changed = threading.Condition()
    self._heap: list[tuple[tuple[int, float], assignments.Key]] = []
    self._is_closed = False

  def put(self, weighed: list[tuple[float, assignments.Key]] | None) -> None:
    """Adds tasks with their weights; None: there will be no more."""
    with self._changed:
      self._is_closed |= weighed is None
      for weight, key in weighed or ():
        # Of an earlier iteration first, whatever its weight.
        heapq.heappush(self._heap, ((key[0], -weight), key))
      self._changed.notify_all()

  def get(self) -> assignments.Key | None:
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
    attempt_fn: Callable[[assignments.Key, Devices | None], None],
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
