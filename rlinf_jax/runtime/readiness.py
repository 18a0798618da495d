"""Which tasks need not wait any more, as others start and end."""

from __future__ import annotations

from collections.abc import Collection

from rlinf_jax.runtime import tasks


class Readiness:
  """Counts what each task waits for, across iterations.

  Calls are not guarded against each other: an iteration that begins while an
  event is noted would count it twice.

  Args:
    plan: says what each task waits for.

  Attributes:
    started: tasks of iterations that are remembered.
    ended: likewise.
  """

  def __init__(self, plan: tasks.TaskPlan) -> None:
    self._plan = plan
    self._followers = _followers(plan)
    self._max_lag = max(
      (w.lag for waits in plan.waits for w in waits), default=0
    )
    self._counts: dict[tasks.Key, int] = {}
    self.started: set[tasks.Key] = set()
    self.ended: set[tasks.Key] = set()

  def begin(self, iteration: int) -> list[tasks.Key]:
    """Adds an iteration's tasks; returns those that wait for nothing."""
    ready = []
    for t, waits in enumerate(self._plan.waits):
      left = 0
      for wait in waits:
        key = (iteration - wait.lag, wait.source)
        happened = self.ended if wait.after == "end" else self.started
        left += int(key[0] >= 0 and key not in happened)
      self._counts[iteration, t] = left
      if not left:
        ready.append((iteration, t))
    return ready

  def start(self, key: tasks.Key) -> list[tasks.Key]:
    """Notes that a task starts; returns those that waited for it alone."""
    self.started.add(key)
    return self._freed_by(key, "start")

  def end(self, key: tasks.Key) -> list[tasks.Key]:
    """Notes that a task has ended; returns those that waited for it alone."""
    self.ended.add(key)
    return self._freed_by(key, "end")

  def stop_at(self, count: int) -> list[tasks.Key]:
    """Forgets waits for iterations from `count` on: none of them will run."""
    freed = []
    for (i, t), left in list(self._counts.items()):
      if not left:
        continue
      never = sum(1 for wait in self._plan.waits[t] if i - wait.lag >= count)
      self._counts[i, t] = left - never
      if never and left == never:
        freed.append((i, t))
    return freed

  def retire(self, iteration: int) -> None:
    """Forgets an iteration, and events that no later one waits for."""
    for t in range(len(self._plan.tasks)):
      self._counts.pop((iteration, t), None)
    horizon = iteration - 1 - self._max_lag
    self.ended = {k for k in self.ended if k[0] > horizon}
    self.started = {k for k in self.started if k[0] > horizon}

  def goes_on_without(
    self, key: tasks.Key, others: Collection[tasks.Key]
  ) -> bool:
    """Returns whether a task will end though other ones do not start.

    False of a task that has ended, or whose iteration has not begun.
    """
    if key in self.ended:
      return False
    todo, seen = [key], {key}
    while todo:
      at = todo.pop()
      if at in others or at not in self._counts:
        return False
      if not self._counts[at]:
        continue
      for wait in self._plan.waits[at[1]]:
        source = (at[0] - wait.lag, wait.source)
        happened = self.ended if wait.after == "end" else self.started
        if source[0] >= 0 and source not in happened and source not in seen:
          seen.add(source)
          todo.append(source)
    return True

  def waiting(self) -> list[tasks.Key]:
    """Returns the tasks that still wait for something."""
    return [k for k, left in self._counts.items() if left]

  def _freed_by(self, key: tasks.Key, what: str) -> list[tasks.Key]:
    iteration, t = key
    ready = []
    for target, lag in self._followers[what][t]:
      follower = (iteration + lag, target)
      if self._counts.get(follower, 0) > 0:
        self._counts[follower] -= 1
        if not self._counts[follower]:
          ready.append(follower)
    return ready


def _followers(
  plan: tasks.TaskPlan,
) -> dict[str, list[list[tuple[int, int]]]]:
  """Returns, after each task's start and end, who waits for it, by lag."""
  followers: dict[str, list[list[tuple[int, int]]]] = {
    "start": [[] for _ in plan.tasks],
    "end": [[] for _ in plan.tasks],
  }
  for target, waits in enumerate(plan.waits):
    for wait in waits:
      followers[wait.after][wait.source].append((target, wait.lag))
  return followers
