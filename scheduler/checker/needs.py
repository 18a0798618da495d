"""What has to have ended before an activity starts."""

from __future__ import annotations

from typing import NamedTuple


class Need(NamedTuple):
  """`target` in iteration i waits for the end of `source` in i - lag.

  Attributes:
    source: index of an activity.
    target: index of an activity.
    lag: iterations.
    why: ends a sentence that begins with the target.
  """

  source: int
  target: int
  lag: int
  why: str
