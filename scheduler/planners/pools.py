"""Shares of a cluster's devices, as planners count them.

A planner rarely cares which devices it uses, but how many of each class; where
a cluster has groups, which of them. A *key* says so: one number per device
class, a count of devices (or of equal groups), or a bit mask of unequal groups.
Keys are divided while searching; devices are chosen when a tree is built.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterable, Iterator

from scheduler import errors
from scheduler.clusters import Cluster
from scheduler.devices import Devices

Key = tuple[int, ...]

# All ways to divide up to so many unequal groups; above, only consecutive ones.
_MAX_MASKED = 8
# With fewer counts, those are tried in which replicas of 2, 4, ... devices fit.
_COARSE = 32


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Pool:
  """The devices of one class.

  Attributes:
    name: of the class.
    devices: those that a plan may use.
    groups: where not empty, they are used only whole.
    counts: numbers of blocks (devices, or groups of one size) that are tried,
      ascending; empty where a key is a mask of unequal groups.
  """

  name: str
  devices: Devices
  groups: tuple[Devices, ...] = ()
  counts: tuple[int, ...] = ()

  @property
  def block(self) -> int:
    """Devices in one block, where all are of one size."""
    return len(self.groups[0]) if self.groups else 1

  @property
  def full(self) -> int:
    """The key of all devices."""
    return self.counts[-1] if self.counts else (1 << len(self.groups)) - 1

  def size(self, key: int) -> int:
    """Returns how many devices a key stands for."""
    if self.counts:
      return key * self.block
    return sum(len(group) for group in self._chosen(key))

  def splits(self, key: int) -> Iterator[tuple[int, int]]:
    """Yields keys of two disjoint parts, neither of them empty."""
    if self.counts:
      found = set()
      for k in itertools.takewhile(lambda count: count < key, self.counts):
        rest = self.floor(key - k)
        if rest:
          found |= {(k, rest), (rest, k)}
      yield from sorted(found)
      return
    bits = [1 << i for i in range(len(self.groups)) if key >> i & 1]
    if len(bits) > _MAX_MASKED:
      first = 0
      for bit in bits[:-1]:
        first |= bit
        yield first, key ^ first
      return
    part = (key - 1) & key
    while part:
      yield part, key ^ part
      part = (part - 1) & key

  def parts(self, key: int) -> Iterator[int]:
    """Yields the key and those of its parts, the largest first."""
    if self.counts:
      yield from range(key, 0, -1)
      return
    masks = [key, *(part for part, _ in self.splits(key))]
    yield from sorted(masks, key=lambda mask: (-self.size(mask), mask))

  def floor(self, count: int) -> int:
    """Returns the largest of `counts` that is not above a count, 0 for none."""
    return next((c for c in reversed(self.counts) if c <= count), 0)

  def choose(self, key: int, within: Devices) -> Devices:
    """Returns devices for a key out of those of an enclosing key."""
    if not self.groups:
      return (within & self.devices).first(key)
    inside = [g for g in self.groups if g.issubset(within)]
    chosen = inside[:key] if self.counts else self._chosen(key)
    return functools.reduce(Devices.__or__, chosen, Devices())

  def _chosen(self, mask: int) -> list[Devices]:
    return [g for i, g in enumerate(self.groups) if mask >> i & 1]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Pools:
  """The pools of a cluster, in the order of a key's entries."""

  pools: tuple[Pool, ...]

  @property
  def full(self) -> Key:
    """The key of the whole cluster."""
    return tuple(pool.full for pool in self.pools)

  def index(self, name: str) -> int:
    """Returns the place of a device class in a key."""
    return [pool.name for pool in self.pools].index(name)

  def size(self, key: Key, index: int) -> int:
    """Returns how many devices of one class a key stands for."""
    return self.pools[index].size(key[index]) if key[index] else 0

  def splits(
    self,
    key: Key,
    left: frozenset[int],
    right: frozenset[int],
    *,
    needed: frozenset[int] = frozenset(),
  ) -> Iterator[tuple[Key, Key]]:
    """Yields keys of two parts that work at the same time.

    Args:
      key: what is divided.
      left: indices of the classes that the first part can use.
      right: of those that the second can use. What only one of them can use
        goes to it undivided.
      needed: of those that neither can do without.
    """
    options: list[list[tuple[int, int]]] = []
    for i, (pool, entry) in enumerate(zip(self.pools, key)):
      if not entry or (i not in left and i not in right):
        options.append([(0, 0)])
      elif i in left and i in right:
        pairs = list(pool.splits(entry))
        if len(right) > 1 and i not in needed:
          pairs.append((entry, 0))
        if len(left) > 1 and i not in needed:
          pairs.append((0, entry))
        options.append(pairs)
      else:
        options.append([(entry, 0) if i in left else (0, entry)])
    for pairs_of in itertools.product(*options):
      yield tuple(a for a, _ in pairs_of), tuple(b for _, b in pairs_of)

  def choose(self, key: Key, within: Devices) -> Devices:
    """Returns devices for a key out of those of an enclosing key."""
    chosen = Devices()
    for pool, entry in zip(self.pools, key):
      if entry:
        chosen = chosen | pool.choose(entry, within)
    return chosen

  def refined(self, keys: Iterable[Key], resolution: int) -> Pools:
    """Returns pools that also try every count, or nearly so, near these keys.

    Args:
      keys: around which to look, up to the next counts that were tried.
      resolution: of the counts between two, how many to add at most.
    """
    kept = list(keys)
    pools = []
    for i, pool in enumerate(self.pools):
      counts = set(pool.counts)
      for key in kept if pool.counts else ():
        below = max((c for c in pool.counts if c < key[i]), default=0)
        above = min((c for c in pool.counts if c > key[i]), default=pool.full)
        step = max(1, (above - below) // resolution)
        counts |= set(range(below + step, above, step))
        counts |= {pool.full - c for c in range(below + step, above, step)}
      pools.append(
        dataclasses.replace(
          pool, counts=tuple(sorted(c for c in counts if c > 0))
        )
      )
    return Pools(pools=tuple(pools))

  def narrowed(self, keys: Iterable[Key]) -> Pools:
    """Returns pools that try only these keys' counts and what is near them."""
    kept = list(keys)
    found = []
    for i, pool in enumerate(self.pools):
      counts = {1, pool.full} if pool.counts else set()
      for key in kept if pool.counts else ():
        below = max((c for c in pool.counts if c < key[i]), default=key[i])
        above = min((c for c in pool.counts if c > key[i]), default=key[i])
        counts |= {key[i], (below + key[i]) // 2, -(-(above + key[i]) // 2)}
      found.append(
        dataclasses.replace(pool, counts=tuple(sorted(counts - {0})))
      )
    return Pools(pools=tuple(found))


def of_cluster(cluster: Cluster, resolution: int = 64) -> Pools:
  """Returns a cluster's devices as pools.

  Args:
    cluster: its groups, where it has some, are used only whole.
    resolution: up to so many devices of a class all counts are tried; of more,
      a series that grows geometrically, and what it leaves of the whole.

  Raises:
    ClusterError: a group has devices of several classes.
  """
  pools = []
  for c in cluster.classes:
    devices = cluster.of_class(c.name)
    groups = tuple(g for g in cluster.groups if not g.isdisjoint(devices))
    if mixed := [g for g in groups if not g.issubset(devices)]:
      raise errors.ClusterError(
        f"group '{mixed[0]}' has devices of several classes; no stage can run"
        " on it"
      )
    if not devices.spans:
      continue
    blocks = len(groups) or len(devices)
    is_counted = len({len(g) for g in groups}) < 2
    pools.append(
      Pool(
        name=c.name,
        devices=devices,
        groups=groups,
        counts=_counts(blocks, resolution) if is_counted else (),
      )
    )
  return Pools(pools=tuple(pools))


def _counts(total: int, resolution: int) -> tuple[int, ...]:
  if total <= resolution:
    return tuple(range(1, total + 1))
  is_coarse = resolution < _COARSE
  step = 1 << math.ceil(math.log2(total / resolution))
  if is_coarse and step <= 8:
    powers = {1 << i for i in range(step.bit_length())}
    return tuple(sorted({*powers, *range(step, total, step), total}))
  half = max(2, resolution // 2)
  ratio = (total / 2) ** (1 / half)
  series = {round(ratio**i) for i in range(half + 1)}
  if is_coarse:
    series = {_even(count) for count in series}
  series |= {total, *range(1, half // 2 + 1)}
  return tuple(sorted(series | {total - c for c in series if c < total}))


def _even(count: int) -> int:
  """Returns a multiple of a large power of two near a count."""
  step = 1 << max(0, (count // 3).bit_length() - 1)
  return round(count / step) * step
