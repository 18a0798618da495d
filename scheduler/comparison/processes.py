"""Work in processes of its own, which a time limit can end."""

from __future__ import annotations

import collections
import multiprocessing
import signal
import time
from collections.abc import Callable, Iterable
from multiprocessing import connection, context
from typing import Any, Literal, NamedTuple, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Failure(NamedTuple):
  """Why a task gave no result."""

  status: Literal["timeout", "error"]
  message: str


def run_all(
  tasks: Iterable[T],
  work_fn: Callable[[T], R],
  done_fn: Callable[[T, R | Failure], None],
  *,
  num_workers: int,
  time_limit_s: float,
) -> None:
  """Runs tasks, each in a forked process, some at a time.

  A task that takes too long, dies or raises does not disturb the others. All
  processes have ended when this returns or raises.

  Args:
    tasks: in the order in which they are begun.
    work_fn: from a task to its result, which can be pickled.
    done_fn: called here with each task and what came of it.
    num_workers: processes at a time.
    time_limit_s: of each task.
  """
  waiting = collections.deque(tasks)
  running: dict[Any, tuple[T, Any, float]] = {}
  forks = multiprocessing.get_context("fork")
  try:
    while waiting or running:
      while waiting and len(running) < num_workers:
        task = waiting.popleft()
        receiver, process = _start(forks, work_fn, task)
        running[receiver] = task, process, time.monotonic() + time_limit_s
      nearest_s = min(deadline_s for *_, deadline_s in running.values())
      timeout_s = max(0.0, nearest_s - time.monotonic())
      for receiver in connection.wait(list(running), timeout_s):
        task, process, _ = running.pop(receiver)
        done_fn(task, _received(receiver, process))
      for receiver in [
        r for r, t in running.items() if t[2] < time.monotonic()
      ]:
        task, process, _ = running.pop(receiver)
        _end(receiver, process)
        message = f"it took more than {time_limit_s:g} s"
        done_fn(task, Failure("timeout", message))
  finally:
    for receiver, (_, process, _) in running.items():
      _end(receiver, process)


def _start(
  forks: context.ForkContext, work_fn: Callable[[T], R], task: T
) -> tuple[Any, Any]:
  receiver, sender = forks.Pipe(duplex=False)
  process = forks.Process(target=_work, args=(work_fn, task, sender))
  process.start()
  sender.close()
  return receiver, process


def _work(work_fn: Callable[[T], R], task: T, sender: Any) -> None:
  result: R | Failure
  signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends it
  try:
    result = work_fn(task)
  except Exception as error:  # noqa: BLE001 - whatever a planner raises
    result = Failure("error", f"{type(error).__name__}: {error}")
  sender.send(result)


def _received(receiver: Any, process: Any) -> Any:
  try:
    result = receiver.recv()
  except EOFError:
    process.join()
    result = Failure("error", f"its process ended with {process.exitcode}")
  _end(receiver, process)
  return result


def _end(receiver: Any, process: Any) -> None:
  process.join(0 if process.exitcode is None else None)
  if process.is_alive():
    process.kill()
  process.join()
  process.close()
  receiver.close()
