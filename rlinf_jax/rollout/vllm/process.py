"""A process group that generates, and the channel to it."""

from __future__ import annotations

import os
import pathlib
import select
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rlinf_jax.rollout import engines
from rlinf_jax.rollout.vllm.child import wire

_LAST_LINES = 20
_LAST_BYTES = 1 << 16
# What a process may take to end by itself before it is killed.
_GRACE_S = 3.0

OnMessage = Callable[[wire.Message], None]


class ProcessError(engines.EngineError):
  """A process ended, or was silent for too long."""


class Process:
  """One process group, from its start to its end.

  It is told what to do by messages and answers by messages; while it lives it
  says so every second. Silence beyond the deadline ends it.

  Args:
    command: of the program; the numbers of its channel and of this process are
      appended.
    env: its environment.
    log_path: which all that it prints is appended to.
    deadline_s: how long it may say nothing.
  """

  def __init__(
    self,
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    log_path: pathlib.Path,
    deadline_s: float,
  ) -> None:
    self._log_path = log_path
    self._deadline_s = deadline_s
    self._send_lock = threading.Lock()
    self._end_lock = threading.Lock()
    self._channel, theirs = socket.socketpair()
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with theirs, log_path.open("ab") as log:
      self._log_begin = log.tell()
      # A session of its own: all that it starts ends with it, and Ctrl-C is
      # ours to handle.
      self._popen = subprocess.Popen(
        [*command, str(theirs.fileno()), str(os.getpid())],
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        pass_fds=(theirs.fileno(),),
        start_new_session=True,
      )
    self._reader: threading.Thread | None = None

  @property
  def pid(self) -> int:
    return self._popen.pid

  def start(
    self, settings: Mapping[str, Any], *, deadline_s: float
  ) -> wire.Message:
    """Returns its first message, for which it may take a time of its own.

    Raises:
      ProcessError: it ended, or was late; says what it last printed.
    """
    try:
      self._channel.settimeout(deadline_s)
      wire.send(self._channel, settings)
      message = wire.receive(self._channel)
      self._channel.settimeout(self._deadline_s)
    except TimeoutError:
      self.kill()
      raise self.error(f"did not start within {deadline_s:g} s") from None
    except OSError:
      message = None
    if message is None:
      self.kill()
      raise self.error("ended while it started")
    return message

  def listen(
    self, on_message: OnMessage, on_end: Callable[[ProcessError], None]
  ) -> None:
    """Has a thread call `on_message` for each message, and `on_end` last."""

    def read():
      reason = "sent what cannot be understood"
      try:
        while (message := wire.receive(self._channel)) is not None:
          on_message(message)
        reason = "ended"
      except TimeoutError:
        reason = f"said nothing for {self._deadline_s:g} s"
      except OSError:
        reason = "ended"
      finally:
        self.kill()
        on_end(self.error(reason))

    self._reader = threading.Thread(target=read, name="rollout", daemon=True)
    self._reader.start()

  def send(
    self,
    content: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray] | None = None,
  ) -> None:
    """Tells it something; what is lost because it ended, `on_end` tells."""
    with self._send_lock:
      try:
        wire.send(self._channel, content, arrays)
      except OSError:
        self.kill()

  def close(self) -> None:
    """Lets it end by itself, or else kills it, and all that it started."""
    try:
      self._channel.shutdown(socket.SHUT_RDWR)
    except OSError:
      pass  # it has ended
    self._await_end(_GRACE_S)
    self.kill()
    if self._reader is not None:
      self._reader.join()
    self._channel.close()

  def kill(self) -> None:
    """Kills it and what it started."""
    with self._end_lock:
      if self._popen.returncode is not None:
        return  # the group's number may be another's by now
      try:
        os.killpg(self._popen.pid, signal.SIGKILL)
      except ProcessLookupError:
        pass  # it has ended, and all that it started
      self._popen.wait()

  def error(self, reason: str) -> ProcessError:
    """Returns an error that says what it last printed, and where all is."""
    try:
      with self._log_path.open("rb") as log:
        size = log.seek(0, os.SEEK_END)
        log.seek(max(self._log_begin, size - _LAST_BYTES))
        lines = log.read().decode(errors="replace").splitlines()
    except OSError:
      lines = ["(it cannot be read)"]
    shown = "\n".join(lines[-_LAST_LINES:]) or "(it printed nothing)"
    return ProcessError(
      f"The rollout process {self._popen.pid} {reason}. Its log is"
      f" {self._log_path}, and ends with:\n{shown}"
    )

  def _await_end(self, deadline_s: float) -> None:
    with self._end_lock:
      if self._popen.returncode is not None:
        return
      file = os.pidfd_open(self._popen.pid)
    try:
      poll = select.poll()
      poll.register(file, select.POLLIN)
      poll.poll(1000 * deadline_s)
    finally:
      os.close(file)
