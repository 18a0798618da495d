"""From Runs and an explicit order of their granules to a flat plan.

Trees order devices by nesting. Here the order is given: granules of several
stages may take turns on sets of devices that overlap in any way, and a resource
may run a granule for an earlier iteration than the one before it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from scheduler import plans
from scheduler.devices import Devices
from scheduler.lowering import arcs, emission, holdings, tracks, turns
from scheduler.lowering.tracks import Layout, Track
from scheduler.plans import (
  Activity,
  ActivityKind,
  FlatPlan,
  Holding,
  Node,
  Resource,
  Run,
  Slot,
  Temporal,
  TreePlan,
)
from scheduler.prices import Interval, Prices


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Stretch:
  """Granules of a Run that follow each other.

  Attributes:
    run: index of the Run.
    items: of the granules, as a half-open interval.
    rank: where a period runs them; those of one rank as they are listed.
    shift: in period k they are run for iteration k - shift.
  """

  run: int
  items: Interval
  rank: int = 0
  shift: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
  """Runs, and the order of their granules.

  Attributes:
    runs: outside loops; whether they are resident is not read from them.
    stretches: of one iteration, each Run's in the order of its items, and all
      after those that they read from. Every resource takes those that it is
      part of in the order of their ranks.
    swapped: for each atom of the Runs' devices, names of the stages whose state
      leaves it while others run there. Where there are some, all ranks and
      shifts are 0.
    copies: see `plans.TreePlan`.
    label: who made it, for people.
  """

  runs: tuple[Run, ...]
  stretches: tuple[Stretch, ...]
  swapped: Mapping[Devices, frozenset[str]] = dataclasses.field(
    default_factory=dict
  )
  copies: tuple[str, ...] = ()
  label: str = ""


def lower(listing: Listing, costs: Prices) -> FlatPlan:
  """Returns the flat plan of a listing.

  A state that leaves is swapped out after the last granule of a stretch and in
  before the first one of the next, on each resource by itself; not between the
  last stretch of an iteration and the first of the next, where both are of the
  same stage.
  """
  # States are held here, atom by atom: to `holdings` no Run is resident.
  plan = TreePlan(
    root=Temporal(
      children=tuple(
        dataclasses.replace(run, is_resident=False) for run in listing.runs
      )
    ),
    copies=listing.copies,
    label=listing.label,
  )
  layout = tracks.laid_out(tuple(plans.runs(plan.root)), costs)
  emitted = _Emission(plan, layout, costs, listing)
  return FlatPlan(
    resources=(
      *(Resource(name=str(atom), devices=atom) for atom in layout.atoms),
      *(Resource(name=name, kind="link") for name in emitted.links),
    ),
    activities=tuple(emitted.activities),
    arcs=arcs.connect(plan, layout, emitted, costs),
    orders=emitted.slots(),
    holdings=(
      *holdings.charge(plan, layout, costs),
      *emitted.states,
    ),
    label=listing.label,
  )


class _Emission(emission.Emission):
  """Walks a listing.

  Attributes:
    states: what is held of the stages' states.
  """

  def __init__(
    self, plan: TreePlan, layout: Layout, costs: Prices, listing: Listing
  ):
    self._listing = listing
    self._stretch_of: list[Stretch] = []
    # For each resource the stage whose turn it is, and swaps in and out.
    self._inside: list[Track | None] = [None] * len(layout.atoms)
    self._entered: list[list[int]] = [[] for _ in layout.atoms]
    self._left: list[list[int]] = [[] for _ in layout.atoms]
    super().__init__(plan, layout, costs)
    for order in self.orders:
      order.sort(key=lambda i: self._stretch_of[i].rank)
    self.states = tuple(self._states())

  def shift(self, index: int) -> int:
    """Returns by how many periods an activity's iteration is behind."""
    return self._stretch_of[index].shift

  def slots(self) -> tuple[tuple[Slot, ...], ...]:
    """Returns the cyclic order of every resource."""
    return tuple(
      tuple(Slot(activity=i, shift=self.shift(i)) for i in order)
      for order in self.orders
    )

  def _visit(self, node: Node, window: turns.Window | None) -> None:
    del node, window
    found, stretches = self._layout.tracks, self._listing.stretches
    stages: list[list[str]] = [[] for _ in self._layout.atoms]
    for stretch in stretches:
      for r in found[stretch.run].resources:
        stages[r].append(found[stretch.run].run.stage)
    self._wraps = [of[:1] == of[-1:] for of in stages]
    for stretch in stretches:
      track = found[stretch.run]
      for r in track.resources:
        self._enter(track, r)
      self._sync_all(track.run.stage)
      self._visit_run(track, {track.run.stage: stretch.items})
      missing = len(self.activities) - len(self._stretch_of)
      self._stretch_of += [stretch] * missing
    for r in range(len(self._inside)):
      if not self._wraps[r]:
        self._leave(r)
    missing = len(self.activities) - len(self._stretch_of)
    self._stretch_of += [stretches[-1]] * missing

  def _sync_all(self, name: str) -> None:
    """Brings new weights to all Runs of a stage before the first of them runs.

    Largest first: parts of its devices then have them too. A state that is
    swapped receives its weights where it is in.
    """
    found = self._layout.of_stage[name]
    if any(self._is_swapped(t, r) for t in found for r in t.resources):
      return
    for track in sorted(found, key=lambda track: -len(track.run.devices)):
      self._sync(track)

  def _swap(self, track: Track, kind: ActivityKind) -> list[int]:
    del track, kind
    return []

  def _enter(self, track: Track, resource: int) -> None:
    """Puts a stage's state on a resource, and removes another's."""
    old = self._inside[resource]
    if old is not None and old.run.stage == track.run.stage:
      return
    self._leave(resource)
    self._inside[resource] = track
    if self._is_swapped(track, resource):
      if old is not None or not self._wraps[resource]:
        made = self._swap_at(track.run.stage, resource, "swap_in")
        self._entered[resource].append(made)

  def _leave(self, resource: int) -> None:
    track = self._inside[resource]
    if track is not None and self._is_swapped(track, resource):
      made = self._swap_at(track.run.stage, resource, "swap_out")
      self._left[resource].append(made)

  def _is_swapped(self, track: Track, resource: int) -> bool:
    leaving = self._listing.swapped.get(self._layout.atoms[resource], ())
    name = track.run.stage
    return name in leaving and self._state_bytes(name, resource) > 0

  def _state_bytes(self, name: str, resource: int) -> int:
    return max(
      self._costs.state_bytes(track.run)
      for track in self._layout.of_stage[name]
      if resource in track.resources
    )

  def _swap_at(self, name: str, resource: int, kind: ActivityKind) -> int:
    atom = self._layout.atoms[resource]
    num_bytes = self._state_bytes(name, resource)
    return self._add(
      Activity(
        kind=kind,
        stage=name,
        resources=(resource,),
        duration_ns=self._costs.swap_ns(atom, num_bytes),
        index=len(self._left[resource]),
        num_bytes=num_bytes * len(atom),
      )
    )

  def _states(self) -> Iterator[Holding]:
    """Yields states, always there or from each swap_in to a swap_out."""
    for r in range(len(self._inside)):
      entered, left = self._entered[r], self._left[r]
      begins: list[tuple[int, int]] = [(i, 0) for i in entered]
      if left and (not entered or left[0] < entered[0]):
        # What is in over the end of an iteration leaves first.
        begins = [(entered[-1], 1), *begins[:-1]]
      for end, (begin, lag) in zip(left, begins):
        name = self.activities[end].stage
        yield Holding(
          resource=r,
          bytes_per_device=self._state_bytes(name, r),
          what=f"state of {name}",
          begin=begin,
          end=end,
          lag=lag,
        )
      moved = {self.activities[end].stage for end in left}
      here = [t for t in self._layout.tracks if r in t.resources]
      for name in dict.fromkeys(track.run.stage for track in here):
        num_bytes = self._state_bytes(name, r)
        if name not in moved and num_bytes:
          yield Holding(
            resource=r, bytes_per_device=num_bytes, what=f"state of {name}"
          )
