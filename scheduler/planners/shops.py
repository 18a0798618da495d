"""Shops: granules of several stages that share resources, and their orders.

Which devices a stage runs on is given; what is open is the order in which the
granules of all stages take turns. A *chain* is the granules of one `plans.Run`,
which keep their order, so that an order of the whole is a word over chains:
0 0 1 0 1 1 runs two granules of chain 0, then one of chain 1, and so on.

Times are those of one iteration by itself (staleness 0).
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Sequence

Order = tuple[int, ...]
# Of one granule: (chain, position, delay) of those that it waits for, and how
# long after their ends it may start.
Needs = tuple[tuple[int, int, int], ...]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Chain:
  """The granules of one Run.

  Attributes:
    durations: of each granule, in order.
    resources: indices of what each of its granules occupies.
    needs: for each granule what it waits for in other chains.
    family: chains of one family share their state.
  """

  durations: tuple[int, ...]
  resources: tuple[int, ...]
  needs: tuple[Needs, ...]
  family: int


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Shop:
  """Chains and the resources that they share.

  Attributes:
    chains: in a topological order: a chain waits only for earlier ones.
    swap_in: for each resource and family, the time in which its state enters.
    swap_out: the time in which it leaves. On one resource a single family is in
      at a time, where these are not zero.
  """

  chains: tuple[Chain, ...]
  swap_in: tuple[tuple[int, ...], ...]
  swap_out: tuple[tuple[int, ...], ...]

  @property
  def num_resources(self) -> int:
    return len(self.swap_in)

  @property
  def has_swaps(self) -> bool:
    return any(map(any, self.swap_in)) or any(map(any, self.swap_out))


def makespan(shop: Shop, order: Sequence[int]) -> int:
  """Returns how long one iteration takes in this order.

  What is in at an iteration's end and at the next one's start alike is not
  swapped.
  """
  return run(shop, order)[0]


def run(shop: Shop, order: Sequence[int]) -> tuple[int, list[list[int]]]:
  """Returns the makespan, and when each granule of each chain ends."""
  chains, swap_in, swap_out = shop.chains, shop.swap_in, shop.swap_out
  n = shop.num_resources
  state, wraps = [-1] * n, [False] * n
  if shop.has_swaps:
    wraps = _wraps(shop, order)
  ends: list[list[int]] = [[] for _ in chains]
  free = [0] * n
  fields = [(c.durations, c.resources, c.needs, c.family) for c in chains]
  for c in order:
    durations, resources, needs, family = fields[c]
    end = ends[c]
    k = len(end)
    at = end[-1] if k else 0
    for p, i, delay in needs[k]:
      t = ends[p][i] + delay
      if t > at:
        at = t
    for r in resources:
      t = free[r]
      old = state[r]
      if old != family:
        if old >= 0:
          t += swap_out[r][old] + swap_in[r][family]
        elif not wraps[r]:
          t += swap_in[r][family]
        state[r] = family
      if t > at:
        at = t
    at += durations[k]
    end.append(at)
    for r in resources:
      free[r] = at
  for r in range(n):
    if state[r] >= 0 and not wraps[r]:
      free[r] += swap_out[r][state[r]]
  return max(free), ends


def _wraps(shop: Shop, order: Sequence[int]) -> list[bool]:
  """Returns for each resource whether it ends with the family it began with."""
  first, last = [-1] * shop.num_resources, [-1] * shop.num_resources
  for c in order:
    chain = shop.chains[c]
    for r in chain.resources:
      if first[r] < 0:
        first[r] = chain.family
      last[r] = chain.family
  return [a == b >= 0 for a, b in zip(first, last)]


def mirrored(shop: Shop) -> Shop:
  """Returns the shop whose schedules, read backwards, are those of `shop`."""
  last = len(shop.chains) - 1
  needs: list[list[list[tuple[int, int, int]]]] = [
    [[] for _ in chain.durations] for chain in reversed(shop.chains)
  ]
  for c, chain in enumerate(shop.chains):
    for k, needed in enumerate(chain.needs):
      for p, i, delay in needed:
        at = len(shop.chains[p].durations) - 1 - i
        reader = (last - c, len(chain.durations) - 1 - k, delay)
        needs[last - p][at].append(reader)
  return Shop(
    chains=tuple(
      dataclasses.replace(
        chain,
        durations=chain.durations[::-1],
        needs=tuple(map(tuple, needs[c])),
      )
      for c, chain in enumerate(reversed(shop.chains))
    ),
    swap_in=shop.swap_out,
    swap_out=shop.swap_in,
  )


def reflected(shop: Shop, order: Sequence[int]) -> Order:
  """Returns an order of `mirrored(shop)` as one of `shop`, or the reverse."""
  last = len(shop.chains) - 1
  return tuple(last - c for c in reversed(order))


def coarsened(shop: Shop, factor: int) -> Shop:
  """Returns the shop in which `factor` granules at a time are one."""
  ends = [
    [*range(factor, len(c.durations), factor), len(c.durations)]
    for c in shop.chains
  ]
  made = []
  for c, chain in enumerate(shop.chains):
    durations, needs, start = [], [], 0
    for stop in ends[c]:
      latest: dict[int, tuple[int, int]] = {}
      for needed in chain.needs[start:stop]:
        for p, i, delay in needed:
          i_last, longest = latest.get(p, (0, 0))
          latest[p] = (max(i_last, i), max(longest, delay))
      needs.append(
        tuple(
          (p, bisect.bisect_right(ends[p], i), delay)
          for p, (i, delay) in latest.items()
        )
      )
      durations.append(sum(chain.durations[start:stop]))
      start = stop
    made.append(
      dataclasses.replace(chain, durations=tuple(durations), needs=tuple(needs))
    )
  return dataclasses.replace(shop, chains=tuple(made))


def refined(shop: Shop, order: Order, factor: int) -> Order:
  """Returns an order of `coarsened(shop, factor)` as one of the shop."""
  left = [len(chain.durations) for chain in shop.chains]
  fine: list[int] = []
  for c in order:
    count = min(factor, left[c])
    left[c] -= count
    fine += [c] * count
  return tuple(fine)


def critical_path(shop: Shop, order: Sequence[int]) -> list[int]:
  """Returns places in the order of granules that wait for each other.

  The last of them ends the iteration, and none of the others could end later
  without delaying it.
  """
  chains = shop.chains
  _, ends = run(shop, order)
  counts = [0] * len(chains)
  place: list[list[int]] = [[0] * len(c.durations) for c in chains]
  before = [-1] * len(order)
  on: list[tuple[int, int, int]] = [(-1, -1, -1)] * shop.num_resources
  final, latest = -1, -1
  for at, c in enumerate(order):
    k, chain = counts[c], chains[c]
    counts[c] = k + 1
    place[c][k] = at
    # Of what it waits for the one on its own resources comes first: the swap
    # after it is part of the wait.
    found, reached = -1, -1
    for r in chain.resources:
      position, d, i = on[r]
      if position >= 0:
        end, old = ends[d][i], chains[d].family
        if old != chain.family:
          end += shop.swap_out[r][old] + shop.swap_in[r][chain.family]
        if end > reached:
          found, reached = position, end
    for d, i, delay in ((c, k - 1, 0), *chain.needs[k]):
      if i >= 0 and ends[d][i] + delay > reached:
        found, reached = place[d][i], ends[d][i] + delay
    before[at] = found
    for r in chain.resources:
      on[r] = at, c, k
    out = max(shop.swap_out[r][chain.family] for r in chain.resources)
    if ends[c][k] + out > latest:
      final, latest = at, ends[c][k] + out
  path = [final]
  while before[path[-1]] >= 0:
    path.append(before[path[-1]])
  return path[::-1]
