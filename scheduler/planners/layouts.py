"""Layouts: how devices and stages are divided before stages take seats.

A layout is a board that is not built yet: disjoint sets of devices, and stages
with granules and shares. Changing it is a local search: devices move from one
set to another, sets are divided or joined, granules grow or shrink, a decode
leaves its longest items to a piece of their own, which goes on with them
elsewhere, or gives them to replicas of their own from the start.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Sequence

from scheduler import devices as device_sets
from scheduler.devices import Devices
from scheduler.planners import granules
from scheduler.planners.boards import Board
from scheduler.planners.seats import Piece
from scheduler.plans import Run
from scheduler.prices import Prices
from scheduler.workflows import Stage

# Of more sets of devices a board has too many seats.
MAX_ATOMS = 5
# Shares of a decode's items, the shortest, that one piece emits.
_CUTS = (0.25, 0.5, 0.75, 0.875)
_STREAM, _STREAMS = 16, (4, 8, 16, 32)
# Shares of a set of devices that move at once, beside a single device.
_MOVED = (2, 4, 8, 16)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
  """Sets of devices, and stages divided into pieces.

  Attributes:
    atoms: disjoint sets of devices, each of one class.
    pieces: see `boards.Board`.
    copies: see `plans.TreePlan`.
  """

  atoms: tuple[Devices, ...]
  pieces: tuple[Piece, ...]
  copies: tuple[str, ...] = ()

  def board(self, costs: Prices) -> Board:
    """Returns the layout's board."""
    return Board(costs, self.atoms, self.pieces, copies=self.copies)


def applies_to(costs: Prices) -> bool:
  """Returns whether layouts stand for all of a workflow: it has no loops."""
  return not costs.workflow.loops


def starts(
  costs: Prices, plans_runs: Iterable[tuple[Run, ...]]
) -> list[Layout]:
  """Returns layouts to begin with, the most promising first.

  Args:
    costs: of the workflow.
    plans_runs: the Runs of plans, whose sets of devices and granules are taken
      over.
  """
  planned, others = [], []
  for own in plans_runs:
    atoms = _whole_classes(costs, device_sets.atoms(run.devices for run in own))
    if costs.cluster.groups:
      atoms = costs.cluster.groups
    if len(atoms) <= MAX_ATOMS:
      as_planned = tuple(
        Piece(stage=name, granule=_granule_of(own, name, costs))
        for name in costs.order
      )
      planned.append(Layout(atoms=atoms, pieces=as_planned))
      others.append(Layout(atoms=atoms, pieces=_streamed(costs, atoms)))
  divided = []
  for atoms in usual(costs):
    streamed = _streamed(costs, atoms)
    for pieces in dict.fromkeys((_tailed(costs, streamed), streamed)):
      divided.append(Layout(atoms=atoms, pieces=pieces))
  return list(dict.fromkeys([*planned, *divided, *others]))


def neighbours(layout: Layout, costs: Prices) -> Iterator[Layout]:
  """Yields layouts that differ from one in a single respect."""
  if not costs.cluster.groups:
    for atoms in _other_atoms(layout.atoms, costs):
      yield dataclasses.replace(layout, atoms=atoms)
  for pieces in _other_pieces(layout.pieces, costs):
    yield dataclasses.replace(layout, pieces=pieces)
  if costs.workflow.staleness:
    targets = tuple(dict.fromkeys(s.target for s in costs.workflow.syncs))
    if targets:
      other = () if layout.copies else targets
      yield dataclasses.replace(layout, copies=other)


def _other_atoms(
  atoms: tuple[Devices, ...], costs: Prices
) -> Iterator[tuple[Devices, ...]]:
  kinds = [costs.cluster.class_of(atom).name for atom in atoms]
  for i, giver in enumerate(atoms):
    for count in _counts(len(giver)):
      moved = giver.first(count)
      for j, taker in enumerate(atoms):
        if i != j and kinds[i] == kinds[j]:
          changed = list(atoms)
          changed[i], changed[j] = giver - moved, taker | moved
          yield tuple(atom for atom in changed if atom.spans)
      if len(atoms) < MAX_ATOMS and count < len(giver):
        yield (*atoms[:i], giver - moved, moved, *atoms[i + 1 :])


