"""List scheduling: good orders of a shop's granules.

`dispatch` takes at each step the granule that can start first, by several
rules, forwards, on the mirrored shop, and with several granules taken as one;
`thorough` also continues the orders with the smallest lower bounds (`beams`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

from scheduler.planners import beams, order_bounds, shops
from scheduler.planners.shops import Order, Shop

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
          for order in _both_ways(coarse, beams.beam, width)
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
  tables = order_bounds.tables_of(shop)
  fields, tails, left = tables.fields, tables.tails, tables.left
  swap_in, swap_out = shop.swap_in, shop.swap_out
  n = len(fields)
  ends: list[list[int]] = [[] for _ in range(n)]
  free, state = [0] * shop.num_resources, [-1] * shop.num_resources
  order: list[int] = []
  active = list(range(n))
  while active:
    best, best_at, best_prefer = -1, 1 << 62, 0
    for c in active:
      durations, resources, needs, family = fields[c]
      end = ends[c]
      k = len(end)
      at = end[-1] if k else 0
      for p, i, delay in needs[k]:
        others = ends[p]
        if i >= len(others):
          at = -1
          break
        t = others[i] + delay
        if t > at:
          at = t
      if at < 0 or at > best_at:
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
      if at > best_at:
        continue
      if rule == 2:
        prefer = -left[c][k] - tails[c]
      else:
        prefer = -c if rule else c
      if at < best_at or prefer < best_prefer:
        best, best_at, best_prefer = c, at, prefer
    durations, resources, _, family = fields[best]
    end = ends[best]
    best_at += durations[len(end)]
    end.append(best_at)
    if len(end) == len(durations):
      active.remove(best)
    for r in resources:
      free[r] = best_at
      state[r] = family
    order.append(best)
  return tuple(order)


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
