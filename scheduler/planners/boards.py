"""Boards: stages on unions of given sets of devices, and their shops.

A board has disjoint sets of devices (*atoms*) and *pieces*: stages, or shares
of them, of which each takes one *seat*: a union of atoms of one class, in one
configuration. Seats may overlap in any way; in which order granules then take
turns is a matter of `list_scheduling`.
"""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Iterator, Mapping, Sequence

from scheduler.devices import Devices
from scheduler.lowering import listing, tracks
from scheduler.lowering.listing import Listing, Stretch
from scheduler.planners import residency, seats
from scheduler.planners.residency import Tenant
from scheduler.planners.seats import Piece, Seat
from scheduler.planners.shops import Chain, Needs, Shop
from scheduler.plans import FlatPlan
from scheduler.prices import Interval, Prices
from scheduler.profiles import Config

# Items of a replica that many tell apart by length.
_MANY = 32


class Board:
  """Pieces of one workflow, and their seats on given atoms.

  Attributes:
    alive: iterations that may overlap.
    atoms: disjoint sets of devices, each of one class.
    kinds: of each atom its class and how many devices it has.
    pieces: in a topological order.
    seats: of each piece, those with the least work first.
    sources: of each piece the (piece, counts) it reads from: its k-th granule
      waits for the first counts[k] granules of that piece.
    num_devices: of all atoms.
    least_area: of each piece the least `area` of its seats.
    readers: of each piece the pieces that read from it.
  """

  def __init__(
    self,
    costs: Prices,
    atoms: Sequence[Devices],
    pieces: Sequence[Piece],
    *,
    copies: tuple[str, ...] = (),
  ):
    self.costs, self.copies = costs, copies
    self.alive = 1 + costs.workflow.staleness
    self.atoms, self.pieces = tuple(atoms), tuple(pieces)
    classes = [costs.cluster.class_of(atom) for atom in atoms]
    self.kinds = tuple((c.name, len(a)) for c, a in zip(classes, atoms))
    self._memory = tuple(c.memory_bytes for c in classes)
    self.stops = tuple(map(self._stops, self.pieces))
    self.sources = tuple(
      tuple(self._sources(i)) for i in range(len(self.pieces))
    )
    self.readers = tuple(
      tuple(
        j for j, found in enumerate(self.sources) if i in {p for p, *_ in found}
      )
      for i in range(len(self.pieces))
    )
    self.seats = tuple(
      tuple(seats.seats_of(costs, self.atoms, piece, copies))
      for piece in self.pieces
    )
    self.num_devices = sum(map(len, self.atoms))
    self.least_area = tuple(
      min(map(self.area, own), default=math.inf) for own in self.seats
    )
    self._shops: dict[tuple[int, ...], Shop | None] = {}
    self._loads: dict[object, int | None] = {}

  def shop(self, chosen: Sequence[int]) -> Shop | None:
    """Returns the shop of one seat for each piece, by their indices.

    None: some atom's memory does not hold what the seats bring there.
    """
    key = tuple(chosen)
    if key not in self._shops:
      self._shops[key] = self._shop([s[i] for s, i in zip(self.seats, key)])
    return self._shops[key]

  def area(self, seat: Seat) -> float:
    """Returns the time of its devices, together, that a seat takes."""
    return float(seat.work_ns * len(seat.run.devices))

  def fix(self, i: int, devices: Devices, config: Config) -> None:
    """Leaves a piece a single seat; none where the atoms do not add up."""
    mask = sum(
      1 << a for a, atom in enumerate(self.atoms) if atom.issubset(devices)
    )
    own: tuple[Seat, ...] = ()
    if seats.union(self.atoms, mask) == devices:
      piece = self.pieces[i]
      run = seats.place(piece, devices, config)
      own = (seats.priced(self.costs, run, mask, self.copies),)
    self.seats = (*self.seats[:i], own, *self.seats[i + 1 :])

  def allows(self, seated: Mapping[int, int], i: int, s: int) -> bool:
    """Returns whether a piece may take a seat beside others.

    A decode's time is that of the replica with the longest items, each of which
    stands for one on every other. Where replicas have few items, and others go
    on with them, these do not stop where those go on.

    Args:
      seated: the seats of some pieces, by piece.
      i: the piece.
      s: the seat's index.
    """
    piece, own = self.pieces[i], self.seats[i][s].replicas
    if piece.cohort is None:
      return True
    num_items = piece.cohort[1] - piece.cohort[0]
    for j, other_s in seated.items():
      other = self.pieces[j]
      if other.stage == piece.stage and other.cohort == piece.cohort:
        more = self.seats[j][other_s].replicas
        first, second = (more, own) if j < i else (own, more)
        if first < second and second * _MANY > num_items:
          return False
    return True

  def load_ns(self, atom: int, here: tuple[tuple[int, int], ...]) -> int | None:
    """Returns the work on an atom with the least swaps; None: no memory.

    Args:
      atom: its index.
      here: (piece, index of its seat) of those on the atom.
    """
    key = (atom, here)
    if key not in self._loads:
      taken = [self.seats[i][s] for i, s in here]
      leaving = self._leaving(atom, taken)
      if leaving is None:
        self._loads[key] = None
      else:
        self._loads[key] = sum(seat.work_ns for seat in taken) + 2 * sum(
          self._swap_ns(taken, atom, name) for name in leaving
        )
    return self._loads[key]

  def flat(
    self,
    chosen: Sequence[int],
    order: Sequence[int],
    *,
    ranks: Sequence[int] = (),
    shifts: Sequence[int] = (),
    label: str = "",
  ) -> FlatPlan:
    """Returns the flat plan of an order of granules.

    Args:
      chosen: indices of seats.
      order: of the granules of one iteration.
      ranks: of each granule in `order`, its place in a period.
      shifts: of each granule in `order`, see `plans.Slot`.
      label: of the plan.
    """
    taken = [s[i] for s, i in zip(self.seats, chosen)]
    swapped = self._swapped(taken)
    counts = [0] * len(taken)
    stretches: list[Stretch] = []
    for at, c in enumerate(order):
      k = counts[c]
      counts[c] = k + 1
      start = self.stops[c][k - 1] if k else self._share(self.pieces[c])[0]
      items = (start, self.stops[c][k])
      if not ranks and stretches and stretches[-1].run == c:
        begin = stretches.pop().items[0]
        items = (begin, items[1])
      stretches.append(
        Stretch(
          run=c,
          items=items,
          rank=ranks[at] if ranks else 0,
          shift=shifts[at] if shifts else 0,
        )
      )
    return listing.lower(
      Listing(
        runs=tuple(seat.run for seat in taken),
        stretches=tuple(stretches),
        swapped=self._by_resource(taken, swapped),
        copies=self.copies,
        label=label,
      ),
      self.costs,
    )

  def _by_resource(
    self, taken: list[Seat], swapped: tuple[frozenset[str], ...] | None
  ) -> dict[Devices, frozenset[str]]:
    """Returns what leaves each resource: atoms always used together."""
    merged, _ = self.costs.atoms(tuple(seat.run.devices for seat in taken))
    return {
      resource: leaving
      for resource in merged
      for atom, leaving in zip(self.atoms, swapped or ())
      if atom.issubset(resource)
    }

  def _shop(self, taken: list[Seat]) -> Shop | None:
    swapped = self._swapped(taken)
    if swapped is None:
      return None
    names = list(dict.fromkeys(piece.stage for piece in self.pieces))
    times = [
      tuple(
        self._swap_ns(taken, atom, name) if name in leaving else 0
        for name in names
      )
      for atom, leaving in enumerate(swapped)
    ]
    return Shop(
      chains=tuple(
        Chain(
          durations=self._durations(i, taken),
          resources=tuple(
            r for r in range(len(self.atoms)) if seat.mask >> r & 1
          ),
          needs=self._needs(i, taken),
          family=names.index(self.pieces[i].stage),
        )
        for i, seat in enumerate(taken)
      ),
      swap_in=tuple(times),
      swap_out=tuple(times),
    )

  def _durations(self, i: int, taken: list[Seat]) -> tuple[int, ...]:
    """Returns a piece's durations, with weight syncs before the first."""
    seat = taken[i]
    if seat.run.stage in self.copies or any(
      other.run.stage == seat.run.stage
      and seat.run.devices.issubset(other.run.devices)
      and (j < i or other.run.devices != seat.run.devices)
      for j, other in enumerate(taken)
      if j != i
    ):
      return seat.durations
    time = 0
    for sync in self.costs.workflow.syncs:
      if sync.target == seat.run.stage:
        source = functools.reduce(
          Devices.__or__,
          (s.run.devices for s in taken if s.run.stage == sync.source),
        )
        time += self.costs.sync_ns(
          source, seat.run.devices, sync.num_bytes, seat.run.config.devices
        )
    return (seat.durations[0] + time, *seat.durations[1:])

  def _needs(self, i: int, taken: list[Seat]) -> tuple[Needs, ...]:
    delays = [
      (p, counts, self._move_ns(p, i, item_bytes, taken))
      for p, counts, item_bytes in self.sources[i]
    ]
    return tuple(
      tuple((p, counts[k] - 1, ns) for p, counts, ns in delays if counts[k])
      for k in range(len(self.stops[i]))
    )

  def _move_ns(
    self, source: int, target: int, item_bytes: int, taken: list[Seat]
  ) -> int:
    """Returns the time in which a granule reaches the piece that reads it."""
    if item_bytes == 0:
      return 0
    granule = min(self.pieces[source].granule, self.stops[source][-1])
    return self.costs.edge_ns(
      taken[source].run.devices,
      taken[target].run.devices,
      granule * item_bytes,
    )

  def _swap_ns(self, taken: list[Seat], atom: int, name: str) -> int:
    num_bytes = max(
      (
        seat.state_bytes
        for seat in taken
        if seat.run.stage == name and seat.mask >> atom & 1
      ),
      default=0,
    )
    return self.costs.swap_ns(self.atoms[atom], num_bytes)

  def _swapped(self, taken: list[Seat]) -> tuple[frozenset[str], ...] | None:
    """Returns for each atom the stages that do not stay; None: no choice."""
    found = []
    for atom in range(len(self.atoms)):
      here = [seat for seat in taken if seat.mask >> atom & 1]
      leaving = self._leaving(atom, here)
      if leaving is None:
        return None
      found.append(leaving)
    return tuple(found)

  def _leaving(self, atom: int, taken: list[Seat]) -> frozenset[str] | None:
    """Returns the stages on an atom that do not stay; None: no choice."""
    memory, most = self._memory[atom], 0
    states: dict[str, int] = {}
    transients: dict[str, int] = {}
    for seat in taken:
      memory -= seat.waiting_bytes
      name = seat.run.stage
      states[name] = max(states.get(name, 0), seat.state_bytes)
      transients[name] = max(transients.get(name, 0), seat.transient_bytes)
      most = max(most, seat.transient_bytes)
    if sum(states.values()) + most <= memory:
      return frozenset()
    tenants = tuple(
      Tenant(states[name], transients[name], self._swap_ns(taken, atom, name))
      for name in states
    )
    out = residency.swapped(tenants, (memory,))
    names = list(states)
    return None if out is None else frozenset(names[i] for i in out)

  def _share(self, piece: Piece) -> Interval:
    return piece.share or (0, self.costs.stages[piece.stage].items)

  def _stops(self, piece: Piece) -> tuple[int, ...]:
    """Returns the last item, plus one, of each of a piece's granules."""
    stage = self.costs.stages[piece.stage]
    (low, high), update = self._share(piece), stage.items // stage.updates
    stops = []
    while low < high:
      low = min(low + piece.granule, high, low // update * update + update)
      stops.append(low)
    return tuple(stops)

  def _sources(self, i: int) -> Iterator[tuple[int, tuple[int, ...], int]]:
    """Yields what a piece reads, as (piece, counts, bytes per item)."""
    piece = self.pieces[i]
    stage = self.costs.stages[piece.stage]
    for edge in self.costs.edges_into[piece.stage]:
      source = self.costs.stages[edge.source]
      for p, other in enumerate(self.pieces):
        if other.stage != edge.source:
          continue
        begin, counts = self._share(other)[0], []
        for stop in self.stops[i]:
          need = tracks.needed(edge, source, stage, (0, stop))[1]
          need = source.items if stage.needs_all else need
          k = bisect.bisect_left(self.stops[p], need) + 1 if need > begin else 0
          counts.append(min(k, len(self.stops[p])))
        yield p, tuple(counts), edge.item_bytes
    if piece.cohort is not None:
      for p, other in enumerate(self.pieces[:i]):
        same = other.stage == piece.stage and other.cohort == piece.cohort
        if same and self.stops[p][-1] == self._share(piece)[0]:
          yield p, (len(self.stops[p]),) * len(self.stops[i]), 0
