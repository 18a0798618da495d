"""What a rollout keeps, what a loss sees of it, and its statistics.

Letters: T steps, B environments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from rlinf_jax import losses, types
from rlinf_jax.models import policy as policies


@struct.dataclass
class Rollout:
  """What one row of a rollout keeps: [B] each, [T, B] when stacked."""

  obs: Any  # as the environment gave it
  action: jax.Array
  log_prob: jax.Array
  is_first: jax.Array
  next_carry: Any  # the recurrent state after this step
  outcome: Any


def to_sequence(
  policy: policies.Policy,
  params: types.Params,
  rollout_t: Rollout,
  mask_t: jax.Array,
  carry: Any,
  *,
  see: Callable[[Any], Any],
  reward_scale: float,
  discount: float,
  gae_lambda: float,
) -> types.Sequence:
  """Returns one environment's rollout with values and advantages.

  Args:
    policy: actor and critic.
    params: theirs.
    rollout_t: leaves [T, ...].
    mask_t: bool [T], which steps count.
    carry: the recurrent state before the first step.
    see: observations as the environment gave them -> as the networks see them.
    reward_scale: what rewards are multiplied by.
    discount: per step.
    gae_lambda: see `losses.gae`.
  """
  outcome_t = rollout_t.outcome
  obs_t = see(rollout_t.obs)
  _, value_t, _ = policy.apply(params, obs_t, carry, rollout_t.is_first)

  def value_after(obs: Any, carry: Any) -> jax.Array:
    obs_t = jax.tree.map(lambda x: x[None], obs)
    _, value_t, _ = policy.apply(params, obs_t, carry, jnp.zeros((1,), bool))
    return value_t[0]

  # Of the observation that really followed, which a reset has replaced.
  next_value_t = jax.vmap(value_after)(
    see(outcome_t.final_obs), rollout_t.next_carry
  )
  reward_t = outcome_t.reward * reward_scale
  advantage_t, target_t = losses.gae(
    reward_t,
    value_t,
    next_value_t,
    outcome_t.terminated,
    outcome_t.truncated,
    discount=discount,
    gae_lambda=gae_lambda,
    mask_t=mask_t,
  )
  return types.Sequence(
    obs=obs_t,
    action=rollout_t.action,
    log_prob=rollout_t.log_prob,
    value=value_t,
    advantage=advantage_t,
    target=target_t,
    reward=reward_t,
    terminated=outcome_t.terminated,
    truncated=outcome_t.truncated,
    is_first=rollout_t.is_first,
    mask=mask_t,
    carry=carry,
  )


def episode_metrics(outcome: Any, counts_tb: jax.Array) -> types.Metrics:
  """Returns means over the episodes that ended, NaN where none did."""
  ended_tb = outcome.has_finished & counts_tb
  num_ended = jnp.sum(ended_tb, dtype=jnp.float32)

  def mean(x_tb: jax.Array) -> jax.Array:
    return jnp.sum(jnp.where(ended_tb, x_tb, 0.0)) / num_ended

  return {
    "episodes": num_ended,
    "return": mean(outcome.episode_return),
    "length": mean(outcome.episode_length),
    "success": mean(outcome.is_solved),
    "reward": jnp.sum(jnp.where(counts_tb, outcome.reward, 0.0))
    / jnp.maximum(jnp.sum(counts_tb, dtype=jnp.float32), 1.0),
    "nan_steps": jnp.sum(counts_tb & ~outcome.is_valid, dtype=jnp.float32),
    "overflows": jnp.sum(
      jnp.where(counts_tb, outcome.overflow, 0), dtype=jnp.float32
    ),
  }
