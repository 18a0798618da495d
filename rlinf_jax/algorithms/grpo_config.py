"""How answers are asked for and learnt from: the settings of `grpo`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import optax

from rlinf_jax import losses

CorrectionFn = Callable[
  [jax.Array, jax.Array, jax.Array], tuple[jax.Array, jax.Array]
]
KlFn = Callable[[jax.Array, jax.Array], jax.Array]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Config:
  """How answers are asked for and learnt from.

  Attributes:
    num_prompts: P, per iteration.
    group_size: G, answers to each.
    max_prompt_tokens: T.
    max_new_tokens: N.
    temperature: at which answers are sampled, above 0.
    num_epochs: passes over an iteration's answers.
    num_minibatches: updates per pass; each sees P / num_minibatches prompts.
    kl_weight: of the divergence from the reference model; 0 needs none.
    kl_in_reward: whether it is taken from rewards, and not added to the loss;
      see `losses.objectives.advantages`.
    kl_fn: estimates it, (log_prob_n, reference_log_prob_n) -> [N].
    entropy_weight: of the entropy bonus.
    correction_fn: weighs tokens that another program sampled than learns, see
      `losses.corrections`; with `token_truncated` and no bound, PPO decoupled
      from the policy that acted. None trusts the engine.
    overlong_tokens: over how many tokens before max_new_tokens the reward falls
      by 1 in all; 0 is never.
    max_rounds: how often an iteration asks for P more prompts while fewer than
      P groups are worth learning from (their rewards differ). At 1, what is not
      worth it stays in the batch, with advantages of 0.
    discount: per token, for a critic.
    gae_lambda: in [0, 1], for a critic.
    reward_model_weight: of what a reward model says, beside the score.
    value_weight: of the critic's loss.
    value_clip: how far the critic may move per iteration, or None.
    quantum: prompts computed at once (`flow.Spec`); it bounds memory too.
    packed_rows: rows read at once, of as many answers with their prompts as fit
      into T + N tokens: answers much shorter than N then take no longer than
      they are. None reads a row for each answer, all of a quantum at once.
    drift_every: updates between looks at whether answers have the probabilities
      that the weights give which passed `flow.sync`. It costs another `infer`.
      0 looks never, and sees only what the current weights generated: enough
      without a staleness.
    seed: of the answers.
  """

  num_prompts: int = 64
  group_size: int = 8
  max_prompt_tokens: int = 16
  max_new_tokens: int = 16
  temperature: float = 1.0
  num_epochs: int = 1
  num_minibatches: int = 1
  kl_weight: float = 0.0
  kl_in_reward: bool = False
  kl_fn: KlFn = losses.kl_k3
  entropy_weight: float = 0.0
  correction_fn: CorrectionFn | None = None
  overlong_tokens: int = 0
  max_rounds: int = 1
  discount: float = 1.0
  gae_lambda: float = 1.0
  reward_model_weight: float = 1.0
  value_weight: float = 0.5
  value_clip: float | None = None
  quantum: int | None = None
  packed_rows: int | None = None
  drift_every: int = 0
  seed: int = 0


def check_config(config: Config) -> None:
  """Raises ValueError for sizes that do not fit together."""
  sizes = (
    "num_prompts",
    "group_size",
    "max_prompt_tokens",
    "max_new_tokens",
    "num_epochs",
    "num_minibatches",
    "max_rounds",
  )
  for name in sizes:
    if getattr(config, name) < 1:
      raise ValueError(f"{name} is {getattr(config, name)}; give 1 or more")
  if config.packed_rows is not None and config.packed_rows < 1:
    raise ValueError(
      f"packed_rows is {config.packed_rows}; give 1 or more, or None to read a"
      " row for each answer"
    )
  if config.drift_every < 0:
    raise ValueError(
      f"drift_every is {config.drift_every}; give 1 or more, or 0 for never"
    )
  if config.temperature <= 0.0:
    raise ValueError(
      f"temperature is {config.temperature}; give more than 0: the likeliest"
      " answer teaches nothing"
    )
  if config.num_prompts % config.num_minibatches:
    raise ValueError(
      f"num_prompts is {config.num_prompts}, which num_minibatches ="
      f" {config.num_minibatches} does not divide; make it a multiple"
    )
  if config.quantum and (
    config.num_prompts // config.num_minibatches % config.quantum
  ):
    raise ValueError(
      f"quantum is {config.quantum}, but a minibatch has"
      f" {config.num_prompts // config.num_minibatches} prompts; choose a"
      " divisor of that"
    )


def adamw(
  *,
  learning_rate: float,
  learning_rate_end: float,
  num_updates: int,
  max_grad_norm: float = 1.0,
  weight_decay: float = 0.0,
  num_warmup_updates: int = 0,
) -> optax.GradientTransformation:
  """Returns AdamW with clipped gradients and a step size that rises at first.

  Args:
    learning_rate: after the first updates.
    learning_rate_end: after the last, reached linearly.
    num_updates: in all.
    max_grad_norm: gradients of a larger global norm are scaled down to it.
    weight_decay: of matrices, per unit of learning rate.
    num_warmup_updates: over which the step size rises linearly.
  """
  rise = optax.linear_schedule(
    learning_rate / (num_warmup_updates + 1), learning_rate, num_warmup_updates
  )
  fall = optax.linear_schedule(
    learning_rate, learning_rate_end, max(num_updates - num_warmup_updates, 1)
  )
  schedule = optax.join_schedules([rise, fall], [num_warmup_updates])
  return optax.chain(
    optax.clip_by_global_norm(max_grad_norm),
    optax.adamw(
      schedule,
      b2=0.99,
      weight_decay=weight_decay,
      mask=lambda params: jax.tree.map(lambda x: x.ndim > 1, params),
    ),
  )
