"""Timelines of what ran."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler import errors, timelines
from scheduler.simulation import ledger
from scheduler.simulation.stretches import NEVER_NS, Stretch


def timeline(stretches: Sequence[Stretch]) -> timelines.Timeline:
  """Returns what ran, as events and as memory; its label is the last plan's.

  Of events that start and stop together the one of the earlier iteration, and
  then of the smaller index, comes first.

  Raises:
    InfeasiblePlanError: more nanoseconds or bytes than can be counted.
  """
  label = stretches[-1].plan.label
  for s in stretches:
    if max(s.stops_ns, default=0) > NEVER_NS:
      raise errors.InfeasiblePlanError(
        f"plan {label!r} runs for more than {NEVER_NS:,} ns"
      )
  return timelines.Timeline(
    source="simulated",
    events=_events(stretches),
    memory=ledger.samples(stretches),
    label=label,
  )


def _events(stretches: Sequence[Stretch]) -> tuple[timelines.Event, ...]:
  import numpy as np

  # What an activity's instances have in common is looked up by row.
  table: list[tuple] = []
  columns = []
  for s in stretches:
    n, first = len(s.plan.activities), len(table)
    names = [r.name for r in s.plan.resources]
    table += [
      (a.kind, a.stage, tuple(names[r] for r in a.resources), a.items, index,
       a.target, a.num_bytes)
      for index, a in enumerate(s.plan.activities)
    ]  # fmt: skip
    starts = np.array(s.starts_ns, dtype=np.int64)
    iteration, row = np.divmod(np.arange(len(starts)), max(1, n))
    row += first
    for instance, left in s.items.items():
      whole = table[row[instance]]
      row[instance] = len(table)
      table.append((*whole[:3], left, *whole[4:]))
    ran = starts < NEVER_NS
    ran[list(s.inherited)] = False
    stops = np.array(s.stops_ns, dtype=np.int64)
    columns.append((starts[ran], stops[ran], iteration[ran], row[ran]))
  starts, stops, iteration, row = map(np.concatenate, zip(*columns))
  order = np.lexsort((stops, starts))
  rows = row[order].tolist()
  kind, stage, resources, items, index, target, num_bytes = (
    [row[field] for row in table] for field in range(7)
  )
  return timelines.from_columns(
    timelines.Event,
    len(rows),
    dict(
      kind=map(kind.__getitem__, rows),
      stage=map(stage.__getitem__, rows),
      iteration=iteration[order].tolist(),
      resources=map(resources.__getitem__, rows),
      start_ns=starts[order].tolist(),
      stop_ns=stops[order].tolist(),
      items=map(items.__getitem__, rows),
      index=map(index.__getitem__, rows),
      target=map(target.__getitem__, rows),
      num_bytes=map(num_bytes.__getitem__, rows),
    ),
  )
