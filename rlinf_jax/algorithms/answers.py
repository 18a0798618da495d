"""Answers to prompts, as a language model reads and a loss sees them.

Letters: G answers to a prompt, T tokens of a padded prompt, N tokens of a
padded answer, R rows.
"""

from __future__ import annotations

import functools
from typing import Any

import chex
import jax
import jax.numpy as jnp
from flax import struct

from rlinf_jax import losses, types
from rlinf_jax.models import transformer


@struct.dataclass
class Answers:
  """G answers to one prompt; batches have a leading axis of prompts.

  What is beyond a length means nothing. Masks follow from lengths, never from
  the values of tokens.
  """

  prompt: jax.Array  # [T] int32
  prompt_length: jax.Array  # [] int32
  token: jax.Array  # [G, N] int32
  length: jax.Array  # [G] int32
  is_stopped: jax.Array  # [G] bool: the model ended it, not the limit
  log_prob: jax.Array  # [G, N] float32, nats, as the engine sampled
  version: jax.Array  # [G, N] int32: how many updates made the weights
  is_used: jax.Array  # [] bool: False where there is nothing to learn from


@struct.dataclass
class Judged:
  """G answers with all that a loss asks of them."""

  answers: Answers
  old_log_prob: jax.Array  # [G, N] float32, of the policy before the update
  reference_log_prob: Any  # [G, N] float32; () without a reference
  advantage: jax.Array  # [G, N] float32
  old_value: Any  # [G, N] float32; () without a critic
  target: Any  # [G, N] float32: what the critic should say; () without


def mask(answers: Answers) -> jax.Array:
  """Returns which tokens are there to be learnt from, bool [..., G, N]."""
  place = jax.lax.broadcasted_iota(
    jnp.int32, answers.token.shape, answers.token.ndim - 1
  )
  is_there = place < answers.length[..., None]
  return is_there & answers.is_used[..., None, None]


def join(
  prompt_t: jax.Array,
  prompt_length: jax.Array,
  token_n: jax.Array,
  length: jax.Array,
) -> jax.Array:
  """Returns a text: a prompt's tokens, an answer's, and zeros; int32 [T + N].

  Args:
    prompt_t: int32 [T].
    prompt_length: int32 [], at most T.
    token_n: int32 [N].
    length: int32 [], of the answer, at most N.
  """
  chex.assert_rank([prompt_t, prompt_length, token_n, length], [1, 0, 1, 0])
  place = jnp.arange(prompt_t.shape[0] + token_n.shape[0])
  of_answer = place - prompt_length
  padded = jnp.pad(prompt_t, (0, token_n.shape[0]))
  take = jnp.clip(of_answer, 0, token_n.shape[0] - 1)
  text = jnp.where(of_answer < 0, padded, token_n[take])
  return jnp.where(of_answer < length, text, 0)


def statistics(
  model: transformer.Transformer,
  params: types.Params,
  answers: Answers,
  *,
  temperature: float = 1.0,
  packed_rows: int | None = None,
) -> transformer.TokenStatistics:
  """Returns what a model says of each token of the answers to some prompts.

  Args:
    model: a language model.
    params: its parameters.
    answers: with a leading axis of B prompts.
    temperature: by which logits are divided, as when tokens were sampled.
    packed_rows: how many rows, of several texts each, are read at once; None is
      a row for each text, all at once.

  Returns:
    arrays [R, N], R = B G rows, prompt by prompt.
  """
  said_fn = functools.partial(
    transformer.token_statistics, temperature=temperature
  )
  mask_rn = mask(answers).reshape(-1, answers.token.shape[2])
  if packed_rows is not None:

    def foretell(params: types.Params, *tokens: jax.Array) -> Any:
      *text, is_asked = tokens
      hidden = model.encode(params, *text)
      next_token = jnp.roll(text[0], -1, axis=1)
      return said_fn(
        model.head(params), hidden, next_token, mask_bt=is_asked == 1
      )

    said = _read_packed(
      answers, packed_rows, foretell, params, _precedes(answers)
    )
    return jax.tree.map(lambda x: _before(answers, x), said)
  hidden = _before(answers, model.encode(params, *_texts(answers)))
  target = answers.token.reshape(mask_rn.shape)
  return said_fn(model.head(params), hidden, target, mask_bt=mask_rn)


def values(
  critic: transformer.Transformer,
  params: types.Params,
  answers: Answers,
  *,
  packed_rows: int | None = None,
) -> jax.Array:
  """Returns what a critic says before each token of answers, float32 [R, N].

  Args:
    critic: a network of values.
    params: its parameters.
    answers: with a leading axis of B prompts.
    packed_rows: see `statistics`.
  """
  return _before(answers, _read_values(critic, params, answers, packed_rows))


