"""Rewards for the form of a response, whatever it says."""

from __future__ import annotations

import re

from rlinf_jax import types

# Thoughts, then an answer, each in its tags, once, and nothing besides. A tag
# is looked for at each place, so that matching takes linear time.
REASONING = re.compile(
  r"<think>(?:(?!</?think>|</?answer>).)*</think>\s*"
  r"<answer>(?:(?!</?think>|</?answer>).)*</answer>",
  re.DOTALL,
)


def matches(pattern: re.Pattern[str] = REASONING) -> types.RewardFn:
  """Returns a reward of 1 where all of a response matches, else 0.

  Args:
    pattern: of a response without the white space around it. Python's regular
      expressions can take exponential time: avoid a repetition in another.
  """

  def reward(completion: types.Completion) -> float:
    return float(pattern.fullmatch(completion.response.strip()) is not None)

  return reward
