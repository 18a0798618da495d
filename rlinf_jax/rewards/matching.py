"""Rewards for saying what the reference says."""

from __future__ import annotations

from rlinf_jax import types
from rlinf_jax.rewards import extraction


def exact_match(
  extract_fn: extraction.ExtractFn = extraction.whole,
) -> types.RewardFn:
  """Returns a reward of 1 where the answer found is the reference, else 0.

  White space between words counts as one space, around them as none.

  Args:
    extract_fn: finds the answer in a response.

  Returns:
    A reward function, which raises ValueError where there is no reference.
  """

  def reward(completion: types.Completion) -> float:
    reference = _spaced(completion.answer)
    if not reference:
      raise ValueError(
        f"The prompt {completion.prompt!r:.60} has no answer to compare with. "
        "Name the column with answers, or use another reward."
      )
    found = extract_fn(completion.response)
    return float(found is not None and _spaced(found) == reference)

  return reward


def _spaced(text: str) -> str:
  return " ".join(text.split())
