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
from typing import TYPE_CHECKING, NamedTuple

from scheduler import errors
from scheduler.bounds.work import Layout
from scheduler.clusters import Cluster
from scheduler.profiles import Table

if TYPE_CHECKING:
  import numpy as np

_MAX_GROUPS = 6
_MAX_COUNTS = 256  # of devices that are all looked at; of more, a grid
_GRID = 1.02
_PRECISION = 1e-9  # of a period that is searched for
_TOLERANCE = 1e-6  # of the integer program


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
    return _divided(choices, sizes, swap_work)
  sizes = [len(cluster.of_class(c.name)) for c in cluster.classes]
  choices = [
    Choice(v, {k: layout.turns * layout.least_work() / sizes[k]})
    for v, own in enumerate(layouts)
    for layout in own
    for k in [cluster.classes.index(layout.device)]
  ]
  return _divided(choices, sizes, swap_work)


def undivided_s(
  layouts: Sequence[tuple[Layout, ...]], cluster: Cluster, swap_work: float
) -> float:
  """Returns the least period when each stage has one mode, always."""
  if _has_groups(cluster):
    sizes = [len(group) for group in cluster.groups]
    choices = list(_on_groups(layouts, cluster))
    return _undivided(choices, sizes, swap_work)
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
    is_possible = False
    for layout in own:
      devices = cluster.of_class(layout.device.name)
      usable = [g for g in range(count) if cluster.groups[g].issubset(devices)]
      for k in range(1, len(usable) + 1):
        for used in itertools.combinations(usable, k):
          size = sum(len(cluster.groups[g]) for g in used)
          if size % layout.config.devices == 0:
            seconds = layout.turns * layout.least_s(size)
            if math.isfinite(seconds):
              is_possible = True
              yield Choice(v, dict.fromkeys(used, seconds))
    if not is_possible:
      raise errors.InfeasiblePlanError(
        f"stage {own[0].stage.name!r} can run on no union of the groups"
        f" {[str(group) for group in cluster.groups]}: it is profiled in"
        f" {[str(layout.config) for layout in own]}"
      )


def _divided(
  choices: Sequence[Choice], sizes: Sequence[int], swap_work: float
) -> float:
  """Returns the least period by a linear program, in which stages divide.

  Its variables are how much of a stage is in each mode, the swaps of each pool
  and the period; each pool is busy no longer than a period. What is returned is
  what its duals prove, without the solver's tolerances.
  """
  if len(sizes) == 1:
    return _scale(choices, sizes, swap_work)
  import numpy as np
  from scipy.optimize import linprog

  busy, once, swaps = _constraints(choices, sizes)
  scale = _scale(choices, sizes, swap_work)
  if scale == 0:
    return 0.0
  cost = np.zeros(busy.shape[1])
  cost[-1] = 1
  busy[:, : len(choices)] /= scale
  solved = linprog(
    cost,
    A_ub=np.vstack([busy, -swaps]),
    b_ub=np.append(np.zeros(len(sizes)), -swap_work / scale),
    A_eq=once,
    b_eq=np.ones(len(once)),
  )
  duals = solved.ineqlin.marginals[: len(sizes)]
  weights = np.maximum(0.0, -duals)
  weights /= weights.sum()
  # A period is no less than any weighted mean of the pools' loads.
  cheapest: dict[int, float] = {}
  for choice in choices:
    cost_s = sum(weights[k] * load for k, load in choice.loads_s.items())
    cheapest[choice.stage] = min(cheapest.get(choice.stage, math.inf), cost_s)
  swap_s = swap_work * min(w / size for w, size in zip(weights, sizes))
  return float(sum(cheapest.values()) + swap_s)


def _undivided(
  choices: Sequence[Choice], sizes: Sequence[int], swap_work: float
) -> float:
  """Returns the same where each stage is in one mode, by an integer program.

  It is a millionth less than what the solver proves within its tolerances.
  """
  import numpy as np
  from scipy.optimize import Bounds, LinearConstraint, milp

  busy, once, swaps = _constraints(choices, sizes)
  scale = _scale(choices, sizes, swap_work)
  if scale == 0:
    return 0.0
  count, size = len(choices), busy.shape[1]
  busy[:, :count] /= scale
  cost, kinds, upper = np.zeros(size), np.zeros(size), np.full(size, np.inf)
  cost[-1], kinds[:count], upper[:count] = 1, 1, 1
  solved = milp(
    cost,
    constraints=[
      LinearConstraint(busy, -np.inf, 0),
      LinearConstraint(once, 1, 1),
      LinearConstraint(swaps, swap_work / scale, np.inf),
    ],
    integrality=kinds,
    bounds=Bounds(0, upper),
  )
  if solved.mip_dual_bound is None:
    return 0.0
  return max(0.0, scale * float(solved.mip_dual_bound) * (1 - _TOLERANCE))


def _constraints(
  choices: Sequence[Choice], sizes: Sequence[int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Returns the rows of what keeps pools busy, of modes, and of swaps."""
  import numpy as np

  count, pools = len(choices), len(sizes)
  stages = 1 + max(choice.stage for choice in choices)
  busy = np.zeros((pools, count + pools + 1))
  once = np.zeros((stages, count + pools + 1))
  swaps = np.zeros((1, count + pools + 1))
  for j, choice in enumerate(choices):
    once[choice.stage, j] = 1
    for pool, load_s in choice.loads_s.items():
      busy[pool, j] = load_s
  busy[:, count:-1] = np.diag(1 / np.array(sizes))
  busy[:, -1] = -1
  swaps[0, count:-1] = 1
  return busy, once, swaps


def _scale(
  choices: Sequence[Choice], sizes: Sequence[int], swap_work: float
) -> float:
  """Returns the period as if there were one pool.

  It is of the order of the period with several: solvers count in it.
  """
  least: dict[int, float] = {}
  for choice in choices:
    longest = max(choice.loads_s.values())
    least[choice.stage] = min(least.get(choice.stage, math.inf), longest)
  return sum(least.values()) + swap_work / sum(sizes)


def _on_class(layouts: Sequence[Layout]) -> list[_Option]:
  """Returns options of a stage on one class, faster and costlier each."""
  found = []
  for layout in layouts:
    previous, before = 0, math.inf
    for n in _counts(layout):
      seconds = layout.turns * layout.least_s(n)
      work = n * seconds
      if math.isfinite(seconds):
        # What was left out is no faster than this, and no cheaper than either.
        is_gap = n - previous > layout.config.devices
        found.append(_Option(seconds, min(work, before) if is_gap else work))
      previous, before = n, work
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
