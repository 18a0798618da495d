"""Beam search over orders of a shop's granules."""

from __future__ import annotations

import dataclasses
import heapq

from scheduler.planners import order_bounds
from scheduler.planners.order_bounds import Tables
from scheduler.planners.shops import Order, Shop


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
  tables = order_bounds.tables_of(shop)
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
          _, child.rank = order_bounds.bounds(
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
  shop: Shop, tables: Tables, partial: _Partial, c: int
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