def _counts(size: int) -> list[int]:
  """Returns how many devices of a set may move at once."""
  return sorted({1, 2, size, *(size // part for part in _MOVED)} - {0})


def _other_pieces(
  pieces: tuple[Piece, ...], costs: Prices
) -> Iterator[tuple[Piece, ...]]:
  for stream in _STREAMS:
    yield _regranulated(pieces, costs, stream)
  for name in dict.fromkeys(piece.stage for piece in pieces):
    stage = costs.stages[name]
    own = [piece for piece in pieces if piece.stage == name]
    for stream in _STREAMS:
      changed = tuple(
        dataclasses.replace(p, granule=granules.of_stream(stage, stream))
        for p in own
      )
      yield _replaced(pieces, name, changed)
    if stage.kind == "decode":
      for divided in _divided(stage, own[0].granule):
        yield _replaced(pieces, name, divided)


def _divided(stage: Stage, granule: int) -> Iterator[tuple[Piece, ...]]:
  """Yields ways to decode the longest items apart from the others."""
  whole = Piece(stage=stage.name, granule=granule)
  yield (whole,)
  for share in _CUTS:
    for goes_on in (True, False):
      yield from _cut(whole, stage, share, goes_on=goes_on)


def _cut(
  whole: Piece, stage: Stage, share: float, *, goes_on: bool
) -> Iterator[tuple[Piece, ...]]:
  """Yields a decode in two pieces, if it has so many groups.

  Args:
    whole: the piece.
    stage: its stage.
    share: of the items, the shortest, that the first piece emits.
    goes_on: whether the second goes on with what the first has begun, or has
      its items to itself from the start.
  """
  at = round(share * stage.items / stage.group) * stage.group
  if stage.granule_min <= at <= stage.items - stage.granule_min:
    cohort = (0, stage.items) if goes_on else None
    yield (
      dataclasses.replace(whole, share=(0, at), cohort=cohort),
      dataclasses.replace(whole, share=(at, stage.items), cohort=cohort),
    )


def _replaced(
  pieces: tuple[Piece, ...], name: str, own: tuple[Piece, ...]
) -> tuple[Piece, ...]:
  at = next(i for i, piece in enumerate(pieces) if piece.stage == name)
  rest = [piece for piece in pieces[at:] if piece.stage != name]
  return (*pieces[:at], *own, *rest)


def _streamed(costs: Prices, atoms: Sequence[Devices]) -> tuple[Piece, ...]:
  """Returns stages in about 16 granules, fewer where devices would idle."""
  most = max(map(len, atoms))
  pieces = []
  for name in costs.order:
    stage = costs.stages[name]
    stream = _STREAM
    if stage.kind != "decode":
      stream = min(_STREAM, max(1, stage.items // most))
    pieces.append(Piece(stage=name, granule=granules.of_stream(stage, stream)))
  return tuple(pieces)


def _tailed(costs: Prices, pieces: tuple[Piece, ...]) -> tuple[Piece, ...]:
  """Returns pieces whose decodes leave their longer half to be gone on with."""
  for whole in pieces:
    stage = costs.stages[whole.stage]
    if stage.kind == "decode":
      for two in _cut(whole, stage, 0.5, goes_on=True):
        pieces = _replaced(pieces, whole.stage, two)
  return pieces


def _regranulated(
  pieces: tuple[Piece, ...], costs: Prices, stream: int
) -> tuple[Piece, ...]:
  return tuple(
    dataclasses.replace(
      piece, granule=granules.of_stream(costs.stages[piece.stage], stream)
    )
    for piece in pieces
  )


def _granule_of(own: tuple[Run, ...], name: str, costs: Prices) -> int:
  for run in own:
    if run.stage == name:
      return run.granule
  return granules.of_stream(costs.stages[name], 1)


def usual(costs: Prices) -> Iterator[tuple[Devices, ...]]:
  """Yields each class whole, in halves, and with a smaller part set apart."""
  if costs.cluster.groups:
    if len(costs.cluster.groups) <= MAX_ATOMS:
      yield costs.cluster.groups
    return
  classes = _classes(costs)
  yield classes
  found: dict[tuple[Devices, ...], None] = {}
  for part in (2, 4, 8, 3):
    atoms: list[Devices] = []
    for devices in classes:
      few = devices.first(max(1, len(devices) // part))
      atoms += [piece for piece in (few, devices - few) if piece.spans]
    if len(atoms) <= MAX_ATOMS:
      found[tuple(atoms)] = None
  yield from found


def _classes(costs: Prices) -> tuple[Devices, ...]:
  """Returns the devices of each class that some stage can use."""
  used = {
    name
    for stage in costs.stages
    for name in costs.profile.device_classes(stage)
  }
  found = [
    costs.cluster.of_class(c.name)
    for c in costs.cluster.classes
    if c.name in used
  ]
  return tuple(devices for devices in found if devices.spans)


def _whole_classes(
  costs: Prices, atoms: tuple[Devices, ...]
) -> tuple[Devices, ...]:
  """Returns atoms with what of the classes none of them has."""
  taken = functools.reduce(Devices.__or__, atoms, Devices())
  rest = [devices - taken for devices in _classes(costs)]
  return (*atoms, *(devices for devices in rest if devices.spans))
