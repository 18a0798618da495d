"""Divisions of a cluster's devices among parts of a plan."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from scheduler.planners.pools import Key, Pool, Pools

_STRIDES = (16, 8, 4, 2, 1)


def every(
  pools: Pools, key: Key, usable: Sequence[frozenset[int]]
) -> Iterator[tuple[Key, ...]]:
  """Yields all divisions of a key, as far as the pools' counts are fine.

  Args:
    pools: of the cluster.
    key: what is divided.
    usable: for each part the indices of the device classes that it can use.
  """
  if len(usable) == 1:
    yield (tuple(n if i in usable[0] else 0 for i, n in enumerate(key)),)
    return
  others = frozenset().union(*usable[1:])
  for own, rest in pools.splits(key, usable[0], others):
    for keys in every(pools, rest, usable[1:]):
      yield (own, *keys)


def count(pools: Pools, usable: Sequence[frozenset[int]]) -> int:
  """Returns at least how many divisions of the whole cluster there are."""
  total = 1
  for i, pool in enumerate(pools.pools):
    parts = sum(i in classes for classes in usable)
    if parts > 1:
      blocks = len(pool.counts) or len(pool.groups)
      for k in range(1, parts):
        total = total * max(1, blocks - k) // k
      if not pool.counts:
        total *= parts
  return total


def by_weight(
  pools: Pools, weights: Sequence[float], usable: Sequence[frozenset[int]]
) -> tuple[Key, ...] | None:
  """Returns a division in proportion to the parts' weights.

  None: there are more parts than devices (or groups) that they can use.
  """
  columns = []
  for i, pool in enumerate(pools.pools):
    users = [p for p, classes in enumerate(usable) if i in classes]
    own = dict(zip(users, _shared_out(pool, [weights[p] for p in users])))
    columns.append([own.get(p, 0) for p in range(len(usable))])
  keys = tuple(zip(*columns))
  return keys if all(any(key) for key in keys) else None


def neighbours(
  pools: Pools, keys: tuple[Key, ...], usable: Sequence[frozenset[int]]
) -> Iterator[tuple[Key, ...]]:
  """Yields divisions in which one part has given some devices to another.

  Many devices are given first, one at last.
  """
  pairs = list(itertools.permutations(range(len(keys)), 2))
  for stride in _STRIDES:
    for i, pool in enumerate(pools.pools):
      for giver, taker in pairs:
        if not keys[giver][i] or i not in usable[taker]:
          continue
        for less, more in _given(pool, keys[giver][i], keys[taker][i], stride):
          moved = list(keys)
          moved[giver] = (*keys[giver][:i], less, *keys[giver][i + 1 :])
          moved[taker] = (*keys[taker][:i], more, *keys[taker][i + 1 :])
          if any(moved[giver]):
            yield tuple(moved)


def _given(
  pool: Pool, giver: int, taker: int, stride: int
) -> Iterator[tuple[int, int]]:
  if not pool.counts:
    if stride == 1:
      bits = [1 << b for b in range(len(pool.groups)) if giver >> b & 1]
      yield from ((giver ^ bit, taker | bit) for bit in bits)
    return
  place = pool.counts.index(pool.floor(giver)) - stride
  if place < -1:
    return
  less = pool.counts[place] if place >= 0 else 0
  yield less, pool.floor(taker + giver - less)


def _shared_out(pool: Pool, weights: Sequence[float]) -> list[int]:
  """Returns a key of one class for each weight; 0 where none is left."""
  if not weights:
    return []
  unit = sum(weights) or 1.0
  if not pool.counts:
    keys, sizes = [0] * len(weights), [0] * len(weights)
    order = sorted(range(len(pool.groups)), key=lambda g: -len(pool.groups[g]))
    for g in order:
      p = min(
        range(len(weights)),
        key=lambda p: (sizes[p] / max(weights[p] / unit, 1e-9), p),
      )
      keys[p] |= 1 << g
      sizes[p] += len(pool.groups[g])
    return keys
  # One for each while they last, the rest by weight, rounded down.
  spare = max(0, pool.full - len(weights))
  shares = [1 + int(spare * weight / unit) for weight in weights]
  shares = [share if p < pool.full else 0 for p, share in enumerate(shares)]
  heaviest = max(range(len(weights)), key=lambda p: (weights[p], -p))
  if shares[heaviest]:
    shares[heaviest] += pool.full - sum(shares)
  return [pool.floor(share) if share else 0 for share in shares]
