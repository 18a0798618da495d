"""Seating: which pieces of a board take which seats, and in what order.

The seats of all pieces are chosen together, by a beam search over partial
choices with lower bounds, then by changing one or two seats of the best. A
choice is worth what list scheduling makes of it.
"""

from __future__ import annotations

import dataclasses
import heapq
import random
from collections.abc import Iterable, Iterator

from scheduler.planners import list_scheduling
from scheduler.planners.boards import Board, Seat
from scheduler.planners.shops import Order

Choice = tuple[int, ...]
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
  """How much to search.

  Attributes:
    width: partial choices that are continued.
    choices: choices that are dispatched.
    beams: of these, how many get beam searches.
    anneals: of these, how many are annealed.
    steps: of one annealing.
  """

  width: int = 64
  choices: int = 128
  beams: int = 6
  anneals: int = 3
  steps: int = 600


def search(board: Board, effort: Effort, seed: int) -> list[Seating]:
  """Returns the best seatings that were found, the best first."""
  found: dict[Choice, Seating] = {}
  tried = _candidates(board, effort.width)
  _dispatch(board, tried, found, effort.choices // 2)
  expanded: set[Choice] = set()
  while found and len(found) < effort.choices:
    start = min(found.values())
    if start.chosen in expanded:
      break
    expanded.add(start.chosen)
    near = _neighbours(board, start.chosen)
    _dispatch(board, near, found, effort.choices)
  for entry in heapq.nsmallest(effort.beams, found.values()):
    shop = board.shop(entry.chosen)
    if shop is not None and list_scheduling.bound(shop) < entry.time_ns:
      _record(found, entry.chosen, *list_scheduling.thorough(shop, (1, 4)))
  rng = random.Random(seed)
  for entry in heapq.nsmallest(effort.anneals, found.values()):
    shop = board.shop(entry.chosen)
    if shop is not None:
      annealed = list_scheduling.anneal(
        shop, entry.order, steps=effort.steps, rng=rng
      )
      _record(found, entry.chosen, *annealed)
  return sorted(found.values())


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
      low = list_scheduling.bound(shop)
      if low < best:
        ranked.append((low, chosen, shop))
  for low, chosen, shop in sorted(ranked, key=lambda entry: entry[:2]):
    if len(found) >= limit or low >= best:
      break
    _record(found, chosen, *list_scheduling.quick(shop))
    best = min(best, found[chosen].time_ns)


def _record(
  found: dict[Choice, Seating], chosen: Choice, time_ns: int, order: Order
) -> None:
  if chosen not in found or time_ns < found[chosen].time_ns:
    found[chosen] = Seating(time_ns=time_ns, chosen=chosen, order=order)


def _neighbours(board: Board, chosen: Choice) -> Iterator[Choice]:
  for i, seats in enumerate(board.seats):
    for s in range(len(seats)):
      if s != chosen[i]:
        yield chosen[:i] + (s,) + chosen[i + 1 :]


@dataclasses.dataclass(slots=True)
class _Partial:
  """Seats of some pieces.

  Attributes:
    rank: a lower bound, then the devices' time that is used.
    seated: the seats' indices by piece.
    cliques: sets of pieces of which any two share an atom.
    area: devices' time that is used.
  """

  rank: tuple[float, float]
  seated: dict[int, int]
  cliques: tuple[_Clique, ...]
  area: float


def _candidates(board: Board, width: int) -> list[Choice]:
  """Returns choices of all seats that have small lower bounds.

  Two beam searches: one seats pieces in the order of the workflow, the other
  those with the most work first.
  """
  everyone = range(len(board.pieces))
  sizes = [size for _, size in board.kinds]
  least = [min(_area(seat, sizes) for seat in seats) for seats in board.seats]
  found: dict[Choice, None] = {}
  for order in (list(everyone), sorted(everyone, key=lambda i: -least[i])):
    level = [_Partial((0.0, 0.0), {}, (), 0.0)]
    for at, i in enumerate(order):
      rest = sum(least[j] for j in order[at + 1 :])
      children: dict[object, _Partial] = {}
      for partial in level:
        for s in range(len(board.seats[i])):
          child = _seated(board, partial, i, s, rest, sizes)
          if child is None:
            continue
          key = _canonical(board, child.seated)
          if key not in children or child.rank < children[key].rank:
            children[key] = child
      level = heapq.nsmallest(width, children.values(), key=lambda p: p.rank)
    for p in level:
      found[tuple(p.seated[i] for i in everyone)] = None
  return list(found)


def _seated(
  board: Board,
  partial: _Partial,
  i: int,
  s: int,
  rest: float,
  sizes: list[int],
) -> _Partial | None:
  """Returns a partial choice with one more seat; None: memory is too small.

  Args:
    board: the board.
    partial: of other pieces.
    i: the piece.
    s: the seat's index.
    rest: device time that the pieces not yet seated use at least.
    sizes: devices of each atom.
  """
  seat = board.seats[i][s]
  seated = {**partial.seated, i: s}
  head, tail = _head(board, seated, i), _tail(board, seated, i)
  area = partial.area + _area(seat, sizes)
  low = max(partial.rank[0], (area + rest) / sum(sizes))
  for atom in range(len(sizes)):
    if seat.mask >> atom & 1:
      load = board.load_ns(atom, seated)
      if load is None:
        return None
      low = max(low, load)
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
  low = max(low, *(first + work + last for _, first, work, last in cliques))
  return _Partial((low, area), seated, (*partial.cliques, *cliques), area)


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


def _area(seat: Seat, sizes: list[int]) -> float:
  devices = sum(n for a, n in enumerate(sizes) if seat.mask >> a & 1)
  return float(seat.work_ns * devices)


def _canonical(board: Board, seated: dict[int, int]) -> object:
  """Returns what choices have in common that differ in equal atoms only."""
  seats = [board.seats[i][s] for i, s in seated.items()]
  columns = sorted(
    (kind, tuple(seat.mask >> a & 1 for seat in seats))
    for a, kind in enumerate(board.kinds)
  )
  return tuple(seat.run.config for seat in seats), tuple(columns)
