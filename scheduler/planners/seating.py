"""Seating: which pieces of a board take which seats, and in what order.

The seats of all pieces are chosen together, by a beam search over partial
choices with lower bounds, then by changing one or two seats of the best. A
choice is worth what list scheduling makes of it.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import math
import random
from collections.abc import Iterable, Iterator, Sequence

from scheduler.planners import (
  annealing,
  folding,
  list_scheduling,
)
from scheduler.planners.boards import Board
from scheduler.planners.seats import Seat
from scheduler.planners.shops import Order, Shop
from scheduler.plans import FlatPlan

Choice = tuple[int, ...]
_LARGE = 96
# Folding an order takes as long as so many makespans.
_FOLDS = 15
# Masks of seats, the shortest way to one of them, their work, the shortest way
# from one of them.
_Clique = tuple[tuple[int, ...], int, int, int]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Seating:
  """A choice of seats with an order of the granules.

  Attributes:
    time_ns: of one iteration.
    chosen: indices of seats, by piece.
    order: of the granules.
  """

  time_ns: int
  chosen: Choice
  order: Order


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Effort:
  """How much to search, where an iteration has up to 96 granules.

  Of choices with more granules, each of which takes longer to look at, fewer
  are tried.

  Attributes:
    width: partial choices that are continued.
    choices: choices that are dispatched.
    starts: of these, how many are looked around from.
    near: partial choices that are continued there.
    beams: of these, how many get beam searches.
    wide: how many of them get a wide one.
    anneals: of these, how many are annealed.
    steps: of one annealing.
  """

  width: int = 96
  choices: int = 128
  starts: int = 3
  near: int = 12
  beams: int = 4
  wide: int = 1
  anneals: int = 3
  steps: int = 400


def search(board: Board, effort: Effort, seed: int) -> list[Seating]:
  """Returns the best seatings that were found, the best first."""
  found: dict[Choice, Seating] = {}
  if not all(board.seats):
    return []
  num_granules = sum(map(len, board.stops))
  if num_granules > _LARGE:
    effort = dataclasses.replace(
      effort,
      choices=max(1, effort.choices * _LARGE // num_granules),
      beams=effort.beams * _LARGE // num_granules,
      steps=effort.steps * _LARGE // num_granules,
    )
  for order in _orders(board):
    tried = _completed(board, {}, order, effort.width, math.inf)
    _dispatch(board, tried, found, effort.choices // 2)
  expanded: set[Choice] = set()
  while len(found) < effort.choices:
    left = (entry for entry in found.values() if entry.chosen not in expanded)
    start = min(left, default=None)
    if start is None or len(expanded) >= effort.starts:
      break
    expanded.add(start.chosen)
    best_ns = min(found.values()).time_ns
    for pieces in itertools.combinations(range(len(board.pieces)), 2):
      kept = {i: s for i, s in enumerate(start.chosen) if i not in pieces}
      near = _completed(board, kept, pieces, effort.near, best_ns)
      _dispatch(board, near, found, effort.choices)
  _deepen(board, effort, found, random.Random(seed))
  return sorted(found.values())


def flat(board: Board, seating: Seating, label: str = "") -> FlatPlan:
  """Returns the flat plan of a seating."""
  shop = board.shop(seating.chosen)
  if board.alive == 1 or shop is None:
    return board.flat(seating.chosen, seating.order, label=label)
  folded = folding.fold(shop, seating.order, board.alive)
  return board.flat(
    seating.chosen,
    seating.order,
    ranks=() if shop.has_swaps else folded.ranks,
    shifts=() if shop.has_swaps else folded.shifts,
    label=label,
  )


def _deepen(
  board: Board,
  effort: Effort,
  found: dict[Choice, Seating],
  rng: random.Random,
) -> None:
  """Looks for better orders of the best choices, and of the most promising."""
  lows: dict[Choice, int] = {}
  for chosen in found:
    shop = board.shop(chosen)
    if shop is not None:
      lows[chosen] = folding.bound(shop, board.alive)
  if board.alive == 1:
    promising = heapq.nsmallest(effort.beams // 2, lows, key=lows.__getitem__)
    best = [e.chosen for e in heapq.nsmallest(effort.beams, found.values())]
    for widths, choices in (
      ((1, 4), dict.fromkeys(best + promising)),
      ((16,), best[: effort.wide]),
    ):
      for chosen in choices:
        shop = board.shop(chosen)
        if shop is not None and lows[chosen] < min(found.values()).time_ns:
          _record(found, chosen, *list_scheduling.thorough(shop, widths))
  for entry in heapq.nsmallest(effort.anneals, found.values()):
    shop = board.shop(entry.chosen)
    if shop is not None and lows[entry.chosen] < min(found.values()).time_ns:
      annealed = annealing.anneal(
        shop,
        entry.order,
        steps=effort.steps if board.alive == 1 else effort.steps // _FOLDS,
        rng=rng,
        alive=board.alive,
      )
      _record(found, entry.chosen, *annealed)


def _quick(board: Board, shop: Shop) -> tuple[int, Order]:
  """Returns a good order, with the period that it takes."""
  time_ns, order = list_scheduling.quick(shop)
  if board.alive == 1:
    return time_ns, order
  orders = dict.fromkeys([order, list_scheduling.dispatch(shop, 0)])
  folded = ((folding.fold(shop, o, board.alive).period_ns, o) for o in orders)
  return min(folded, key=lambda pair: pair[0])


def _dispatch(
  board: Board,
  choices: Iterable[Choice],
  found: dict[Choice, Seating],
  limit: int,
) -> None:
  """Dispatches choices that may be better than what was found.

  Args:
    board: the board.
    choices: to try, those with the smallest lower bounds first.
    found: where results are put.
    limit: of how many are found.
  """
  best = min((entry.time_ns for entry in found.values()), default=1 << 62)
  ranked = []
  for chosen in choices:
    shop = None if chosen in found else board.shop(chosen)
    if shop is not None:
      low = folding.bound(shop, board.alive)
      if low < best:
        ranked.append((low, chosen, shop))
  for low, chosen, shop in sorted(ranked, key=lambda entry: entry[:2]):
    if len(found) >= limit or low >= best:
      break
    _record(found, chosen, *_quick(board, shop))
    best = min(best, found[chosen].time_ns)


def _record(
  found: dict[Choice, Seating], chosen: Choice, time_ns: int, order: Order
) -> None:
  if chosen not in found or time_ns < found[chosen].time_ns:
    found[chosen] = Seating(time_ns=time_ns, chosen=chosen, order=order)


@dataclasses.dataclass(slots=True)
class _Partial:
  """Seats of some pieces.

  Attributes:
    rank: a lower bound, then the devices' time that is used.
    seated: the seats' indices by piece.
    loads: work on each atom.
    here: of each atom (piece, seat) of those on it.
    cliques: sets of pieces of which any two share an atom.
  """

  rank: tuple[float, float]
  seated: dict[int, int]
  loads: tuple[int, ...]
  here: tuple[tuple[tuple[int, int], ...], ...]
  cliques: tuple[_Clique, ...]


def _orders(board: Board) -> Iterator[tuple[int, ...]]:
  """Yields orders in which to seat all pieces.

  That of the workflow, and one that begins with those with the most work.
  """
  everyone = range(len(board.pieces))
  yield tuple(everyone)
  yield tuple(sorted(everyone, key=lambda i: -board.least_area[i]))


def _completed(
  board: Board,
  seated: dict[int, int],
  order: Sequence[int],
  width: int,
  limit_ns: float,
) -> list[Choice]:
  """Returns choices of all seats with small lower bounds, by a beam search.

  Args:
    board: the board.
    seated: seats that are kept.
    order: of the other pieces.
    width: how many partial choices to go on with.
    limit_ns: choices that take as long are not wanted.
  """
  none = ((),) * len(board.atoms)
  start: _Partial | None = _Partial(
    (0.0, 0.0), {}, (0,) * len(board.atoms), none, ()
  )
  for i, s in seated.items():
    start = start and _seated(board, start, i, s, 0.0)
  level = [] if start is None else [start]
  for at, i in enumerate(order):
    rest = sum(board.least_area[j] for j in order[at + 1 :])
    ranked = []
    for partial in level:
      for s, seat in enumerate(board.seats[i]):
        low = _quick_bound(board, partial, seat, rest)
        if low < limit_ns:
          ranked.append((low, partial.rank, s, partial))
    ranked.sort(key=lambda entry: entry[:3])
    children: dict[object, _Partial] = {}
    best: list[float] = []  # the `width` smallest bounds, negated
    for low, _, s, partial in ranked:
      if len(best) == width and low >= -best[0]:
        break
      child = _seated(board, partial, i, s, rest)
      if child is None or child.rank[0] >= limit_ns:
        continue
      key = _canonical(board, child.seated)
      if key not in children:
        if len(best) < width:
          heapq.heappush(best, -child.rank[0])
        else:
          heapq.heappushpop(best, -child.rank[0])
      if key not in children or child.rank < children[key].rank:
        children[key] = child
    level = heapq.nsmallest(width, children.values(), key=lambda p: p.rank)
  everyone = range(len(board.pieces))
  return [tuple(p.seated[i] for i in everyone) for p in level]


def _quick_bound(
  board: Board, partial: _Partial, seat: Seat, rest: float
) -> float:
  """Returns a bound of a partial choice with one more seat."""
  area = partial.rank[1] + board.area(seat)
  low = max(partial.rank[0], (area + rest) / board.num_devices)
  for atom, load in enumerate(partial.loads):
    if seat.mask >> atom & 1 and load + seat.work_ns > low:
      low = load + seat.work_ns
  return low


def _seated(
  board: Board, partial: _Partial, i: int, s: int, rest: float
) -> _Partial | None:
  """Returns a partial choice with one more seat; None: it is not possible.

  Args:
    board: the board.
    partial: of other pieces.
    i: the piece.
    s: the seat's index.
    rest: device time that the pieces not yet seated use at least.
  """
  if not board.allows(partial.seated, i, s):
    return None
  seat = board.seats[i][s]
  seated = {**partial.seated, i: s}
  low = _quick_bound(board, partial, seat, rest)
  loads, here = list(partial.loads), list(partial.here)
  for atom in range(len(loads)):
    if seat.mask >> atom & 1:
      loads[atom] += seat.work_ns
      here[atom] = (*here[atom], (i, s))
      with_swaps = board.load_ns(atom, here[atom])
      if with_swaps is None:
        return None
      low = max(low, with_swaps)
  head, tail = _head(board, seated, i), _tail(board, seated, i)
  cliques: list[_Clique] = [((seat.mask,), head, seat.work_ns, tail)]
  for masks, first, work, last in partial.cliques:
    if all(mask & seat.mask for mask in masks):
      cliques.append(
        (
          (*masks, seat.mask),
          min(first, head),
          work + seat.work_ns,
          min(last, tail),
        )
      )
  alive = board.alive
  for _, first, work, last in cliques:
    low = max(low, work, (first + work + last) / alive)
  return _Partial(
    (low, partial.rank[1] + board.area(seat)),
    seated,
    tuple(loads),
    tuple(here),
    (*partial.cliques, *cliques),
  )


def _head(board: Board, seated: dict[int, int], i: int) -> int:
  """Returns the least time before a piece's first granule can start."""
  head = 0
  for p, counts, _ in board.sources[i]:
    seats = board.seats[p]
    if p in seated:
      time = sum(seats[seated[p]].durations[: counts[0]])
    else:
      time = min(sum(seat.durations[: counts[0]]) for seat in seats)
    head = max(head, _head(board, seated, p) + time)
  return head


def _tail(board: Board, seated: dict[int, int], i: int) -> int:
  """Returns the least time from a piece's end to the end of all."""
  tail = 0
  for reader in board.readers[i]:
    seats = board.seats[reader]
    if reader in seated:
      time = seats[seated[reader]].durations[-1]
    else:
      time = min(seat.durations[-1] for seat in seats)
    tail = max(tail, time + _tail(board, seated, reader))
  return tail


def _canonical(board: Board, seated: dict[int, int]) -> object:
  """Returns what choices have in common that differ in equal atoms only."""
  seats = [board.seats[i][s] for i, s in seated.items()]
  columns = sorted(
    (kind, tuple(seat.mask >> a & 1 for seat in seats))
    for a, kind in enumerate(board.kinds)
  )
  return tuple(seat.run.config for seat in seats), tuple(columns)
