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
from rlinf_jax.algorithms import (
  grpo_config,
  grpo_losses,
  grpo_readers,
  minibatches,
  updates,
)
from rlinf_jax.models import transformer

Answers = answers_lib.Answers
Judged = answers_lib.Judged
Config = grpo_config.Config
AskFn = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
ScoreFn = Callable[[np.ndarray, types.Completions], np.ndarray]


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
    critic: a network of values: advantages are then those of GAE, and the
      objective's are not used.
    reward_model: a network of values, read at an answer's end; what it says is
      added to the score. It reads the tokens of the actor.

  Raises:
    ValueError: for sizes that do not fit together.
  """
  grpo_config.check_config(config)
  num_prompts, group_size = config.num_prompts, config.group_size
  quantum = config.quantum
  is_groupwise = objective.batch_fn is None and critic is None

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

  readers = grpo_readers.make(
    model, config, critic=critic, reward_model=reward_model
  )

  def judge_fn(
    answers_p: Any,
    reward_pg: Any,
    old_log_prob_pgn: Any,
    reference_pgn: Any,
    value_pgn: Any,
  ) -> Judged:
    mask_pgn = answers_lib.mask(answers_p)
    reward_pg = grpo_losses.shaped(reward_pg, answers_p, config)
    kl_pgn = grpo_losses.divergence(
      old_log_prob_pgn, reference_pgn, mask_pgn, config
    )
    kl_weight = config.kl_weight if config.kl_in_reward else 0.0
    target_pgn: Any = ()
    if critic is not None:
      advantage_pgn, target_pgn = jax.vmap(
        jax.vmap(
          functools.partial(
            answers_lib.token_advantages,
            kl_weight=kl_weight,
            discount=config.discount,
            gae_lambda=config.gae_lambda,
          )
        )
      )(reward_pg, kl_pgn, value_pgn, mask_pgn)
      advantage_pgn = losses.batch_standardised(advantage_pgn, mask_pgn)
    else:
      advantage_pgn = losses.objectives.advantages(
        objective, reward_pg, kl_pgn, mask_pgn, kl_weight=kl_weight
      )
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
    items=dict.fromkeys(range(5), 0) if is_groupwise else None,
    quantum=quantum if is_groupwise else None,
    name="judge",
  )

  def total_fn(networks: Networks, judged_b: Judged, key_b: Any) -> Any:
    del key_b
    said = readers.read(networks.actor, judged_b.answers)
    value_rn: Any = ()
    if critic is not None:
      value_rn = readers.read_values(networks.critic, judged_b.answers)
    flat = lambda x: x.reshape(-1, *x.shape[2:])
    no_answers: Any = ()
    rows = jax.tree.map(flat, dataclasses.replace(judged_b, answers=no_answers))
    mask_rn = flat(answers_lib.mask(judged_b.answers))
    engine_rn = flat(judged_b.answers.log_prob)
    loss_rn, counts_rn, metrics = jax.vmap(
      functools.partial(grpo_losses.row_loss, objective, config)
    )(said, value_rn, rows, engine_rn, mask_rn)
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
    answers_b: Any,
    reward_bg: Any,
    judged_p: Judged,
    version: Any,
    reread_p: Any,
  ) -> Any:
    return grpo_losses.summary(
      answers_b, reward_bg, judged_p, version, reread_p
    )

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
      reward_pg = readers.rate(state.reward_model, answers_p, reward_pg)
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
    length_pg = answers_p.length
    old_log_prob_pgn = readers.infer(networks.actor, answers_p, length_pg)
    nothing: Any = ()
    reference_pgn = value_pgn = reread_p = nothing
    if config.kl_weight:
      reference_pgn = readers.refer(state.reference, answers_p)
    if critic is not None:
      value_pgn = readers.value(networks.critic, answers_p, length_pg)
    if config.drift_every:
      reread_p = readers.reread(weights, answers_p)
    judged_p = judge(
      answers_p, reward_pg, old_log_prob_pgn, reference_pgn, value_pgn
    )
    learner, metrics = learn(state.learner, judged_p, learn_key)
    metrics |= summarise(
      answers_b, reward_bg, judged_p, state.version, reread_p
    )
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


def _num_worth_it(rounds: Any) -> jax.Array:
  counts = [
    jnp.sum(answers.is_used & jax.vmap(losses.has_signal)(reward))
    for answers, reward in rounds
  ]
  return sum(counts, jnp.zeros((), jnp.int32))


def _seeds(config: Config, position: int) -> np.ndarray:
  """Returns a seed for each answer to a prompt in its turn, uint32 [G]."""
  entropy = np.random.SeedSequence([config.seed, position])
  return entropy.generate_state(config.group_size, np.uint32)
