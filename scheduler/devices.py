"""Sets of devices, compact on clusters of tens of thousands."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator

from scheduler import errors

MAX_DEVICES = 1 << 31
_SPAN = re.compile(r"(\d{1,10})(?:-(\d{1,10}))?")


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Devices:
  """A set of device indices.

  Attributes:
    spans: half-open intervals (start, stop), ascending, neither touching nor
      empty; `Devices.of` makes them.
  """

  spans: tuple[tuple[int, int], ...] = ()

  def __post_init__(self) -> None:
    last = -1
    for start, stop in self.spans:
      if start <= last or stop <= start:
        raise errors.DocumentError(
          f"device spans {self.spans} are not ascending, disjoint and"
          " non-empty; build them by Devices.of or Devices.parse"
        )
      last = stop
    if last > MAX_DEVICES:
      raise errors.DocumentError(
        f"device {last - 1} is beyond the {MAX_DEVICES} that a set can hold"
      )

  @classmethod
  def of(cls, indices: Iterable[int]) -> Devices:
    """Returns the set of these indices."""
    return _normalised((i, i + 1) for i in indices)

  @classmethod
  def span(cls, start: int, stop: int) -> Devices:
    """Returns the devices start, ..., stop - 1."""
    return cls(((start, stop),) if stop > start else ())

  @classmethod
  def parse(cls, text: str) -> Devices:
    """Returns the set written as "0-7,12": both ends belong to it."""
    spans = []
    for part in text.replace(" ", "").split(",") if text.strip() else []:
      match = _SPAN.fullmatch(part)
      if match is None:
        raise errors.DocumentError(
          f"devices {text!r} is not a list of spans; write it as '0-7,12'"
        )
      start = int(match[1])
      spans.append((start, int(match[2] or start) + 1))
      if spans[-1][1] <= start:
        raise errors.DocumentError(
          f"devices {text!r} has the span {part!r}, which runs backwards"
        )
    return _normalised(spans)

  def __str__(self) -> str:
    return ",".join(
      f"{start}" if stop == start + 1 else f"{start}-{stop - 1}"
      for start, stop in self.spans
    )

  def __len__(self) -> int:
    return sum(stop - start for start, stop in self.spans)

  def __iter__(self) -> Iterator[int]:
    for start, stop in self.spans:
      yield from range(start, stop)

  def __or__(self, other: Devices) -> Devices:
    return _normalised(self.spans + other.spans)

  def __and__(self, other: Devices) -> Devices:
    return Devices(
      tuple(
        (max(a, c), min(b, d))
        for a, b in self.spans
        for c, d in other.spans
        if max(a, c) < min(b, d)
      )
    )

  def __sub__(self, other: Devices) -> Devices:
    left = []
    for start, stop in self.spans:
      for cut_start, cut_stop in other.spans:
        if cut_stop <= start or cut_start >= stop:
          continue
        if cut_start > start:
          left.append((start, cut_start))
        start = cut_stop
        if start >= stop:
          break
      if start < stop:
        left.append((start, stop))
    return Devices(tuple(left))

  def isdisjoint(self, other: Devices) -> bool:
    return not (self & other).spans

  def issubset(self, other: Devices) -> bool:
    return not (self - other).spans

  def first(self, count: int) -> Devices:
    """Returns the `count` lowest devices of the set."""
    taken: list[tuple[int, int]] = []
    for start, stop in self.spans:
      if count <= 0:
        break
      taken.append((start, min(stop, start + count)))
      count -= stop - start
    return Devices(tuple(taken))


def _normalised(spans: Iterable[tuple[int, int]]) -> Devices:
  merged: list[tuple[int, int]] = []
  for start, stop in sorted(spans):
    if merged and start <= merged[-1][1]:
      merged[-1] = (merged[-1][0], max(merged[-1][1], stop))
    else:
      merged.append((start, stop))
  return Devices(tuple(merged))


def atoms(sets: Iterable[Devices]) -> tuple[Devices, ...]:
  """Returns the coarsest disjoint sets of which each of `sets` is a union.

  Devices that are always used together are one resource: a plan for 16,384
  devices has a handful of them.
  """
  parts: list[Devices] = []
  for devices in sorted(set(sets)):
    rest = devices
    refined = []
    for part in parts:
      inside, outside = part & devices, part - devices
      refined += [piece for piece in (inside, outside) if piece.spans]
      rest = rest - part
    parts = refined + ([rest] if rest.spans else [])
  return tuple(sorted(parts))
