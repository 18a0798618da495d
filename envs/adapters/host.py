"""Episodes of simulators whose state cannot leave them.

A gymnasium environment is an object that changes. A `Host` turns a set of them
into a function of (episode so far, action) by the following law: *an episode is
its seed and the actions taken in it*. What has happened in it so far is its
`History`, and every simulator has the history of the episode it is in. A step
looks for a simulator with the history that it is given. So rows may be
permuted, split over calls or devices, batched over seeds, or interleaved with
an evaluation: each still meets its own simulator.

A history without actions is served by any simulator, which is reset with the
seed. Any other must be the latest of a simulator, or the one before its last
step if that step had the same action (the same step twice gives the same
numbers). Where it is neither, the state was stepped in another way since, or
comes from another process, and `StaleStateError` is raised.
"""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import threading
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from envs.adapters import simulators

_SPARE = -1  # the number of a worker's simulator that is in no episode


class StaleStateError(RuntimeError):
  """No simulator is where the state that was stepped says."""


class Worker(Protocol):
  """What carries out commands: `simulators.Simulators` or `.Child`."""

  def summary(self, number: int) -> simulators.Summary:
    """See `simulators.Simulators.summary`."""
    ...

  def run(self, commands: Sequence[simulators.Command]) -> simulators.Results:
    """See `simulators.Simulators.run`."""
    ...


class History(NamedTuple):
  """An episode so far."""

  seed: int
  num_steps: int
  digest: int  # of the actions, in their order

  def after(self, action: np.ndarray) -> History:
    """Returns the history with one more action."""
    digest = zlib.crc32(action.tobytes(), self.digest)
    return History(self.seed, self.num_steps + 1, digest)


_NOWHERE = History(0, 0, 0)  # of a simulator that is in no episode


# By identity: two simulators may well have the same history.
@dataclasses.dataclass(eq=False, slots=True)
class _Simulator:
  number: int
  worker: int
  history: History = _NOWHERE
  before: History = _NOWHERE  # the history that its last step began with
  last: tuple[Any, ...] = ()  # that step's row of `simulators.Results`

  @property
  def is_idle(self) -> bool:
    """Whether its episode is over, or it was never in one."""
    return self.history is _NOWHERE or bool(self.last[2] or self.last[3])


