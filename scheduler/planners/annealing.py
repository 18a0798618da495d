"""Annealing: an order of a shop's granules, changed step by step.

Blocks of granules on the critical path change places with what stands before or
after them, as in the N5 neighbourhood of job shops (Nowicki and Smutnicki,
1996), but with all that they wait for.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from scheduler.planners import folding, shops
from scheduler.planners.shops import Order, Shop

# Accepted worsening, as a share of the makespan, at first; how far it falls.
_HOTTEST, _COOLING = 0.02, 0.05
_SIZES, _BLOCKS = (1, 1, 2, 4, 8), (1, 1, 2, 3)


def anneal(
  shop: Shop,
  order: Order,
  *,
  steps: int,
  rng: random.Random,
  alive: int = 1,
) -> tuple[int, Order]:
  """Returns an order that is not worse, with the period that it takes.

  Args:
    shop: the chains.
    order: where to begin.
    steps: orders to try.
    rng: of the moves.
    alive: iterations that overlap; of several, moves are made anywhere.
  """
  time = best_time = _period(shop, order, alive)
  if len(shop.chains) == 1:
    return time, order
  backwards = shops.mirrored(shop)
  sides = ((shop, _rivals(shop)), (backwards, _rivals(backwards)))
  best, floor = order, folding.bound(shop, alive)
  path = _places(shop, order, alive)
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
    changed_time = _period(shop, changed, alive)
    worse = changed_time - time
    if worse <= 0 or rng.random() < math.exp(-worse / heat):
      order, time = changed, changed_time
      path = _places(shop, order, alive)
      if time < best_time:
        best, best_time = order, time
  return best_time, best


def _period(shop: Shop, order: Order, alive: int) -> int:
  if alive == 1:
    return shops.makespan(shop, order)
  return folding.fold(shop, order, alive).period_ns


def _places(shop: Shop, order: Order, alive: int) -> Sequence[int]:
  """Returns places in the order where a move may help."""
  if alive == 1:
    return shops.critical_path(shop, order)
  return range(len(order))


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
