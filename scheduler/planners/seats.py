"""Seats: where a stage, or a share of one, may run on a board."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Sequence

from scheduler import errors
from scheduler.devices import Devices
from scheduler.lowering import tracks
from scheduler.plans import Run
from scheduler.prices import Interval, Prices
from scheduler.profiles import Config, DecodeLaw, Law


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
  """A stage, or a share of one; see `plans.Run`."""

  stage: str
  granule: int
  share: Interval | None = None
  cohort: Interval | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Seat:
  """Where a piece may run.

  Attributes:
    run: the piece on devices.
    mask: bit i stands for atom i.
    durations: of its granules.
    work_ns: of all of them.
    state_bytes: per device.
    transient_bytes: per device.
    waiting_bytes: per device, of items that wait to be read, and of second
      copies of weights.
  """

  run: Run
  mask: int
  durations: tuple[int, ...]
  work_ns: int
  state_bytes: int
  transient_bytes: int
  waiting_bytes: int

  @property
  def replicas(self) -> int:
    return len(self.run.devices) // self.run.config.devices


def seats_of(
  costs: Prices,
  atoms: Sequence[Devices],
  piece: Piece,
  copies: tuple[str, ...],
) -> Iterator[Seat]:
  """Yields a piece's seats, those with the least work first.

  Those that need more atoms than others and are in no respect better are left
  out.
  """
  found = []
  for mask in range(1, 1 << len(atoms)):
    devices = union(atoms, mask)
    try:
      device = costs.cluster.class_of(devices)
    except errors.ClusterError:
      continue
    for config in costs.profile.configs(piece.stage, device.name):
      if len(devices) % config.devices:
        continue
      law = costs.profile.law(piece.stage, device.name, config)
      if not _makes_wait(piece, law, len(devices) // config.devices):
        run = place(piece, devices, config)
        with contextlib.suppress(errors.ProfileError):
          found.append(priced(costs, run, mask, copies))
  found.sort(key=lambda seat: (seat.work_ns, seat.mask.bit_count()))
  kept: list[Seat] = []
  for seat in found:
    if not any(_dominates(better, seat) for better in kept):
      kept.append(seat)
  yield from kept


def union(atoms: Sequence[Devices], mask: int) -> Devices:
  """Returns the devices that a mask of atoms stands for."""
  chosen = [atom for i, atom in enumerate(atoms) if mask >> i & 1]
  return functools.reduce(Devices.__or__, chosen, Devices())


def place(piece: Piece, devices: Devices, config: Config) -> Run:
  """Returns a piece on devices."""
  return Run(
    stage=piece.stage,
    devices=devices,
    granule=piece.granule,
    config=config,
    share=piece.share,
    cohort=piece.cohort,
  )


def priced(costs: Prices, run: Run, mask: int, copies: tuple[str, ...]) -> Seat:
  """Returns a seat with its times and bytes.

  Raises:
    ProfileError: the stage was not measured there.
  """
  stage = costs.stages[run.stage]
  low, high = costs.share(run)
  times = costs.granules(run, (low, high)).durations_ns
  items = min(run.granule, stage.items)
  if stage.kind == "decode":
    items = (run.cohort or (low, high))[1] - low
  return Seat(
    run=run,
    mask=mask,
    durations=times,
    work_ns=sum(times),
    state_bytes=costs.state_bytes(run),
    transient_bytes=costs.transient_bytes(run, items),
    waiting_bytes=_waiting_bytes(costs, run, copies),
  )


def _makes_wait(piece: Piece, law: Law, replicas: int) -> bool:
  """Returns whether sequences of a divided decode wait for a place.

  What another piece goes on with would then not be what this one leaves.
  """
  if piece.cohort is None or not isinstance(law, DecodeLaw):
    return False
  return piece.cohort[1] - piece.cohort[0] > replicas * law.max_active


def _waiting_bytes(costs: Prices, run: Run, copies: tuple[str, ...]) -> int:
  taken, stage = 0, costs.stages[run.stage]
  for edge in costs.edges_into[run.stage]:
    if edge.item_bytes:
      source = costs.stages[edge.source]
      span = tracks.needed(edge, source, stage, costs.share(run))
      taken += -(-(span[1] - span[0]) * edge.item_bytes // len(run.devices))
  for sync in costs.workflow.syncs:
    if sync.target == run.stage and run.stage in copies:
      taken += -(-sync.num_bytes // run.config.devices)
  return taken


def _dominates(better: Seat, seat: Seat) -> bool:
  """Returns whether a seat does nothing worse, on some of the same atoms."""
  return (
    better.mask & ~seat.mask == 0
    and better.state_bytes <= seat.state_bytes
    and better.transient_bytes <= seat.transient_bytes
    and better.waiting_bytes <= seat.waiting_bytes
    and all(a <= b for a, b in zip(better.durations, seat.durations))
  )
