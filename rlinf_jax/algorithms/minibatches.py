"""Minibatches that any number of devices draws alike.

A batch of B sequences is divided into S blocks. Each minibatch takes as many
sequences from every block, shuffled within it, so a batch need not cross
devices to be shuffled, and devices that divide S see the same minibatches.
"""

from __future__ import annotations

from typing import Any

import chex
import jax
import jax.numpy as jnp

from rlinf_jax import flow

MAX_BLOCKS = 8


def num_blocks(batch_size: int, num_minibatches: int) -> int:
  """Returns S, the largest number of blocks up to 8 that fits.

  Raises:
    ValueError: the minibatches do not divide the batch.
  """
  if batch_size % num_minibatches:
    raise ValueError(
      f"num_envs={batch_size} sequences do not divide into"
      f" num_minibatches={num_minibatches}; make num_envs a multiple of it"
    )
  size = batch_size // num_minibatches
  return max(s for s in range(1, MAX_BLOCKS + 1) if size % s == 0)


def shuffled(
  key: chex.PRNGKey, batch_size: int, *, num_epochs: int, num_minibatches: int
) -> jax.Array:
  """Returns who is in which minibatch, int32 [E * M, S, B / M / S].

  E epochs, M minibatches. Entries count within their block. The key is
  consumed.
  """
  blocks = num_blocks(batch_size, num_minibatches)
  keys = jax.random.split(key, (num_epochs, blocks))
  permute = lambda key: jax.random.permutation(key, batch_size // blocks)
  index_esb = jax.vmap(jax.vmap(permute))(keys)
  index_esmb = index_esb.reshape(num_epochs, blocks, num_minibatches, -1)
  index_emsb = jnp.swapaxes(index_esmb, 1, 2)
  return index_emsb.reshape(-1, *index_emsb.shape[2:])


@flow.stage(items={0: 0, 1: 0})
def select_in_blocks(batch_s: Any, index_s: jax.Array) -> Any:
  """Returns the chosen sequences of each block, leaves [S, B / M / S, ...]."""
  take = jax.vmap(lambda x_b, index: jnp.take(x_b, index, axis=0))
  return jax.tree.map(lambda x: take(x, index_s), batch_s)


def select(batch_b: Any, index_s: jax.Array) -> Any:
  """Returns one minibatch, leaves [B / M, ...], given one row of `shuffled`."""
  blocks = index_s.shape[0]
  batch_s = jax.tree.map(lambda x: x.reshape(blocks, -1, *x.shape[1:]), batch_b)
  return jax.tree.map(
    lambda x: x.reshape(-1, *x.shape[2:]), select_in_blocks(batch_s, index_s)
  )
