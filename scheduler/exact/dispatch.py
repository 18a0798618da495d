"""List scheduling of shops: good schedules in milliseconds.

Granules are placed one by one, each as early as those before it allow; a rule
chooses which stage is next. Of many rules the best schedule is kept, and
improved by pushing all granules as late and then as early as they go.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from scheduler.exact import shops
from scheduler.exact.shops import Shop, Starts

_WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_SWAP_WEIGHTS = (1, 2, 4, 8, 16, 64)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
  """Which of the granules that could be next is.

  Attributes:
    ranks: of stages, the lowest first.
    width: all stages handle so many granules before any handles the next;
      None: no such limit.
    is_by_rank: whether ranks come before starts, or only decide among equals.
    swap_weight: how many ticks of waiting a tick of swapping is worth.
  """

  ranks: tuple[int, ...]
  width: int | None = None
  is_by_rank: bool = False
  swap_weight: int = 0

  def key(self, v: int, i: int, start: int, cost: int) -> tuple[int, ...]:
    """Returns what orders granule i of stage v among the others."""
    at = start + self.swap_weight * cost
    window = i // self.width if self.width else 0
    if self.is_by_rank:
      return window, self.ranks[v], at
    return window, at, self.ranks[v]


def best(shop: Shop) -> tuple[int, Starts]:
  """Returns the shortest period that was found, with its schedule."""
  found: tuple[int, Starts] | None = None
  seen: set[Starts] = set()
  for rule in _rules(shop):
    starts = place(shop, rule)
    if starts not in seen:
      seen.add(starts)
      reached = improved(shop, starts)
      if found is None or reached[0] < found[0]:
        found = reached
  assert found is not None
  return found


def improved(shop: Shop, starts: Starts) -> tuple[int, Starts]:
  """Returns a schedule as it is pushed to and fro, and its period."""
  period = span(shop, starts)
  while True:
    pushed = _early(shop, _late(shop, starts))
    if (shorter := span(shop, pushed)) >= period:
      return period, starts
    period, starts = shorter, pushed


def place(shop: Shop, rule: Rule) -> Starts:
  """Returns the schedule that a rule makes."""
  n, size, d = shop.num_granules, shop.size, shop.durations
  starts: list[list[int]] = [[] for _ in range(size)]
  last = [0] * size
  waits = _waits(shop)
  for _ in range(n * size):
    chosen: tuple[tuple[int, ...], int, int] | None = None
    for v in range(size):
      i = len(starts[v])
      if i == n or any(len(starts[u]) <= i for u in shop.preds[v]):
        continue
      start = last[v]
      for u in shop.preds[v]:
        start = max(start, starts[u][i] + d[u])
      cost = 0
      for u, gap in waits[v]:
        if starts[u]:
          start = max(start, last[u] + gap)
          if last[u] > last[v]:
            cost = max(cost, gap)
      key = rule.key(v, i, start, cost)
      if chosen is None or key < chosen[0]:
        chosen = key, v, start
    assert chosen is not None
    _, v, start = chosen
    starts[v].append(start)
    last[v] = start + d[v]
  return tuple(map(tuple, starts))


def span(shop: Shop, starts: Starts) -> int:
  """Returns the period of a schedule that obeys the shop's rules."""
  d = shop.durations
  found = max(s[-1] + d[v] for v, s in enumerate(starts))
  found -= min(s[0] for s in starts)
  for v, waits in enumerate(_waits(shop)):
    for u, gap in waits:
      if gap:
        found = max(found, starts[u][-1] + d[u] + gap - starts[v][0])
  return found


def _waits(shop: Shop) -> list[list[tuple[int, int]]]:
  """Returns for each stage those it conflicts with, and the gaps."""
  n = range(shop.size)
  return [
    [(u, shop.gap(u, v)) for u in n if shop.conflicts[u][v] != shops.APART]
    for v in n
  ]


def _rules(shop: Shop) -> Iterator[Rule]:
  forward = tuple(range(shop.size))
  backward = tuple(-v for v in forward)
  after = shops.tails(shop)
  longest_first = tuple(-x for x in after)
  for ranks in (backward, forward, longest_first, tuple(after)):
    yield Rule(ranks=ranks)
  for width in _WIDTHS:
    if width <= shop.num_granules:
      yield Rule(ranks=forward, width=width)
      yield Rule(ranks=forward, width=width, is_by_rank=True)
      yield Rule(ranks=backward, width=width, swap_weight=1)
  if any(shop.swaps):
    for weight in _SWAP_WEIGHTS:
      yield Rule(ranks=forward, swap_weight=weight)
      yield Rule(ranks=backward, swap_weight=weight)


def _early(shop: Shop, starts: Starts) -> Starts:
  """Returns the schedule of the same order in which all is early."""
  d, waits = shop.durations, _waits(shop)
  order = sorted(
    (start, v, i) for v, own in enumerate(starts) for i, start in enumerate(own)
  )
  last = [0] * shop.size
  found: list[list[int]] = [[] for _ in starts]
  for _, v, i in order:
    start = last[v]
    for u in shop.preds[v]:
      start = max(start, found[u][i] + d[u])
    for u, gap in waits[v]:
      if found[u]:
        start = max(start, last[u] + gap)
    found[v].append(start)
    last[v] = start + d[v]
  return tuple(map(tuple, found))


def _late(shop: Shop, starts: Starts) -> Starts:
  """Returns the schedule of the same order of ends in which all is late."""
  d, waits = shop.durations, _waits(shop)
  readers = shops.readers(shop.preds)
  horizon = max(own[-1] + d[v] for v, own in enumerate(starts))
  order = sorted(
    (-start - d[v], -v, -i)
    for v, own in enumerate(starts)
    for i, start in enumerate(own)
  )
  first: list[int | None] = [None] * shop.size
  found = [[0] * shop.num_granules for _ in starts]
  for _, negative_v, negative_i in order:
    v, i = -negative_v, -negative_i
    own = first[v]
    end = horizon if own is None else own
    for w in readers[v]:
      end = min(end, found[w][i])
    for u, gap in waits[v]:
      following = first[u]
      if following is not None:
        end = min(end, following - gap)
    found[v][i] = first[v] = end - d[v]
  return tuple(map(tuple, found))
