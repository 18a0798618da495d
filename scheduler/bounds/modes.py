"""How busy devices are at least when stages choose between modes.

A mode is a configuration on a union of the cluster's groups or, where it has
none, on some devices of one class. Groups are looked at where there are few of
them and they cover the cluster; otherwise, which is weaker, classes are.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from scheduler.bounds.work import Layout
from scheduler.clusters import Cluster
from scheduler.profiles import Table

_MAX_GROUPS = 6
_MAX_COUNTS = 256  # of devices that are all looked at; of more, a grid
_GRID = 1.02
_PRECISION = 1e-9  # of a period that is searched for


class Choice(NamedTuple):
  """A stage in one mode.

  Attributes:
    stage: index.
    loads_s: by pool, how long its devices are busy in an iteration.
  """

  stage: int
  loads_s: dict[int, float]


class _Option(NamedTuple):
  """A number of devices of one class.

  Attributes:
    seconds: for which a stage keeps them busy.
    work: device-seconds.
  """

  seconds: float
  work: float


def divided_s(
  layouts: Sequence[tuple[Layout, ...]], cluster: Cluster, swap_work: float
) -> float:
  """Returns the least period when stages are divided freely between modes.

  Args:
    layouts: how each stage can run.
    cluster: on what.
    swap_work: device-seconds of swaps, wherever they happen.
  """
  if _has_groups(cluster):
    sizes = [len(group) for group in cluster.groups]
    choices = list(_on_groups(layouts, cluster))
    return _program(choices, sizes, swap_work, is_integer=False)
  sizes = [len(cluster.of_class(c.name)) for c in cluster.classes]
  choices = [
    Choice(v, {k: layout.turns * layout.least_work() / sizes[k]})
    for v, own in enumerate(layouts)
    for layout in own
    for k in [cluster.classes.index(layout.device)]
  ]
  return _program(choices, sizes, swap_work, is_integer=False)


def undivided_s(
  layouts: Sequence[tuple[Layout, ...]], cluster: Cluster, swap_work: float
) -> float:
  """Returns the least period when each stage has one mode, always."""
  if _has_groups(cluster):
    sizes = [len(group) for group in cluster.groups]
    choices = list(_on_groups(layouts, cluster))
    return _program(choices, sizes, swap_work, is_integer=True)
  classes = cluster.classes
  sizes = [len(cluster.of_class(c.name)) for c in classes]
  options = [
    [_on_class([x for x in own if x.device == c]) for c in classes]
    for own in layouts
  ]
  least = max(
    min((o[-1].seconds for o in own if o), default=0.0) for own in options
  )
  low, high = least, least + 1e-9
  while not _is_possible(options, sizes, swap_work, high):
    low, high = high, 2 * high
  while high - low > _PRECISION * high:
    middle = (low + high) / 2
    if _is_possible(options, sizes, swap_work, middle):
      high = middle
    else:
      low = middle
  return low


def _has_groups(cluster: Cluster) -> bool:
  covered = sum(map(len, cluster.groups))
  return (
    0 < len(cluster.groups) <= _MAX_GROUPS and covered == cluster.num_devices
  )


def _on_groups(
  layouts: Sequence[tuple[Layout, ...]], cluster: Cluster
) -> Iterator[Choice]:
  count = len(cluster.groups)
  for v, own in enumerate(layouts):
    for layout in own:
      devices = cluster.of_class(layout.device.name)
      usable = [g for g in range(count) if cluster.groups[g].issubset(devices)]
      for k in range(1, len(usable) + 1):
        for used in itertools.combinations(usable, k):
          size = sum(len(cluster.groups[g]) for g in used)
          if size % layout.config.devices == 0:
            seconds = layout.turns * layout.least_s(size)
            if math.isfinite(seconds):
              yield Choice(v, dict.fromkeys(used, seconds))


def _program(
  choices: Sequence[Choice],
  sizes: Sequence[int],
  swap_work: float,
  *,
  is_integer: bool,
) -> float:
  """Returns the least period by a linear or integer program.

  Its variables are how much of a stage is in each mode, the swaps of each pool
  and the period; each pool is busy no longer than a period.
  """
  import numpy as np
  from scipy.optimize import Bounds, LinearConstraint, milp

  count, pools = len(choices), len(sizes)
  stages = 1 + max(choice.stage for choice in choices)
  size = count + pools + 1
  busy = np.zeros((pools, size))
  once = np.zeros((stages, size))
  for j, choice in enumerate(choices):
    once[choice.stage, j] = 1
    for pool, load_s in choice.loads_s.items():
      busy[pool, j] = load_s
  busy[:, count:-1] = np.diag(1 / np.array(sizes))
  busy[:, -1] = -1
  swaps = np.zeros((1, size))
  swaps[0, count:-1] = 1
  cost = np.zeros(size)
  cost[-1] = 1
  kinds = np.zeros(size)
  kinds[:count] = int(is_integer)
  upper = np.full(size, np.inf)
  upper[:count] = 1
  solved = milp(
    cost,
    constraints=[
      LinearConstraint(busy, -np.inf, 0),
      LinearConstraint(once, 1, 1),
      LinearConstraint(swaps, swap_work, np.inf),
    ],
    integrality=kinds,
    bounds=Bounds(0, upper),
  )
  if solved.status != 0:
    return 0.0
  value = solved.mip_dual_bound if is_integer else solved.fun
  return max(0.0, float(value))


def _on_class(layouts: Sequence[Layout]) -> list[_Option]:
  """Returns options of a stage on one class, faster and costlier each."""
  found = []
  for layout in layouts:
    counts = _counts(layout)
    each = [layout.turns * layout.least_s(n) for n in counts]
    work = [n * seconds for n, seconds in zip(counts, each)]
    # What lies between two counts is as fast as the larger and as cheap as the
    # cheaper of them, or worse.
    found += [
      _Option(seconds, min(w, before))
      for seconds, w, before in zip(each, work, [work[0], *work])
      if math.isfinite(seconds)
    ]
  found.sort(key=lambda option: (-option.seconds, option.work))
  # From the fastest on, only those that cost less than all faster ones.
  kept: list[_Option] = []
  for option in reversed(found):
    if not kept or option.work < kept[-1].work:
      kept.append(option)
  return kept[::-1]


def _counts(layout: Layout) -> list[int]:
  step = layout.config.devices
  top = layout.count // step
  if top <= _MAX_COUNTS:
    return [step * r for r in range(1, top + 1)]
  grid, r = {top}, 1
  while r < top:
    grid.add(r)
    r = max(r + 1, int(r * _GRID))
  if isinstance(layout.law, Table):
    near = {s.devices // step + i for s in layout.law.samples for i in (0, 1)}
    grid |= {r for r in near if 1 <= r <= top}
  return [step * r for r in sorted(grid)]


def _is_possible(
  options: Sequence[Sequence[Sequence[_Option]]],
  sizes: Sequence[int],
  swap_work: float,
  period_s: float,
) -> bool:
  """Returns whether some class for each stage leaves no class overloaded."""
  works = []
  for own in options:
    found: dict[int, float] = {}
    for k, of_class in enumerate(own):
      # The slowest that is fast enough is the cheapest.
      at = bisect.bisect_left(of_class, -period_s, key=lambda o: -o.seconds)
      if at < len(of_class):
        found[k] = of_class[at].work
    if not found:
      return False
    works.append(found)
  for chosen in itertools.product(*works):
    loads = [0.0] * len(sizes)
    for own_work, k in zip(works, chosen):
      loads[k] += own_work[k]
    spare = sum(sizes) * period_s - sum(loads)
    fits = all(load <= n * period_s for load, n in zip(loads, sizes))
    if fits and spare >= swap_work:
      return True
  return False
