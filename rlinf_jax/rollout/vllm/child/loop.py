"""What the process is asked, and what it answers; the engine does the rest.

Asked: "generate" some samples, which join those that are being generated;
"load" a version of the weights, before whatever is asked later. Answered:
"ready" or "failed", once; then "rows" as samples end, "loaded", and "alive"
each second.
"""

from __future__ import annotations

import collections
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import wire

_HEARTBEAT_S = 1.0


class Finished(NamedTuple):
  """A sample at its end."""

  name: str
  token: Sequence[int]
  log_prob: Sequence[float]  # nats
  version: Sequence[int]  # of the weights, of each token
  is_stopped: bool  # at a stop token


class Engine(Protocol):
  """What generates.

  Attributes:
    tensors: the shape of each tensor that a version of the weights has.
    vocabulary_size: tokens that it knows.
    context_size: the most tokens of a prompt and its continuation.
    dtype: of its products, such as "float32".
    description: what runs, in words.
  """

  tensors: Mapping[str, Sequence[int]]
  vocabulary_size: int
  context_size: int
  dtype: str
  description: str

  def add(
    self, name: str, prompt: list[int], seed: int, sampling: Mapping[str, Any]
  ) -> None:
    """Takes a sample in; it is read with the next step."""

  def step(self) -> list[Finished]:
    """Generates a token of each sample, or so; returns those at their end."""

  def load(self, version: int, path: str, tensors: list[list[Any]]) -> None:
    """Replaces the weights; samples under way are read again by the new."""


def run(make_engine: Callable[[Mapping[str, Any]], Engine]) -> None:
  """Makes an engine and serves it until the channel is closed.

  Args:
    make_engine: from the settings, which are the first message.
  """
  file, trainer = (int(argument) for argument in sys.argv[1:])
  os.set_inheritable(file, False)
  channel = socket.socket(fileno=file)
  _end_with(trainer, channel)
  settings = wire.receive(channel)
  if settings is None:
    return
  try:
    engine = make_engine(settings.content)
  except Exception as error:  # noqa: BLE001  it is for whoever started this
    traceback.print_exc()
    content: dict[str, Any] = {
      "kind": "failed",
      "missing": error.name if isinstance(error, ModuleNotFoundError) else None,
      "text": f"{type(error).__name__}: {error}",
    }
    wire.send(channel, content)
    sys.exit(1)
  content = {
    "kind": "ready",
    "tensors": {name: list(shape) for name, shape in engine.tensors.items()},
    "vocabulary_size": engine.vocabulary_size,
    "context_size": engine.context_size,
    "dtype": engine.dtype,
    "description": engine.description,
  }
  wire.send(channel, content)
  _Server(channel, engine).serve()


class _Server:
  """Answers messages; all the while samples are generated."""

  def __init__(self, channel: socket.socket, engine: Engine) -> None:
    self._channel = channel
    self._engine = engine
    self._poll = select.poll()
    self._poll.register(channel, select.POLLIN)
    self._inbox: collections.deque[wire.Message] = collections.deque()
    self._num_running = 0
    self._spoke_s = time.monotonic()

  def serve(self) -> None:
    while True:
      is_idle = not self._num_running and not self._inbox
      while self._poll.poll(1000 * _HEARTBEAT_S if is_idle else 0):
        message = wire.receive(self._channel)
        if message is None:
          return
        self._inbox.append(message)
        is_idle = False
      while self._inbox and self._is_due(self._inbox[0]):
        self._handle(self._inbox.popleft())
      if self._num_running:
        self._report(self._engine.step())
      if time.monotonic() - self._spoke_s > _HEARTBEAT_S:
        self._send({"kind": "alive"})

  def _is_due(self, message: wire.Message) -> bool:
    """Weights wait for the samples that others have begun, unless urgent."""
    content = message.content
    return (
      content["kind"] != "load"
      or content["is_interrupting"]
      or not self._num_running
    )

  def _handle(self, message: wire.Message) -> None:
    content, arrays = message
    if content["kind"] == "load":
      begin_s = time.monotonic()
      self._engine.load(content["version"], content["path"], content["tensors"])
      took_s = time.monotonic() - begin_s
      self._send(
        {"kind": "loaded", "version": content["version"], "load_s": took_s}
      )
      return
    ends = np.cumsum(arrays["length"])
    prompts = [
      arrays["token"][end - length : end].tolist()
      for length, end in zip(arrays["length"], ends)
    ]
    for row, prompt, seed in zip(
      arrays["row"].tolist(), arrays["prompt"].tolist(), arrays["seed"].tolist()
    ):
      name = f"{content['call']}-{row}"
      self._engine.add(name, prompts[prompt], seed, content["sampling"])
      self._num_running += 1

  def _report(self, finished: list[Finished]) -> None:
    self._num_running -= len(finished)
    by_call: dict[int, list[tuple[int, Finished]]] = {}
    for sample in finished:
      call, row = (int(part) for part in sample.name.split("-"))
      by_call.setdefault(call, []).append((row, sample))
    for call, rows in by_call.items():
      samples = [sample for _, sample in rows]
      self._send(
        {"kind": "rows", "call": call},
        {
          "row": np.array([row for row, _ in rows], np.int32),
          "length": np.array([len(x.token) for x in samples], np.int32),
          "is_stopped": np.array([x.is_stopped for x in samples], bool),
          "token": _join([x.token for x in samples], np.int32),
          "log_prob": _join([x.log_prob for x in samples], np.float32),
          "version": _join([x.version for x in samples], np.int32),
        },
      )

  def _send(
    self,
    content: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray] | None = None,
  ) -> None:
    wire.send(self._channel, content, arrays)
    self._spoke_s = time.monotonic()


def _join(parts: Sequence[Sequence[float]], dtype: type) -> np.ndarray:
  return np.concatenate([np.asarray(part, dtype) for part in parts])


def _end_with(trainer: int, channel: socket.socket) -> None:
  """Has the kernel's word of either process's end kill the whole group.

  A process of its own watches: an engine that hangs in C runs no thread of
  Python, and what the engine has started would outlive it.
  """
  engine = os.getpid()
  watched = [os.pidfd_open(engine), os.pidfd_open(trainer)]
  if os.getppid() != trainer:
    os.killpg(0, signal.SIGKILL)  # it ended before it could be watched
  if os.fork():
    for file in watched:
      os.close(file)
    return
  channel.close()
  poll = select.poll()
  for file in watched:
    poll.register(file, select.POLLIN)
  poll.poll()
  os.killpg(0, signal.SIGKILL)
