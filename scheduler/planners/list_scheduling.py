"""List scheduling: good orders of a shop's granules.

Three searches, each of which begins with what the ones before found:

- `dispatch`: at each step the granule that can start first, by several rules,
  forwards, on the mirrored shop, and with several granules taken as one;
- `beam`: the orders with the smallest lower bounds, a few at a time;
- `anneal`: blocks of granules on the critical path change places with what
  stands before or after them, as in the N5 neighbourhood of job shops (Nowicki
  and Smutnicki, 1996), but with all that they wait for.
"""

from __future__ import annotations

import dataclasses
import functools
import heapq
import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence

from scheduler.planners import shops
from scheduler.planners.shops import Chain, Order, Shop

# Of dispatching, (granules taken as one, rule); the first few find most.
_FIRST = ((1, 0), (1, 1), (1, 2))
_FIRST_WITH_SWAPS = ((1, 0), (2, 2), (8, 1))
_RULES = (0, 1, 2)
# Of a chain with more granules, pairs are also taken as one.
_FEW = 16
# Partial orders that a beam search continues, in all.
_MAX_STATES = 1600


def quick(shop: Shop) -> tuple[int, Order]:
  """Returns the best of a few ways to dispatch, with its makespan."""
  ways = _FIRST_WITH_SWAPS if shop.has_swaps else _FIRST
  most = max(len(chain.durations) for chain in shop.chains)
  scale = max(1, most // _FEW)
  return best_of(
    shop, _dispatched(shop, [(scale * factor, rule) for factor, rule in ways])
  )


def thorough(shop: Shop, widths: Sequence[int]) -> tuple[int, Order]:
  """Returns the best of all ways to dispatch and of some beam searches.

  Wide beams are for orders of some hundred granules at most: of more, several
  are taken as one.
  """
  each = factors(shop)
  orders = list(_dispatched(shop, list(itertools.product(each, _RULES))))
  size = sum(len(chain.durations) for chain in shop.chains)
  for factor in each[:4]:
    coarse = shops.coarsened(shop, factor) if factor > 1 else shop
    for width in widths:
      if width * size // factor <= _MAX_STATES:
        orders += [
          shops.refined(shop, order, factor)
          for order in _both_ways(coarse, beam, width)
        ]
  return best_of(shop, orders)


def factors(shop: Shop) -> tuple[int, ...]:
  """Returns how many granules are worth being taken as one."""
  most = max(len(chain.durations) for chain in shop.chains)
  if not shop.has_swaps:
    return (1, 2) if most > _FEW else (1,)
  return tuple(1 << i for i in range(most.bit_length()))


def best_of(shop: Shop, orders: Iterable[Order]) -> tuple[int, Order]:
  """Returns the shortest of some orders, the first of equals."""
  times = ((shops.makespan(shop, order), order) for order in orders)
  return min(times, key=lambda pair: pair[0])


def dispatch(shop: Shop, rule: int) -> Order:
  """Returns the order in which a granule runs as soon as one can.

  Args:
    shop: the chains.
    rule: among those that can start first: 0 the most upstream, 1 the most
      downstream, 2 the one with the longest way to the end.
  """
  tables = _tables(shop)
  fields, tails, left = tables.fields, tables.tails, tables.left
  swap_in, swap_out = shop.swap_in, shop.swap_out
  n = len(fields)
  ends: list[list[int]] = [[] for _ in range(n)]
  free, state = [0] * shop.num_resources, [-1] * shop.num_resources
  order: list[int] = []
  active = list(range(n))
  while active:
    best = (1 << 62, 0, 0)
    for c in active:
      durations, resources, needs, family = fields[c]
      k = len(ends[c])
      at = ends[c][-1] if k else 0
      for p, i, delay in needs[k]:
        if i >= len(ends[p]):
          at = -1
          break
        t = ends[p][i] + delay
        if t > at:
          at = t
      if at < 0:
        continue
      for r in resources:
        t = free[r]
        old = state[r]
        if old != family:
          t += swap_in[r][family]
          if old >= 0:
            t += swap_out[r][old]
        if t > at:
          at = t
      if at <= best[0]:
        if rule == 2:
          prefer = -left[c][k] - tails[c]
        else:
          prefer = -c if rule else c
        best = min(best, (at, prefer, c))
    at, _, c = best
    durations, resources, _, family = fields[c]
    at += durations[len(ends[c])]
    ends[c].append(at)
    if len(ends[c]) == len(durations):
      active.remove(c)
    for r in resources:
      free[r] = at
      state[r] = family
    order.append(c)
  return tuple(order)


def bound(shop: Shop) -> int:
  """Returns a time that no order can beat."""
  tables = _tables(shop)
  n = len(shop.chains)
  return _bound(
    tables,
    (0,) * n,
    ((),) * n,
    [0] * len(tables.sharing),
    (-1,) * shop.num_resources,
  )[0]


@dataclasses.dataclass(slots=True)
class _Partial:
  """An order so far.

  Attributes:
    rank: a lower bound of what it can become, with idle time.
    counts: how many granules of each chain it has.
    ends: when they end.
    free: from when on each resource and clique is free.
    state: the family on each resource.
    last: the chain that came last.
    before: the order without it.
  """

  rank: int
  counts: tuple[int, ...]
  ends: tuple[tuple[int, ...], ...]
  free: list[int]
  state: tuple[int, ...]
  last: int
  before: _Partial | None


def beam(shop: Shop, width: int) -> Order:
  """Returns the best order that a beam search finds.

  Of all partial orders of the same length only the `width` with the smallest
  lower bounds are continued.
  """
  tables = _tables(shop)
  n = len(tables.fields)
  size = sum(len(chain.durations) for chain in shop.chains)
  level = [
    _Partial(
      0,
      (0,) * n,
      ((),) * n,
      [0] * len(tables.sharing),
      (-1,) * shop.num_resources,
      -1,
      None,
    )
  ]
  for _ in range(size):
    children: dict[object, _Partial] = {}
    for partial in level:
      for c in range(n):
        child = _extended(shop, tables, partial, c)
        if child is None:
          continue
        key = (child.counts, tuple(child.free), child.state)
        if key not in children:
          _, child.rank = _bound(
            tables, child.counts, child.ends, child.free, child.state
          )
          children[key] = child
    level = heapq.nsmallest(width, children.values(), key=lambda p: p.rank)
  order: list[int] = []
  word: _Partial | None = level[0]
  while word is not None and word.last >= 0:
    order.append(word.last)
    word = word.before
  return tuple(reversed(order))


def _extended(
  shop: Shop, tables: _Tables, partial: _Partial, c: int
) -> _Partial | None:
  """Returns an order with one more granule of a chain, if it can come next."""
  durations, resources, needs, family = tables.fields[c]
  counts, ends, state = partial.counts, partial.ends, partial.state
  k = counts[c]
  if k == len(durations):
    return None
  at = ends[c][-1] if k else 0
  for p, i, delay in needs[k]:
    if i >= counts[p]:
      return None
    t = ends[p][i] + delay
    if t > at:
      at = t
  free = partial.free.copy()
  moved = False
  for r in resources:
    t = free[r]
    old = state[r]
    if old != family:
      moved = True
      t += shop.swap_in[r][family]
      if old >= 0:
        t += shop.swap_out[r][old]
    if t > at:
      at = t
  at += durations[k]
  for s in tables.member[c]:
    free[s] = at
  if moved:
    state = tuple(
      family if r in resources else old for r, old in enumerate(state)
    )
  return _Partial(
    0,
    counts[:c] + (k + 1,) + counts[c + 1 :],
    ends[:c] + (ends[c] + (at,),) + ends[c + 1 :],
    free,
    state,
    c,
    partial,
  )


def _bound(
  tables: _Tables,
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
  tables: _Tables, resource: int, state: int, earliest: list[int]
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


def anneal(
  shop: Shop, order: Order, *, steps: int, rng: random.Random
) -> tuple[int, Order]:
  """Returns an order that is not worse, with its makespan.

  Args:
    shop: the chains.
    order: where to begin.
    steps: orders to try.
    rng: of the moves.
  """
  if steps == 0 or len(shop.chains) == 1:
    return shops.makespan(shop, order), order
  backwards = shops.mirrored(shop)
  sides = ((shop, _rivals(shop)), (backwards, _rivals(backwards)))
  time = best_time = shops.makespan(shop, order)
  best, floor = order, bound(shop)
  path = shops.critical_path(shop, order)
  for step in range(steps):
    if best_time <= floor:
      break
    heat = time * _HOTTEST * _COOLING ** (step / steps)
    place, is_back = rng.choice(path), rng.random() < 0.5
    word = shops.reflected(shop, order) if is_back else order
    changed = _moved_up(
      *sides[is_back],
      word,
      len(order) - 1 - place if is_back else place,
      size=rng.choice(_SIZES),
      blocks=rng.choice(_BLOCKS),
    )
    if changed is None:
      continue
    if is_back:
      changed = shops.reflected(shop, changed)
    changed_time = shops.makespan(shop, changed)
    worse = changed_time - time
    if worse <= 0 or rng.random() < math.exp(-worse / heat):
      order, time = changed, changed_time
      path = shops.critical_path(shop, order)
      if time < best_time:
        best, best_time = order, time
  return best_time, best


# In the ranks of a beam search, the share of idle time is one in so many.
_IDLE = 5
# Accepted worsening, as a share of the makespan, at first; how far it falls.
_HOTTEST, _COOLING = 0.02, 0.05
_SIZES, _BLOCKS = (1, 1, 2, 4, 8), (1, 1, 2, 3)


def _rivals(shop: Shop) -> list[frozenset[int]]:
  """Returns for each chain the others that share a resource with it."""
  used = [set(chain.resources) for chain in shop.chains]
  return [
    frozenset(d for d, b in enumerate(used) if d != c and a & b)
    for c, a in enumerate(used)
  ]


def _moved_up(
  shop: Shop,
  rivals: list[frozenset[int]],
  order: Order,
  place: int,
  *,
  size: int,
  blocks: int,
) -> Order | None:
  """Returns an order in which granules come before others that they follow.

  Args:
    shop: the chains.
    rivals: of each chain.
    order: the order.
    place: of the first granule to move.
    size: how many granules of its chain to move, of those that follow without
      a rival's between them.
    blocks: how many blocks of rivals' granules to pass.
  """
  c = order[place]
  last, found = place, 1
  for at in range(place + 1, len(order)):
    if found == size or order[at] in rivals[c]:
      break
    if order[at] == c:
      last, found = at, found + 1
  start, rival, passed = place, -1, 0
  while start and order[start - 1] != c:
    d = order[start - 1]
    if d in rivals[c] and d != rival:
      if passed == blocks:
        break
      rival, passed = d, passed + 1
    start -= 1
  if not passed:
    return None
  # What moves takes along whatever it waits for.
  counts = [0] * len(shop.chains)
  for d in order[:last]:
    counts[d] += 1
  needed = [-1] * len(shop.chains)
  needed[c] = counts[c]
  counts[c] += 1
  early: list[int] = []
  late: list[int] = []
  for d in reversed(order[start : last + 1]):
    counts[d] -= 1
    k = counts[d]
    if k > needed[d]:
      late.append(d)
      continue
    early.append(d)
    for p, i, _ in shop.chains[d].needs[k]:
      if i > needed[p]:
        needed[p] = i
  return order[:start] + tuple(early[::-1] + late[::-1]) + order[last + 1 :]


def _dispatched(shop: Shop, ways: Sequence[tuple[int, int]]) -> Iterator[Order]:
  for factor, rule in ways:
    coarse = shops.coarsened(shop, factor) if factor > 1 else shop
    for order in _both_ways(coarse, dispatch, rule):
      yield shops.refined(shop, order, factor)


def _both_ways(
  shop: Shop, search_fn: Callable[[Shop, int], Order], argument: int
) -> Iterator[Order]:
  yield search_fn(shop, argument)
  yield shops.reflected(shop, search_fn(shops.mirrored(shop), argument))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Tables:
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
def _tables(shop: Shop) -> _Tables:
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
  swaps = [
    tuple(zip(into, out)) if any(into) or any(out) else ()
    for into, out in zip(shop.swap_in, shop.swap_out)
  ]
  return _Tables(
    fields=tuple((c.durations, c.resources, c.needs, c.family) for c in chains),
    left=tuple(left),
    tails=tails,
    sharing=tuple(tuple(sorted(s, key=lambda c: -tails[c])) for s in sets),
    swaps=tuple(swaps) + ((),) * (len(sets) - len(swaps)),
    member=tuple(
      tuple(i for i, found in enumerate(sets) if c in found) for c in everyone
    ),
  )


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
