"""Shops: what is left to decide once every stage has its mode.

Every stage has `num_granules` equal granules; granule i of a stage waits for
granule i of those it reads from. Stages that share a group exclude each other,
and on a group that does not hold both states a change costs a swap. Different
choices of modes often leave the same shop, and a shop that is nowhere shorter
and excludes no less than another cannot have a shorter period: both facts save
most of the work.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence

from scheduler.exact import class_s
from scheduler.exact.class_s import Assignment, Problem

# Levels of conflict between two stages; a level implies those below.
APART, EXCLUSIVE, SWAPPED = 0, 1, 2

Starts = tuple[tuple[int, ...], ...]  # of each stage, of each granule


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Shop:
  """A case of class S with chosen modes.

  Attributes:
    num_granules: of every stage.
    preds: for each stage the indices of those it reads from, all smaller.
    durations: of a granule of each stage.
    swaps: ticks in which a stage's state leaves, or returns; 0 where it is
      never swapped.
    conflicts: levels, by pair of stages.
  """

  num_granules: int
  preds: tuple[tuple[int, ...], ...]
  durations: tuple[int, ...]
  swaps: tuple[int, ...]
  conflicts: tuple[tuple[int, ...], ...]

  @property
  def size(self) -> int:
    return len(self.durations)

  def gap(self, u: int, v: int) -> int:
    """Returns the least time between a granule of u and a later one of v."""
    if self.conflicts[u][v] == SWAPPED:
      return self.swaps[u] + self.swaps[v]
    return 0


def of(problem: Problem, assignment: Assignment) -> Shop:
  """Returns the shop of an assignment."""
  chosen = [own[i] for own, i in zip(problem.modes, assignment)]
  swapped = class_s.swapped_groups(problem, [(i,) for i in assignment])
  conflicts = []
  for u, a in enumerate(chosen):
    row = []
    for v, b in enumerate(chosen):
      shared = 0 if u == v else a.groups & b.groups
      level = EXCLUSIVE if shared else APART
      row.append(SWAPPED if shared & swapped else level)
    conflicts.append(tuple(row))
  return Shop(
    num_granules=problem.num_granules,
    preds=problem.preds,
    durations=tuple(m.duration for m in chosen),
    swaps=tuple(
      m.swap if SWAPPED in row else 0 for m, row in zip(chosen, conflicts)
    ),
    conflicts=tuple(conflicts),
  )


def is_no_easier(shop: Shop, other: Shop) -> bool:
  """Returns whether every schedule of `shop` also serves `other`."""
  n = range(shop.size)
  return (
    (shop.num_granules, shop.preds) == (other.num_granules, other.preds)
    and all(shop.durations[v] >= other.durations[v] for v in n)
    and all(
      shop.conflicts[u][v] >= other.conflicts[u][v]
      and shop.gap(u, v) >= other.gap(u, v)
      for u in n
      for v in n
    )
  )


@functools.lru_cache(maxsize=256)
def readers(preds: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
  """Returns for each stage the indices of those that read from it."""
  n = range(len(preds))
  return tuple(tuple(v for v in n if u in preds[v]) for u in n)


@functools.lru_cache(maxsize=256)
def ancestors(preds: tuple[tuple[int, ...], ...]) -> tuple[frozenset[int], ...]:
  """Returns for each stage the indices of all that it depends on."""
  found: list[frozenset[int]] = []
  for own in preds:
    found.append(frozenset(own).union(*(found[u] for u in own)))
  return tuple(found)


def heads(shop: Shop) -> list[int]:
  """Returns for each stage the least time before its first granule."""
  found: list[int] = []
  for own in shop.preds:
    found.append(max((found[u] + shop.durations[u] for u in own), default=0))
  return found


def tails(shop: Shop) -> list[int]:
  """Returns for each stage the least time after its last granule."""
  found = [0] * shop.size
  for v in reversed(range(shop.size)):
    for u in shop.preds[v]:
      found[u] = max(found[u], found[v] + shop.durations[v])
  return found


def bound(shop: Shop) -> int:
  """Returns a lower bound of the period.

  Stages that exclude each other pairwise run one at a time: an iteration takes
  all their work, the swaps of the cheapest order of visits, and what has to
  come before the first and after the last of them.
  """
  before, after = heads(shop), tails(shop)
  best = 0
  for clique in cliques(shop, EXCLUSIVE):
    work = shop.num_granules * sum(shop.durations[v] for v in clique)
    best = max(best, work + _visits(shop, clique, before, after))
  return best


def cliques(shop: Shop, level: int) -> Iterator[tuple[int, ...]]:
  """Yields all sets of stages whose pairs all conflict at a level or above."""
  found: list[tuple[int, ...]] = [()]
  for v in range(shop.size):
    found += [
      (*clique, v)
      for clique in found
      if all(shop.conflicts[u][v] >= level for u in clique)
    ]
  yield from found[1:]


def maximal_cliques(shop: Shop, level: int) -> list[tuple[int, ...]]:
  """Returns those cliques of at least two stages that are in no other."""
  found = [set(c) for c in cliques(shop, level) if len(c) > 1]
  return [tuple(sorted(c)) for c in found if not any(c < d for d in found)]


def _visits(
  shop: Shop, clique: tuple[int, ...], before: list[int], after: list[int]
) -> int:
  """Returns the least head, swaps and tail over all orders of visits.

  The last visit may be of the stage that had the first one.
  """
  if len(clique) == 1 or not any(shop.swaps[v] for v in clique):
    return min(before[v] for v in clique) + min(after[v] for v in clique)
  if all(
    shop.conflicts[u][v] == SWAPPED for u in clique for v in clique if u < v
  ):
    # Each state leaves and returns once, but for what comes before the first
    # visit and after the last; from iteration to iteration that is needed too.
    swaps = 2 * sum(shop.swaps[v] for v in clique)
    ends = min(before[v] + after[v] for v in clique)
    for u in clique:
      for v in clique:
        if u != v:
          end = before[u] - shop.swaps[u] + after[v] - shop.swaps[v]
          ends = min(ends, end)
    return swaps + max(0, ends)
  from_any = _paths(shop, clique, [0] * shop.size)
  from_head = _paths(shop, clique, before)
  open_walk = min(c + after[v] for c, v in zip(from_head, clique))
  # Gaps are symmetric: a path that ends at v is one that begins there.
  closed_walk = min(c + before[v] + after[v] for c, v in zip(from_any, clique))
  return min(open_walk, closed_walk)


def _paths(shop: Shop, clique: tuple[int, ...], begin: list[int]) -> list[int]:
  """Returns the least swaps of visiting all, by the stage visited last."""
  n, far = len(clique), 1 << 62
  cost = [[far] * n for _ in range(1 << n)]
  for i, v in enumerate(clique):
    cost[1 << i][i] = begin[v]
  for seen in range(1, 1 << n):
    for i, u in enumerate(clique):
      if cost[seen][i] == far:
        continue
      for j, v in enumerate(clique):
        if not seen >> j & 1:
          reached = cost[seen][i] + shop.gap(u, v)
          with_j = cost[seen | 1 << j]
          with_j[j] = min(with_j[j], reached)
  return cost[-1]


def period(shop: Shop, starts: Sequence[Sequence[int]]) -> int:
  """Returns the period of a schedule of one iteration.

  Raises:
    ValueError: the schedule breaks a rule of the shop, which is named.
  """
  d, last = shop.durations, shop.num_granules - 1
  for v, own in enumerate(shop.preds):
    for i, start in enumerate(starts[v]):
      if i and start < starts[v][i - 1] + d[v]:
        raise ValueError(
          f"granule {i} of stage {v} overlaps with the one before"
        )
      for u in own:
        if start < starts[u][i] + d[u]:
          raise ValueError(
            f"granule {i} of stage {v} precedes that of stage {u}"
          )
  found = max(s[-1] + d[v] for v, s in enumerate(starts))
  found -= min(s[0] for s in starts)
  for u in range(shop.size):
    for v in range(shop.size):
      if u == v or shop.conflicts[u][v] == APART:
        continue
      gap = shop.gap(u, v)
      wait = starts[u][last] + d[u] + gap - starts[v][0]
      if gap:
        found = max(found, wait)
      for i, s in enumerate(starts[u]):
        for j, t in enumerate(starts[v]):
          if s <= t < s + d[u] + gap:
            raise ValueError(
              f"granule {j} of stage {v} starts {t - s} ticks after granule"
              f" {i} of stage {u}, and must wait {d[u] + gap}"
            )
  return found
