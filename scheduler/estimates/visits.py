"""When granules of a Run are done, as far as an estimate follows them."""

from __future__ import annotations

import bisect
import functools
from collections.abc import Sequence

from scheduler.plans import Run

NUM_SAMPLES = 8


@functools.lru_cache(maxsize=1024)
def samples(count: int) -> tuple[int, ...]:
  """Returns the granules at which it is looked whether items are there."""
  if count <= NUM_SAMPLES:
    return tuple(range(count))
  last = NUM_SAMPLES - 1
  return tuple(i * (count - 1) // last for i in range(NUM_SAMPLES))


class Visit:
  """A stretch in which a Run has its devices.

  Attributes:
    begin: first item.
    begin_ns: when its first granule begins.
    stops: last item of each granule, plus one.
    ends_ns: when each is done, were none kept waiting, from the beginning.
    waits_ns: how long the sampled ones were kept waiting, those before
      included.
    stop_ns: when its last granule is done.
  """

  __slots__ = (
    "begin", "begin_ns", "ends_ns", "stop_ns", "stops", "waits_ns"
  )  # fmt: skip

  def __init__(
    self,
    begin: int,
    begin_ns: int,
    stops: Sequence[int],
    ends_ns: Sequence[int],
    waits_ns: Sequence[int],
  ):
    self.begin, self.begin_ns = begin, begin_ns
    self.stops, self.ends_ns, self.waits_ns = stops, ends_ns, waits_ns
    self.stop_ns = begin_ns + ends_ns[-1] + waits_ns[-1]

  def ready(self, item: int) -> tuple[int, int]:
    """Returns when the granule that holds `item - 1` is done, and its index."""
    last = len(self.stops) - 1
    k = min(bisect.bisect_left(self.stops, item), last)
    waits = self.waits_ns
    if k == last:
      return self.stop_ns, k
    if last < len(waits):
      waited = waits[k]
    else:
      i, rest = divmod(k * (len(waits) - 1), last)
      waited = waits[i] + (waits[i + 1] - waits[i]) * rest // last
    return self.begin_ns + self.ends_ns[k] + waited, k


class Writer:
  """The visits of one Run, in the order of their items."""

  __slots__ = ("run", "starts", "visits")

  def __init__(self, run: Run):
    self.run = run
    self.starts: list[int] = []
    self.visits: list[Visit] = []

  def before(self, item: int) -> Visit | None:
    """Returns the visit that emits the last of its items before `item`."""
    k = bisect.bisect_left(self.starts, item) - 1
    return self.visits[k] if k >= 0 else None
