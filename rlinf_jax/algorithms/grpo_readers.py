"""The stages in which networks read answers, before anything is learnt.

Each is given the parameters that it reads and no others, so that a plan can
place it where these are. Letters as in `grpo`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rlinf_jax import flow, types
from rlinf_jax.algorithms import answers as answers_lib
from rlinf_jax.algorithms import grpo_config, grpo_losses
from rlinf_jax.models import transformer


class Readers(NamedTuple):
  """What reads answers.

  Attributes:
    read: (actor params, answers) -> `transformer.TokenStatistics` [R, N], of
      rows prompt by prompt; for the loss.
    read_values: (critic params, answers) -> [R, N]; likewise.
    infer: stage (actor params, answers, lengths) -> log-probabilities.
    refer: stage (reference's params, answers) -> log-probabilities.
    value: stage (critic params, answers, lengths) -> values.
    reread: stage (`types.Weights`, answers) -> float32 [P], the drift from the
      weights that generated, every `drift_every` versions of them, else 0.
    rate: stage (reward model's params, answers, reward_pg) -> rewards [P, G].

  What is not said otherwise is float32 [P, G, N].
  """

  read: Callable[[Any, Any], transformer.TokenStatistics]
  read_values: Callable[[Any, Any], jax.Array]
  infer: flow.Stage
  refer: flow.Stage
  value: flow.Stage
  reread: flow.Stage
  rate: flow.Stage


def make(
  model: transformer.Transformer,
  config: grpo_config.Config,
  *,
  critic: transformer.Transformer | None = None,
  reward_model: transformer.Transformer | None = None,
) -> Readers:
  """Returns what reads answers; arguments as those of `grpo.make`."""
  quantum = config.quantum

  def read(params: types.Params, answers_b: Any) -> Any:
    return answers_lib.statistics(
      model,
      params,
      answers_b,
      temperature=config.temperature,
      packed_rows=config.packed_rows,
    )

  def read_values(params: types.Params, answers_b: Any) -> jax.Array:
    assert critic is not None
    return answers_lib.values(
      critic, params, answers_b, packed_rows=config.packed_rows
    )

  def by_prompt(x_rn: jax.Array) -> jax.Array:
    return x_rn.reshape(-1, config.group_size, *x_rn.shape[1:])

  @flow.stage(items={1: 0, 2: 0}, quantum=quantum, weight=2)
  def infer(params: Any, answers_p: Any, length_pg: Any) -> Any:
    del length_pg  # how much work each prompt's answers are
    return by_prompt(read(params, answers_p).log_prob)

  @flow.stage(items={1: 0}, quantum=quantum)
  def refer(params: Any, answers_p: Any) -> Any:
    return by_prompt(read(params, answers_p).log_prob)

  @flow.stage(items={1: 0, 2: 0}, quantum=quantum, weight=2)
  def value(params: Any, answers_p: Any, length_pg: Any) -> Any:
    del length_pg
    return by_prompt(read_values(params, answers_p))

  @flow.stage(items={1: 0}, quantum=quantum)
  def reread(weights: Any, answers_p: Any) -> Any:
    def look() -> jax.Array:
      said = read(weights.params, answers_p)
      return grpo_losses.drift(
        by_prompt(said.log_prob), answers_p, weights.version
      )

    # Not at once: how long a stage takes is measured at first.
    is_time = (weights.version + 1) % config.drift_every == 0
    nothing = lambda: jnp.zeros(answers_p.length.shape[:1])
    return jax.lax.cond(is_time, look, nothing)

  @flow.stage(items={1: 0, 2: 0}, quantum=quantum)
  def rate(params: Any, answers_p: Any, reward_pg: Any) -> Any:
    assert reward_model is not None
    rated_pg = answers_lib.rate(
      reward_model, params, answers_p, packed_rows=config.packed_rows
    )
    rated_pg = jnp.where(answers_p.is_used[:, None], rated_pg, 0.0)
    return reward_pg + config.reward_model_weight * rated_pg

  return Readers(read, read_values, infer, refer, value, reread, rate)