def rate(
  reward_model: transformer.Transformer,
  params: types.Params,
  answers: Answers,
  *,
  packed_rows: int | None = None,
) -> jax.Array:
  """Returns what a reward model says of each answer, float32 [B, G].

  Args:
    reward_model: a network of values, read at a text's last token.
    params: its parameters.
    answers: with a leading axis of B prompts.
    packed_rows: see `statistics`.
  """
  value = _read_values(reward_model, params, answers, packed_rows)
  _, _, segment = _texts(answers)
  last = jnp.maximum(jnp.sum(segment, axis=1) - 1, 0)
  found = jnp.take_along_axis(value, last[:, None], axis=1)
  return found.reshape(answers.length.shape)


def token_advantages(
  reward: jax.Array,
  kl_n: jax.Array,
  value_n: jax.Array,
  mask_n: jax.Array,
  *,
  kl_weight: float,
  discount: float,
  gae_lambda: float,
) -> tuple[jax.Array, jax.Array]:
  """Returns advantages and value targets of one answer's tokens, by a critic.

  Args:
    reward: float [], of the whole answer; it counts at the last token.
    kl_n: float [N], nats, from a reference policy.
    value_n: float [N], before each token.
    mask_n: bool [N], the answer's tokens.
    kl_weight: reward per nat.
    discount: per token.
    gae_lambda: in [0, 1].
  """
  reward_n = losses.token_rewards(reward, kl_n, mask_n, kl_weight=kl_weight)
  place_n = jnp.arange(mask_n.shape[0])
  # Nothing follows the last token, whether it was a stop token or the limit.
  ends_n = place_n == jnp.sum(mask_n) - 1
  next_value_n = jnp.roll(value_n, -1)
  return losses.gae(
    reward_n,
    value_n,
    jnp.where(ends_n, 0.0, next_value_n),
    ends_n,
    jnp.zeros_like(ends_n),
    discount=discount,
    gae_lambda=gae_lambda,
    mask_t=mask_n,
  )


def _texts(answers: Answers) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Returns tokens, positions and segments of all texts, int32 [R, T + N]."""
  by_row = lambda x: jnp.repeat(x, answers.token.shape[1], axis=0)
  flat = lambda x: x.reshape(-1, *x.shape[2:])
  prompt_length_r, length_r = (
    by_row(answers.prompt_length),
    flat(answers.length),
  )
  text = jax.vmap(join)(
    by_row(answers.prompt), prompt_length_r, flat(answers.token), length_r
  )
  place = jax.lax.broadcasted_iota(jnp.int32, text.shape, 1)
  end_r = prompt_length_r + length_r
  return text, place, (place < end_r[:, None]).astype(jnp.int32)


def _before(answers: Answers, said: jax.Array) -> jax.Array:
  """Returns what was said before each token of answers, [R, N, ...].

  Args:
    answers: with a leading axis of prompts.
    said: [R, T + N, ...], of each token of the texts.
  """
  group_size, num_new = answers.token.shape[1:]
  prompt_length_r = jnp.repeat(answers.prompt_length, group_size)
  # The output that foretells token n of an answer is that of the token before.
  before = prompt_length_r[:, None] - 1 + jnp.arange(num_new)[None]
  before = jnp.clip(before, 0, answers.prompt.shape[1] + num_new - 1)
  index = before.reshape(*before.shape, *[1] * (said.ndim - 2))
  return jnp.take_along_axis(said, index, axis=1)


def _precedes(answers: Answers) -> jax.Array:
  """Returns 1 for tokens of the texts before an answer's, int32 [R, T + N]."""
  _, place, segment = _texts(answers)
  size = jnp.sum(segment, axis=1, keepdims=True)
  group_size = answers.token.shape[1]
  first = jnp.repeat(answers.prompt_length, group_size)[:, None] - 1
  return ((place >= first) & (place < size - 1)).astype(jnp.int32)


def _read_values(
  network: transformer.Transformer,
  params: types.Params,
  answers: Answers,
  packed_rows: int | None,
) -> jax.Array:
  """Returns what a network of values says of all tokens, [R, T + N]."""
  if packed_rows is None:
    return network.apply(params, *_texts(answers))
  return _read_packed(answers, packed_rows, network.apply, params)


def _read_packed(
  answers: Answers,
  rows_at_once: int,
  read_fn: transformer.packed_rows.ReadFn,
  params: types.Params,
  *more: jax.Array,
) -> Any:
  """Returns what `read_fn` says of each token of all texts, [R, T + N]."""
  text, _, segment = _texts(answers)
  is_used_r = jnp.repeat(answers.is_used, answers.token.shape[1])
  return transformer.packed_rows.read(
    read_fn,
    params,
    text,
    jnp.where(is_used_r, jnp.sum(segment, axis=1), 0),
    *more,
    rows_at_once=rows_at_once,
  )
