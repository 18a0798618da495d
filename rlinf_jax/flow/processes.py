"""Functions whose calls are killed when they take too long.

A thread cannot be ended from outside, so each call runs in a process that can.
Processes are spawned, not forked: a fork beside JAX's threads may never return.
"""

from __future__ import annotations

import ctypes
import importlib
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent import futures
from multiprocessing import connection
from typing import Any

import jax

START_DEADLINE_S = 120.0
_PR_SET_PDEATHSIG = 1


class Killable:
  """A function of NumPy arrays whose calls run in processes of their own.

  As many processes as there are calls at once are kept for later ones; they are
  killed with this one.

  Args:
    fn: of a module's top level, where the processes import it from.
    name: of the stage, for messages.
    deadline_s: after which a call is killed. Starting a process and importing
      the module is not counted; it may take `START_DEADLINE_S`.

  Raises:
    ValueError: the processes could not import the function.
  """

  def __init__(
    self, fn: Callable[..., Any], name: str, deadline_s: float
  ) -> None:
    where = getattr(fn, "__qualname__", "<locals>")
    if "<locals>" in where or "<lambda>" in where:
      raise ValueError(
        f"stage '{name}' has deadline_s, but its function, {fn!r}, cannot be"
        " imported by another process; define it at the top level of a module"
      )
    self.fn, self._name, self._deadline_s = fn, name, deadline_s
    self._where = (fn.__module__, where)
    self._idle: list[_Process] = []
    self._lock = threading.Lock()
    # The kernel counts the thread that started a process for its parent, and
    # ends the process with it: calls come from threads that end.
    self._starter = futures.ThreadPoolExecutor(1, "starts processes")

  def __call__(self, *args: Any) -> Any:
    """Returns what the function returns.

    Raises:
      TimeoutError: it took longer than the deadline, and was killed.
      RuntimeError: its process ended by itself, or could not start.
      whatever the function raises.
    """
    with self._lock:
      process = self._idle.pop() if self._idle else None
    if process is None or not process.is_alive():
      process = self._start()
    try:
      kind, result = process.exchange(args, self._deadline_s)
    except BaseException:
      process.kill()
      raise
    if kind in ("late", "ended"):
      process.kill()
      raise self._error(kind, process)
    with self._lock:
      self._idle.append(process)
    if kind == "raised":
      raise result
    return result

  def _start(self) -> _Process:
    process = self._starter.submit(_Process, self._where).result()
    kind, result = process.exchange(None, START_DEADLINE_S)
    if kind != "good":
      process.kill()
      module, name = self._where
      raise RuntimeError(
        f"a process for stage '{self._name}' could not import '{name}' from"
        f" module '{module}': it {result if kind == 'raised' else kind}"
      )
    return process

  def _error(self, kind: str, process: _Process) -> Exception:
    if kind == "late":
      return TimeoutError(
        f"stage '{self._name}' did not return within {self._deadline_s:g} s,"
        " and was killed"
      )
    return RuntimeError(
      f"stage '{self._name}' ended its process, with exit code"
      f" {process.exit_code}; what it said is on stderr"
    )


class _Process:
  """A process that serves calls, and the channel to it."""

  def __init__(self, where: tuple[str, str]) -> None:
    spawn = multiprocessing.get_context("spawn")
    self._channel, theirs = spawn.Pipe()
    self._process = spawn.Process(
      target=_serve, args=(theirs, *where), daemon=True
    )
    self._process.start()
    theirs.close()

  @property
  def exit_code(self) -> int | None:
    return self._process.exitcode

  def is_alive(self) -> bool:
    return self._process.is_alive()

  def exchange(self, args: Any, deadline_s: float) -> tuple[str, Any]:
    """Sends a call; returns "good" or "raised" and what, "late" or "ended".

    It is killed when it is late: sending what is large to a process that does
    not read, or reading half of a result, ends by nothing else.
    """
    is_late = threading.Event()

    def end() -> None:
      is_late.set()
      self._end()

    timer = threading.Timer(deadline_s, end)
    timer.daemon = True
    timer.start()
    try:
      self._channel.send(args)
      return self._channel.recv()
    except (EOFError, BrokenPipeError, ConnectionResetError):
      return ("late" if is_late.is_set() else "ended"), None
    except OSError:  # in the middle of a result
      if not is_late.is_set():
        raise
      return "late", None
    finally:
      timer.cancel()

  def _end(self) -> None:
    try:
      os.killpg(self._process.pid or 0, signal.SIGKILL)
    except ProcessLookupError:
      self._process.kill()  # it had no group yet, or has ended

  def kill(self) -> None:
    """Kills the process and what it started."""
    self._end()
    self._process.join()
    self._channel.close()


def _serve(channel: connection.Connection, module: str, name: str) -> None:
  """Answers calls until the channel closes; runs in the process."""
  ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
  os.setsid()  # what a call starts is killed with it, and Ctrl-C is not ours
  jax.config.update("jax_platforms", "cpu")  # the devices are the parent's
  found: Any = None
  while True:
    try:
      args = channel.recv()
    except EOFError:
      return
    reply: tuple[str, Any] = ("good", None)
    try:
      if args is None:
        found = _find(module, name)
      else:
        reply = ("good", found(*args))
    except Exception as error:  # noqa: BLE001  raised by the caller
      error.add_note(traceback.format_exc())
      reply = ("raised", _picklable(error))
    channel.send(reply)


def _find(module: str, name: str) -> Callable[..., Any]:
  found: Any = sys.modules.get(module) or importlib.import_module(module)
  for part in name.split("."):
    found = getattr(found, part)
  while hasattr(found, "fn"):  # it is decorated, as a stage
    found = found.fn
  return found


def _picklable(error: Exception) -> Exception:
  try:
    pickle.loads(pickle.dumps(error))
  except Exception:  # noqa: BLE001  an exception's own code runs
    return RuntimeError("".join(traceback.format_exception(error)))
  return error
