"""GRPO and its family as a macro flow: ask, generate, score, infer, learn.

A language model answers each of P prompts G times, and learns from how its
answers compare. What makes an algorithm of the family (advantages, loss,
aggregation) is a `losses.Objective`; what generates is an engine
(`types.Request` says what it is asked), which may be a stage on a mesh or a
process group.

An item of every stage is a prompt with its G answers, so that whole groups pass
from stage to stage, as they are finished.

Letters: P prompts of an iteration, G answers to each, T tokens of a padded
prompt, N of a padded answer, U updates.

Source: Shao et al., "DeepSeekMath", arXiv 2402.03300; refilled batches: Yu et
al., "DAPO", arXiv 2503.14476, section 3.2; with a critic: Ouyang et al., arXiv
2203.02155.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct

from rlinf_jax import flow, losses, types
from rlinf_jax.algorithms import answers as answers_lib
from rlinf_jax.algorithms import minibatches, updates
from rlinf_jax.models import transformer

Answers = answers_lib.Answers
Judged = answers_lib.Judged
CorrectionFn = Callable[
  [jax.Array, jax.Array, jax.Array], tuple[jax.Array, jax.Array]
]
KlFn = Callable[[jax.Array, jax.Array], jax.Array]
AskFn = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
ScoreFn = Callable[[np.ndarray, types.Completions], np.ndarray]


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
    kl_in_reward: whether it is taken from rewards, and not added to the loss.
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
  seed: int = 0


class Engine(Protocol):
  """What generates: `rollout.Engine`."""

  @property
  def place(self) -> str: ...

  def generate(
    self, weights: types.Weights, request: types.Request
  ) -> types.Completions: ...


@struct.dataclass
class Networks:
  """What learns."""

  actor: types.Params
  critic: types.Params  # () without one


@struct.dataclass
class TrainState:
  """Everything that a run is: saving it and loading it loses nothing."""

  learner: updates.Learner  # params: Networks
  reference: types.Params  # () without one; never changes
  reward_model: types.Params  # likewise
  version: jax.Array  # [] int32: iterations learnt from
  next_position: jax.Array  # [] int32: of the first prompt never asked
  key: jax.Array


class Grpo(NamedTuple):
  """The functions of a run.

  Attributes:
    init: (actor params, key, reward model's params) -> TrainState; the key is
      consumed. A reference and a critic start as the actor.
    iteration: TrainState -> (TrainState, metrics): the macro flow.
    config: see `Config`.
  """

  init: Callable[..., TrainState]
  iteration: Callable[[TrainState], tuple[TrainState, types.Metrics]]
  config: Config


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


def make(
  model: transformer.Transformer,
  engine: Engine,
  ask_fn: AskFn,
  score_fn: ScoreFn,
  objective: losses.Objective,
  optimizer: optax.GradientTransformation,
  config: Config,
  *,
  critic: transformer.Transformer | None = None,
  reward_model: transformer.Transformer | None = None,
) -> Grpo:
  """Returns the functions of a run of GRPO or one of its family.

  Args:
    model: a language model.
    engine: what answers, at `config.temperature`.
    ask_fn: positions int64 [P] -> (tokens int32 [P, T], lengths int32 [P]);
      a position names a prompt's turn in the run.
    score_fn: (positions int64 [P], completions of NumPy) -> rewards float32
      [P, G].
    objective: how rewards become a loss.
    optimizer: any optax transformation.
    config: see `Config`.
    critic: a network of values: advantages are then those of GAE, and
      `objective.advantage_fn` is not used.
    reward_model: a network of values, read at an answer's end; what it says is
      added to the score. It reads the tokens of the actor.

  Raises:
    ValueError: for sizes that do not fit together.
  """
  check_config(config)
  num_prompts, group_size = config.num_prompts, config.group_size
  quantum = config.quantum
  is_groupwise = objective.is_groupwise and critic is None

  def request_shapes(next_position: Any, is_asked: Any) -> Any:
    del next_position, is_asked
    shape = jax.ShapeDtypeStruct
    return shape((num_prompts,), "int32"), types.Request(
      prompt=shape((num_prompts, config.max_prompt_tokens), "int32"),
      length=shape((num_prompts,), "int32"),
      seed=shape((num_prompts, group_size), "uint32"),
      is_asked=shape((num_prompts,), "bool"),
    )

  @flow.stage(place="host", out_fn=request_shapes)
  def ask(next_position: Any, is_asked: Any) -> Any:
    position_p = int(next_position) + np.arange(num_prompts)
    prompt, length = ask_fn(position_p)
    request = types.Request(
      prompt=prompt,
      length=length,
      seed=np.stack([_seeds(config, int(p)) for p in position_p]),
      is_asked=np.full(num_prompts, bool(is_asked)),
    )
    return position_p.astype(np.int32), request

  def completion_shapes(weights: Any, request: Any) -> types.Completions:
    del weights
    rows = (request.length.shape[0], group_size)
    of = lambda dtype, *more: jax.ShapeDtypeStruct((*rows, *more), dtype)
    return types.Completions(
      token=of("int32", config.max_new_tokens),
      log_prob=of("float32", config.max_new_tokens),
      length=of("int32"),
      is_stopped=of("bool"),
      version=of("int32", config.max_new_tokens),
    )

  generate = flow.stage(
    engine.generate,
    items={1: 0},
    name="generate",
    place=engine.place,
    **(
      {"quantum": quantum}
      if engine.place == "mesh"
      else {"out_fn": completion_shapes}
    ),
  )

  @flow.stage(
    items={0: 0, 1: 0, 2: 0},
    place="host",
    out_fn=lambda position, completions, is_asked: jax.ShapeDtypeStruct(
      completions.length.shape, "float32"
    ),
  )
  def score(position_p: Any, completions: Any, is_asked_p: Any) -> Any:
    if not is_asked_p.any():
      return np.zeros(completions.length.shape, np.float32)
    return score_fn(position_p.astype(np.int64), completions)

  @flow.stage
  def choose(answers_b: Any, reward_bg: Any) -> Any:
    """Takes the first P groups that are worth it, of those of all rounds."""
    is_worth_it = answers_b.is_used & jax.vmap(losses.has_signal)(reward_bg)
    first = jnp.argsort(~is_worth_it, stable=True)[:num_prompts]
    take = lambda x: jnp.take(x, first, axis=0)
    chosen = jax.tree.map(take, answers_b)
    return chosen.replace(is_used=take(is_worth_it)), take(reward_bg)

  def infer_fn(networks: Networks, answers_p: Any) -> Any:
    said = _statistics(networks, answers_p)
    by_prompt = lambda x: x.reshape(-1, group_size, *x.shape[1:])
    return jax.tree.map(by_prompt, (said.log_prob, said.value))

  infer = flow.stage(infer_fn, items={1: 0}, quantum=quantum, name="infer")
  refer = flow.stage(
    lambda params, answers_p: infer_fn(Networks(params, ()), answers_p)[0],
    items={1: 0},
    quantum=quantum,
    name="refer",
  )

  @flow.stage(items={1: 0, 2: 0}, quantum=quantum)
  def rate(params: Any, answers_p: Any, reward_pg: Any) -> Any:
    assert reward_model is not None
    rated_pg = answers_lib.rate(reward_model, params, answers_p)
    is_used_p1 = answers_p.is_used[:, None]
    rated_pg = jnp.where(is_used_p1, rated_pg, 0.0)
    return reward_pg + config.reward_model_weight * rated_pg

  def judge_fn(
    answers_p: Any, reward_pg: Any, inferred: Any, reference_pgn: Any
  ) -> Judged:
    old_log_prob_pgn, value_pgn = inferred
    mask_pgn = answers_lib.mask(answers_p)
    reward_pg = _shaped(reward_pg, answers_p, config)
    kl_pgn = _kl(old_log_prob_pgn, reference_pgn, mask_pgn, config)
    target_pgn: Any = ()
    if critic is not None:
      advantage_pgn, target_pgn = jax.vmap(
        jax.vmap(
          functools.partial(
            answers_lib.token_advantages,
            kl_weight=config.kl_weight if config.kl_in_reward else 0.0,
            discount=config.discount,
            gae_lambda=config.gae_lambda,
          )
        )
      )(reward_pg, kl_pgn, value_pgn, mask_pgn)
      advantage_pgn = losses.batch_standardised(advantage_pgn, mask_pgn)
    else:
      if config.kl_in_reward:
        reward_pg = reward_pg - config.kl_weight * kl_pgn.sum(-1)
      advantage_pg = objective.advantage_fn(reward_pg)
      advantage_pgn = jnp.broadcast_to(advantage_pg[..., None], mask_pgn.shape)
    return Judged(
      answers=answers_p,
      old_log_prob=old_log_prob_pgn,
      reference_log_prob=reference_pgn,
      advantage=advantage_pgn,
      old_value=value_pgn,
      target=target_pgn,
    )

  judge = flow.stage(
    judge_fn,
    items=dict.fromkeys(range(4), 0) if is_groupwise else None,
    quantum=quantum if is_groupwise else None,
    name="judge",
  )

  def _statistics(networks: Networks, answers_b: Answers) -> Any:
    is_critical = critic is not None and not isinstance(networks.critic, tuple)
    return answers_lib.statistics(
      model,
      networks.actor,
      answers_b,
      critic=critic if is_critical else None,
      critic_params=networks.critic,
      temperature=config.temperature,
    )

  def total_fn(networks: Networks, judged_b: Judged, key_b: Any) -> Any:
    del key_b
    said = _statistics(networks, judged_b.answers)
    flat = lambda x: x.reshape(-1, *x.shape[2:])
    no_answers: Any = ()
    rows = jax.tree.map(flat, dataclasses.replace(judged_b, answers=no_answers))
    mask_rn = flat(answers_lib.mask(judged_b.answers))
    engine_rn = flat(judged_b.answers.log_prob)
    loss_rn, counts_rn, metrics = jax.vmap(
      functools.partial(_row_loss, objective, config)
    )(said, rows, engine_rn, mask_rn)
    sum_r, weight_r = jax.vmap(objective.aggregation_fn)(loss_rn, counts_rn)
    num_tokens = jnp.sum(mask_rn, dtype=jnp.float32)
    totals = {
      k: (jnp.sum(jnp.where(mask_rn, x, 0.0)), num_tokens)
      for k, x in metrics.items()
    }
    return (jnp.sum(sum_r), jnp.sum(weight_r)), totals

  update = updates.from_totals(total_fn, optimizer, quantum=quantum)

  def learn(learner: updates.Learner, judged_p: Judged, key: jax.Array) -> Any:
    if config.num_epochs * config.num_minibatches == 1:
      # Not a loop: gradients of a group can be taken as soon as it is there.
      return update.step(learner, judged_p, key)
    shuffle_key, loss_key = jax.random.split(key)
    index_us = minibatches.shuffled(
      shuffle_key,
      num_prompts,
      num_epochs=config.num_epochs,
      num_minibatches=config.num_minibatches,
    )
    key_u = jax.random.split(loss_key, index_us.shape[0])

    def body(learner: updates.Learner, xs: Any) -> Any:
      index_s, key = xs
      return update.step(learner, minibatches.select(judged_p, index_s), key)

    learner, metrics_u = flow.loop(body, learner, (index_us, key_u))
    return learner, jax.tree.map(jnp.mean, metrics_u)

  @flow.stage
  def summarise(
    answers_b: Any, reward_bg: Any, judged_p: Judged, version: Any
  ) -> Any:
    return _summary(answers_b, reward_bg, judged_p, version)

  def one_round(
    state: TrainState, weights: types.Weights, position: Any, is_asked: Any
  ) -> tuple[Answers, jax.Array]:
    position_p, request = ask(position, is_asked)
    completions = generate(weights, request)
    reward_pg = score(position_p, completions, request.is_asked)
    answers_p = Answers(
      prompt=request.prompt,
      prompt_length=request.length,
      token=completions.token,
      length=completions.length,
      is_stopped=completions.is_stopped,
      log_prob=completions.log_prob,
      version=completions.version,
      is_used=request.is_asked,
    )
    if reward_model is not None:
      reward_pg = rate(state.reward_model, answers_p, reward_pg)
    return answers_p, reward_pg

  def iteration(state: TrainState) -> tuple[TrainState, types.Metrics]:
    networks = state.learner.params
    key, learn_key = jax.random.split(state.key)
    weights = flow.sync(types.Weights(networks.actor, state.version))
    position, is_asked = state.next_position, jnp.ones((), bool)
    rounds = []
    for _ in range(config.max_rounds):
      rounds.append(one_round(state, weights, position, is_asked))
      position = jnp.where(is_asked, position + num_prompts, position)
      if config.max_rounds > 1:
        is_asked = _num_worth_it(rounds) < num_prompts
    answers_b, reward_bg = jax.tree.map(
      lambda *x: x[0] if len(x) == 1 else jnp.concatenate(x), *rounds
    )
    answers_p, reward_pg = answers_b, reward_bg
    if config.max_rounds > 1:
      answers_p, reward_pg = choose(answers_b, reward_bg)
    inferred = infer(networks, answers_p)
    reference_pgn: Any = ()
    if config.kl_weight:
      reference_pgn = refer(state.reference, answers_p)
    judged_p = judge(answers_p, reward_pg, inferred, reference_pgn)
    learner, metrics = learn(state.learner, judged_p, learn_key)
    metrics |= summarise(answers_b, reward_bg, judged_p, state.version)
    return TrainState(
      learner=learner,
      reference=state.reference,
      reward_model=state.reward_model,
      version=state.version + 1,
      next_position=position,
      key=key,
    ), metrics

  def init(
    params: types.Params, key: jax.Array, reward_params: types.Params = ()
  ) -> TrainState:
    # A copy: what learns may be donated, the reference may not.
    copied = jax.tree.map(jnp.array, params)
    critic_params: Any = ()
    if critic is not None:
      critic_params = transformer.critic_params(params)
    return TrainState(
      learner=update.init(Networks(copied, critic_params)),
      reference=jax.tree.map(jnp.array, params) if config.kl_weight else (),
      reward_model=reward_params,
      version=jnp.zeros((), jnp.int32),
      next_position=jnp.zeros((), jnp.int32),
      key=key,
    )

  return Grpo(init, iteration, config)


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


def _seeds(config: Config, position: int) -> np.ndarray:
  """Returns a seed for each answer to a prompt in its turn, uint32 [G]."""
  entropy = np.random.SeedSequence([config.seed, position])
  return entropy.generate_state(config.group_size, np.uint32)


def _num_worth_it(rounds: Any) -> jax.Array:
  counts = [
    jnp.sum(answers.is_used & jax.vmap(losses.has_signal)(reward))
    for answers, reward in rounds
  ]
  return sum(counts, jnp.zeros((), jnp.int32))


def _shaped(reward_pg: jax.Array, answers_p: Answers, config: Config) -> Any:
  if not config.overlong_tokens:
    return reward_pg
  return reward_pg + losses.overlong_penalty(
    answers_p.length,
    max_tokens=config.max_new_tokens,
    buffer_tokens=config.overlong_tokens,
  )


def _kl(
  log_prob_pgn: Any, reference_pgn: Any, mask_pgn: Any, config: Config
) -> jax.Array:
  """Returns the divergence from the reference at each token, or zeros."""
  if isinstance(reference_pgn, tuple):
    return jnp.zeros(mask_pgn.shape, jnp.float32)
  kl_pgn = jax.vmap(jax.vmap(config.kl_fn))(log_prob_pgn, reference_pgn)
  return jnp.where(mask_pgn, kl_pgn, 0.0)


def _row_loss(
  objective: losses.Objective,
  config: Config,
  said: answers_lib.Statistics,
  row: Judged,
  engine_log_prob_n: jax.Array,
  mask_n: jax.Array,
) -> tuple[jax.Array, jax.Array, dict[str, jax.Array]]:
  """Returns the loss of one answer's tokens, which of them count, metrics."""
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
  if not isinstance(said.value, tuple):
    value_loss_n = losses.value_loss(
      said.value,
      row.target,
      old_value_t=None if config.value_clip is None else row.old_value,
      clip=config.value_clip,
    )
    metrics["value_loss"] = value_loss_n
    loss_n += config.value_weight * value_loss_n
  # What lies beyond an answer's end is not a number to be differentiated.
  return jnp.where(mask_n, loss_n, 0.0), counts_n, metrics


def _summary(
  answers_b: Answers, reward_bg: Any, judged_p: Judged, version: Any
) -> types.Metrics:
  """Returns metrics of what was generated (B) and of what was learnt from."""
  count = lambda x: jnp.maximum(jnp.sum(x, dtype=jnp.float32), 1.0)
  is_asked_b = answers_b.is_used
  is_asked_bg = jnp.broadcast_to(is_asked_b[:, None], reward_bg.shape)
  mean = lambda x_bg: (
    jnp.sum(jnp.where(is_asked_bg, x_bg, 0.0)) / count(is_asked_bg)
  )
  signal_b = jax.vmap(losses.has_signal)(reward_bg) & is_asked_b
  mask_pgn = answers_lib.mask(judged_p.answers)
  is_current = mask_pgn & (judged_p.answers.version == version)
  drift_pgn = jnp.abs(judged_p.old_log_prob - judged_p.answers.log_prob)
  age_pgn = (version - judged_p.answers.version).astype(jnp.float32)
  return {
    "reward": mean(reward_bg),
    "reward_max": jnp.max(jnp.where(is_asked_bg, reward_bg, -jnp.inf)),
    "answer_tokens": mean(answers_b.length.astype(jnp.float32)),
    "cut": mean((~answers_b.is_stopped).astype(jnp.float32)),
    "signal": jnp.sum(signal_b, dtype=jnp.float32) / count(is_asked_b),
    "num_prompts": jnp.sum(is_asked_b, dtype=jnp.float32),
    "num_learnt": jnp.sum(judged_p.answers.is_used, dtype=jnp.float32),
    "drift": jnp.max(jnp.where(is_current, drift_pgn, 0.0)),
    "staleness": jnp.sum(jnp.where(mask_pgn, age_pgn, 0.0)) / count(mask_pgn),
  }
