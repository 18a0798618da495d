"""Rewards for the length of a response, whatever it says.

`losses.overlong_penalty` is another, over arrays.
"""

from __future__ import annotations

from rlinf_jax import types


def finished(completion: types.Completion) -> float:
  """Returns 1 where the model ended its response, 0 where it was cut off."""
  return float(not completion.is_cut)


def near_length(num_tokens: int, *, per_token: float = 3e-4) -> types.RewardFn:
  """Returns a reward of 0 for a length, and less the farther from it.

    -per_token |length - num_tokens|

  Args:
    num_tokens: the length that is wanted.
    per_token: what each token more or less costs.

  Source: Aggarwal and Welleck, "L1: Controlling How Long a Reasoning Model
    Thinks With Reinforcement Learning", arXiv 2503.04697, eq. 1.
  """

  def reward(completion: types.Completion) -> float:
    return -per_token * abs(completion.num_tokens - num_tokens)

  return reward
