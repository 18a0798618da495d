"""Assignments of modes to stages: branch and bound over many at once.

Stages get their modes one after another, most work first. All partial
assignments of a chunk are extended and bounded together in numpy arrays; those
whose bound exceeds a limit are cut, with all that they lead to. What remains
at the end is told apart only by the shop that it leaves.

Bounds of a partial assignment, in which other stages take their shortest time:
- work: the groups' loads weighted by the duals of a linear program that
  divides each stage freely between its modes;
- cliques: see `shops.bound`; swaps are counted where all pairs are swapped.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING

from scheduler.exact import modes
from scheduler.exact.class_s import Problem
from scheduler.exact.shops import APART, EXCLUSIVE, SWAPPED, Shop

if TYPE_CHECKING:
  import numpy as np

_CHUNK = 50_000


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Candidates:
  """Distinct shops that may be short enough, the lowest bound first.

  Attributes:
    preds: see `shops.Shop`.
    num_granules: of every stage.
    modes: one assignment of each shop [N, V].
    durations: of granules [N, V].
    swaps: ticks [N, V].
    levels: of conflict [N, V, V].
    bounds: of the period [N].
    visited: partial and whole assignments that were bounded.
  """

  preds: tuple[tuple[int, ...], ...]
  num_granules: int
  modes: np.ndarray
  durations: np.ndarray
  swaps: np.ndarray
  levels: np.ndarray
  bounds: np.ndarray
  visited: int

  def __len__(self) -> int:
    return len(self.bounds)

  def shop(self, i: int) -> Shop:
    """Returns the shop of a row."""
    return Shop(
      num_granules=self.num_granules,
      preds=self.preds,
      durations=tuple(self.durations[i].tolist()),
      swaps=tuple(self.swaps[i].tolist()),
      conflicts=tuple(map(tuple, self.levels[i].tolist())),
    )

  def no_easier_than(self, shop: Shop) -> np.ndarray:
    """Returns which rows have no shorter period than a shop, by comparison."""
    import numpy as np

    is_no_easier = (self.durations >= np.array(shop.durations)).all(axis=1)
    is_no_easier &= (self.swaps >= np.array(shop.swaps)).all(axis=1)
    is_no_easier &= (self.levels >= np.array(shop.conflicts)).all(axis=(1, 2))
    return np.asarray(is_no_easier)


def below(
  problem: Problem,
  limit: int,
  *,
  max_rows: int | None = None,
  is_over_fn: Callable[[], bool] = lambda: False,
) -> Candidates | None:
  """Returns all shops whose bound is at most `limit`.

  Args:
    problem: the case.
    limit: ticks.
    max_rows: of partial or whole assignments that may be held at once.
    is_over_fn: whether to give up.

  Returns:
    None where it gave up, or would have had to hold more rows.
  """
  import numpy as np

  table = _Table(problem)
  stack = [(0, np.zeros((1, table.size), np.int16))]
  found = [np.zeros((0, table.size), np.int16)]
  bounds = [np.zeros(0)]
  visited = held = 0
  while stack:
    depth, rows = stack.pop()
    held -= len(rows)
    rows = table.extended(rows, depth)
    visited += len(rows)
    rows = rows[table.work(rows, depth) <= limit]
    each = table.cliques(rows, depth)
    rows, each = rows[each <= limit], each[each <= limit]
    if depth + 1 == table.size:
      found.append(rows)
      bounds.append(each)
    else:
      size = max(1, _CHUNK // table.num_modes[table.order[depth + 1]])
      stack += [
        (depth + 1, rows[i : i + size]) for i in range(0, len(rows), size)
      ]
    held += len(rows)
    if is_over_fn() or (max_rows is not None and held > max_rows):
      return None
  return table.distinct(np.concatenate(found), np.concatenate(bounds), visited)


class _Table:
  """The modes of a problem as arrays, and bounds over rows of mode indices."""

  def __init__(self, problem: Problem):
    import numpy as np

    self.problem = problem
    self.size, self.groups = len(problem.modes), len(problem.groups)
    self.kept = modes.undominated(problem)
    self.num_modes = [len(own) for own in self.kept]
    options = [
      [own[i] for i in kept] for own, kept in zip(problem.modes, self.kept)
    ]
    column = lambda name: [
      np.array([getattr(m, name) for m in own], np.int64) for own in options
    ]
    self.masks = column("groups")
    self.durations = column("duration")
    self.swaps = column("swap")
    self.states = column("state_bytes")
    self.transients = column("transient_bytes")
    bits = np.arange(self.groups)
    self.uses = [mask[:, None] >> bits & 1 for mask in self.masks]
    self.shortest = [int(d.min()) for d in self.durations]
    self.weighted = self._weighted()
    least = [w.min() for w in self.weighted[0]]
    self.order = sorted(range(self.size), key=lambda v: -least[v])
    sizes = [len(g) for g in problem.groups]
    # Of equal groups the one that is used earlier comes first.
    self.twins = [
      (a, b)
      for a in range(self.groups)
      for b in range(a + 1, self.groups)
      if sizes[a] == sizes[b] and sizes[a] not in sizes[a + 1 : b]
    ]

  def _weighted(self) -> list[list[np.ndarray]]:
    """Returns load by stage and mode, for several weights of the groups."""
    import numpy as np

    _, duals = modes.relaxed_period(self.problem)
    weights = [
      np.array(duals) / max(sum(duals), 1e-9),
      np.full(self.groups, 1 / self.groups),
    ]
    n = self.problem.num_granules
    return [
      [n * d * (uses @ w) for d, uses in zip(self.durations, self.uses)]
      for w in weights
    ]

  def extended(self, rows: np.ndarray, depth: int) -> np.ndarray:
    """Returns rows with every mode of the next stage, without mirror images."""
    import numpy as np

    v = self.order[depth]
    count = self.num_modes[v]
    longer = np.repeat(rows, count, axis=0)
    longer[:, v] = np.tile(np.arange(count, dtype=np.int16), len(rows))
    if self.twins:
      used = np.zeros((len(longer), self.groups), np.int64)
      for u in self.order[: depth + 1]:
        used = 2 * used + self.uses[u][longer[:, u]]
      is_first = np.ones(len(longer), bool)
      for a, b in self.twins:
        is_first &= used[:, a] >= used[:, b]
      longer = longer[is_first]
    return longer

  def work(self, rows: np.ndarray, depth: int) -> np.ndarray:
    """Returns bounds by the weighted loads of the groups."""
    import numpy as np

    best = np.zeros(len(rows))
    for load in self.weighted:
      total = sum(load[v][rows[:, v]] for v in self.order[: depth + 1])
      total += sum(load[v].min() for v in self.order[depth + 1 :])
      best = np.maximum(best, total)
    return np.ceil(best - 1e-6)

  def cliques(self, rows: np.ndarray, depth: int) -> np.ndarray:
    """Returns bounds by stages that exclude each other pairwise."""
    import numpy as np

    n = self.problem.num_granules
    known = sorted(self.order[: depth + 1])
    durations = self._durations(rows, known)
    before, after = self._before_after(durations)
    levels, swaps = self._levels(rows, known), self._swaps(rows, known)
    best = (before + after + n * durations).max(axis=0)
    nobody = np.ones(len(rows), bool)
    # For each set of stages: at which level its pairs conflict, and its sums.
    exclusive: dict[tuple[int, ...], np.ndarray] = {(): nobody}
    swapped: dict[tuple[int, ...], np.ndarray] = {(): nobody}
    for k in range(1, len(known) + 1):
      for clique in itertools.combinations(known, k):
        *rest, v = clique
        pairs = [levels[u, v] for u in rest]
        is_clique = exclusive[tuple(rest)]
        is_swapped = swapped[tuple(rest)]
        for level in pairs:
          is_clique = is_clique & (level >= EXCLUSIVE)
          is_swapped = is_swapped & (level == SWAPPED)
        exclusive[clique], swapped[clique] = is_clique, is_swapped
        if k == 1 or not is_clique.any():
          continue
        members = list(clique)
        work = n * durations[members].sum(axis=0)
        first, last = before[members], after[members]
        bound = work + first.min(axis=0) + last.min(axis=0)
        if is_swapped.any():
          cost = swaps[members]
          around = work + 2 * cost.sum(axis=0)
          there = around + (first - cost).min(axis=0)
          there += (last - cost).min(axis=0)
          bound = np.where(
            is_swapped, np.maximum(bound, np.maximum(around, there)), bound
          )
        best = np.maximum(best, np.where(is_clique, bound, 0))
    return best

  def _durations(self, rows: np.ndarray, known: list[int]) -> np.ndarray:
    import numpy as np

    return np.stack(
      [
        self.durations[v][rows[:, v]]
        if v in known
        else np.full(len(rows), self.shortest[v])
        for v in range(self.size)
      ]
    )

  def _before_after(
    self, durations: np.ndarray
  ) -> tuple[np.ndarray, np.ndarray]:
    import numpy as np

    before, after = np.zeros_like(durations), np.zeros_like(durations)
    for v, own in enumerate(self.problem.preds):
      for u in own:
        before[v] = np.maximum(before[v], before[u] + durations[u])
    for v in reversed(range(self.size)):
      for u in self.problem.preds[v]:
        after[u] = np.maximum(after[u], after[v] + durations[v])
    return before, after

  def _swaps(self, rows: np.ndarray, known: list[int]) -> np.ndarray:
    import numpy as np

    swaps = np.zeros((self.size, len(rows)), np.int64)
    for v in known:
      swaps[v] = self.swaps[v][rows[:, v]]
    return swaps

  def _levels(
    self, rows: np.ndarray, known: list[int]
  ) -> dict[tuple[int, int], np.ndarray]:
    """Returns the level of conflict of pairs of known stages."""
    import numpy as np

    state = np.zeros((len(rows), self.groups), np.int64)
    transient = np.zeros_like(state)
    for v in known:
      uses = self.uses[v][rows[:, v]]
      state += uses * self.states[v][rows[:, v]][:, None]
      needed = uses * self.transients[v][rows[:, v]][:, None]
      transient = np.maximum(transient, needed)
    overflows = state + transient > self.problem.memory_bytes
    swapped = (overflows << np.arange(self.groups)).sum(axis=1)
    levels = {}
    for u, v in itertools.combinations(known, 2):
      shared = self.masks[u][rows[:, u]] & self.masks[v][rows[:, v]]
      level = np.where(shared, EXCLUSIVE, APART)
      levels[u, v] = np.where(shared & swapped, SWAPPED, level)
    return levels

  def distinct(
    self, rows: np.ndarray, bounds: np.ndarray, visited: int
  ) -> Candidates:
    """Returns one row of each shop, the lowest bounds first."""
    import numpy as np

    everyone = list(range(self.size))
    durations = self._durations(rows, everyone).T
    levels = np.zeros((len(rows), self.size, self.size), np.int64)
    for (u, v), level in self._levels(rows, everyone).items():
      levels[:, u, v] = levels[:, v, u] = level
    swaps = self._swaps(rows, everyone).T
    swaps = np.where((levels == SWAPPED).any(axis=2), swaps, 0)
    keys = np.concatenate(
      [durations, swaps, levels.reshape(len(rows), self.size**2)], axis=1
    )
    _, first = np.unique(keys, axis=0, return_index=True)
    total = keys.sum(axis=1)
    first = first[np.lexsort((first, total[first], bounds[first]))]
    indices = np.stack(
      [np.array(self.kept[v])[rows[first, v]] for v in everyone], axis=1
    )
    return Candidates(
      preds=self.problem.preds,
      num_granules=self.problem.num_granules,
      modes=indices,
      durations=durations[first],
      swaps=swaps[first],
      levels=levels[first],
      bounds=bounds[first].astype(np.int64),
      visited=visited,
    )
