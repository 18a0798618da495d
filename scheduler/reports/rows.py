"""Timelines as rows of bars, for every picture of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from scheduler import errors
from scheduler.devices import Devices
from scheduler.plans import ActivityKind
from scheduler.timelines import Event, Timeline

SWAPS = ("swap_in", "swap_out")
COMPUTES = ("compute", "apply")

# Told apart by people with the common kinds of colour blindness, too.
STAGE_COLOURS = (
  "#3b75af", "#e1812c", "#3a923a", "#8d69b8", "#c2556e", "#84584e", "#d684bd",
  "#7f7f7f", "#a9aa35", "#2eabb8",
)  # fmt: skip
MOVE_COLOURS = {
  "swap_in": "#3d4650",
  "swap_out": "#616c78",
  "transfer": "#9aa5b1",
  "reshard": "#9aa5b1",
  "weight_sync": "#1d1d1f",
}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
  """One event, or several alike that follow each other at once.

  Attributes:
    kind: see `plans.Activity`.
    stage: its stage.
    target: of transfers and weight syncs, the stage that receives.
    iteration: from 0.
    items: half-open interval of the stage's items.
    start_ns: when the first began.
    stop_ns: when the last ended.
    count: how many.
    num_bytes: that they moved.
  """

  kind: ActivityKind
  stage: str
  target: str
  iteration: int
  items: tuple[int, int]
  start_ns: int
  stop_ns: int
  count: int
  num_bytes: int

  def __str__(self) -> str:
    times = f" x {self.count}" if self.count > 1 else ""
    return f"{describe(self.kind, self.stage, self.target)}{times}"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Row:
  """Bars that do not overlap.

  Attributes:
    resource: the resource's name.
    is_link: whether it only moves bytes between devices.
    lane: 0, and more where events of a resource overlap.
    bars: by start.
  """

  resource: str
  is_link: bool
  lane: int
  bars: tuple[Bar, ...]

  @property
  def label(self) -> str:
    return self.resource + (f" ({self.lane})" if self.lane else "")


def describe(kind: str, stage: str, target: str = "") -> str:
  """Returns what an event does, in a few words."""
  if kind == "compute":
    return stage
  towards = f" to {target}" if target else ""
  return f"{kind.replace('_', ' ')} of {stage}{towards}"


def of_timeline(
  timeline: Timeline, *, resolution_ns: int = 0
) -> tuple[Row, ...]:
  """Returns the rows of a timeline: devices first, in their order, then links.

  Args:
    timeline: what ran.
    resolution_ns: events alike with no more than this between them are one bar;
      negative: none are.
  """
  by_resource: dict[str, list[Event]] = {}
  for event in timeline.events:
    for name in event.resources:
      by_resource.setdefault(name, []).append(event)
  for sample in timeline.memory:
    by_resource.setdefault(sample.resource, [])
  with_memory = {sample.resource for sample in timeline.memory}
  found = []
  for name, events in by_resource.items():
    is_link = name not in with_memory and is_moving_only(name, events)
    for lane, own in enumerate(_lanes(events)):
      bars = tuple(_bars(own, resolution_ns))
      found.append(Row(resource=name, is_link=is_link, lane=lane, bars=bars))
  return tuple(
    sorted(found, key=lambda row: (row.is_link, _place(row.resource), row.lane))
  )


def is_moving_only(name: str, events: Iterable[Event]) -> bool:
  """Returns whether a resource is a link: no devices, and nothing computes."""
  if _parsed(name) is not None:
    return False
  moving = set(MOVE_COLOURS) - set(SWAPS)
  return all(event.kind in moving for event in events)


def colours(timeline: Timeline) -> dict[str, str]:
  """Returns a colour for each stage, in the order in which they compute."""
  events = sorted(timeline.events, key=lambda e: e.kind not in COMPUTES)
  names = dict.fromkeys(event.stage for event in events)
  return {
    name: STAGE_COLOURS[i % len(STAGE_COLOURS)] for i, name in enumerate(names)
  }


def _lanes(events: list[Event]) -> list[list[Event]]:
  """Returns events divided into lanes, at least one, of which none overlap."""
  lanes: list[list[Event]] = [[]]
  for event in sorted(events, key=lambda e: (e.start_ns, e.stop_ns)):
    for lane in lanes:
      if not lane or lane[-1].stop_ns <= event.start_ns:
        lane.append(event)
        break
    else:
      lanes.append([event])
  return lanes


def _bars(events: list[Event], resolution_ns: int) -> Iterable[Bar]:
  bar: Bar | None = None
  for e in events:
    if (
      bar is not None
      and (bar.kind, bar.stage, bar.target, bar.iteration)
      == (e.kind, e.stage, e.target, e.iteration)
      and e.start_ns - bar.stop_ns <= resolution_ns
    ):
      bar = dataclasses.replace(
        bar,
        items=(bar.items[0], e.items[1]),
        stop_ns=e.stop_ns,
        count=bar.count + 1,
        num_bytes=bar.num_bytes + e.num_bytes,
      )
      continue
    if bar is not None:
      yield bar
    bar = Bar(
      kind=e.kind,
      stage=e.stage,
      target=e.target,
      iteration=e.iteration,
      items=e.items,
      start_ns=e.start_ns,
      stop_ns=e.stop_ns,
      count=1,
      num_bytes=e.num_bytes,
    )
  if bar is not None:
    yield bar


def named(name: str) -> str:
  """Returns a resource's name as it stands in a sentence."""
  devices = _parsed(name)
  if devices is None:
    return name
  return f"device{'s' * (len(devices) > 1)} {name}"


def _place(name: str) -> tuple[int, str]:
  devices = _parsed(name)
  return (next(iter(devices)), "") if devices else (1 << 62, name)


def _parsed(name: str) -> Devices | None:
  try:
    return Devices.parse(name) or None
  except errors.DocumentError:
    return None
