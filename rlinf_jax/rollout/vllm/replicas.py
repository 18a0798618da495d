"""A place for one process, which is replaced when it ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent import futures
from typing import NamedTuple

from absl import logging

from rlinf_jax.rollout import engines
from rlinf_jax.rollout.vllm import calls, process, versions
from rlinf_jax.rollout.vllm.child import wire

StartFn = Callable[[], process.Process]


class Failures:
  """Ends of processes in a row, between which no sample came.

  Args:
    limit: how many are borne.
  """

  def __init__(self, limit: int) -> None:
    self._limit = limit
    self._lock = threading.Lock()
    self._errors: list[process.ProcessError] = []

  def add(self, error: process.ProcessError) -> None:
    with self._lock:
      self._errors.append(error)

  def clear(self) -> None:
    with self._lock:
      self._errors.clear()

  def check(self) -> None:
    """Raises the first error, where there were too many."""
    with self._lock:
      if len(self._errors) <= self._limit:
        return
      first = self._errors[0]
    raise engines.EngineError(
      f"Generation failed {self._limit + 1} times in a row, with no sample"
      f" between. The first time: {first}"
    ) from first


class _Load(NamedTuple):
  """A version that a process was told to load."""

  published: versions.Published
  future: futures.Future[None]
  asked_s: float


class Replica:
  """What holds a copy of the weights and generates.

  Args:
    start_fn: starts a process and waits until it is ready.
    held: where versions are held while they are loaded.
    failures: counts for all replicas.
    is_interrupting: newer weights do not wait for samples under way, and older
      ones are not loaded.
    on_loaded: called with a version, the seconds that loading took, and those
      since it was asked for.
  """

  def __init__(
    self,
    start_fn: StartFn,
    *,
    held: versions.Versions,
    failures: Failures,
    is_interrupting: bool,
    on_loaded: Callable[[versions.Published, float, float], None],
  ) -> None:
    self._start_fn = start_fn
    self._held = held
    self._failures = failures
    self._is_interrupting = is_interrupting
    self._on_loaded = on_loaded
    self._telling = threading.Lock()  # one message after another
    # Of what follows. Whoever reads messages takes it, so it must not be kept
    # while one is sent: the process may be waiting to be read.
    self._lock = threading.Lock()
    self._process: process.Process | None = None
    self._is_closed = False
    self._told: int | None = None
    self._loads: list[_Load] = []
    self._asked: dict[int, tuple[calls.Call, set[int]]] = {}
    self.num_tokens = 0  # of the samples that are asked for, at most

  def start(self) -> None:
    """Starts the process, where there is none.

    Raises:
      EngineError: it was closed, or has failed too often.
    """
    with self._telling:
      self._running()

  def load(self, published: versions.Published) -> futures.Future[None]:
    """Has a version loaded; returns when, or why not."""
    with self._telling:
      return self._load(self._running(), published)

  def ask(
    self,
    call: calls.Call,
    rows: Iterable[int],
    published: versions.Published,
  ) -> None:
    """Asks for samples; the call is given them, or told that they are lost."""
    rows = set(rows)
    with self._telling:
      running = self._running()
      self._load(running, published)
      with self._lock:
        is_lost = self._process is not running
        if not is_lost:
          _, asked = self._asked.setdefault(call.number, (call, set()))
          asked |= rows
          self.num_tokens += sum(call.cost(row) for row in rows)
      if is_lost:
        call.lose(rows)
        return
      sampling = call.sampling
      content = {
        "kind": "generate",
        "call": call.number,
        "sampling": {
          "max_new_tokens": sampling.max_new_tokens,
          "temperature": sampling.temperature,
          "top_k": sampling.top_k,
          "top_p": sampling.top_p,
          "stop_tokens": list(sampling.stop_tokens),
        },
      }
      running.send(content, call.question(rows))

  def close(self) -> None:
    """Ends the process; who waits for samples is told that they are lost."""
    with self._lock:
      self._is_closed = True
      running = self._process
    if running is not None:
      running.close()

  def _running(self) -> process.Process:
    with self._lock:
      if self._is_closed:
        raise engines.EngineError("The rollout engine was closed.")
      if self._process is not None:
        return self._process
    self._failures.check()
    running = self._start_fn()
    with self._lock:
      self._process = running
      is_closed = self._is_closed
    running.listen(self._on_message, lambda e: self._on_end(running, e))
    if is_closed:
      running.close()
      raise engines.EngineError("The rollout engine was closed.")
    return running

  def _load(
    self, running: process.Process, published: versions.Published
  ) -> futures.Future[None]:
    future: futures.Future[None] = futures.Future()
    with self._lock:
      told, version = self._told, published.version
      is_needed = (
        told is None
        or version > told
        or (version < told and not self._is_interrupting)
      )
      if not is_needed or self._process is not running:
        pending = [
          load.future
          for load in self._loads
          if load.published.version == version
        ]
        if pending:
          return pending[-1]
        future.set_result(None)
        return future
      self._told = version
      self._held.hold_again(published)
      self._loads.append(_Load(published, future, time.monotonic()))
    content = {
      "kind": "load",
      "version": version,
      "path": published.shared.path,
      "tensors": published.shared.places,
      "is_interrupting": self._is_interrupting,
    }
    running.send(content)
    return future

  def _on_message(self, message: wire.Message) -> None:
    content, arrays = message
    if content["kind"] == "rows":
      with self._lock:
        call, asked = self._asked[content["call"]]
        rows = arrays["row"].tolist()
        asked.difference_update(rows)
        if not asked:
          del self._asked[content["call"]]
        self.num_tokens -= sum(call.cost(row) for row in rows)
      self._failures.clear()
      call.fill(arrays)
    elif content["kind"] == "loaded":
      with self._lock:
        load = self._loads.pop(0)
      since_s = time.monotonic() - load.asked_s
      self._on_loaded(load.published, content["load_s"], since_s)
      self._held.release(load.published)
      load.future.set_result(None)

  def _on_end(
    self, ended: process.Process, error: process.ProcessError
  ) -> None:
    with self._lock:
      self._process = None
      self._told = None
      loads, self._loads = self._loads, []
      asked, self._asked = self._asked, {}
      self.num_tokens = 0
      is_closed = self._is_closed
    if not is_closed:
      self._failures.add(error)
      logging.warning("%s\nAnother is started when it is needed.", error)
    for load in loads:
      self._held.release(load.published)
      load.future.set_exception(error)
    for call, rows in asked.values():
      call.lose(rows)
