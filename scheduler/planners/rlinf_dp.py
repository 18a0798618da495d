"""RLinf's dynamic programme over the s-t cuts of the workflow."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator

from scheduler.clusters import Cluster
from scheduler.devices import Devices
from scheduler.planners import granules, graphs, parts, selection, units
from scheduler.planners.graphs import Graph
from scheduler.planners.modes import Emits
from scheduler.planners.pools import Key, Pools
from scheduler.planners.protocol import Budget
from scheduler.planners.units import Option, Options
from scheduler.plans import Node, Spatial, Temporal, TreePlan
from scheduler.profiles import Profile
from scheduler.workflows import Workflow

_STREAMS = (1, 2, 4, 8, 16, 32, 64)
_REFINEMENT = 8
_MAX_ROUNDS = 4
_MIN_RESOLUTION, _MAX_RESOLUTION = 6, 64
# Divisions that are compared for each plan of the budget.
_COMPARISONS_PER_ITERATION = 200_000


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Label:
  """A subgraph on a share, in the best way that was found.

  Attributes:
    emits: see `modes.Mode`, with all that it reads at hand.
    last_ns: from the arrival of the last of what it reads to its end.
    kept_bytes: state that stays on its devices, by device class, on each.
    peak_bytes: the most that it takes while it runs.
    swap_ns: time in which what is kept leaves and returns.
    option: of a single unit.
    parts: of others, their labels and shares.
    is_spatial: whether the parts are on disjoint shares.
  """

  emits: Emits
  last_ns: int
  kept_bytes: tuple[int, ...]
  peak_bytes: tuple[int, ...]
  swap_ns: int
  option: Option | None = None
  parts: tuple[tuple[Label, Key], ...] = ()
  is_spatial: bool = False

  @property
  def total_ns(self) -> int:
    """From its start to its end."""
    return self.emits[-1][1]


def rlinf_dp(
  workflow: Workflow,
  profile: Profile,
  cluster: Cluster,
  budget: Budget,
  seed: int,
) -> TreePlan:
  """Returns the best tree under the paper's estimate.

  With loops collapsed, a subgraph G on n devices takes
    f(G, n) = min over cuts of G into S and T of
      f(S, n) + f(T, n) + switch                          in turn
      min over k and granules of head + (M - 1) max + tail   side by side
  where head and tail are the times of one granule in S on k and in T on n - k
  devices, max the longer of them, and M the number of granules. All cuts are
  tried: S is any set of stages that reads nothing from T.

  Where granules differ, as those of a decode do, the pipelined form is the
  largest over shares x of the items of (time by which S has done x) + (what T
  takes for the rest), which equals the paper's for equal ones. A switch is
  charged where the states of S and T do not fit together. Like the paper's,
  the estimate keeps one plan per subgraph and devices, prices no transfers and
  knows of no overlap between iterations.

  Every number of devices is tried up to 64; of more, or where there are very
  many cuts or several classes of device, as many as the budget allows, and then
  some around the best.

  Args:
    workflow: what is planned.
    profile: its durations.
    cluster: on what.
    budget: of plans that are tried until one can run, and 200,000 times as many
      divisions that are compared.
    seed: not used; nothing is drawn.

  Raises:
    InfeasiblePlanError: a stage fits nowhere, or no tree that was found fits.
    ProfileError: a stage is profiled on no class of the cluster.

  Source: RLinf (arXiv 2509.15965), profiling-guided scheduling.
  """
  del seed
  competing = max(1, units.num_contested(workflow, profile, cluster))
  limit = budget.iterations * _COMPARISONS_PER_ITERATION
  resolution = _resolution(graphs.collapse(workflow), competing, limit)
  options = units.of(workflow, profile, cluster, resolution)
  shares = options.pools
  is_whole = competing == 1 and resolution == _MAX_RESOLUTION
  found = _labels(options, shares)
  for _ in range(1 if is_whole else _MAX_ROUNDS):
    if not found:
      break
    keys = list(_keys(found[0], shares.full))
    # All counts near the best ones, or where that is too much, some.
    finer = (
      shares.refined(keys, _REFINEMENT) if is_whole else shares.narrowed(keys)
    )
    if finer == shares:
      break
    shares, before = finer, found[0].total_ns
    found = sorted([*_labels(options, shares), *found], key=_total)
    if found[0].total_ns == before:
      break
  return selection.best(
    (
      TreePlan(root=_node(options, label, cluster.devices), label="rlinf_dp")
      for label in found[: 1 + budget.iterations]
    ),
    workflow,
    profile,
    cluster,
    Budget(iterations=1),
  )


def _resolution(graph: Graph, competing: int, limit: int) -> int:
  """Returns how many counts of each class keep the search within a limit.

  Each cut of each subgraph is compared for every stream, every share, and on
  each share about twice as many divisions.
  """
  pairs = limit / (len(_STREAMS) * max(1, graphs.num_cuts(graph)))
  counts = (pairs / 2**competing) ** (1 / (2 * competing))
  return max(_MIN_RESOLUTION, min(_MAX_RESOLUTION, int(counts)))


def _labels(options: Options, shares: Pools) -> list[Label]:
  """Returns a label of the whole workflow for each stream, the best first."""
  everyone = (1 << len(options.graph.units)) - 1
  programme = _Programme(options, shares)
  found = [programme.free(everyone, shares.full)]
  found += [programme.best(everyone, shares.full, s) for s in programme.streams]
  return sorted({id(f): f for f in found if f is not None}.values(), key=_total)


class _Programme:
  """The recursion, each subgraph on each share solved once.

  Inside a pipeline all stages have the same number of granules, the stream;
  what takes turns with the rest of the workflow is free to choose its own.

  Attributes:
    streams: that are tried.
  """

  def __init__(self, options: Options, shares: Pools):
    self._options, self._shares = options, shares
    stages = options.modes.workflow.stages
    self.streams = granules.distinct(stages, _STREAMS)
    self._memory = [
      options.modes.device_class(i).memory_bytes
      for i in range(len(shares.pools))
    ]
    self._cuts: dict[int, tuple[_Cut, ...]] = {}
    self._splits: dict[object, list[tuple[Key, Key]]] = {}
    self._bounds: dict[tuple[int, Key], float] = {}
    self._known: dict[tuple[int, int], dict[Key, Label | None]] = {}

  def free(self, graph: int, key: Key) -> Label | None:
    """Returns the best label with any stream."""
    known = self._known.setdefault((graph, 0), {})
    if key not in known:
      found = [self.best(graph, key, stream) for stream in self.streams]
      for cut in self._cuts_of(graph):
        found.append(
          self._in_turn(
            self._either(cut.first, key, 0, self.free(cut.first, key)),
            self._either(cut.second, key, 0, self.free(cut.second, key)),
            key,
          )
        )
      known[key] = min((f for f in found if f), key=_total, default=None)
    return known[key]

  def best(self, graph: int, key: Key, stream: int) -> Label | None:
    """Returns the best label with about so many granules.

    Args:
      graph: a bit mask of units.
      key: the share.
      stream: how many granules.
    """
    known = self._known.setdefault((graph, stream), {})
    if key not in known:
      known[key] = self._solved(graph, key, stream)
    return known[key]

  def _solved(self, graph: int, key: Key, stream: int) -> Label | None:
    if graph & (graph - 1) == 0:
      return self._leaf(graph, key, stream, swaps=0)
    best: Label | None = None
    for cut in self._cuts_of(graph):
      label = self._in_turn(
        self._either(cut.first, key, stream, self.best(cut.first, key, stream)),
        self._either(
          cut.second, key, stream, self.best(cut.second, key, stream)
        ),
        key,
      )
      if label and (best is None or label.total_ns < best.total_ns):
        best = label
    for cut in self._cuts_of(graph):
      if cut.is_joined or cut.first < cut.second:
        best = self._side_by_side(cut, key, stream, best)
    return best

  def _leaf(
    self, graph: int, key: Key, stream: int, *, swaps: int
  ) -> Label | None:
    unit = self._options.graph.units[graph.bit_length() - 1]
    option = self._options.of_stream(unit, key, stream, swaps=swaps)
    if option is None:
      return None
    kept, peak = [0] * len(key), [0] * len(key)
    for mode in option.modes:
      at, is_shared = mode.pool, option.is_shared
      state = mode.state_bytes + (kept[at] if is_shared else 0)
      kept[at] = max(kept[at], state)
      peak[at] = max(peak[at], state + mode.transient_bytes)
    if option.is_shared:
      largest = max(mode.transient_bytes for mode in option.modes)
      peak = [state + (largest if state else 0) for state in kept]
    return Label(
      emits=option.emits,
      last_ns=option.last_ns,
      kept_bytes=tuple(kept),
      peak_bytes=tuple(peak),
      swap_ns=2 * option.swap_ns,
      option=option,
    )

  def _either(
    self, graph: int, key: Key, stream: int, best: Label | None
  ) -> tuple[Label, ...]:
    """Returns a label, and of a single unit one that is swapped in less time.

    The latter may use more devices for a copy of the state, or a smaller
    granule, and take its turn for longer.
    """
    if best is None:
      return ()
    if best.option is None:
      return (best,)
    light = self._leaf(graph, key, max(1, stream), swaps=2)
    return (best,) if light is None else (best, light)

  def _in_turn(
    self, firsts: tuple[Label, ...], seconds: tuple[Label, ...], key: Key
  ) -> Label | None:
    found = [
      label
      for first, second in itertools.product(firsts, seconds)
      if (label := self._joined(first, second, key)) is not None
    ]
    return min(found, key=_total, default=None)

  def _joined(self, first: Label, second: Label, key: Key) -> Label | None:
    switch = self._switch(first, second)
    if switch is None:
      return None
    kept, peak, swap_ns, switch_ns = switch
    begin = first.total_ns + switch_ns
    return Label(
      emits=tuple((x, begin + ns) for x, ns in second.emits),
      last_ns=first.last_ns + switch_ns + second.total_ns,
      kept_bytes=kept,
      peak_bytes=peak,
      swap_ns=swap_ns,
      parts=((first, key), (second, key)),
    )

  def _switch(
    self, first: Label, second: Label
  ) -> tuple[tuple[int, ...], tuple[int, ...], int, int] | None:
    """Returns kept and peak bytes, the swap that remains, and the switch."""
    best = None
    pair = (first.swap_ns, second.swap_ns)
    for is_out in ((0, 0), (1, 0), (0, 1), (1, 1)):
      switch_ns = sum(ns for ns, out in zip(pair, is_out) if out)
      if best is not None and switch_ns >= best[3]:
        continue
      kept, peak = [], []
      for a, b, x, y in zip(
        first.kept_bytes,
        second.kept_bytes,
        first.peak_bytes,
        second.peak_bytes,
      ):
        stays = (0 if is_out[0] else a, 0 if is_out[1] else b)
        kept.append(sum(stays))
        peak.append(max(x + stays[1], y + stays[0]))
      if all(p <= memory for p, memory in zip(peak, self._memory)):
        best = tuple(kept), tuple(peak), sum(pair) - switch_ns, switch_ns
    return best

  def _side_by_side(
    self, cut: _Cut, key: Key, stream: int, best: Label | None
  ) -> Label | None:
    """Returns the best division between a cut's sides, or what was better."""
    firsts = self._known.setdefault((cut.first, stream), {})
    seconds = self._known.setdefault((cut.second, stream), {})
    bound: float = best.total_ns if best else math.inf
    chosen: tuple[Label, Key, Label, Key] | None = None
    for own, rest in self._splits_of(cut, key):
      if self._bound_ns(cut.first, own) >= bound:
        continue
      if self._bound_ns(cut.second, rest) >= bound:
        continue
      if own not in firsts:
        self.best(cut.first, own, stream)
      first = firsts[own]
      if first is None or first.total_ns >= bound:
        continue
      if rest not in seconds:
        self.best(cut.second, rest, stream)
      second = seconds[rest]
      if second is None or second.total_ns >= bound:
        continue
      total = _together_ns(cut, first, second)
      if total < bound:
        bound, chosen = total, (first, own, second, rest)
    return _beside(cut, *chosen) if chosen else best

  def _bound_ns(self, graph: int, key: Key) -> float:
    """Returns a time that a subgraph's decodes take at least."""
    at = (graph, key)
    if at not in self._bounds:
      self._bounds[at] = max(
        self._options.bound_ns(unit, key)
        for i, unit in enumerate(self._options.graph.units)
        if graph >> i & 1
      )
    return self._bounds[at]

  def _splits_of(self, cut: _Cut, key: Key) -> list[tuple[Key, Key]]:
    """Returns divisions of a key, the even ones first: they bound others."""
    at = (key, cut.first_pools, cut.second_pools, cut.needed)
    if at not in self._splits:
      found = self._shares.splits(
        key,
        cut.first_pools,
        cut.second_pools,
        needed=cut.needed,
      )
      self._splits[at] = sorted(
        found, key=lambda s: sum(abs(a - b) for a, b in zip(*s))
      )
    return self._splits[at]

  def _cuts_of(self, graph: int) -> tuple[_Cut, ...]:
    if graph not in self._cuts:
      self._cuts[graph] = tuple(_cuts(self._options, graph))
    return self._cuts[graph]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Cut:
  """A division of a subgraph.

  Attributes:
    first: a bit mask of units, which read nothing from the others.
    second: the others.
    first_pools: device classes that the first can use.
    second_pools: those that the second can use.
    needed: those that neither can do without.
    is_joined: whether the second reads from the first.
    is_whole: whether it needs whole batches only.
  """

  first: int
  second: int
  first_pools: frozenset[int]
  second_pools: frozenset[int]
  needed: frozenset[int]
  is_joined: bool
  is_whole: bool


