"""Advantages without a critic: answers to one prompt, judged by one another.

G members of a group: the answers to one prompt, or the episodes from one
initial state.
"""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp


def group_centred(reward_g: jax.Array) -> jax.Array:
  """Returns by how much each reward exceeds the mean of its group.

    A_i = r_i - mean(r)

  A group of equal rewards gets exactly 0.

  Args:
    reward_g: float [G], rewards of G answers to one prompt, or of G episodes
      from one initial state.

  Returns:
    advantage_g [G], float, without gradient.

  Raises:
    AssertionError: reward_g is not a float array of rank 1.

  Source: Liu et al., "Understanding R1-Zero-Like Training" (Dr. GRPO), arXiv
    2503.20783, section 3.2.
  """
  chex.assert_rank(reward_g, 1)
  chex.assert_type(reward_g, float)
  # Shifted first: the rounded mean of equal numbers need not be that number.
  shifted_g = reward_g - reward_g[0]
  return jax.lax.stop_gradient(shifted_g - jnp.mean(shifted_g))


def group_standardised(
  reward_g: jax.Array, *, epsilon: chex.Numeric = 1e-6
) -> jax.Array:
  """Returns rewards standardised within their group.

    A_i = (r_i - mean(r)) / (std(r) + epsilon)

  The standard deviation is the population's (divided by G), so that a group of
  one is worth 0 and not NaN. A group of equal rewards gets exactly 0.

  Args:
    reward_g: float [G], as in `group_centred`.
    epsilon: added to the standard deviation, in units of reward.

  Returns:
    advantage_g [G], float, without gradient.

  Raises:
    AssertionError: reward_g is not a float array of rank 1.

  Source: Shao et al., "DeepSeekMath" (GRPO), arXiv 2402.03300, section 4.1.2.
  """
  centred_g = group_centred(reward_g)
  std = jnp.sqrt(jnp.mean(jnp.square(centred_g)))
  return jax.lax.stop_gradient(centred_g / (std + epsilon))


def group_leave_one_out(reward_g: jax.Array) -> jax.Array:
  """Returns by how much each reward exceeds the mean of the others.

    A_i = r_i - sum_{j != i} r_j / (G - 1)  =  (r_i - mean(r)) G / (G - 1)

  Unlike the mean of all, the mean of the others does not depend on the answer
  it judges: the policy gradient stays unbiased.

  Args:
    reward_g: float [G], as in `group_centred`; G >= 2.

  Returns:
    advantage_g [G], float, without gradient.

  Raises:
    AssertionError: reward_g is not a float array of rank 1.
    ValueError: G is 1.

  Source: Ahmadian et al., "Back to Basics" (RLOO), arXiv 2402.14740.
  """
  centred_g = group_centred(reward_g)
  size = reward_g.shape[0]
  if size < 2:
    raise ValueError(
      f"A leave-one-out baseline needs others: given a group of {size}, "
      "expected at least 2. Sample more members per group."
    )
  return centred_g * (size / (size - 1))
