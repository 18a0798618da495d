"""Max-min fair rates of flows that share links."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence


@dataclasses.dataclass(frozen=True, slots=True)
class Flow:
  """Something that moves at a rate.

  Attributes:
    cap: its rate when nothing else moves, positive.
    uses: (link, amount) of each link that it crosses: how much of the link a
      rate of 1 takes, positive; a link has 1 to give.
    weight: flows share a link in proportion to it, such as to the number of
      devices that move side by side; positive.
  """

  cap: float
  uses: tuple[tuple[Hashable, float], ...] = ()
  weight: float = 1.0


def max_min_rates(flows: Sequence[Flow]) -> list[float]:
  """Returns the max-min fair rate of each flow, by progressive filling.

  The rates of all flows rise together, in proportion to their weights. When a
  flow reaches its cap it stays there; when a link is full, so do all flows that
  cross it. In the end no flow can go faster unless one that is no faster, for
  its weight, goes slower.

  Args:
    flows: of which those that name the same link share it.

  Source: Bertsekas and Gallager, "Data Networks", 1992, section 6.5.2.
  """
  rates = [0.0] * len(flows)
  is_rising = [True] * len(flows)
  crossing: dict[Hashable, list[int]] = {}
  num_rising: dict[Hashable, int] = {}
  left: dict[Hashable, float] = {}  # by flows that have stopped rising
  slopes: dict[Hashable, float] = {}  # what rising flows take per level
  for f, flow in enumerate(flows):
    for link, amount in flow.uses:
      crossing.setdefault(link, []).append(f)
      num_rising[link] = num_rising.get(link, 0) + 1
      left[link] = 1.0
      slopes[link] = slopes.get(link, 0.0) + amount * flow.weight
  # A level is a rate per weight; this is where a flow reaches its cap.
  caps = [flow.cap / flow.weight for flow in flows]
  reached = 0.0
  for f in sorted(range(len(flows)), key=caps.__getitem__):
    while is_rising[f]:
      level, stopping = caps[f], [f]
      for link, slope in slopes.items():
        if left[link] < level * slope:
          level, stopping = left[link] / slope, crossing[link]
      reached = max(level, reached)  # rounding must not take it back
      for g in stopping:
        if not is_rising[g]:
          continue
        is_rising[g] = False
        rates[g] = min(flows[g].cap, reached * flows[g].weight)
        for link, amount in flows[g].uses:
          left[link] -= amount * rates[g]
          slopes[link] -= amount * flows[g].weight
          num_rising[link] -= 1
          if not num_rising[link]:
            del slopes[link]
  return rates
