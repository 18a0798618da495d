"""Advantages without a critic: answers are judged by one another.

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
  one is worth 0 and not NaN. A group of equal rewards gets exactly 0, whatever
  epsilon is.

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
  return jnp.where(std > 0, centred_g / (std + epsilon), 0.0)


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


def batch_standardised(
  advantage: jax.Array, mask: jax.Array, *, epsilon: chex.Numeric = 1e-6
) -> jax.Array:
  """Returns advantages standardised over all that count of a whole batch.

    A' = (A - mean(A)) / (std(A) + epsilon)

  Unlike the deviation of a small group, that of a batch hardly depends on the
  answer it judges. A batch of equal advantages gets exactly 0.

  Args:
    advantage: float [...], of any rank: [P, G] of P prompts, [B, T] of tokens.
    mask: bool [...], which of them count; the others get 0.
    epsilon: added to the population's standard deviation.

  Returns:
    float [...], without gradient.

  Raises:
    AssertionError: not of one shape, or of the wrong dtype.

  Source: Hu et al., "REINFORCE++", arXiv 2501.03262, section 3.
  """
  chex.assert_equal_shape([advantage, mask])
  chex.assert_type([advantage, mask], [float, bool])
  count = jnp.maximum(jnp.sum(mask, dtype=advantage.dtype), 1.0)
  # Shifted first, as in `group_centred`.
  least = jnp.min(advantage, where=mask, initial=jnp.inf)
  shifted = jnp.where(mask, advantage - least, 0.0)
  centred = jnp.where(mask, shifted - jnp.sum(shifted) / count, 0.0)
  std = jnp.sqrt(jnp.sum(jnp.square(centred)) / count)
  standardised = jnp.where(std > 0, centred / (std + epsilon), 0.0)
  return jax.lax.stop_gradient(standardised)


def has_signal(reward_g: jax.Array) -> jax.Array:
  """Returns whether a group teaches anything: whether its rewards differ.

  A group of equal rewards has advantages of 0, and moves no parameter.

  Args:
    reward_g: float [G], as in `group_centred`.

  Returns:
    bool [].

  Raises:
    AssertionError: reward_g is not a float array of rank 1.

  Source: Yu et al., "DAPO", arXiv 2503.14476, section 3.2, which asks that some
    answers are right and some wrong; rewards that are not 0 or 1 differ in
    more ways.
  """
  chex.assert_rank(reward_g, 1)
  chex.assert_type(reward_g, float)
  return jnp.max(reward_g) > jnp.min(reward_g)
