"""Folding: one iteration's order as a period in which several overlap.

Where weights may be stale, an iteration begins before the last ones end. Its
granules are placed one after another, each at the first time at which nothing
else is on its resources at the same time of the period, whatever the
iteration (modulo scheduling, after Rau, 1994).
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Sequence

from scheduler.planners import order_bounds, shops
from scheduler.planners.shops import Shop

_HALVINGS = 7


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Folded:
  """Granules of an order, placed in a period.

  Attributes:
    period_ns: its length.
    ranks: of each granule in the order, its place in the period.
    shifts: periods by which it is later than the first granule of its
      iteration; see `plans.Slot`.
  """

  period_ns: int
  ranks: tuple[int, ...]
  shifts: tuple[int, ...]


def fold(shop: Shop, order: Sequence[int], alive: int) -> Folded:
  """Returns a short period in which up to `alive` iterations overlap.

  Where states are swapped iterations do not overlap on the resources, and the
  period is that of one iteration by itself.
  """
  longest = shops.makespan(shop, order)
  flat = Folded(
    period_ns=longest, ranks=(0,) * len(order), shifts=(0,) * len(order)
  )
  if alive == 1 or shop.has_swaps:
    return flat
  low = bound(shop, alive)
  best: tuple[int, list[int]] | None = None
  period = low
  high = longest
  for _ in range(_HALVINGS):
    starts = _placed(shop, order, alive, period)
    if starts is not None:
      best, high = (period, starts), period
    else:
      low = period + 1
    if low >= high:
      break
    period = low + (high - low) // (2 if best else 4)
  if best is None:
    return flat
  period, starts = best
  by_time = sorted(range(len(order)), key=lambda i: (starts[i] % period, i))
  ranks = [0] * len(order)
  for rank, i in enumerate(by_time):
    ranks[i] = rank
  return Folded(
    period_ns=period,
    ranks=tuple(ranks),
    shifts=tuple(start // period for start in starts),
  )


def least_period(shop: Shop) -> int:
  """Returns the work on the busiest resource."""
  loads = [0] * shop.num_resources
  for chain in shop.chains:
    for r in chain.resources:
      loads[r] += sum(chain.durations)
  return max(loads)


def bound(shop: Shop, alive: int) -> int:
  """Returns a period that no order can beat."""
  low = order_bounds.bound(shop)
  return low if alive == 1 else max(least_period(shop), -(-low // alive))


def _placed(
  shop: Shop, order: Sequence[int], alive: int, period: int
) -> list[int] | None:
  """Returns the start of each granule in a period; None: they do not fit."""
  busy: list[list[tuple[int, int]]] = [[] for _ in range(shop.num_resources)]
  ends: list[list[int]] = [[] for _ in shop.chains]
  starts = []
  for c in order:
    chain = shop.chains[c]
    k = len(ends[c])
    at = ends[c][-1] if k else 0
    for p, i, delay in chain.needs[k]:
      at = max(at, ends[p][i] + delay)
    duration = chain.durations[k]
    last = at + period
    moved = True
    while moved:
      moved = False
      for r in chain.resources:
        later = _free_from(busy[r], at, duration, period)
        if later > at:
          at, moved = later, True
      if at > last or at + duration > alive * period:
        return None
    for r in chain.resources:
      _take(busy[r], at, duration, period)
    starts.append(at)
    ends[c].append(at + duration)
  return starts


def _free_from(
  busy: list[tuple[int, int]], at: int, duration: int, period: int
) -> int:
  """Returns the first time from `at` on when so long a stretch is free."""
  if duration == 0:
    return at
  base, phase = at - at % period, at % period
  for _ in range(2 * len(busy) + 2):
    i = bisect.bisect_right(busy, (phase, period)) - 1
    if i >= 0 and busy[i][1] > phase:
      phase = busy[i][1]
      continue
    if phase >= period:
      base, phase = base + period, phase - period
      continue
    stop, following = phase + duration, i + 1
    if following < len(busy):
      if busy[following][0] < stop:
        phase = busy[following][1]
        continue
    elif stop > period and busy and busy[0][0] < stop - period:
      base, phase = base + period, busy[0][1]
      continue
    return base + phase
  return at + 2 * period


def _take(
  busy: list[tuple[int, int]], at: int, duration: int, period: int
) -> None:
  """Marks a stretch; one that passes the period's end becomes two."""
  if duration == 0:
    return
  start = at % period
  stop = start + duration
  bisect.insort(busy, (start, min(stop, period)))
  if stop > period:
    bisect.insort(busy, (0, stop - period))
