"""Protocols and batches that the parts of rlinf_jax share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import chex
import jax
from flax import struct

Params = Any  # a pytree of arrays
AnyArray = Any  # of JAX or NumPy, or its shape and dtype
Metrics = dict[str, jax.Array]


@struct.dataclass
class Sequence:
  """T consecutive steps of one environment, as a loss sees them.

  Letters: T time. `obs`, like everything else, is of the step it stands at:
  `action[t]` was chosen on seeing `obs[t]` and brought `reward[t]`.
  """

  obs: Any  # [T, ...] float32, normalised
  action: jax.Array  # [T, ...] the head's raw action
  log_prob: jax.Array  # [T] float32, of `action` when it was chosen
  value: jax.Array  # [T] float32, the critic's when the batch was made
  advantage: jax.Array  # [T] float32, normalised over the whole batch
  target: jax.Array  # [T] float32, what the critic should say
  reward: jax.Array  # [T] float32, scaled
  terminated: jax.Array  # [T] bool
  truncated: jax.Array  # [T] bool
  is_first: jax.Array  # [T] bool: an episode begins here
  mask: jax.Array  # [T] bool: False where a step must not be learnt from
  carry: Any  # the recurrent state before the first step; () without one


LossFn = Callable[
  [Params, Sequence, chex.PRNGKey], tuple[jax.Array, dict[str, jax.Array]]
]
"""(params, one sequence, key) -> (loss, metrics), each [T] or [].

A [T] loss is averaged over the steps that `mask` leaves in; a [] loss stands
for each step of its sequence alike.
"""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
  """What a language model is asked, and what is known about it.

  Attributes:
    text: the question; of a chat, its last message.
    answer: the reference answer; "" without one.
    metadata: whatever else a reward needs, as JSON knows it.
    messages: a chat, the oldest message first, each with "role" and "content";
      () where `text` says all.
  """

  text: str
  answer: str = ""
  metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  messages: tuple[Mapping[str, str], ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Completion:
  """What a reward sees: a model's response to a prompt.

  Attributes:
    prompt: the prompt's text.
    response: what the model wrote, without special tokens.
    answer: the prompt's.
    metadata: the prompt's.
    num_tokens: of the response.
    is_cut: whether the limit of tokens ended it, and not the model.
  """

  prompt: str
  response: str
  answer: str = ""
  metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  num_tokens: int = 0
  is_cut: bool = False


RewardFn = Callable[[Completion], float]


class Tokenizer(Protocol):
  """Text as token ids, and back."""

  @property
  def vocab_size(self) -> int:
    """More than any id that it gives."""

  @property
  def pad_id(self) -> int: ...

  @property
  def eos_id(self) -> int:
    """What ends an answer that is learnt from."""

  @property
  def stop_ids(self) -> tuple[int, ...]:
    """What ends an answer that is generated."""

  @property
  def template_fn(self) -> Callable[..., str] | None:
    """A chat's messages -> text; None where there is no chat template."""

  def encode(self, text: str) -> list[int]:
    """Returns the tokens of a prompt, with a beginning where models want it."""

  def encode_all(self, texts: Iterable[str]) -> list[list[int]]:
    """Returns the tokens of each of many prompts, faster than one by one."""

  def encode_answer(self, text: str) -> list[int]:
    """Returns the tokens of what follows a prompt, without an end."""

  def decode(self, ids: Any) -> str:
    """Returns text without special tokens."""

  def write(self, folder: Any) -> None:
    """Writes into a checkpoint's folder what loads the same tokenizer."""


@struct.dataclass
class Weights:
  """Parameters to generate with, and how many updates made them."""

  params: Params
  version: jax.Array  # [] int32


@struct.dataclass
class Request:
  """What to continue. What is beyond a prompt's length means nothing.

  Letters: B prompts, T tokens of a padded prompt, n samples of each, N new
  tokens at most.
  """

  prompt: AnyArray  # [B, T] int32, padded on the right
  length: AnyArray  # [B] int32
  seed: AnyArray  # [B, n] uint32, one of each sample
  is_asked: AnyArray  # [B] bool; where False nothing is generated


@struct.dataclass
class Completions:
  """What was sampled. A mask follows from lengths, never from token values."""

  token: AnyArray  # [B, n, N] int32; 0 beyond the length
  log_prob: AnyArray  # [B, n, N] float32, nats, as sampled; 0 beyond
  length: AnyArray  # [B, n] int32, a stop token included
  is_stopped: AnyArray  # [B, n] bool; False where it ended for its length
  # [B, n, N] int32: how many updates made the weights of each token; () where
  # whoever sampled was not told.
  version: Any = ()


class Environment(Protocol):
  """The part of an env that algorithms look at."""

  @property
  def name(self) -> str: ...

  @property
  def reset(self) -> Callable[[chex.PRNGKey], Any]: ...

  @property
  def step(self) -> Callable[[Any, jax.Array], Any]: ...

  @property
  def episode_length(self) -> int | None: ...

  @property
  def success_metric(self) -> str | None: ...


class Episodes(Protocol):
  """An environment that resets itself; `envs.autoreset` makes them."""

  @property
  def env(self) -> Environment: ...

  @property
  def reset(self) -> Callable[[chex.PRNGKey], Any]: ...

  @property
  def step(self) -> Callable[..., tuple[Any, Any]]: ...
