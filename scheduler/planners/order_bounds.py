"""Lower bounds of orders that have begun, and what they are looked up in."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from scheduler.planners.shops import Chain, Shop

# In the rank of an order, the share of idle time is one in so many.
_IDLE = 5


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Tables:
  """What the searches look up.

  Attributes:
    fields: durations, resources, needs and family of each chain.
    left: of each chain the time of its granules from a position on.
    tails: of each chain the longest way from its end to the end of all.
    sharing: of resources, then of cliques, the chains that occupy them, the
      longest tail first; of the chains in a clique any two share a resource.
    swaps: of these, for each family the times to enter and to leave; empty
      where nothing is swapped.
    member: of each chain its resources and cliques.
  """

  fields: tuple[tuple[tuple, tuple, tuple, int], ...]
  left: tuple[tuple[int, ...], ...]
  tails: tuple[int, ...]
  sharing: tuple[tuple[int, ...], ...]
  swaps: tuple[tuple[tuple[int, int], ...], ...]
  member: tuple[tuple[int, ...], ...]


@functools.lru_cache(maxsize=64)
def tables_of(shop: Shop) -> Tables:
  """Returns a shop's tables."""
  chains = shop.chains
  everyone = range(len(chains))
  left = []
  for chain in chains:
    sums = [0]
    for duration in reversed(chain.durations):
      sums.append(sums[-1] + duration)
    left.append(tuple(reversed(sums)))
  tails = _tails(chains)
  sets = [
    tuple(c for c in everyone if r in chains[c].resources)
    for r in range(shop.num_resources)
  ]
  sets += [clique for clique in _cliques(chains) if clique not in sets]
  # A family that has a resource to itself never leaves it.
  swaps = [
    tuple(zip(into, out))
    if (any(into) or any(out)) and len({chains[c].family for c in on}) > 1
    else ()
    for into, out, on in zip(shop.swap_in, shop.swap_out, sets)
  ]
  return Tables(
    fields=tuple((c.durations, c.resources, c.needs, c.family) for c in chains),
    left=tuple(left),
    tails=tails,
    sharing=tuple(tuple(sorted(s, key=lambda c: -tails[c])) for s in sets),
    swaps=tuple(swaps) + ((),) * (len(sets) - len(swaps)),
    member=tuple(
      tuple(i for i, found in enumerate(sets) if c in found) for c in everyone
    ),
  )


def bound(shop: Shop) -> int:
  """Returns a time that no order can beat."""
  tables = tables_of(shop)
  n = len(shop.chains)
  return bounds(
    tables,
    (0,) * n,
    ((),) * n,
    [0] * len(tables.sharing),
    (-1,) * shop.num_resources,
  )[0]


def bounds(
  tables: Tables,
  counts: tuple[int, ...],
  ends: tuple[tuple[int, ...], ...],
  free: list[int],
  state: tuple[int, ...],
) -> tuple[int, int]:
  """Returns a lower bound, and the same plus a share of all resources' bounds.

  The second prefers orders that leave little idle time anywhere.
  """
  left, tails = tables.left, tables.tails
  earliest: list[int] = []
  worst = 0
  for c, (durations, _, needs, _) in enumerate(tables.fields):
    k = counts[c]
    if k == len(durations):
      earliest.append(-1)
      t = ends[c][-1] + tails[c]
      if t > worst:
        worst = t
      continue
    at = ends[c][-1] if k else 0
    for s in tables.member[c]:
      if free[s] > at:
        at = free[s]
    for p, i, delay in needs[k]:
      done = counts[p]
      if i < done:
        t = ends[p][i] + delay
      else:
        t = earliest[p] + left[p][done] - left[p][i + 1] + delay
      if t > at:
        at = t
    earliest.append(at)
    t = at + left[c][k] + tails[c]
    if t > worst:
      worst = t
  total = 0
  for s, chains in enumerate(tables.sharing):
    swaps = tables.swaps[s]
    work, begin, of_all, hidden = 0, 1 << 62, 0, 0
    if swaps:
      work, hidden = _swaps_left(tables, s, state[s], earliest)
    for c in chains:
      at = earliest[c]
      if at < 0:
        continue
      if at < begin:
        begin = at
      work += left[c][counts[c]]
      t = begin + work - hidden + tails[c]
      if t > of_all:
        of_all = t
    if hidden and free[s] + work > of_all:
      of_all = free[s] + work
    total += of_all
    if of_all > worst:
      worst = of_all
  return worst, worst + total // (_IDLE * len(tables.sharing))


def _swaps_left(
  tables: Tables, resource: int, state: int, earliest: list[int]
) -> tuple[int, int]:
  """Returns the least time of swaps that a resource has still to make.

  The second result is how much of it others' work may hide: the first swap in
  what comes before this resource's, the last one what comes after.
  """
  swaps = tables.swaps[resource]
  time = swaps[state][1] if state >= 0 else 0
  first, last = 0, time
  families = {
    tables.fields[c][3] for c in tables.sharing[resource] if earliest[c] >= 0
  }
  for family in families:
    if family != state:
      into, out = swaps[family]
      time += into + out
      first, last = max(first, into), max(last, out)
  return time, last + (first if state < 0 else 0)


def _tails(chains: Sequence[Chain]) -> tuple[int, ...]:
  """Returns the longest way from each chain's end to the end of all."""
  after = [[0] * len(chain.durations) for chain in chains]
  for c in reversed(range(len(chains))):
    chain, own = chains[c], after[c]
    for k in reversed(range(len(own))):
      way = own[k] + chain.durations[k]
      if k and way > own[k - 1]:
        own[k - 1] = way
      for p, i, delay in chain.needs[k]:
        after[p][i] = max(after[p][i], way + delay)
  return tuple(own[-1] for own in after)


def _cliques(chains: Sequence[Chain]) -> list[tuple[int, ...]]:
  """Returns maximal sets of chains of which any two share a resource."""
  used = [set(chain.resources) for chain in chains]
  near = [
    {d for d, b in enumerate(used) if d != c and a & b}
    for c, a in enumerate(used)
  ]
  found: list[tuple[int, ...]] = []

  def grow(inside: list[int], may: set[int], seen: set[int]) -> None:
    if not may and not seen:
      found.append(tuple(sorted(inside)))
    for c in sorted(may):
      grow([*inside, c], may & near[c], seen & near[c])
      may = may - {c}
      seen = seen | {c}

  grow([], set(range(len(chains))), set())
  return found
