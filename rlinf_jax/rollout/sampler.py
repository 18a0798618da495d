"""A jitted sampler with a cache: the plain way to continue prompts.

It is the reference for log-probabilities, and what generates where no other
engine can be installed. Each sample has a key, and each of its tokens is drawn
with that key and the token's position. So a sample depends neither on what else
is in the batch, nor on where its generation was interrupted and taken up again.

Letters: B prompts, T tokens of a padded prompt, n samples of each, R = B n
rows, N new tokens at most, V vocabulary.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from rlinf_jax.rollout import distributions
from rlinf_jax.types import Completions, Params


class Decoder(Protocol):
  """The part of a language model that a sampler uses."""

  @property
  def cache(self) -> Callable[[int, int], Any]:
    """(num_rows, num_slots) -> an empty cache, with leaves [_, rows, ...]."""

  @property
  def extend(
    self,
  ) -> Callable[[Params, jax.Array, jax.Array, Any], tuple[jax.Array, Any]]:
    """(params, token [R, T], position [R, T], cache) -> (hidden, cache).

    A token sees the slots up to its position, after its own was written.
    """

  @property
  def read(self) -> Callable[[Params, jax.Array], jax.Array]:
    """(params, hidden [R, W]) -> logits float32 [R, V]."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
  """How prompts are continued.

  Attributes:
    max_new_tokens: at which a sample ends if it has not stopped.
    temperature: by which logits are divided. 0 takes the likeliest token; its
      log-probability is then that at temperature 1, of all tokens.
    top_k: how many of the likeliest tokens are left; None is all.
    top_p: the least probability of those that are left; 1 is all.
    stop_tokens: a sample ends with, and includes, the first of these.
  """

  max_new_tokens: int
  temperature: float = 1.0
  top_k: int | None = None
  top_p: float = 1.0
  stop_tokens: tuple[int, ...] = ()

  def __post_init__(self):
    if self.max_new_tokens < 1:
      raise ValueError(
        f"max_new_tokens is {self.max_new_tokens}; give at least 1."
      )
    if self.temperature < 0.0:
      raise ValueError(
        f"temperature is {self.temperature}; give 0 for the likeliest token, or"
        " more."
      )
    if self.top_k is not None and self.top_k < 1:
      raise ValueError(f"top_k is {self.top_k}; give at least 1, or None.")
    if not 0.0 < self.top_p <= 1.0:
      raise ValueError(f"top_p is {self.top_p}; give more than 0, at most 1.")


@struct.dataclass
class State:
  """Samples under way. What is beyond a sample's length means nothing."""

  cache: Any  # leaves [_, R, T + N, ...]
  key: jax.Array  # [R] typed keys
  last: jax.Array  # [R] int32, the token to be read next
  position: jax.Array  # [R] int32, its place
  token: jax.Array  # [R, N] int32, what was sampled
  log_prob: jax.Array  # [R, N] float32, nats
  length: jax.Array  # [R] int32, how many were sampled
  is_stopped: jax.Array  # [R] bool, at a stop token


class Sampler(NamedTuple):
  """Continues prompts, all at once or a few tokens at a time.

  Attributes:
    start: (params, prompt_bt int32, length_b int32, key_bn) -> state. Prompts
      are padded on the right. A key is consumed by its sample.
    advance: (params, state, num_tokens) -> state, after at most as many more
      tokens of each sample. It may be called with newer parameters than the
      state began with: keys and values of tokens already read stay what they
      were. The state is donated.
    is_done: state -> bool [], whether every sample has ended.
    finish: (state, num_prompts) -> completions so far.
    begin: as `start`, without its checks: it can be traced.
    sample: (params, prompt_bt, length_b, key_bn) -> completions, at their end.
  """

  start: Callable[[Params, Any, Any, chex.PRNGKey], State]
  advance: Callable[[Params, State, int], State]
  is_done: Callable[[State], jax.Array]
  finish: Callable[[State, int], Completions]
  begin: Callable[[Params, Any, Any, chex.PRNGKey], State]
  sample: Callable[[Params, Any, Any, chex.PRNGKey], Completions]


