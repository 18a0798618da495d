"""Timelines: what ran, or was simulated, when and where."""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeVar

from scheduler.plans import ActivityKind

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Event:
  """One activity of one iteration, as it happened.

  Attributes:
    kind: see `plans.Activity`.
    stage: its stage.
    iteration: from 0.
    resources: names of the resources that it occupied.
    start_ns: nanoseconds since the timeline's start.
    stop_ns: when it ended.
    items: half-open interval of the stage's items.
    index: of the activity in the flat plan, where there is one, else -1.
    target: of transfers and weight syncs, the stage that receives.
    num_bytes: moved.
  """

  kind: ActivityKind
  stage: str
  iteration: int
  resources: tuple[str, ...]
  start_ns: int
  stop_ns: int
  items: tuple[int, int] = (0, 0)
  index: int = -1
  target: str = ""
  num_bytes: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class MemorySample:
  """Bytes taken on each device of a resource, from an instant on."""

  resource: str
  at_ns: int
  bytes_per_device: int


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Timeline:
  """What ran when and where.

  Attributes:
    source: whether it was simulated or measured.
    events: by start, then by end.
    memory: by instant.
    label: for people.
  """

  source: Literal["simulated", "measured"]
  events: tuple[Event, ...]
  memory: tuple[MemorySample, ...] = ()
  label: str = ""

  @property
  def stop_ns(self) -> int:
    """When the last event ended; 0 for none."""
    return max((event.stop_ns for event in self.events), default=0)

  @property
  def num_iterations(self) -> int:
    return max((event.iteration for event in self.events), default=-1) + 1

  def iteration_stop_ns(self, iteration: int) -> int:
    """Returns when the last event of an iteration ended."""
    return max(
      (e.stop_ns for e in self.events if e.iteration == iteration), default=0
    )


def last_iterations(timeline: Timeline, count: int) -> Timeline:
  """Returns the last iterations of a timeline, counted from 0 again.

  Args:
    timeline: of any number of iterations.
    count: of iterations that are kept.
  """
  first = timeline.num_iterations - count
  if first <= 0:
    return timeline
  kept = [e for e in timeline.events if e.iteration >= first]
  zero_ns = min(e.start_ns for e in kept)
  return dataclasses.replace(
    timeline,
    events=tuple(
      dataclasses.replace(
        e,
        iteration=e.iteration - first,
        start_ns=e.start_ns - zero_ns,
        stop_ns=e.stop_ns - zero_ns,
      )
      for e in kept
    ),
    memory=tuple(
      dataclasses.replace(m, at_ns=m.at_ns - zero_ns)
      for m in timeline.memory
      if m.at_ns >= zero_ns
    ),
  )


def from_columns(
  cls: type[T], size: int, columns: Mapping[str, Iterable[Any]]
) -> tuple[T, ...]:
  """Returns events or samples of which each field is given as a column.

  The loops run inside the interpreter: an event takes half the time that a call
  of its class does, which decides how fast a simulation is.

  Args:
    cls: Event or MemorySample.
    size: how many.
    columns: at least `size` values of every field of the class.
  """
  made = tuple(map(object.__new__, itertools.repeat(cls, size)))
  for field in dataclasses.fields(cls):  # type: ignore[arg-type]
    set_fn = getattr(cls, field.name).__set__
    collections.deque(map(set_fn, made, columns[field.name]), maxlen=0)
  return made
