"""Grouped-query attention over texts that share rows, and its memory."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct


class Place(NamedTuple):
  """Where tokens stand: a token sees those of its segment up to itself."""

  position_bt: jax.Array  # [B, T] int32, from 0 in each segment
  segment_bt: jax.Array  # [B, T] int32


@struct.dataclass
class Cache:
  """Keys and values of what has been read; slot s is position s of its row.

  Letters: L layers, B rows, S slots, K heads of keys, H features of a head.
  """

  key: jax.Array  # [L, B, S, K, H]
  value: jax.Array  # [L, B, S, K, H]


def attend(
  query: jax.Array,
  key: jax.Array,
  value: jax.Array,
  query_place: Place,
  key_place: Place,
  *,
  block_size: int | None,
) -> jax.Array:
  """Returns what each query gathers from the values it may see.

  Letters: B rows, T queries, S keys, N heads of queries, K heads of keys.

  Args:
    query: float [B, T, N, H].
    key: float [B, S, K, H].
    value: float [B, S, K, H].
    query_place: of the T queries. Each must see a key, or its result is the
      mean of all values.
    key_place: of the S keys.
    block_size: queries attended to at once. Scores are [B, N, block_size, S],
      also in the backward pass, which computes them again. None is all T of
      them, whose scores are kept.

  Returns:
    [B, T, N, H] in value's dtype; scores and their softmax are float32.
  """
  size = query.shape[1]
  if block_size is None or block_size >= size:
    return _attend(query, key, value, query_place, key_place)
  num_blocks = -(-size // block_size)
  blocked = jax.tree.map(
    lambda x: _to_blocks(x, num_blocks, block_size), (query, query_place)
  )

  @jax.checkpoint
  def attend_block(block):
    block_query, block_place = block
    return _attend(block_query, key, value, block_place, key_place)

  blocks = jnp.moveaxis(jax.lax.map(attend_block, blocked), 0, 1)
  return blocks.reshape(query.shape[0], -1, *query.shape[2:])[:, :size]


def write(
  cache: Cache, layer: jax.Array, place: Place, key: jax.Array, value: jax.Array
) -> Cache:
  """Returns the cache with one layer's new keys and values in their slots.

  Args:
    cache: as it was.
    layer: int [], which layer's.
    place: of the new tokens; those at positions beyond the slots are dropped.
    key: [B, T, K, H] in the cache's dtype.
    value: [B, T, K, H].
  """
  rows = jnp.arange(key.shape[0])[:, None]
  at = (layer, rows, place.position_bt)
  return Cache(
    key=cache.key.at[at].set(key, mode="drop"),
    value=cache.value.at[at].set(value, mode="drop"),
  )


def attend_to_cache(
  query: jax.Array,
  cache: Cache,
  layer: jax.Array,
  query_place: Place,
  *,
  block_size: int | None,
) -> jax.Array:
  """Returns what each query gathers from the slots up to its position.

  Arguments and result as those of `attend`; rows are of one segment.
  """
  num_rows, num_slots = cache.key.shape[1:3]
  slot = jnp.arange(num_slots, dtype=query_place.position_bt.dtype)
  slot_bt = jnp.broadcast_to(slot[None], (num_rows, num_slots))
  return attend(
    query,
    cache.key[layer],
    cache.value[layer],
    query_place,
    Place(slot_bt, jnp.zeros_like(slot_bt)),
    block_size=block_size,
  )


def _attend(query, key, value, query_place, key_place):
  num_rows, num_queries, num_heads, head_size = query.shape
  num_kv_heads = key.shape[2]
  grouped = query.reshape(num_rows, num_queries, num_kv_heads, -1, head_size)
  score = jnp.einsum(
    "btkgh,bskh->bkgts", grouped, key, preferred_element_type=jnp.float32
  )
  visible = (
    query_place.segment_bt[:, :, None] == key_place.segment_bt[:, None]
  ) & (query_place.position_bt[:, :, None] >= key_place.position_bt[:, None])
  score = jnp.where(
    visible[:, None, None],
    score * head_size**-0.5,
    # Finite: a row that sees nothing must not be NaN.
    jnp.finfo(jnp.float32).min,
  )
  weight = jax.nn.softmax(score, axis=-1).astype(value.dtype)
  gathered = jnp.einsum("bkgts,bskh->btkgh", weight, value)
  return gathered.reshape(num_rows, num_queries, num_heads, head_size)


def _to_blocks(x, num_blocks, block_size):
  """Returns x [B, T, ...] as [num_blocks, B, block_size, ...], zeros after."""
  missing = num_blocks * block_size - x.shape[1]
  x = jnp.pad(x, [(0, 0), (0, missing)] + [(0, 0)] * (x.ndim - 2))
  x = x.reshape(x.shape[0], num_blocks, block_size, *x.shape[2:])
  return jnp.moveaxis(x, 1, 0)
