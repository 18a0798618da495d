"""Stages that are run to be measured, watched: they may fail, or hang."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from rlinf_jax.runtime import executor

T = TypeVar("T")


class Watch:
  """Runs calls one after another, and gives up those that hang.

  Args:
    deadline_s: how long nothing may happen within a call; see `beat`.
  """

  def __init__(self, deadline_s: float) -> None:
    self._deadline_s = deadline_s
    self._beat_s = time.monotonic()

  def beat(self) -> None:
    """Notes that a call goes on: its deadline begins anew."""
    self._beat_s = time.monotonic()

  def run(self, stage: str, fn: Callable[[], T], *, may_hang: bool) -> T:
    """Returns what a call returns.

    Args:
      stage: that it is of, for messages.
      fn: the call.
      may_hang: whether it calls a user's Python. It is then made on a thread of
        its own, which is left behind after the deadline.

    Raises:
      StageError: the call raised; its cause is what.
      DeadlineError: nothing has happened within the deadline.
    """
    try:
      return self._on_thread(stage, fn) if may_hang else fn()
    except (executor.StageError, executor.DeadlineError):
      raise
    except Exception as error:
      raise executor.StageError(
        f"stage '{stage}' failed when it was measured:"
        f" {type(error).__name__}: {error}"
      ) from error

  def _on_thread(self, stage: str, fn: Callable[[], T]) -> T:
    ended: queue.Queue[tuple[Any, BaseException | None]] = queue.Queue()

    def call() -> None:
      try:
        ended.put((fn(), None))
      except BaseException as error:  # noqa: BLE001  raised by the caller
        ended.put((None, error))

    self.beat()
    threading.Thread(target=call, name=f"measures {stage}", daemon=True).start()
    while True:
      patience = self._beat_s + self._deadline_s - time.monotonic()
      try:
        out, error = ended.get(timeout=max(patience, 0.01))
        break
      except queue.Empty:
        if time.monotonic() - self._beat_s < self._deadline_s:
          continue
        raise executor.DeadlineError(
          f"stage '{stage}' was run to be measured and has not returned for"
          f" {self._deadline_s:g} s; deadline_s of m2flow is how long it may"
          " take"
        ) from None
    if error is not None:
      raise error
    return out
