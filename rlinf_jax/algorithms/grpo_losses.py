"""What answers are worth, what they cost, and what to tell of them.

Letters as in `grpo`.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from rlinf_jax import losses, types
from rlinf_jax.algorithms import answers as answers_lib
from rlinf_jax.algorithms import grpo_config
from rlinf_jax.models import transformer


def shaped(
  reward_pg: jax.Array,
  answers_p: answers_lib.Answers,
  config: grpo_config.Config,
) -> jax.Array:
  """Returns rewards [P, G] less what long answers cost, if anything."""
  if not config.overlong_tokens:
    return reward_pg
  return reward_pg + losses.overlong_penalty(
    answers_p.length,
    max_tokens=config.max_new_tokens,
    buffer_tokens=config.overlong_tokens,
  )


def divergence(
  log_prob_pgn: Any,
  reference_pgn: Any,
  mask_pgn: Any,
  config: grpo_config.Config,
) -> jax.Array:
  """Returns the divergence from a reference policy at each token.

  Args:
    log_prob_pgn: float32 [P, G, N], of the policy.
    reference_pgn: likewise of the reference; () without one.
    mask_pgn: bool [P, G, N], the answers' tokens; the others get 0.
    config: says which estimator.

  Returns:
    float32 [P, G, N], nats; zeros without a reference.
  """
  if isinstance(reference_pgn, tuple):
    return jnp.zeros(mask_pgn.shape, jnp.float32)
  kl_pgn = jax.vmap(jax.vmap(config.kl_fn))(log_prob_pgn, reference_pgn)
  return jnp.where(mask_pgn, kl_pgn, 0.0)


def row_loss(
  objective: losses.Objective,
  config: grpo_config.Config,
  said: transformer.TokenStatistics,
  value_n: Any,
  row: answers_lib.Judged,
  engine_log_prob_n: jax.Array,
  mask_n: jax.Array,
) -> tuple[jax.Array, jax.Array, dict[str, jax.Array]]:
  """Returns the loss of one answer's tokens.

  Args:
    objective: how a token is learnt from.
    config: what else is in the loss.
    said: what the model that learns says, arrays [N].
    value_n: float32 [N], what the critic that learns says; () without one.
    row: what was said before, and the advantages, arrays [N].
    engine_log_prob_n: float32 [N], nats, as sampled.
    mask_n: bool [N], the answer's tokens.

  Returns:
    loss_n float32 [N], which of the tokens count (bool [N]), and metrics [N].
  """
  policy_loss_n = objective.loss_fn(
    said.log_prob, row.old_log_prob, row.advantage, mask_n
  )
  counts_n = mask_n
  metrics = {
    "entropy": said.entropy,
    "kl_to_old": losses.kl_k3(row.old_log_prob, said.log_prob),
  }
  if config.correction_fn is not None:
    weight_n, counts_n = config.correction_fn(
      row.old_log_prob, engine_log_prob_n, mask_n
    )
    policy_loss_n = policy_loss_n * weight_n
    metrics["correction"] = weight_n
  loss_n = policy_loss_n - config.entropy_weight * said.entropy
  if config.kl_weight:
    kl_n = config.kl_fn(said.log_prob, row.reference_log_prob)
    metrics["kl_to_reference"] = kl_n
    if not config.kl_in_reward:
      loss_n += config.kl_weight * kl_n
  if not isinstance(value_n, tuple):
    value_loss_n = losses.value_loss(
      value_n,
      row.target,
      old_value_t=None if config.value_clip is None else row.old_value,
      clip=config.value_clip,
    )
    metrics["value_loss"] = value_loss_n
    loss_n += config.value_weight * value_loss_n
  # What lies beyond an answer's end is not a number to be differentiated.
  return jnp.where(mask_n, loss_n, 0.0), counts_n, metrics


def drift(
  log_prob_pgn: jax.Array, answers_p: answers_lib.Answers, version: jax.Array
) -> jax.Array:
  """Returns how far an engine is from a model with the same weights.

  Args:
    log_prob_pgn: float32 [P, G, N], of the model.
    answers_p: says what the engine sampled, with which weights.
    version: int32 [], of the model's weights.

  Returns:
    float32 [P], nats: the greatest difference among a prompt's tokens that were
    sampled with these weights; 0 where there is none.
  """
  is_same = answers_lib.mask(answers_p) & (answers_p.version == version)
  apart_pgn = jnp.abs(log_prob_pgn - answers_p.log_prob)
  return jnp.max(jnp.where(is_same, apart_pgn, 0.0), axis=(1, 2))


def summary(
  answers_b: answers_lib.Answers,
  reward_bg: Any,
  judged_p: answers_lib.Judged,
  version: Any,
  reread_p: Any,
) -> types.Metrics:
  """Returns metrics of an iteration, [] float32.

  Args:
    answers_b: all that was generated, in all rounds.
    reward_bg: float32 [B, G], of it.
    judged_p: what is learnt from.
    version: int32 [], of the weights before the update.
    reread_p: float32 [P], the drift from the weights that generated; () where
      none was looked for.
  """
  count = lambda x: jnp.maximum(jnp.sum(x, dtype=jnp.float32), 1.0)
  is_asked_b = answers_b.is_used
  is_asked_bg = jnp.broadcast_to(is_asked_b[:, None], reward_bg.shape)
  mean = lambda x_bg: (
    jnp.sum(jnp.where(is_asked_bg, x_bg, 0.0)) / count(is_asked_bg)
  )
  signal_b = jax.vmap(losses.has_signal)(reward_bg) & is_asked_b
  mask_pgn = answers_lib.mask(judged_p.answers)
  drift_p = drift(judged_p.old_log_prob, judged_p.answers, version)
  if not isinstance(reread_p, tuple):
    drift_p = jnp.maximum(drift_p, reread_p)
  age_pgn = (version - judged_p.answers.version).astype(jnp.float32)
  return {
    "reward": mean(reward_bg),
    "reward_max": jnp.max(jnp.where(is_asked_bg, reward_bg, -jnp.inf)),
    "answer_tokens": mean(answers_b.length.astype(jnp.float32)),
    "cut": mean((~answers_b.is_stopped).astype(jnp.float32)),
    "signal": jnp.sum(signal_b, dtype=jnp.float32) / count(is_asked_b),
    "num_prompts": jnp.sum(is_asked_b, dtype=jnp.float32),
    "num_learnt": jnp.sum(judged_p.answers.is_used, dtype=jnp.float32),
    "drift": jnp.max(drift_p),
    "staleness": jnp.sum(jnp.where(mask_pgn, age_pgn, 0.0)) / count(mask_pgn),
  }
