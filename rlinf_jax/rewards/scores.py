"""What a batch of responses is worth, and what could not be found out."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

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
  """

  reward_b: np.ndarray
  num_hung: int = 0
  num_crashed: int = 0
  num_raised: int = 0
  first_error: str = ""


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


def refusal(returned: str, completion: types.Completion) -> str:
  """Returns what to tell about a reward function that returned no number."""
  return (
    f"The reward function returned {returned:.60} for the response "
    f"{completion.response!r:.60} to {completion.prompt!r:.60}; expected a "
    "finite number. Return 0.0 where there is nothing to reward."
  )
