"""Counts of devices that a dynamic programme tries."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Sequence

from scheduler.clusters import Cluster
from scheduler.planners import pools
from scheduler.planners.pools import Key, Pools

# By units: up to so many devices of a class every count is tried; of more, so
# many counts.
_MAX_EXACT = {1: 64, 2: 64, 3: 64, 4: 40, 5: 24}
_MAX_COUNTS = {1: 400, 2: 400, 3: 400, 4: 72, 5: 32}
FEWEST, _ALL = 16, 32
_REFINEMENTS = (16, 8, 4, 2, 1)


def grid(
  cluster: Cluster, num_units: int, iterations: int
) -> tuple[Pools, float]:
  """Returns the devices with the counts to try, and by how much they grow.

  Args:
    cluster: with the devices.
    num_units: of the workflow: of more, fewer counts are tried.
    iterations: of the budget, 32 for all of them.
  """
  exact = _MAX_EXACT.get(num_units, FEWEST)
  most = _most(len(cluster.classes), num_units, iterations)
  exact = min(exact, most) if len(cluster.classes) > 1 else exact
  found = []
  for pool in pools.of_cluster(cluster, FEWEST).pools:
    if pool.counts:
      whole = tuple(range(1, pool.full + 1))
      few = whole if pool.full <= exact else _series(pool.full, most)
      pool = dataclasses.replace(pool, counts=few)
    found.append(pool)
  shares = Pools(pools=tuple(found))
  return shares, _growth(shares)


def thinned(shares: Pools, most: int) -> Pools:
  """Returns the same devices with at most about so many counts."""
  return Pools(
    pools=tuple(
      dataclasses.replace(pool, counts=_series(pool.full, most))
      if len(pool.counts) > most
      else pool
      for pool in shares.pools
    )
  )


def near(
  shares: Pools, keys: Sequence[Key], num_units: int, iterations: int
) -> Pools:
  """Returns the same devices with counts between the neighbours of keys.

  Args:
    shares: with the counts that were tried.
    keys: of the best trees.
    num_units: of the workflow.
    iterations: of the budget.
  """
  most = _most(len(shares.pools), num_units, iterations)
  found = []
  for i, pool in enumerate(shares.pools):
    if pool.counts:
      own = {key[i] for key in keys if key[i]}
      for refinement in _REFINEMENTS:
        counts = own | {pool.full}
        for count in own:
          at = bisect.bisect_left(pool.counts, count)
          low = pool.counts[max(0, at - 1)]
          high = pool.counts[min(len(pool.counts) - 1, at + 1)]
          step = max(1, (high - low) // refinement)
          counts |= {low, high, *range(low, high, step)}
        counts |= {pool.full - count for count in counts}
        if len(counts) <= most:
          break
      pool = dataclasses.replace(pool, counts=tuple(sorted(counts - {0})))
    found.append(pool)
  return Pools(pools=tuple(found))


def floor(counts: Sequence[int], count: int) -> int:
  """Returns the largest of `counts` that is not above `count`, or 0."""
  at = bisect.bisect_right(counts, count)
  return counts[at - 1] if at else 0


def _most(num_pools: int, num_units: int, iterations: int) -> int:
  """Returns how many counts of each class to try."""
  most = _MAX_COUNTS.get(num_units, FEWEST) * min(iterations, _ALL) // _ALL
  return max(4, int(max(FEWEST, most) ** (1 / num_pools)))


def _series(full: int, most: int) -> tuple[int, ...]:
  """Returns about so many counts, growing by 2 % or, if need be, more."""
  growth = 1.02
  while True:
    counts, count = [], 1
    while count < full:
      counts.append(count)
      count = max(count + 1, int(count * growth))
    if len(counts) < most:
      return (*counts, full)
    growth = 1 + 1.25 * (growth - 1)


def _growth(shares: Pools) -> float:
  """Returns the most by which a count exceeds the one before, less one."""
  growths = [
    (b - 1) / a - 1
    for pool in shares.pools
    for a, b in itertools.pairwise(pool.counts)
  ]
  return max(growths, default=0.0)
