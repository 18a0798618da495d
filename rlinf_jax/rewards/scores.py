"""What a batch of responses is worth, and what could not be found out."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence

import numpy as np

from rlinf_jax import types
from rlinf_jax.rewards import child


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
  """Rewards of B responses.

  Attributes:
    reward_b: float32 [B]; 0 where the reward function failed.
    num_hung: how often it had not returned at its deadline.
    num_crashed: how often its process ended.
    num_raised: how often it raised an error.
    first_error: the first of those errors, with its traceback; "" for none.
    first_b: float32 [B]; where several rewards were summed, the first of them
      before it is weighed, else None.
  """

  reward_b: np.ndarray
  num_hung: int = 0
  num_crashed: int = 0
  num_raised: int = 0
  first_error: str = ""
  first_b: np.ndarray | None = None

  @property
  def num_failed(self) -> int:
    """How often there was no reward, for whatever reason."""
    return self.num_hung + self.num_crashed + self.num_raised


ScoreFn = Callable[[Sequence[types.Completion]], Scores]


def score(
  reward_fn: types.RewardFn, completions: Sequence[types.Completion]
) -> Scores:
  """Returns the rewards of responses, by a function that may be trusted.

  Args:
    reward_fn: called in this thread, for each in turn. What it raises is
      raised here; if it hangs, so does this.
    completions: [B].

  Raises:
    ValueError: the function returned no finite number.
  """
  rewards = np.zeros(len(completions), np.float32)
  for i, completion in enumerate(completions):
    reward = reward_fn(completion)
    if not child.is_finite(reward):
      raise ValueError(refusal(repr(reward), completion))
    rewards[i] = reward
  return Scores(reward_b=rewards)


def weighted_sum(
  parts: Sequence[tuple[ScoreFn, float]],
  completions: Sequence[types.Completion],
) -> Scores:
  """Returns the sum of several rewards, each times its weight.

  Args:
    parts: what computes them, and their weights. The first says whether a
      response is right.
    completions: [B].
  """
  found = [score_fn(completions) for score_fn, _ in parts]
  rewards = [x.reward_b * weight for x, (_, weight) in zip(found, parts)]
  errors = [x.first_error for x in found if x.first_error]
  return Scores(
    reward_b=np.asarray(rewards, np.float32).sum(axis=0),
    num_hung=sum(x.num_hung for x in found),
    num_crashed=sum(x.num_crashed for x in found),
    num_raised=sum(x.num_raised for x in found),
    first_error=errors[0] if errors else "",
    first_b=found[0].reward_b,
  )


class FailureCount:
  """Computes rewards by another function, and counts those that failed.

  It may be called from several threads at once.

  Args:
    score_fn: what computes rewards.
  """

  def __init__(self, score_fn: ScoreFn) -> None:
    self._score_fn = score_fn
    self._lock = threading.Lock()
    self._num_failed = 0

  def __call__(self, completions: Sequence[types.Completion]) -> Scores:
    found = self._score_fn(completions)
    with self._lock:
      self._num_failed += found.num_failed
    return found

  def take(self) -> int:
    """Returns how many there were, and counts anew."""
    with self._lock:
      num_failed, self._num_failed = self._num_failed, 0
    return num_failed


def refusal(returned: str, completion: types.Completion) -> str:
  """Returns what to tell about a reward function that returned no number."""
  return (
    f"The reward function returned {returned:.60} for the response "
    f"{completion.response!r:.60} to {completion.prompt!r:.60}; expected a "
    "finite number. Return 0.0 where there is nothing to reward."
  )