def _cuts(options: Options, graph: int) -> Iterator[_Cut]:
  units_in = [i for i in range(graph.bit_length()) if graph >> i & 1]
  for first in graphs.downsets(options.graph, graph):
    sides = [i for i in units_in if first >> i & 1]
    others = [i for i in units_in if not first >> i & 1]
    joins = [
      (s, t) for s in sides for t in options.graph.readers[s] if t in others
    ]
    yield _Cut(
      first=first,
      second=graph ^ first,
      first_pools=options.pools_of_all(sides),
      second_pools=options.pools_of_all(others),
      needed=options.needed(sides) & options.needed(others),
      is_joined=bool(joins),
      is_whole=all(pair in options.graph.waits for pair in joins),
    )


def _beside(
  cut: _Cut, first: Label, own: Key, second: Label, rest: Key
) -> Label:
  if not cut.is_joined:
    longer = max(first, second, key=_total)
    emits, last_ns = longer.emits, max(first.last_ns, second.last_ns)
  elif cut.is_whole:
    emits = tuple((x, first.total_ns + ns) for x, ns in second.emits)
    last_ns = first.last_ns + second.total_ns
  else:
    begin = first.emits[0][1]
    emits = parts.after(begin, second.emits, second.last_ns, [first.emits])
    last_ns = min(emits[-1][1], first.last_ns + second.last_ns)
  return Label(
    emits=emits,
    last_ns=last_ns,
    kept_bytes=tuple(map(max, first.kept_bytes, second.kept_bytes)),
    peak_bytes=tuple(map(max, first.peak_bytes, second.peak_bytes)),
    swap_ns=max(first.swap_ns, second.swap_ns),
    parts=((first, own), (second, rest)),
    is_spatial=True,
  )


