"""Seating: which pieces of a board take which seats, and in what order.

The seats of all pieces are chosen together, by a beam search over partial
choices with lower bounds, then by changing one or two seats of the best. A
choice is worth what list scheduling makes of it.
"""

from __future__ import annotations

import dataclasses
import heapq
import random
from collections.abc import Iterator

from scheduler.planners import list_scheduling
from scheduler.planners.boards import Board, Seat
from scheduler.planners.shops import Order

Choice = tuple[int, ...]


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
  best = 1 << 62
  for low, chosen in _candidates(board, effort.width):
    if low >= best or len(found) >= effort.choices // 2:
      break
    best = min(best, _dispatch(board, chosen, found))
  _descend(board, found, effort.choices)
  for entry in heapq.nsmallest(effort.beams, found.values()):
    shop = board.shop(entry.chosen)
    if shop is not None and list_scheduling.bound(shop) < entry.time_ns:
      _record(found, entry.chosen, *list_scheduling.beams(shop, (1, 4)))
  rng = random.Random(seed)
  for entry in heapq.nsmallest(effort.anneals, found.values()):
    shop = board.shop(entry.chosen)
    if shop is not None:
      annealed = list_scheduling.anneal(
        shop, entry.order, steps=effort.steps, rng=rng
      )
      _record(found, entry.chosen, *annealed)
  return sorted(found.values())


def _dispatch(board: Board, chosen: Choice, found: dict) -> int:
  """Returns the time of a choice's best dispatch, and remembers it."""
  if chosen not in found:
    shop = board.shop(chosen)
    if shop is None:
      return 1 << 62
    _record(found, chosen, *list_scheduling.quick(shop))
  return found[chosen].time_ns


def _record(
  found: dict[Choice, Seating], chosen: Choice, time_ns: int, order: Order
) -> None:
  if chosen not in found or time_ns < found[chosen].time_ns:
    found[chosen] = Seating(time_ns=time_ns, chosen=chosen, order=order)


def _descend(board: Board, found: dict[Choice, Seating], limit: int) -> None:
  """Changes one or two seats of the best as long as that helps."""
  expanded: set[Choice] = set()
  while found and len(found) < limit:
    start = min(found.values())
    if start.chosen in expanded:
      break
    expanded.add(start.chosen)
    ranked = []
    for chosen in _neighbours(board, start.chosen):
      if chosen not in found:
        shop = board.shop(chosen)
        if shop is not None:
          low = list_scheduling.bound(shop)
          if low < start.time_ns:
            ranked.append((low, chosen))
    for low, chosen in sorted(ranked):
      if len(found) >= limit or low >= min(found.values()).time_ns:
        break
      _dispatch(board, chosen, found)


def _neighbours(board: Board, chosen: Choice) -> Iterator[Choice]:
  for i, seats in enumerate(board.seats):
    for s in range(len(seats)):
      if s != chosen[i]:
        yield chosen[:i] + (s,) + chosen[i + 1 :]


@dataclasses.dataclass(slots=True)
class _Partial:
  """Seats of the first pieces.

  Attributes:
    rank: a lower bound, then the devices' time that is used.
    chosen: indices of seats.
    heads: of each piece the earliest start of its first granule.
    cliques: sets of pieces of which any two share an atom, each as (masks of
      its seats, shortest head, work, shortest tail).
    area: devices' time that is used.
  """

  rank: tuple[float, float]
  chosen: Choice
  heads: tuple[int, ...]
  cliques: tuple[tuple[tuple[int, ...], int, int, int], ...]
  area: float


def _candidates(board: Board, width: int) -> list[tuple[float, Choice]]:
  """Returns choices of all seats with their lower bounds, smallest first."""
  tails = _tails(board)
  sizes = [len(atom) for atom in board.atoms]
  least = [min(_area(seat, sizes) for seat in seats) for seats in board.seats]
  level = [_Partial((0.0, 0.0), (), (), (), 0.0)]
  for i, seats in enumerate(board.seats):
    rest = sum(least[i + 1 :])
    children: dict[object, _Partial] = {}
    for partial in level:
      for s, seat in enumerate(seats):
        child = _seated(board, partial, seat, s, tails[i], rest, sizes)
        key = _canonical(board, child.chosen)
        if key not in children or child.rank < children[key].rank:
          children[key] = child
    level = heapq.nsmallest(width, children.values(), key=lambda p: p.rank)
  return [(p.rank[0], p.chosen) for p in level]


def _seated(
  board: Board,
  partial: _Partial,
  seat: Seat,
  s: int,
  tail: int,
  rest: float,
  sizes: list[int],
) -> _Partial:
  """Returns a partial choice with one more seat.

  Args:
    board: the board.
    partial: of the pieces before.
    seat: the seat.
    s: its index.
    tail: the shortest way from the piece's end to the end of all.
    rest: device time that the pieces after it use at least.
    sizes: devices of each atom.
  """
  i = len(partial.chosen)
  head = 0
  for p, counts, _ in board.sources[i]:
    before = board.seats[p][partial.chosen[p]].durations[: counts[0]]
    head = max(head, partial.heads[p] + sum(before))
  cliques = [*partial.cliques, ((seat.mask,), head, seat.work_ns, tail)]
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
  area = partial.area + _area(seat, sizes)
  low = max(first + work + last for _, first, work, last in cliques)
  return _Partial(
    (max(low, (area + rest) / sum(sizes)), area),
    (*partial.chosen, s),
    (*partial.heads, head),
    tuple(cliques),
    area,
  )


def _area(seat: Seat, sizes: list[int]) -> float:
  devices = sum(n for a, n in enumerate(sizes) if seat.mask >> a & 1)
  return float(seat.work_ns * devices)


def _tails(board: Board) -> list[int]:
  """Returns the shortest way from each piece's end to the end of all."""
  tails = [0] * len(board.pieces)
  for i in reversed(range(len(tails))):
    last = min(seat.durations[-1] for seat in board.seats[i])
    for p, _, _ in board.sources[i]:
      tails[p] = max(tails[p], last + tails[i])
  return tails


def _canonical(board: Board, chosen: Choice) -> object:
  """Returns what choices have in common that differ in equal atoms only."""
  seats = [seats[s] for seats, s in zip(board.seats, chosen)]
  columns = sorted(
    (kind, tuple(seat.mask >> a & 1 for seat in seats))
    for a, kind in enumerate(board.kinds)
  )
  return tuple(seat.run.config for seat in seats), tuple(columns)
