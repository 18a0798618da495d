"""Labels: what the closed form needs to know of a part of a plan.

A part that is fed granule by granule, all granules taking equally long, is
described by three times: *head*, until its first granule comes out; *total*,
until the last one does; *tail*, from the arrival of its last input to its end.
For one stage with M granules of time t they are t, M t and t; the bottleneck of
a pipeline is what makes its total exceed head and tail.

- Y after X on other devices:
    head_X + head_Y, max(total_X + tail_Y, head_X + total_Y), tail_X + tail_Y
- Y after X on the same devices, once all of X is done, with a switch s:
    total_X + s + head_Y, total_X + s + total_Y, tail_X + s + total_Y
- X and Y in turns of one granule each, with two switches a turn:
    head_X + head_Y, total_X + total_Y + M s, tail_X + tail_Y

All three are monotone in the parts' times, so that of two labels of the same
part on the same devices one that is nowhere better can be dropped. That is
exact: for stages t_1, ..., t_n side by side the first rule gives
sum(t) + (M - 1) max(t).
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator
from typing import Literal, NamedTuple

from scheduler.planners.pools import Key
from scheduler.planners.units import Option

# Of labels none of which is worse everywhere, the fastest are kept; fewer where
# memory is scarce, because then they differ in more ways.
_MAX_LABELS, _MAX_SCARCE = 16, 6

Kind = Literal["unit", "turn", "turns", "side by side"]
Link = Literal["none", "granules", "batch"]


class Label(NamedTuple):
  """A part of a plan on a share of the cluster.

  Not a dataclass because millions are made.

  Attributes:
    total_ns: see above.
    head_ns: see above.
    tail_ns: see above.
    busy_ns: the longest that any device works in an iteration.
    swap_ns: time in which what is kept leaves once and returns once.
    kept_bytes: state that stays, by device class, on each device; empty where
      memory is plenty.
    extra_bytes: what running takes beside that.
    kind: how it is made of parts: one "unit"; "turn", each once; "turns" of one
      granule; "side by side".
    option: of a unit.
    parts: of others, each with its share.
  """

  total_ns: int
  head_ns: int
  tail_ns: int
  busy_ns: int
  swap_ns: int
  kept_bytes: tuple[int, ...]
  extra_bytes: tuple[int, ...]
  kind: Kind = "unit"
  option: Option | None = None
  parts: tuple[tuple[Label, Key], ...] = ()

  @property
  def is_fused(self) -> bool:
    """Whether granules pass it one at a time on one set of devices."""
    return self.kind in ("unit", "turns")


def in_turn(
  first: Label, second: Label, key: Key, memory: tuple[int, ...]
) -> Iterator[Label]:
  """Yields all of one part, then all of another, on the same devices."""
  for kept, extra, rest_ns, switch_ns in _residencies(first, second, memory):
    begin = first.total_ns + switch_ns
    yield Label(
      head_ns=begin + second.head_ns,
      total_ns=begin + second.total_ns,
      tail_ns=first.tail_ns + switch_ns + second.total_ns,
      busy_ns=first.busy_ns + switch_ns + second.busy_ns,
      kept_bytes=kept,
      extra_bytes=extra,
      swap_ns=rest_ns,
      kind="turn",
      parts=((first, key), (second, key)),
    )


def in_turns(
  first: Label,
  second: Label,
  key: Key,
  memory: tuple[int, ...],
  num_granules: int,
) -> Iterator[Label]:
  """Yields a granule of one part, then of another, on the same devices."""
  for kept, extra, rest_ns, switch_ns in _residencies(first, second, memory):
    work = first.total_ns + second.total_ns + num_granules * switch_ns
    yield Label(
      head_ns=first.head_ns + switch_ns + second.head_ns,
      total_ns=work,
      tail_ns=first.tail_ns + switch_ns + second.tail_ns,
      busy_ns=work,
      kept_bytes=kept,
      extra_bytes=extra,
      swap_ns=rest_ns,
      kind="turns",
      parts=((first, key), (second, key)),
    )


def side_by_side(
  first: Label,
  own: Key,
  second: Label,
  rest: Key,
  link: Link,
) -> Label:
  """Returns two parts on disjoint devices.

  Args:
    first: the part that is read, if one is.
    own: its devices.
    second: the part that reads.
    rest: its devices.
    link: whether the second reads granules, whole batches or nothing.
  """
  if link == "granules":
    head = first.head_ns + second.head_ns
    tail = first.tail_ns + second.tail_ns
  elif link == "batch":
    head = first.total_ns + second.head_ns
    tail = first.tail_ns + second.total_ns
  else:
    head = max(first.head_ns, second.head_ns)
    tail = max(first.tail_ns, second.tail_ns)
  return Label(
    total_ns=together_ns(first, second, link),
    head_ns=head,
    tail_ns=tail,
    busy_ns=max(first.busy_ns, second.busy_ns),
    swap_ns=max(first.swap_ns, second.swap_ns),
    kept_bytes=tuple(map(max, first.kept_bytes, second.kept_bytes)),
    extra_bytes=tuple(map(max, first.extra_bytes, second.extra_bytes)),
    kind="side by side",
    parts=((first, own), (second, rest)),
  )


def together_ns(first: Label, second: Label, link: Link) -> int:
  """Returns the total of two parts on disjoint devices."""
  if link == "batch":
    return first.total_ns + second.total_ns
  if link == "none":
    return max(first.total_ns, second.total_ns)
  whole = first.total_ns + second.tail_ns
  other = first.head_ns + second.total_ns
  return whole if whole > other else other


class Front:
  """Labels of one part on one share, of which none dominates another."""

  def __init__(self, *, total_ns: float, busy_ns: float, has_lag: bool):
    """Begins without labels.

    Args:
      total_ns: labels that take as long cannot win.
      busy_ns: nor can those that keep a device busy for so long.
      has_lag: whether iterations overlap, so that busy_ns counts.
    """
    self._total_ns, self._busy_ns = total_ns, busy_ns
    self._has_lag = has_lag
    self._kept: list[tuple[tuple[int, ...], Label]] = []

  def add(self, label: Label) -> None:
    """Keeps a label, if it may win and none that is kept dominates it."""
    if not self.admits(label.total_ns, label.busy_ns):
      return
    key: tuple[int, ...] = (label.total_ns, label.head_ns, label.tail_ns)
    if self._has_lag:
      key = (*key, label.busy_ns)
    if label.kept_bytes:
      key = (*key, label.swap_ns, *label.kept_bytes, *label.extra_bytes)
    for better, _ in self._kept:
      for x, y in zip(better, key):
        if x > y:
          break
      else:
        return
    self._kept = [
      entry for entry in self._kept if any(x < y for x, y in zip(entry[0], key))
    ]
    bisect.insort(self._kept, (key, label), key=_rank)
    most = _MAX_SCARCE if label.kept_bytes else _MAX_LABELS
    if len(self._kept) > most:
      self._kept.pop()
      self._total_ns = self._kept[-1][1].total_ns + 1

  def admits(self, total_ns: int, busy_ns: int) -> bool:
    """Returns whether a label with these times may win."""
    return total_ns < self._total_ns and busy_ns < self._busy_ns

  def labels(self) -> list[Label]:
    """Returns what was kept, the least total first."""
    return [label for _, label in self._kept]


def _rank(entry: tuple[tuple[int, ...], Label]) -> tuple[int, ...]:
  return entry[0]


def _residencies(
  first: Label, second: Label, memory: tuple[int, ...]
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], int, int]]:
  """Yields who may stay: kept and extra bytes, swaps that remain, the switch.

  What stays now may still have to leave for a third part. Without memory, all
  stays.
  """
  if not memory:
    yield (), (), 0, 0
    return
  pair = (first.swap_ns, second.swap_ns)
  for out in itertools.product((False, True), repeat=2):
    kept, extra = [], []
    for a, b, x, y in zip(
      first.kept_bytes, second.kept_bytes, first.extra_bytes, second.extra_bytes
    ):
      kept.append((0 if out[0] else a) + (0 if out[1] else b))
      extra.append(max(x + (a if out[0] else 0), y + (b if out[1] else 0)))
    if all(k + e <= m for k, e, m in zip(kept, extra, memory)):
      switch_ns = sum(ns for ns, is_out in zip(pair, out) if is_out)
      yield tuple(kept), tuple(extra), sum(pair) - switch_ns, switch_ns
