"""The published algorithms, as the pieces that they are made of.

An algorithm is how rewards become advantages, what a token's loss is, and how
tokens are averaged. These are its published choices; your own is an `Objective`
of your own functions, or one of these with some replaced (`_replace`).

            advantages                        loss                averaged by
  grpo      less mean, over deviation         clipped_surrogate   sequence_mean
  dr_grpo   less mean                         clipped_surrogate   sequence_sum
  dapo      less mean, over deviation         the same, wider up  masked_sum
  gspo      less mean, over deviation         sequence_surrogate  sequence_mean
  cispo     less mean, over deviation         cispo               masked_sum
  rloo      less mean of the others           policy_gradient     sequence_sum
  reinforce_plus_plus           batch_standardised                masked_sum
  reinforce_plus_plus_baseline  less mean, then so standardised   masked_sum

The last two use `clipped_surrogate`. DAPO besides filters groups (`has_signal`)
and shapes rewards (`overlong_penalty`). Divergences are added to the loss, or
taken from the reward (`advantages`), for any of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from rlinf_jax.losses import (
  aggregations,
  groups,
  policy_gradients,
  shaping,
  surrogates,
)

AdvantageFn = Callable[[jax.Array], jax.Array]
BatchFn = Callable[[jax.Array, jax.Array], jax.Array]
TokenLossFn = Callable[[jax.Array, jax.Array, jax.Array, jax.Array], jax.Array]
AggregationFn = Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]


class Objective(NamedTuple):
  """How a policy learns from groups of answers.

  Letters: P prompts, G answers to each, T tokens of an answer.

  Attributes:
    advantage_fn: reward_g float [G] -> advantage_g float [G], of one prompt.
    loss_fn: (log_prob_t, old_log_prob_t, advantage_t, mask_t) -> loss_t, all
      [T], the mask bool; old_log_prob_t are of the policy that acted, or in
      asynchronous training of the policy before the update.
    aggregation_fn: (loss_t, mask_t) -> (sum [], weight []), see `aggregations`.
    batch_fn: (advantage_pgt, mask_pgt) -> advantage_pgt, all [P, G, T], the
      mask bool: what the whole batch then makes of its tokens' advantages.
      Tokens outside of the mask must not count. With None each group is judged
      by itself, and can be learnt from before the others are there.
  """

  advantage_fn: AdvantageFn
  loss_fn: TokenLossFn
  aggregation_fn: AggregationFn
  batch_fn: BatchFn | None = None


def advantages(
  objective: Objective,
  reward_pg: jax.Array,
  kl_pgt: jax.Array,
  mask_pgt: jax.Array,
  *,
  kl_weight: float,
) -> jax.Array:
  """Returns each token's advantage, float [P, G, T], without gradient.

  With a `batch_fn`, a token pays for its own divergence and for those after it:

    A_t = advantage_fn(reward) - kl_weight sum_{i >= t} kl_i, then batch_fn

  Without, all tokens of an answer have the advantage of its reward less
  kl_weight times its whole divergence.

  Args:
    objective: says how.
    reward_pg: float [P, G], of P prompts' answers.
    kl_pgt: float [P, G, T], nats, from a reference policy; 0 outside the mask.
    mask_pgt: bool [P, G, T], the tokens that count.
    kl_weight: reward per nat; 0 where divergences are not in the reward.

  Source: Hu et al., "REINFORCE++", arXiv 2501.03262, section 3. With a group's
    baseline, divergences are taken off after it.
  """
  chex.assert_rank([reward_pg, kl_pgt, mask_pgt], [2, 3, 3])
  advantage_fn = jax.vmap(objective.advantage_fn)
  if objective.batch_fn is None:
    if kl_weight:
      reward_pg = reward_pg - kl_weight * jnp.sum(kl_pgt, axis=-1)
    advantage_pg1 = advantage_fn(reward_pg)[..., None]
    return jnp.broadcast_to(advantage_pg1, mask_pgt.shape)

  def return_fn(advantage, kl_t, mask_t):
    return shaping.returns_to_go(
      shaping.token_rewards(advantage, kl_t, mask_t, kl_weight=kl_weight)
    )

  return_pgt = jax.vmap(jax.vmap(return_fn))(
    advantage_fn(reward_pg), kl_pgt, mask_pgt
  )
  return objective.batch_fn(return_pgt, mask_pgt)


def grpo(
  *, clip_low: chex.Numeric = 0.2, clip_high: chex.Numeric = 0.2
) -> Objective:
  """Returns GRPO: Shao et al., "DeepSeekMath", arXiv 2402.03300, eq. 3."""
  return Objective(
    advantage_fn=groups.group_standardised,
    loss_fn=_clipped(clip_low, clip_high),
    aggregation_fn=aggregations.sequence_mean,
  )


def dr_grpo(
  *,
  max_tokens: int,
  clip_low: chex.Numeric = 0.2,
  clip_high: chex.Numeric = 0.2,
) -> Objective:
  """Returns Dr. GRPO: Liu et al., arXiv 2503.20783, section 3.2.

  Args:
    max_tokens: of an answer; divides each sum.
    clip_low: as in `clipped_surrogate`.
    clip_high: as in `clipped_surrogate`.
  """
  return Objective(
    advantage_fn=groups.group_centred,
    loss_fn=_clipped(clip_low, clip_high),
    aggregation_fn=functools.partial(
      aggregations.sequence_sum, divisor=float(max_tokens)
    ),
  )


def dapo(
  *, clip_low: chex.Numeric = 0.2, clip_high: chex.Numeric = 0.28
) -> Objective:
  """Returns DAPO: Yu et al., arXiv 2503.14476, eq. 8."""
  return Objective(
    advantage_fn=groups.group_standardised,
    loss_fn=_clipped(clip_low, clip_high),
    aggregation_fn=aggregations.masked_sum,
  )


def gspo(
  *, clip_low: chex.Numeric = 3e-4, clip_high: chex.Numeric = 4e-4
) -> Objective:
  """Returns GSPO: Zheng et al., arXiv 2507.18071, eq. 5."""
  return Objective(
    advantage_fn=groups.group_standardised,
    loss_fn=functools.partial(
      surrogates.sequence_surrogate, clip_low=clip_low, clip_high=clip_high
    ),
    aggregation_fn=aggregations.sequence_mean,
  )


def cispo(
  *, clip_low: chex.Numeric = 1.0, clip_high: chex.Numeric = 4.0
) -> Objective:
  """Returns CISPO: MiniMax, "MiniMax-M1", arXiv 2506.13585, eq. 4."""

  def loss_fn(log_prob_t, old_log_prob_t, advantage_t, mask_t):
    del mask_t
    return policy_gradients.cispo(
      log_prob_t,
      old_log_prob_t,
      advantage_t,
      clip_low=clip_low,
      clip_high=clip_high,
    )

  return Objective(
    advantage_fn=groups.group_standardised,
    loss_fn=loss_fn,
    aggregation_fn=aggregations.masked_sum,
  )


def rloo() -> Objective:
  """Returns RLOO: Ahmadian et al., arXiv 2402.14740. One update per batch."""

  def loss_fn(log_prob_t, old_log_prob_t, advantage_t, mask_t):
    del old_log_prob_t, mask_t
    return policy_gradients.policy_gradient(log_prob_t, advantage_t)

  return Objective(
    advantage_fn=groups.group_leave_one_out,
    loss_fn=loss_fn,
    aggregation_fn=aggregations.sequence_sum,
  )


def reinforce_plus_plus(
  *, clip_low: chex.Numeric = 0.2, clip_high: chex.Numeric = 0.2
) -> Objective:
  """Returns REINFORCE++: Hu et al., arXiv 2501.03262, section 3.

  Groups do not matter: G may be 1.
  """
  return Objective(
    advantage_fn=lambda reward_g: reward_g,
    loss_fn=_clipped(clip_low, clip_high),
    aggregation_fn=aggregations.masked_sum,
    batch_fn=groups.batch_standardised,
  )


def reinforce_plus_plus_baseline(
  *, clip_low: chex.Numeric = 0.2, clip_high: chex.Numeric = 0.2
) -> Objective:
  """Returns REINFORCE++ with a group's mean for a baseline, ibidem.

  Its authors add `kl_k2` to the loss.
  """
  return Objective(
    advantage_fn=groups.group_centred,
    loss_fn=_clipped(clip_low, clip_high),
    aggregation_fn=aggregations.masked_sum,
    batch_fn=groups.batch_standardised,
  )


def _clipped(clip_low: chex.Numeric, clip_high: chex.Numeric) -> TokenLossFn:
  def loss_fn(log_prob_t, old_log_prob_t, advantage_t, mask_t):
    del mask_t
    return surrogates.clipped_surrogate(
      log_prob_t,
      old_log_prob_t,
      advantage_t,
      clip_low=clip_low,
      clip_high=clip_high,
    )

  return loss_fn
