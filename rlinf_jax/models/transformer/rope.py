"""Rotary positions, and the ways to stretch them beyond the first training.

Feature i of the first half of a head and feature i of its second half are a
point in a plane, which position p turns by the angle p f_i, where

  f_i = base^(-2 i / H),  0 <= i < H / 2

(H the head's size). A scaling makes slower frequencies of these.

Source: Su et al., "RoFormer", arXiv 2104.09864. Which features are paired is a
convention; this is that of Hugging Face's checkpoints.
"""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Linear:
  """All positions divided by a factor.

  Source: Chen et al., "Position Interpolation", arXiv 2306.15595.
  """

  factor: float


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DynamicNtk:
  """A greater base, the greater the longer a text already is.

  A text of n tokens beyond a context of c turns by the base

    base ((factor n / c) - (factor - 1))^(H / (H - 2)),

  so each further token turns all tokens before it anew. Here n is the length
  of each text by itself: not of the longest one in the batch.
  """

  factor: float


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Yarn:
  """Slow features are interpolated, fast ones left, those between blended.

  A feature that turns more than `beta_fast` times in the original context is
  left as it is, one that turns less than `beta_slow` times is slowed by
  `factor`. `attention_factor` multiplies the turned queries and keys; None is
  the paper's 0.1 ln(factor) + 1.

  Source: Peng et al., "YaRN", arXiv 2309.00071, sections 3.2 to 3.4.
  """

  factor: float
  original_context_size: int
  beta_fast: float = 32.0
  beta_slow: float = 1.0
  attention_factor: float | None = None
  is_truncated: bool = True  # the blended range begins and ends at a feature


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Llama3:
  """As YaRN, with the range given by wavelengths and blended in frequency.

  Wavelengths below original_context_size / high_frequency_factor stay; those
  above original_context_size / low_frequency_factor are slowed by `factor`.

  Source: Llama Team, "The Llama 3 Herd of Models", arXiv 2407.21783, and the
    numbers in the configurations of its checkpoints.
  """

  factor: float
  original_context_size: int
  low_frequency_factor: float
  high_frequency_factor: float


Scaling = Linear | DynamicNtk | Yarn | Llama3


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Rope:
  """How positions turn queries and keys."""

  base: float
  scaling: Scaling | None = None

  def __post_init__(self):
    if self.base <= 1.0:
      raise ValueError(
        f"Given a base of {self.base}, expected more than 1: features of"
        " rotary positions turn slower one after another."
      )
    if self.scaling is not None and self.scaling.factor < 1.0:
      raise ValueError(
        f"Given {self.scaling}, expected a factor of at least 1: a scaling"
        " stretches the context."
      )


def yarn_scale(factor: float, strength: float = 1.0) -> float:
  """Returns 0.1 strength ln(factor) + 1, YaRN's factor of queries and keys."""
  return 0.1 * strength * math.log(factor) + 1.0


class Rotation(NamedTuple):
  """The cosines and sines of the angles of some tokens."""

  cos: jax.Array  # [B, T, H / 2] float32
  sin: jax.Array  # [B, T, H / 2] float32


def frequencies(rope: Rope, head_size: int) -> np.ndarray:
  """Returns the radians per position of each plane, float64 [head_size / 2].

  Of `DynamicNtk` they are those of a text within the context.
  """
  exponent = np.arange(0, head_size, 2) / head_size
  plain = rope.base**-exponent
  match rope.scaling:
    case Linear(factor=factor):
      return plain / factor
    case Yarn() as yarn:
      return _blend(plain, yarn.factor, _yarn_share(rope.base, yarn, head_size))
    case Llama3() as llama:
      return _blend(plain, llama.factor, _llama3_share(plain, llama))
    case _:
      return plain


def rotation(
  rope: Rope,
  head_size: int,
  position_bt: jax.Array,
  num_contexts_bt: jax.Array | None = None,
) -> Rotation:
  """Returns how the tokens at these positions are turned.

  Args:
    rope: which frequencies.
    head_size: features of a head.
    position_bt: int [B, T].
    num_contexts_bt: float32 [B, T], for `DynamicNtk`: the length of the text
      that each token is of, in contexts; None is any length within one.
  """
  position = position_bt[..., None].astype(jnp.float32)
  scale = 1.0
  frequency = jnp.asarray(frequencies(rope, head_size), jnp.float32)[None, None]
  if isinstance(rope.scaling, DynamicNtk) and num_contexts_bt is not None:
    frequency = frequency * _slowing(
      rope.scaling.factor, head_size, num_contexts_bt
    )
  if isinstance(rope.scaling, Yarn):
    scale = rope.scaling.attention_factor or yarn_scale(rope.scaling.factor)
  angle = position * frequency
  return Rotation(scale * jnp.cos(angle), scale * jnp.sin(angle))


def rotate(x: jax.Array, rotation: Rotation) -> jax.Array:
  """Returns x [B, T, N, H] turned, in its own dtype; computed in float32."""
  first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
  cos, sin = (a[:, :, None] for a in rotation)
  turned = [first * cos - second * sin, second * cos + first * sin]
  return jnp.concatenate(turned, axis=-1).astype(x.dtype)


def _slowing(factor, head_size, num_contexts_bt):
  """Returns what `DynamicNtk` multiplies frequencies by, 1 in one context."""
  stretch = factor * jnp.maximum(num_contexts_bt, 1.0) - (factor - 1.0)
  # (stretch^(H / (H - 2)))^(-2 i / H)
  exponent = jnp.arange(0, head_size, 2, dtype=jnp.float32) / (head_size - 2)
  return jnp.exp(-jnp.log(stretch)[..., None] * exponent[None, None])


def _blend(plain, factor, share_kept):
  """share_kept [H / 2]: 1 leaves a frequency, 0 divides it by the factor."""
  return plain * share_kept + plain / factor * (1.0 - share_kept)


def _yarn_share(base, yarn, head_size):
  def plane_that_turns(times):
    turns_of_first = yarn.original_context_size / (2 * math.pi)
    return head_size * math.log(turns_of_first / times) / (2 * math.log(base))

  low = plane_that_turns(yarn.beta_fast)
  high = plane_that_turns(yarn.beta_slow)
  if yarn.is_truncated:
    low, high = math.floor(low), math.ceil(high)
  low, high = max(low, 0), min(high, head_size - 1)
  width = high - low or 1e-3
  return 1.0 - np.clip((np.arange(head_size // 2) - low) / width, 0.0, 1.0)


def _llama3_share(plain, llama):
  turns = llama.original_context_size * plain / (2 * math.pi)
  low, high = llama.low_frequency_factor, llama.high_frequency_factor
  return np.clip((turns - low) / (high - low), 0.0, 1.0)
