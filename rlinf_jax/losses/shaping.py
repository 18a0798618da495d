"""Rewards made of rewards: for length, and for leaving a reference policy."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp


def overlong_penalty(
  num_tokens: jax.Array, *, max_tokens: int, buffer_tokens: int
) -> jax.Array:
  """Returns what to add to the reward of an answer for its length, in [-1, 0].

    free = max_tokens - buffer_tokens
    0                                      num_tokens <= free
    (free - num_tokens) / buffer_tokens    free < num_tokens <= max_tokens
    -1                                     num_tokens > max_tokens

  Args:
    num_tokens: int [...], of answers.
    max_tokens: the longest answer that is wanted.
    buffer_tokens: over how many tokens before that the penalty grows.

  Returns:
    float32 [...].

  Raises:
    ValueError: not 0 < buffer_tokens <= max_tokens.
    AssertionError: num_tokens is not of an integer type.

  Source: Yu et al., "DAPO", arXiv 2503.14476, eq. 13.
  """
  if not 0 < buffer_tokens <= max_tokens:
    raise ValueError(
      f"Given buffer_tokens={buffer_tokens}, max_tokens={max_tokens}; expected "
      "0 < buffer_tokens <= max_tokens: the penalty grows over the last "
      "buffer_tokens of max_tokens."
    )
  chex.assert_type(num_tokens, int)
  excess = jnp.asarray(num_tokens - (max_tokens - buffer_tokens), jnp.float32)
  return -jnp.clip(excess / buffer_tokens, 0.0, 1.0)


def token_rewards(
  reward: jax.Array, kl_t: jax.Array, mask_t: jax.Array, *, kl_weight: float
) -> jax.Array:
  """Returns rewards per token: the answer's at its end, less a penalty.

    r_t = [t is the last token that counts] reward - kl_weight kl_t

  Args:
    reward: float [], of the whole answer.
    kl_t: float [T], nats: `kl_k1` (or another) of the policy that acted and a
      reference policy.
    mask_t: bool [T], the tokens that count; the others get 0.
    kl_weight: reward per nat.

  Returns:
    reward_t [T], float, without gradient.

  Raises:
    AssertionError: an argument is not of the right shape or dtype.

  Source: Ouyang et al., "Training Language Models to Follow Instructions with
    Human Feedback", arXiv 2203.02155, section 3.5.
  """
  chex.assert_rank([reward, kl_t, mask_t], [0, 1, 1])
  chex.assert_equal_shape([kl_t, mask_t])
  chex.assert_type([reward, kl_t, mask_t], [float, float, bool])
  num_left_t = jnp.cumsum(mask_t[::-1])[::-1]  # of those that count, from t on
  is_last_t = mask_t & (num_left_t == 1)
  reward_t = jnp.where(is_last_t, reward, 0.0) - kl_weight * kl_t
  return jax.lax.stop_gradient(jnp.where(mask_t, reward_t, 0.0))


def returns_to_go(reward_t: jax.Array) -> jax.Array:
  """Returns the sum of the rewards from each step on.

  On `token_rewards` these are the advantages of REINFORCE++ before they are
  standardised (`objectives.advantages`).

  Args:
    reward_t: float [T].

  Returns:
    float [T], without gradient.

  Raises:
    AssertionError: reward_t is not a float array [T].

  Source: Hu et al., "REINFORCE++", arXiv 2501.03262, section 3.
  """
  chex.assert_rank(reward_t, 1)
  chex.assert_type(reward_t, float)
  return jax.lax.stop_gradient(jnp.cumsum(reward_t[::-1])[::-1])
