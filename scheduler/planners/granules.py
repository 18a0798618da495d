"""Which granules, and which lanes of a loop, are worth trying."""

from __future__ import annotations

import math
from collections.abc import Sequence

from scheduler import errors
from scheduler.profiles import Law, ReplicaTable, Table
from scheduler.workflows import Stage

# Into how many granules a batch is divided.
STREAMS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_MAX_LANES = 4


def of_stream(stage: Stage, stream: int) -> int:
  """Returns the granule by which a stage has about `stream` granules.

  It is rounded up to whole quanta and groups where the stage's limits allow it,
  and of a train stage divides one update, not the batch.
  """
  batch = stage.items // stage.updates
  per_update = max(1, round(stream / stage.updates))
  return _allowed(stage, math.ceil(batch / per_update))


def distinct(
  stages: tuple[Stage, ...], streams: Sequence[int]
) -> tuple[int, ...]:
  """Returns streams for which some stage has another granule, ascending."""
  found = {
    tuple(of_stream(stage, stream) for stage in stages): stream
    for stream in sorted(streams, reverse=True)
  }
  return tuple(sorted(found.values()))


def candidates(stage: Stage, law: Law, replicas: int) -> tuple[int, ...]:
  """Returns granules worth trying for a stage, ascending.

  Besides even divisions of the batch they are those that leave no replica
  idle, at which the time of the fullest replica, ceil(granule / replicas)
  items, steps; and those that were measured.

  Args:
    stage: its limits and quantum are respected.
    law: of the stage in some configuration.
    replicas: how many share a granule.
  """
  batch = stage.items // stage.updates
  wanted = [math.ceil(batch / stream) for stream in STREAMS]
  wanted += [replicas << i for i in range((batch // replicas).bit_length())]
  if isinstance(law, ReplicaTable):
    wanted += [sample.granule * replicas for sample in law.samples]
  elif isinstance(law, Table):
    wanted += [sample.granule for sample in law.samples]
  found = {_allowed(stage, size) for size in (*wanted, stage.granule_min)}
  found |= {
    size
    for size in wanted
    if size % stage.group == 0 and _is_allowed(stage, size)
  }
  # What is above one update is cut at its border anyway.
  return tuple(sorted(size for size in found if size <= max(batch, min(found))))


def lane_candidates(
  stages: tuple[Stage, ...], replicas: tuple[int, ...]
) -> tuple[tuple[int, ...], ...]:
  """Returns divisions of a loop's items into one to four lanes.

  Equal lanes; lanes of which all but the last fill whole replicas of one of the
  stages; and two lanes of unequal size.

  Args:
    stages: of the loop.
    replicas: of each stage.
  """
  items = stages[0].items
  quantum = math.lcm(*(stage.quantum for stage in stages))
  found: list[tuple[int, ...]] = []
  for num_lanes in range(1, min(_MAX_LANES, items) + 1):
    even = [
      items * (i + 1) // num_lanes - items * i // num_lanes
      for i in range(num_lanes)
    ]
    found.append(tuple(even))
    for unit in (quantum, *(math.lcm(quantum, r) for r in replicas)):
      for size in {
        items // num_lanes // unit * unit,
        math.ceil(items / num_lanes / unit) * unit,
      }:
        found.append(
          (size,) * (num_lanes - 1) + (items - size * (num_lanes - 1),)
        )
  for share in (4, 3):
    size = max(1, items // share // quantum) * quantum
    found += [(size, items - size), (items - size, size)]
  return tuple(
    lanes
    for lanes in dict.fromkeys(found)
    if min(lanes) > 0
    and all(_is_allowed(stage, size) for stage in stages for size in lanes)
  )


def _allowed(stage: Stage, size: int) -> int:
  """Returns the allowed granule at or above `size`, or the largest one."""
  for step in (math.lcm(stage.quantum, stage.group), stage.quantum):
    rounded = max(
      math.ceil(size / step) * step,
      math.ceil(stage.granule_min / step) * step,
    )
    for allowed in (
      rounded,
      stage.items if rounded >= stage.items else 0,
      stage.largest_granule // step * step,
    ):
      if _is_allowed(stage, allowed):
        return allowed
  return stage.largest_granule


def _is_allowed(stage: Stage, size: int) -> bool:
  if size < 1:
    return False
  try:
    stage.check_granule(size)
  except errors.InfeasiblePlanError:
    return False
  return True
