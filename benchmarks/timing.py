"""How long what takes."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Rate:
  """Steps in seconds, of calls that were all counted.

  Attributes:
    num_steps: environment steps of all calls.
    call_s: seconds of each call.
  """

  num_steps: int
  call_s: tuple[float, ...]

  @property
  def seconds(self) -> float:
    return sum(self.call_s)

  @property
  def steps_per_s(self) -> float:
    """All steps over all seconds: a slow call counts as long as it took."""
    return self.num_steps / self.seconds

  def to_json(self) -> dict[str, Any]:
    """Returns JSON values, the spread of the calls among them."""
    return {
      "steps_per_s": self.steps_per_s,
      "num_steps": self.num_steps,
      "seconds": self.seconds,
      "num_calls": len(self.call_s),
      "shortest_call_s": min(self.call_s),
      "median_call_s": statistics.median(self.call_s),
      "longest_call_s": max(self.call_s),
    }


def in_turn(
  calls: Mapping[str, Callable[[], Any]],
  *,
  num_steps: int,
  min_seconds: float,
  min_rounds: int = 3,
) -> dict[str, Rate]:
  """Returns the rate of each call, made in turn, so that all share the weather.

  Each is called once more before, uncounted: it may still compile.

  Args:
    calls: functions that return when their work is done.
    num_steps: environment steps of one call, the same for all.
    min_seconds: the first of them is measured for at least so long.
    min_rounds: and each at least so often.
  """
  for call in calls.values():
    call()
  first = next(iter(calls))
  call_s: dict[str, list[float]] = {name: [] for name in calls}
  while len(call_s[first]) < min_rounds or sum(call_s[first]) < min_seconds:
    for name, call in calls.items():
      start_s = time.perf_counter()
      call()
      call_s[name].append(time.perf_counter() - start_s)
  return {
    name: Rate(num_steps=num_steps * len(seconds), call_s=tuple(seconds))
    for name, seconds in call_s.items()
  }
