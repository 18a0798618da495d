"""What one caller asked for, and what has come of it.

Letters: B prompts, n samples of each, R = B n rows, N new tokens at most.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from rlinf_jax import rollout


class Call:
  """Samples that were asked for together.

  Several processes may generate them; each sample is one process's at a time.

  Args:
    number: no other call has it.
    request: of NumPy.
    sampling: how.
  """

  def __init__(
    self, number: int, request: rollout.Request, sampling: rollout.Sampling
  ) -> None:
    num_prompts, num_samples = request.seed.shape
    self.number = number
    self.sampling = sampling
    self.rows = np.flatnonzero(np.repeat(request.is_asked, num_samples))
    self._request = request
    self._num_samples = num_samples
    rows = num_prompts * num_samples
    shape = (rows, sampling.max_new_tokens)
    self._token = np.zeros(shape, np.int32)
    self._log_prob = np.zeros(shape, np.float32)
    self._version = np.zeros(shape, np.int32)
    self._length = np.zeros(rows, np.int32)
    self._is_stopped = np.zeros(rows, bool)
    self._lock = threading.Lock()
    self._num_pending = len(self.rows)
    self._lost: queue.SimpleQueue[np.ndarray] = queue.SimpleQueue()

  def prompt_of(self, row: int) -> int:
    return row // self._num_samples

  def cost(self, row: int) -> int:
    """Returns how many tokens a sample may come to, its prompt's included."""
    length = int(self._request.length[self.prompt_of(row)])
    return length + self.sampling.max_new_tokens

  def question(self, rows: Iterable[int]) -> Mapping[str, np.ndarray]:
    """Returns what a process must know to generate some samples."""
    rows = np.array(sorted(rows), np.int32)
    request: Any = self._request  # of NumPy
    prompts, prompt = np.unique(rows // self._num_samples, return_inverse=True)
    length = request.length[prompts]
    return {
      "row": rows,
      "seed": request.seed.reshape(-1)[rows],
      "prompt": prompt.astype(np.int32),  # of the prompts sent
      "length": length,
      "token": np.concatenate(
        [request.prompt[b, :t] for b, t in zip(prompts, length)]
      ),
    }

  def fill(self, answer: Mapping[str, np.ndarray]) -> None:
    """Takes in samples that have ended."""
    ends = np.cumsum(answer["length"])
    for row, length, end in zip(answer["row"], answer["length"], ends):
      part = slice(end - length, end)
      self._token[row, :length] = answer["token"][part]
      self._log_prob[row, :length] = answer["log_prob"][part]
      self._version[row, :length] = answer["version"][part]
    self._length[answer["row"]] = answer["length"]
    self._is_stopped[answer["row"]] = answer["is_stopped"]
    with self._lock:
      self._num_pending -= len(answer["row"])
      is_complete = self._num_pending == 0
    if is_complete:
      self._lost.put(np.array([], np.int32))

  def lose(self, rows: Iterable[int]) -> None:
    """Is told that samples will not come from whom they were asked of."""
    self._lost.put(np.array(sorted(rows), np.int32))

  def wait(self) -> np.ndarray:
    """Returns rows that must be asked for again; none where all have come."""
    return self._lost.get()

  def completions(self) -> rollout.Completions:
    """Returns what has come, padded with 0."""
    split = lambda x: x.reshape(-1, self._num_samples, *x.shape[1:])
    return rollout.Completions(
      token=split(self._token),
      log_prob=split(self._log_prob),
      length=split(self._length),
      is_stopped=split(self._is_stopped),
      version=split(self._version),
    )
