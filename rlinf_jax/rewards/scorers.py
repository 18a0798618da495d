"""Reward functions in processes that can be killed.

A checker of mathematics computes with whatever a model wrote, and some of that
takes for ever, in C code that no exception interrupts, or takes all memory. So
a function is called in processes of its own; one that is late is killed and
replaced, and its response is worth 0.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent import futures
from typing import Any, Literal, NamedTuple

import numpy as np

from rlinf_jax import types
from rlinf_jax.rewards import scores

_FOLDER = pathlib.Path(__file__).parent
_CHILD = _FOLDER / "child.py"

MATH = f"{_FOLDER / 'math_score.py'}:score"
GYM = f"{_FOLDER / 'gym_score.py'}:score"

# After so many failures and no success a reward function is taken for broken.
_HOPELESS = 16


class ScorerError(RuntimeError):
  """A reward function cannot be used: as it is, or since it was closed."""


class _Outcome(NamedTuple):
  kind: Literal["good", "hung", "crashed", "raised", "refused"]
  reward: float = 0.0
  text: str = ""
  is_usable: bool = True  # the process, for another response


class Scorers:
  """Processes that compute the rewards of responses.

  A context manager; use it in one, or call `close`. `score` may be called from
  several threads at once. The processes are killed with this one.

  Args:
    source: "path/to/file.py:NAME" of a reward function, or `MATH`, or `GYM`.
      The function is given an object with the fields of `types.Completion`,
      and imports what it needs itself. Metadata that JSON does not know, such
      as a time, come as text.
    num_processes: how many responses to score at once.
    deadline_s: for one response.
    start_deadline_s: for importing the file.
    memory_bytes: of address space, of each process; a function that wants more
      gets a MemoryError.

  Raises:
    ValueError: the source is not of that form, or there is no such file.
    ImportError: the file lacks the function, or what it imports is missing.
    ScorerError: the file raised another error, or was late.
  """

  def __init__(
    self,
    source: str,
    *,
    num_processes: int = 1,
    deadline_s: float = 5.0,
    start_deadline_s: float = 60.0,
    memory_bytes: int = 4 * 2**30,
  ):
    path, colon, name = source.rpartition(":")
    if not colon or not path.endswith(".py") or not name:
      raise ValueError(
        f"Given {source!r}, expected 'path/to/file.py:NAME': a Python file and "
        "a reward function that it defines."
      )
    file = pathlib.Path(path).expanduser().resolve()
    if not file.is_file():
      raise ValueError(
        f"There is no file {file}; the part before the colon of {source!r} is "
        "a path from the current folder."
      )
    if num_processes < 1:
      raise ValueError(
        f"Given num_processes={num_processes}, expected at least 1."
      )
    self._source = source
    self._deadline_s = deadline_s
    self._start_deadline_s = start_deadline_s
    self._settings = {
      "path": str(file),
      "name": name,
      "memory_bytes": memory_bytes,
    }
    self._lock = threading.Lock()
    self._is_closed = False
    self._has_succeeded = False
    self._num_failures = 0
    self._jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
    started: list[futures.Future[None]] = [
      futures.Future() for _ in range(num_processes)
    ]
    # A thread for each process, which lives as long as it: the kernel counts
    # the thread that started a process for its parent.
    self._threads = [
      threading.Thread(
        target=self._serve, args=(future,), name="scorer", daemon=True
      )
      for future in started
    ]
    for thread in self._threads:
      thread.start()
    try:
      for future in started:
        future.result()
    except BaseException:
      self.close()
      raise

  def __enter__(self) -> Scorers:
    return self

  def __exit__(self, *error: object) -> None:
    self.close()

  def score(self, completions: Sequence[types.Completion]) -> scores.Scores:
    """Returns the rewards of B responses, 0 for those that it failed on.

    Raises:
      ValueError: the function returned no finite number.
      ScorerError: these are closed, or the function has failed on every
        response since the start, and there were many.
    """
    pending: list[futures.Future[_Outcome]] = []
    with self._lock:
      if self._is_closed:
        raise ScorerError(f"The processes of {self._source} were closed.")
      for completion in completions:
        future: futures.Future[_Outcome] = futures.Future()
        pending.append(future)
        fields = dataclasses.asdict(completion)
        self._jobs.put((json.dumps(fields, default=str), future))
    outcomes = [future.result() for future in pending]
    for completion, outcome in zip(completions, outcomes):
      if outcome.kind == "refused":
        raise ValueError(scores.refusal(outcome.text, completion))
    kinds = [outcome.kind for outcome in outcomes]
    errors = [outcome.text for outcome in outcomes if outcome.kind == "raised"]
    result = scores.Scores(
      reward_b=np.array([outcome.reward for outcome in outcomes], np.float32),
      num_hung=kinds.count("hung"),
      num_crashed=kinds.count("crashed"),
      num_raised=kinds.count("raised"),
      first_error=errors[0] if errors else "",
    )
    self._give_up_if_hopeless(kinds, result)
    return result

  def close(self) -> None:
    """Ends the processes; responses that wait are not scored."""
    with self._lock:
      self._is_closed = True
      while True:
        try:
          job = self._jobs.get_nowait()
        except queue.Empty:
          break
        if job is not None:
          job[1].cancel()
      for _ in self._threads:
        self._jobs.put(None)
    for thread in self._threads:
      thread.join()

  def _give_up_if_hopeless(
    self, kinds: Sequence[str], result: scores.Scores
  ) -> None:
    with self._lock:
      num_good = kinds.count("good")
      self._has_succeeded |= num_good > 0
      self._num_failures += len(kinds) - num_good
      is_hopeless = not self._has_succeeded and self._num_failures >= _HOPELESS
    if is_hopeless:
      raise ScorerError(
        f"{self._source} failed on each of the first {self._num_failures} "
        f"responses (of the last {len(kinds)}: {result.num_hung} were late, "
        f"{result.num_crashed} ended the process, {result.num_raised} raised "
        f"an error). {result.first_error}".rstrip()
      )

  def _serve(self, started: futures.Future[None]) -> None:
    """Scores what waits, in a process that is replaced when need be."""
    process: _Process | None = None
    try:
      process = self._start()
    except Exception as error:  # noqa: BLE001  raised by the constructor
      started.set_exception(error)
      return
    started.set_result(None)
    while (job := self._jobs.get()) is not None:
      request, future = job
      if not future.set_running_or_notify_cancel():
        continue
      try:
        if process is not None and process.has_ended():
          process.kill()
          process = None
        if process is None:
          process = self._start()
        outcome = process.ask(request, deadline_s=self._deadline_s)
      except Exception as error:  # noqa: BLE001  raised by `score`
        future.set_exception(error)
        continue
      if not outcome.is_usable:
        process.kill()
        process = None
      future.set_result(outcome)
    if process is not None:
      process.kill()

  def _start(self) -> _Process:
    process = _Process()
    try:
      process.load(self._settings, deadline_s=self._start_deadline_s)
    except BaseException:
      process.kill()
      raise
    return process


class _Process:
  """A `child` and the channel to it."""

  def __init__(self) -> None:
    # -P: this folder must not be searched for modules. A session of its own:
    # what the function starts is killed with it, and Ctrl-C is ours to handle.
    popen: Any = subprocess.Popen(
      [sys.executable, "-P", str(_CHILD)],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      start_new_session=True,
    )
    self._popen = popen
    self._output = self._popen.stdout.fileno()
    self._poll = select.poll()
    self._poll.register(self._output, select.POLLIN)
    self._unread = b""

  def has_ended(self) -> bool:
    """Whether the process is no more."""
    # Left a zombie, so that the group that `kill` names is still this one.
    options = os.WEXITED | os.WNOHANG | os.WNOWAIT
    return os.waitid(os.P_PID, self._popen.pid, options) is not None

  def load(self, settings: dict[str, Any], *, deadline_s: float) -> None:
    """Has the process import the reward function."""
    where = f"{settings['path']}:{settings['name']}"
    reply = self._exchange(json.dumps(settings), deadline_s)
    if reply == "hung":
      raise ScorerError(
        f"{where} was not imported within {deadline_s} s. If that is how long "
        "it takes, give it more."
      )
    if reply == "crashed":
      raise ScorerError(
        f"The process that imports {where} ended by itself; what it said is on "
        "stderr."
      )
    if isinstance(reply, dict) and "error" in reply:
      error = ImportError if reply["is_import"] else ScorerError
      raise error(f"{where} cannot be loaded.\n{reply['error']}")

  def ask(self, request: str, *, deadline_s: float) -> _Outcome:
    """Returns what the function makes of a completion."""
    reply = self._exchange(request, deadline_s)
    if reply == "hung" or reply == "crashed":
      return _Outcome(reply, is_usable=False)
    if "reward" in reply:
      return _Outcome("good", reward=reply["reward"])
    if "refused" in reply:
      return _Outcome("refused", text=reply["refused"])
    is_usable = not reply.get("is_last", False)
    return _Outcome("raised", text=reply["raised"], is_usable=is_usable)

  def kill(self) -> None:
    """Kills the process and what it started."""
    try:
      os.killpg(self._popen.pid, signal.SIGKILL)
    except ProcessLookupError:
      pass  # it has ended, and all that it started
    self._popen.wait()
    self._popen.stdout.close()
    try:
      self._popen.stdin.close()
    except BrokenPipeError:
      pass  # what it did not read is lost

  def _exchange(
    self, request: str, deadline_s: float
  ) -> dict[str, Any] | Literal["hung", "crashed"]:
    end_s = time.monotonic() + deadline_s
    try:
      # It waits for a request whenever it has answered: this does not block.
      self._popen.stdin.write(request.encode() + b"\n")
      self._popen.stdin.flush()
    except BrokenPipeError:
      return "crashed"
    while b"\n" not in self._unread:
      left_s = end_s - time.monotonic()
      if left_s <= 0 or not self._poll.poll(1000 * left_s):
        return "hung"
      data = os.read(self._output, 65536)
      if not data:
        return "crashed"
      self._unread += data
    line, _, self._unread = self._unread.partition(b"\n")
    return json.loads(line)