def sampler(model: Decoder, sampling: Sampling) -> Sampler:
  """Returns what continues prompts by a model; it compiles once per shape.

  Args:
    model: a language model's functions.
    sampling: how.

  Raises (from `start` and `sample`):
    ValueError: a prompt is empty or longer than its row, or prompts and new
      tokens together are longer than the model's context.
  """
  num_new = sampling.max_new_tokens

  def has_ended(state):
    return state.is_stopped | (state.length >= num_new)

  @jax.jit
  def begin(params, prompt_bt, length_b, key_bn):
    num_prompts, num_samples = key_bn.shape
    size = prompt_bt.shape[1]
    cache = model.cache(num_prompts, size + num_new)
    position = jnp.arange(size, dtype=jnp.int32)[None]
    position = jnp.broadcast_to(position, prompt_bt.shape)
    # The last token is read again by the first step, which wants its output.
    _, cache = model.extend(params, prompt_bt, position, cache)
    last = jnp.take_along_axis(prompt_bt, length_b[:, None] - 1, axis=1)[:, 0]
    repeat = lambda x, axis: jnp.repeat(x, num_samples, axis=axis)
    shape = (num_prompts * num_samples, num_new)
    return State(
      cache=jax.tree.map(lambda x: repeat(x, 1), cache),
      key=key_bn.reshape(-1),
      last=repeat(last, 0),
      position=repeat(length_b - 1, 0),
      token=jnp.zeros(shape, jnp.int32),
      log_prob=jnp.zeros(shape, jnp.float32),
      length=jnp.zeros(shape[0], jnp.int32),
      is_stopped=jnp.zeros(shape[0], bool),
    )

  def step(params, state):
    hidden, cache = model.extend(
      params, state.last[:, None], state.position[:, None], state.cache
    )
    logits = model.read(params, hidden[:, 0])
    key = jax.vmap(jax.random.fold_in)(state.key, state.position + 1)
    token, log_prob = _draw(key, logits, sampling)
    # Where a sample has ended, nothing is written: N is out of bounds.
    has_room = ~has_ended(state)
    rows = jnp.arange(token.shape[0])
    at = (rows, jnp.where(has_room, state.length, num_new))
    is_stop = jnp.zeros_like(has_room)
    for stop in sampling.stop_tokens:
      is_stop |= token == stop
    grown = has_room.astype(jnp.int32)
    return State(
      cache=cache,
      key=state.key,
      last=jnp.where(has_room, token, state.last),
      position=state.position + grown,
      token=state.token.at[at].set(token, mode="drop"),
      log_prob=state.log_prob.at[at].set(log_prob, mode="drop"),
      length=state.length + grown,
      is_stopped=state.is_stopped | (has_room & is_stop),
    )

  def advance(params, state, num_tokens):
    def goes_on(carry):
      i, state = carry
      return (i < num_tokens) & ~jnp.all(has_ended(state))

    def body(carry):
      i, state = carry
      return i + 1, step(params, state)

    return jax.lax.while_loop(goes_on, body, (0, state))[1]

  advance = jax.jit(advance, donate_argnums=1)

  def start(params, prompt_bt, length_b, key_bn):
    _check_prompts(prompt_bt, length_b, key_bn)
    return begin(params, jnp.asarray(prompt_bt), jnp.asarray(length_b), key_bn)

  def finish(state, num_prompts):
    split = lambda x: x.reshape(num_prompts, -1, *x.shape[1:])
    return Completions(
      token=split(state.token),
      log_prob=split(state.log_prob),
      length=split(state.length),
      is_stopped=split(state.is_stopped),
    )

  def sample(params, prompt_bt, length_b, key_bn):
    state = start(params, prompt_bt, length_b, key_bn)
    return finish(advance(params, state, num_new), key_bn.shape[0])

  return Sampler(
    start=start,
    advance=advance,
    is_done=lambda state: jnp.all(has_ended(state)),
    finish=finish,
    begin=begin,
    sample=sample,
  )


def from_left_padded(prompt_bt: Any, length_b: Any) -> np.ndarray:
  """Returns prompts [B, T] padded on the right that were so on the left."""
  prompt_bt = np.asarray(prompt_bt)
  size = prompt_bt.shape[1]
  # What was padding before goes round to the end.
  index = np.arange(size)[None] + size - np.asarray(length_b)[:, None]
  return np.take_along_axis(prompt_bt, index % size, axis=1)


def _draw(key, logits, sampling):
  """Returns tokens int32 [R] and their log-probabilities [R] as sampled."""
  if sampling.temperature == 0.0:
    log_prob = distributions.log_distribution(logits)
    token = jnp.argmax(logits, axis=-1)
  else:
    log_prob = distributions.log_distribution(
      logits,
      temperature=sampling.temperature,
      top_k=sampling.top_k,
      top_p=sampling.top_p,
    )
    token = jax.vmap(jax.random.categorical)(key, log_prob)
  token = token.astype(jnp.int32)
  chosen = jnp.take_along_axis(log_prob, token[:, None], axis=-1)
  return token, chosen[:, 0]


def _check_prompts(prompt_bt, length_b, key_bn):
  chex.assert_rank([prompt_bt, length_b, key_bn], [2, 1, 2])
  chex.assert_equal_shape_prefix([prompt_bt, length_b, key_bn], 1)
  chex.assert_type([prompt_bt, length_b], np.int32)
  length, size = np.asarray(length_b), prompt_bt.shape[1]
  for b in np.flatnonzero((length < 1) | (length > size)).tolist():
    raise ValueError(
      f"Given prompt {b} of {length[b]} tokens in a row of {size}, expected 1"
      " to that many. Begin an empty prompt with a token, such as bos."
    )