class Host:
  """Simulators, found by the history of the episode they are in.

  Args:
    workers: what runs the simulators, each in a thread of its own.
    max_simulators: how many to make before the one whose last step is the
      longest ago is taken out of its episode. A single call may need more.

  Attributes:
    summary: what the simulators are like.
  """

  def __init__(self, workers: Sequence[Worker], *, max_simulators: int):
    self._workers = workers
    self._max_simulators = max_simulators
    # One thread each: a simulator that draws must keep to its GL context's.
    self._threads = [
      concurrent.futures.ThreadPoolExecutor(1, "simulators") for _ in workers
    ]
    self.summary = self._threads[0].submit(workers[0].summary, _SPARE).result()
    self._lock = threading.Lock()
    # By number, the one whose last step is the longest ago first.
    self._simulators: dict[int, _Simulator] = {}
    self._by_history: dict[History, list[_Simulator]] = {}

  def reset(self, seeds: Sequence[int]) -> np.ndarray:
    """Returns the first observations of episodes, float32 [B, O].

    They come from simulators kept for that: whether an episode will go on, and
    how often, is not known yet.
    """
    num = len(self._workers)
    obs_b = np.empty((len(seeds), *self.summary.obs_shape), np.float32)
    commands = [
      [simulators.Command(_SPARE, seed, None) for seed in seeds[i::num]]
      for i in range(num)
    ]
    with self._lock:
      for i, part in enumerate(self._run(commands)):
        if part is not None:
          obs_b[i::num] = part.obs
    return obs_b

  def step(
    self,
    histories: Sequence[tuple[int, int, int] | None],
    action_b: np.ndarray,
  ) -> tuple[simulators.Results, np.ndarray]:
    """Takes a step in each of B episodes.

    Args:
      histories: [B] `History` as tuples; None leaves a row out, its results 0.
      action_b: [B, ...], each as `simulators.Command` has it.

    Returns:
      The results, and the digests of the histories after the step, uint32 [B].

    Raises:
      StaleStateError: if an episode is not where its history says.
    """
    size = len(histories)
    results = simulators.Results(
      obs=np.zeros((size, *self.summary.obs_shape), np.float32),
      reward=np.zeros(size, np.float32),
      terminated=np.zeros(size, bool),
      truncated=np.zeros(size, bool),
      success=np.zeros(size, np.float32),
    )
    digest_b = np.zeros(size, np.uint32)
    begun = {
      row: History(*h) for row, h in enumerate(histories) if h is not None
    }
    with self._lock:
      for row, simulator in self._advance(begun, action_b).items():
        for whole, part in zip(results, simulator.last):
          whole[row] = part
        digest_b[row] = simulator.history.digest
    return results, digest_b

  def _advance(
    self, histories: Mapping[int, History], action_b: np.ndarray
  ) -> dict[int, _Simulator]:
    """Returns for each row a simulator whose last step is that row's."""
    plan, repeated = self._plan(histories, action_b)
    rows_w: list[list[int]] = [[] for _ in self._workers]
    for row, simulator in plan.items():
      self._leave(simulator)
      rows_w[simulator.worker].append(row)
    commands = [
      [
        simulators.Command(
          plan[row].number,
          histories[row].seed if histories[row].num_steps == 0 else None,
          action_b[row],
        )
        for row in rows
      ]
      for rows in rows_w
    ]
    for rows, part in zip(rows_w, self._run(commands)):
      for row, last in zip(rows, zip(*(part or ()))):
        self._enter(plan[row], histories[row], action_b[row], last)
    return plan | repeated

  def _plan(
    self, histories: Mapping[int, History], action_b: np.ndarray
  ) -> tuple[dict[int, _Simulator], dict[int, _Simulator]]:
    """Returns by row the simulators to step, and those that have stepped."""
    plan: dict[int, _Simulator] = {}
    repeated: dict[int, _Simulator] = {}
    num_used: collections.Counter[History] = collections.Counter()
    fresh = []
    for row, history in histories.items():
      if history.num_steps == 0:
        fresh.append(row)
        continue
      there = self._by_history.get(history, [])
      if num_used[history] < len(there):
        plan[row] = there[num_used[history]]
        num_used[history] += 1
        continue
      after = self._by_history.get(history.after(action_b[row]), [])
      stepped = [s for s in after if s.before == history]
      if not stepped:
        raise StaleStateError(self._stale(row, history))
      repeated[row] = stepped[0]
    busy = {s.number for s in (*plan.values(), *repeated.values())}
    plan.update(zip(fresh, self._take(len(fresh), busy)))
    return plan, repeated

  def _take(self, num: int, busy: set[int]) -> Iterable[_Simulator]:
    """Yields `num` simulators for new episodes, none of them in `busy`."""
    free = [s for s in self._simulators.values() if s.number not in busy]
    idle = [s for s in free if s.is_idle]
    num_new = max(self._max_simulators - len(self._simulators), 0)
    num_new = min(num_new, max(num - len(idle), 0))
    others = [s for s in free if not s.is_idle]
    old = [*idle, *others[: max(num - len(idle) - num_new, 0)]][:num]
    yield from old
    for _ in range(num - len(old)):
      number = len(self._simulators)
      simulator = _Simulator(number, number % len(self._workers))
      self._simulators[number] = simulator
      yield simulator

  def _leave(self, simulator: _Simulator) -> None:
    """Takes a simulator out of its episode, until it has stepped."""
    if simulator.history is not _NOWHERE:
      there = self._by_history[simulator.history]
      there.remove(simulator)
      if not there:
        del self._by_history[simulator.history]
    simulator.history = simulator.before = _NOWHERE

  def _enter(
    self,
    simulator: _Simulator,
    before: History,
    action: np.ndarray,
    last: tuple[Any, ...],
  ) -> None:
    """Notes that a simulator took a step."""
    simulator.before, simulator.last = before, last
    simulator.history = before.after(action)
    self._by_history.setdefault(simulator.history, []).append(simulator)
    self._simulators[simulator.number] = self._simulators.pop(simulator.number)

  def _run(
    self, commands_w: Sequence[Sequence[simulators.Command]]
  ) -> list[simulators.Results | None]:
    """Returns what each worker gave; waits for all before it raises."""
    jobs = [
      thread.submit(worker.run, commands) if commands else None
      for thread, worker, commands in zip(
        self._threads, self._workers, commands_w
      )
    ]
    concurrent.futures.wait([job for job in jobs if job is not None])
    return [None if job is None else job.result() for job in jobs]

  def _stale(self, row: int, history: History) -> str:
    return (
      f"The state in row {row} is stale: no simulator is in the episode of seed"
      f" {history.seed} after {history.num_steps} steps with this state's"
      " actions. A state of a host environment can be stepped in one way only,"
      " in the process that made it: go on from the latest state, or reset. If"
      f" it is the latest, more than max_simulators={self._max_simulators}"
      " episodes were open at once: raise that in the environment's Config."
    )
