"""Log-probabilities and entropies that never hold [tokens, vocabulary]."""

from __future__ import annotations

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from rlinf_jax.models.transformer import block


class TokenStatistics(NamedTuple):
  """What a language model says of each given token."""

  log_prob: jax.Array  # [B, T] float32, nats, of the given token
  entropy: jax.Array  # [B, T] float32, nats, of the whole distribution


def token_statistics(
  kernel: jax.Array,
  hidden_btw: jax.Array,
  target_bt: jax.Array,
  *,
  mask_bt: jax.Array | None = None,
  temperature: float = 1.0,
  chunk_size: int = 1024,
) -> TokenStatistics:
  """Returns log-probabilities of tokens and entropies, a few at a time.

  Letters: B rows, T tokens of a row, W width, V vocabulary. Logits are held as
  [chunk_size, V], however many rows there are, in the backward pass too, which
  computes them again; the kernel's gradient is summed in the kernel's own
  dtype.

  Args:
    kernel: float [V, W], of the last layer: the model's `head(params)`.
    hidden_btw: float [B, T, W], of `encode`; products are in its dtype.
    target_bt: int [B, T]. To be the next token, it is what `encode` was given,
      shifted by one.
    mask_bt: bool [B, T], tokens that are asked about. The others get 0, and no
      chunk is computed of them alone. Default: all.
    temperature: by which logits are divided, as when the tokens were sampled.
    chunk_size: tokens at once, of all rows together.

  Raises:
    ValueError: temperature or chunk_size is not positive.
    AssertionError: shapes or types are others.
  """
  chex.assert_rank([kernel, hidden_btw, target_bt], [2, 3, 2])
  chex.assert_equal_shape_prefix([hidden_btw, target_bt], 2)
  chex.assert_type([kernel, hidden_btw, target_bt], [float, float, int])
  if temperature <= 0.0 or chunk_size < 1:
    raise ValueError(
      f"Given temperature {temperature} and chunk_size {chunk_size}, expected"
      " both positive. Greedy tokens have no distribution: use 1."
    )
  if mask_bt is None:
    mask_bt = jnp.ones_like(target_bt, bool)
  chex.assert_equal_shape([target_bt, mask_bt])
  size = target_bt.size
  num_chunks = -(-size // chunk_size)
  # As few, but all alike: hardly a token of padding is computed with.
  chunk_size = -(-size // num_chunks)
  # Those that are asked about first: what is left of chunks is then skipped.
  order = jnp.argsort(~mask_bt.reshape(-1), stable=True)

  def to_chunks(x):
    x = x.reshape(size, *x.shape[2:])[order]
    missing = num_chunks * chunk_size - size
    x = jnp.pad(x, [(0, missing)] + [(0, 0)] * (x.ndim - 1))
    return x.reshape(num_chunks, chunk_size, *x.shape[1:])

  def from_chunks(x):
    x = x.reshape(-1)[:size]
    x = jnp.zeros_like(x).at[order].set(x, unique_indices=True)
    return jnp.where(mask_bt, x.reshape(target_bt.shape), 0.0)

  def look(kernel, hidden, target):
    logits = block.multiply(hidden, kernel.astype(hidden.dtype), jnp.float32)
    log_prob = jax.nn.log_softmax(logits / temperature)
    chosen = jnp.take_along_axis(log_prob, target[..., None], axis=-1)
    return chosen[..., 0], -jnp.sum(jnp.exp(log_prob) * log_prob, axis=-1)

  def skip(kernel, hidden, target):
    del kernel, target
    return (jnp.zeros(hidden.shape[:1]),) * 2

  # Around the choice: else each chunk would keep a kernel for its gradient.
  @jax.checkpoint
  def of_chunk(kernel, hidden, target, is_asked):
    return jax.lax.cond(jnp.any(is_asked), look, skip, kernel, hidden, target)

  def step(carry, chunk):
    return carry, of_chunk(kernel, *chunk)

  _, chunks = jax.lax.scan(
    step, (), tuple(map(to_chunks, (hidden_btw, target_bt, mask_bt)))
  )
  return TokenStatistics(*map(from_chunks, chunks))
