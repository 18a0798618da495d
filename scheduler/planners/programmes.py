"""The dynamic programme of `pareto_dp`."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import math
from collections.abc import Iterator

from scheduler.planners import counts, labels
from scheduler.planners.labels import Label
from scheduler.planners.leaves import Leaves
from scheduler.planners.pools import Key, Pools
from scheduler.planners.units import Option
from scheduler.workflows import Workflow

# Workflows of more units are cut only along one topological order.
_MAX_UNITS = 3


def objective_ns(label: Label, workflow: Workflow) -> float:
  """Returns the period that the closed form gives the whole workflow."""
  alive = 1 + workflow.staleness
  if alive == 1:
    return label.total_ns
  return max(label.busy_ns, label.total_ns / alive)


class Programme:
  """The recursion; each subgraph on each share is solved once.

  Args:
    leaves: options of the workflow's units.
    shares: with the counts of devices to try.
    limit_ns: plans with this period, or a longer one, are of no use; None: of
      all stages in turn.
  """

  def __init__(
    self, leaves: Leaves, shares: Pools, limit_ns: float | None = None
  ):
    options = leaves.options
    self._leaves, self._options, self._shares = leaves, options, shares
    self._workflow = options.modes.workflow
    self._alive = 1 + self._workflow.staleness
    self._units = options.graph.units
    self._streams = leaves.streams
    self._known: dict[tuple[int, Key, int], list[Label]] = {}
    self._labels: dict[tuple[int, Key, int], list[Label]] = {}
    self._least: dict[tuple[int, Key], float] = {}
    self._fewest: dict[int, int] = {}
    self._cuts: dict[int, tuple[_Cut, ...]] = {}
    self._divisions: dict[tuple[int, int, Key], list[tuple[Key, Key]]] = {}
    self._is_wide = len(self._units) > _MAX_UNITS
    self._memory, in_turn_ns, heads, tails = self._bounds()
    self._limit_ns = in_turn_ns + 1 if limit_ns is None else limit_ns
    self._before, self._after = self._ways(heads, tails)

  def best(self) -> list[Label]:
    """Returns labels of the whole workflow, the best first."""
    everyone = (1 << len(self._units)) - 1
    found: dict[int, Label] = {}
    for stream in self._streams:
      for label in self.solve(everyone, self._shares.full, stream):
        found[id(label)] = label
        period_ns = objective_ns(label, self._workflow)
        self._limit_ns = min(self._limit_ns, period_ns + 1)
    return sorted(
      found.values(), key=lambda label: objective_ns(label, self._workflow)
    )

  def solve(self, graph: int, key: Key, stream: int) -> list[Label]:
    """Returns the labels of a subgraph on a share.

    Args:
      graph: a bit mask of units.
      key: the share.
      stream: how many granules pass between devices.
    """
    known = self._known.get((graph, key, stream))
    if known is None:
      if graph & (graph - 1) == 0:
        known = self._leaf(graph.bit_length() - 1, key, stream)
      else:
        known = self._solved(graph, key, stream)
      self._known[graph, key, stream] = known
    return known

  def _solved(self, graph: int, key: Key, stream: int) -> list[Label]:
    front = self._front(graph)
    for cut in self._cuts_of(graph):
      for label in self._on_same(cut, key, stream, front):
        front.add(label)
    for cut in self._cuts_of(graph):
      if cut.link == "none" and cut.first > cut.second:
        continue
      for own, rest in self._splits(cut, key):
        for first in self.solve(cut.first, own, stream):
          for second in self.solve(cut.second, rest, stream):
            total_ns = labels.together_ns(first, second, cut.link)
            if front.admits(total_ns, max(first.busy_ns, second.busy_ns)):
              front.add(labels.side_by_side(first, own, second, rest, cut.link))
    return front.labels()

  def _on_same(
    self, cut: _Cut, key: Key, stream: int, front: labels.Front
  ) -> Iterator[Label]:
    """Yields labels of a cut's sides that take turns on all devices."""
    firsts = self.solve(cut.first, key, stream)
    seconds = self.solve(cut.second, key, stream)
    if cut.link != "batch" and stream > 1:
      for first, second in itertools.product(firsts, seconds):
        if (
          first.is_fused
          and second.is_fused
          and front.admits(first.total_ns + second.total_ns, 0)
        ):
          yield from labels.in_turns(first, second, key, self._memory, stream)
    for first, second in itertools.product(
      self._free(cut.first, key, firsts), self._free(cut.second, key, seconds)
    ):
      if front.admits(
        first.total_ns + second.total_ns, first.busy_ns + second.busy_ns
      ):
        yield from labels.in_turn(first, second, key, self._memory)

  def _free(self, graph: int, key: Key, found: list[Label]) -> list[Label]:
    """Returns labels, and the one with the least total of all streams."""
    every = [
      label
      for stream in self._streams
      for label in self.solve(graph, key, stream)
    ]
    if not every:
      return found
    best = min(every, key=lambda label: label.total_ns)
    return [*(label for label in found if label is not best), best]

  def _front(self, graph: int) -> labels.Front:
    """Returns an empty front of labels that may still win.

    Whatever the plan, units before and after the subgraph add a granule each.
    """
    members = [i for i in range(graph.bit_length()) if graph >> i & 1]
    around = min(self._before[i] for i in members)
    around += min(self._after[i] for i in members)
    return labels.Front(
      total_ns=self._limit_ns * self._alive - around,
      busy_ns=self._limit_ns,
      has_lag=self._alive > 1,
    )

  def _splits(self, cut: _Cut, key: Key) -> list[tuple[Key, Key]]:
    """Returns divisions of a share on which both sides may be fast enough."""
    at = (cut.first, cut.second, key)
    if at not in self._divisions:
      if len(key) == 1 and self._shares.pools[0].counts:
        self._divisions[at] = self._counted_splits(cut, key[0])
      else:
        found = self._shares.splits(key, cut.first_pools, cut.second_pools)
        self._divisions[at] = [
          (own, rest)
          for own, rest in found
          if self._may_win(cut.first, own) and self._may_win(cut.second, rest)
        ]
    return self._divisions[at]

  def _counted_splits(self, cut: _Cut, whole: int) -> list[tuple[Key, Key]]:
    tried = self._shares.pools[0].counts
    few = [
      max(self._fewest_of(i) for i in range(g.bit_length()) if g >> i & 1)
      for g in (cut.first, cut.second)
    ]
    pairs = set()
    for count in tried[bisect.bisect_left(tried, min(few)) :]:
      if count >= whole:
        break
      rest = counts.floor(tried, whole - count)
      pairs |= {(count, rest), (rest, count)}
    return [
      ((first,), (second,))
      for first, second in sorted(pairs)
      if first >= few[0] and second >= few[1]
    ]

  def _fewest_of(self, i: int) -> int:
    """Returns the smallest count on which a unit may be fast enough."""
    if i not in self._fewest:
      tried = self._shares.pools[0].counts
      at = bisect.bisect_left(
        tried, True, key=lambda count: self._may_win(1 << i, (count,))
      )
      self._fewest[i] = tried[at] if at < len(tried) else tried[-1] + 1
    return self._fewest[i]

  def _may_win(self, graph: int, key: Key) -> bool:
    limit = self._limit_ns * self._alive
    return all(
      self._least_ns(i, key) + self._before[i] + self._after[i] < limit
      for i in range(graph.bit_length())
      if graph >> i & 1
    )

  def _least_ns(self, i: int, key: Key) -> float:
    """Returns a time that a unit takes at least on a share."""
    known = self._least.get((i, key))
    if known is None:
      known = self._options.bound_ns(self._units[i], key)
      if known < self._limit_ns:
        known = min(
          (x.total_ns for s in self._streams for x in self._leaf(i, key, s)),
          default=math.inf,
        )
      self._least[i, key] = known
    return known

  def _leaf(self, i: int, key: Key, stream: int) -> list[Label]:
    """Returns the labels of a unit with about so many granules."""
    unit = self._units[i]
    usable = self._options.pools_of(unit)
    key = tuple(n if p in usable else 0 for p, n in enumerate(key))
    stream = 1 if unit.loop else stream
    known = self._labels.get((i, key, stream))
    if known is None:
      front = self._front(1 << i)
      for option in self._leaves.of(unit, key, stream):
        front.add(self._label(option))
      known = front.labels()
      self._labels[i, key, stream] = known
    return known

  def _label(self, option: Option) -> Label:
    kept = [0] * len(self._memory)
    extra = list(kept)
    for mode in option.modes if kept else ():
      if option.is_shared:
        kept[mode.pool] += mode.state_bytes
      else:
        kept[mode.pool] = max(kept[mode.pool], mode.state_bytes)
      extra[mode.pool] = max(extra[mode.pool], mode.transient_bytes)
    return Label(
      total_ns=option.total_ns,
      head_ns=option.emits[0][1],
      tail_ns=option.last_ns,
      busy_ns=option.total_ns,
      kept_bytes=tuple(kept),
      extra_bytes=tuple(extra),
      swap_ns=2 * option.swap_ns if kept else 0,
      option=option,
    )

  def _bounds(
    self,
  ) -> tuple[tuple[int, ...], int, list[int], list[int]]:
    """Returns what all units on the whole cluster say.

    The memory of each class, if it can bind; the time of all in turn, swapped;
    and of each unit the shortest first and last granule.
    """
    modes, full = self._options.modes, self._shares.full
    classes = range(len(full))
    memory = tuple(modes.device_class(p).memory_bytes for p in classes)
    states, transients = [0] * len(full), [0] * len(full)
    in_turn_ns, heads, tails = 0, [], []
    for unit in self._units:
      found = [
        option
        for stream in (self._streams if unit.loop is None else (1,))
        for option in self._leaves.of(unit, full, stream)
      ]
      in_turn_ns += min(o.total_ns + 2 * o.swap_ns for o in found)
      heads.append(min(o.emits[0][1] for o in found))
      tails.append(min(o.last_ns for o in found))
      for p in classes:
        own = [m for o in found for m in o.modes if m.pool == p]
        states[p] += max((m.state_bytes for m in own), default=0)
        transients[p] = max(transients[p], *(m.transient_bytes for m in own), 0)
    may_bind = any(s + t > m for s, t, m in zip(states, transients, memory))
    return memory if may_bind else (), in_turn_ns, heads, tails

  def _ways(
    self, heads: list[int], tails: list[int]
  ) -> tuple[list[int], list[int]]:
    """Returns the shortest ways to each unit's start, and from its end."""
    before, after = [0] * len(heads), [0] * len(heads)
    for i, readers in enumerate(self._options.graph.readers):
      for reader in readers:
        before[reader] = max(before[reader], before[i] + heads[i])
    for i in reversed(range(len(heads))):
      for reader in self._options.graph.readers[i]:
        after[i] = max(after[i], after[reader] + tails[reader])
    return before, after

  def _cuts_of(self, graph: int) -> tuple[_Cut, ...]:
    if graph not in self._cuts:
      self._cuts[graph] = tuple(self._find_cuts(graph))
    return self._cuts[graph]

  def _find_cuts(self, graph: int) -> Iterator[_Cut]:
    """Yields cuts whose first side reads nothing from the second."""
    members = [i for i in range(len(self._units)) if graph >> i & 1]
    readers, waits = self._options.graph.readers, self._options.graph.waits
    pairs = [(s, t) for s in members for t in readers[s] if t in members]
    if self._is_wide:
      sides = [members[:k] for k in range(1, len(members))]
    else:
      sides = [
        [members[j] for j in chosen]
        for size in range(1, len(members))
        for chosen in itertools.combinations(range(len(members)), size)
      ]
    for side in sides:
      first = frozenset(side)
      if any(t in first and s not in first for s, t in pairs):
        continue
      joins = [(s, t) for s, t in pairs if s in first and t not in first]
      rest = frozenset(members) - first
      yield _Cut(
        first=sum(1 << i for i in first),
        second=sum(1 << i for i in rest),
        first_pools=self._options.pools_of_all(first),
        second_pools=self._options.pools_of_all(rest),
        link=(
          "none"
          if not joins
          else "batch"
          if all(pair in waits for pair in joins)
          else "granules"
        ),
      )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Cut:
  """A division of a subgraph.

  Attributes:
    first: a bit mask of units, which read nothing from the others.
    second: the others.
    first_pools: device classes that the first can use.
    second_pools: those that the second can use.
    link: whether the second reads granules, whole batches or nothing.
  """

  first: int
  second: int
  first_pools: frozenset[int]
  second_pools: frozenset[int]
  link: labels.Link
