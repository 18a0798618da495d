"""What a timeline amounts to: busy and idle time, bytes moved, memory."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable

from scheduler.reports import rows
from scheduler.timelines import Event, Timeline


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
  """What became of one resource within a window.

  Attributes:
    resource: its name.
    is_link: whether it only moves bytes between devices.
    busy_ns: in which at least one event occupied it.
    by_kind_ns: of the events of each kind.
    by_stage_ns: of the computing of each stage.
    num_bytes: moved by events that occupied it.
    num_bubbles: stretches without an event.
    longest_bubble_ns: the longest of them.
    peak_bytes: the most that was taken on each of its devices, at any time.
  """

  resource: str
  is_link: bool
  busy_ns: int
  by_kind_ns: dict[str, int]
  by_stage_ns: dict[str, int]
  num_bytes: int
  num_bubbles: int
  longest_bubble_ns: int
  peak_bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
  """What a timeline amounts to within a window.

  Attributes:
    start_ns: the window's start.
    stop_ns: its end.
    num_iterations: that end within it.
    usages: of each resource; devices first.
    bytes_by_kind: moved by the events of each kind.
  """

  start_ns: int
  stop_ns: int
  num_iterations: int
  usages: tuple[Usage, ...]
  bytes_by_kind: dict[str, int]

  @property
  def length_ns(self) -> int:
    return self.stop_ns - self.start_ns

  @property
  def iteration_s(self) -> float:
    """Seconds from one iteration's end to the next one's."""
    return self.length_ns * 1e-9 / max(1, self.num_iterations)

  def share(self, duration_ns: int) -> float:
    """Returns a duration over the window's length."""
    return duration_ns / self.length_ns if self.length_ns else 0.0


def summarise(timeline: Timeline) -> Summary:
  """Returns what a timeline amounts to, once it runs steadily.

  The window begins at the end of an iteration, the first or, of many, a later
  one, and lasts until the end of the last one. A single iteration is taken
  whole. Events are counted as far as they lie within it.
  """
  n, start_ns = timeline.num_iterations, 0
  first = (n - 1) // 3
  if n > 1:
    start_ns = timeline.iteration_stop_ns(first)
  stop_ns = timeline.iteration_stop_ns(n - 1)
  are_links = {row.resource: row.is_link for row in rows.of_timeline(timeline)}
  by_resource: dict[str, list[Event]] = {name: [] for name in are_links}
  inside = [
    e for e in timeline.events if e.stop_ns > start_ns and e.start_ns < stop_ns
  ]
  moved: collections.Counter[str] = collections.Counter()
  for event in inside:
    if event.num_bytes:
      moved[event.kind] += event.num_bytes
    for name in event.resources:
      by_resource[name].append(event)
  peaks: dict[str, int] = {}
  for sample in timeline.memory:
    highest = max(peaks.get(sample.resource, 0), sample.bytes_per_device)
    peaks[sample.resource] = highest
  return Summary(
    start_ns=start_ns,
    stop_ns=stop_ns,
    num_iterations=n - 1 - first if n > 1 else n,
    usages=tuple(
      _usage(
        name, are_links[name], events, (start_ns, stop_ns), peaks.get(name, 0)
      )
      for name, events in by_resource.items()
    ),
    bytes_by_kind=dict(moved),
  )


def _usage(
  name: str,
  is_link: bool,
  events: Iterable[Event],
  window: tuple[int, int],
  peak_bytes: int,
) -> Usage:
  by_kind: collections.Counter[str] = collections.Counter()
  by_stage: collections.Counter[str] = collections.Counter()
  start_ns, stop_ns = window
  busy_ns, num_bytes, reached_ns, bubbles = 0, 0, start_ns, [0]
  for event in sorted(events, key=lambda e: e.start_ns):
    begin_ns, end_ns = (
      max(event.start_ns, start_ns),
      min(event.stop_ns, stop_ns),
    )
    by_kind[event.kind] += end_ns - begin_ns
    if event.kind in rows.COMPUTES:
      by_stage[event.stage] += end_ns - begin_ns
    num_bytes += event.num_bytes
    if begin_ns > reached_ns:
      bubbles.append(begin_ns - reached_ns)
    busy_ns += max(0, end_ns - max(begin_ns, reached_ns))
    reached_ns = max(reached_ns, end_ns)
  if stop_ns > reached_ns:
    bubbles.append(stop_ns - reached_ns)
  return Usage(
    resource=name,
    is_link=is_link,
    busy_ns=busy_ns,
    by_kind_ns=dict(by_kind),
    by_stage_ns=dict(by_stage),
    num_bytes=num_bytes,
    num_bubbles=len(bubbles) - 1,
    longest_bubble_ns=max(bubbles),
    peak_bytes=peak_bytes,
  )