def _together_ns(cut: _Cut, first: Label, second: Label) -> int:
  """Returns the time of both side by side."""
  if not cut.is_joined:
    return max(first.total_ns, second.total_ns)
  whole_ns, last_ns = second.total_ns, second.last_ns
  if cut.is_whole:
    return first.total_ns + whole_ns
  length = first.emits[0][1] + whole_ns
  for x, ns in first.emits:
    rest_ns = round((1 - x) * whole_ns) + last_ns
    length = max(length, ns + min(whole_ns, rest_ns))
  return length


def _total(label: Label) -> int:
  return label.total_ns


def _keys(label: Label, key: Key) -> Iterator[Key]:
  yield key
  for part, share in label.parts:
    yield from _keys(part, share)


def _node(options: Options, label: Label, within: Devices) -> Node:
  """Returns a label as a tree on devices out of a share's."""
  if label.option is not None:
    return options.node(label.option, within)
  children: list[Node] = []
  for part, key in label.parts:
    node = _node(options, part, options.pools.choose(key, within))
    if label.is_spatial:
      within = within - options.pools.choose(key, within)
    kind = Spatial if label.is_spatial else Temporal
    children += node.children if isinstance(node, kind) else (node,)
  if label.is_spatial:
    return Spatial(children=tuple(children))
  return Temporal(children=tuple(children))
