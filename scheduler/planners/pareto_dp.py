"""A dynamic programme over cuts that keeps every label which may win."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence

from scheduler import decoding, durations
from scheduler.clusters import Cluster
from scheduler.devices import Devices
from scheduler.planners import granules, labels, pools, selection
from scheduler.planners.labels import Label
from scheduler.planners.modes import Modes
from scheduler.planners.pools import Key, Pools
from scheduler.planners.protocol import Budget
from scheduler.planners.units import Option, Options, Unit
from scheduler.plans import Node, Spatial, Temporal, TreePlan, runs
from scheduler.profiles import ComputeLaw, Config, DecodeLaw, Profile
from scheduler.workflows import Stage, Workflow

STREAMS = (1, 2, 4, 8, 16, 32, 64)
# By units: up to so many devices of a class every count is tried; of more, so
# many counts. A first, coarse pass finds a period that others have to beat.
_MAX_EXACT = {1: 64, 2: 64, 3: 64, 4: 40, 5: 24}
_MAX_COUNTS = {1: 400, 2: 400, 3: 400, 4: 72, 5: 32}
_FEWEST, _COARSE = 16, 12
# Workflows of more units are cut only along one topological order.
_MAX_UNITS = 3
# Trees around which more counts are tried, and into how many steps the gaps
# there are divided.
_REFINED, _REFINEMENTS = 3, (16, 8, 4, 2, 1)


def pareto_dp(
  workflow: Workflow,
  profile: Profile,
  cluster: Cluster,
  budget: Budget,
  seed: int,
) -> TreePlan:
  """Returns the best tree by the closed form of `labels`.

  A subgraph on n devices is cut in two, which take turns, once or granule by
  granule, or divide the devices; loops are collapsed. For each number of
  granules the programme keeps the labels that no other dominates and that may
  still beat all stages in turn. On chains it finds the best of all such trees,
  for the counts of devices that it tries: of at most 64 devices of one class
  all of them (the tree's label says "epsilon 0"), of more a series that grows
  by epsilon. A stage is then given at most a share of epsilon fewer devices
  than in the best tree; all counts near those of the best trees follow.

  Args:
    workflow: what is planned.
    profile: its durations.
    cluster: on what.
    budget: of trees that are evaluated, a quarter of its iterations.
    seed: not used; nothing is drawn.

  Raises:
    InfeasiblePlanError: a stage fits nowhere, or no tree that was found fits.
    ProfileError: a stage is profiled on no class of the cluster.
  """
  del seed
  options = Options(
    Modes(workflow, profile, cluster, pools.of_cluster(cluster, _FEWEST))
  )
  options.check()
  leaves = Leaves(options)
  found: list[Label] = []
  shares, epsilon = _shares(cluster, len(options.graph.units))
  for finer in (_thinned(shares, _COARSE), shares):
    found = _search(leaves, finer, found)
  if epsilon:
    keys = [k for label in found[:_REFINED] for k in _keys(label, shares.full)]
    most = _MAX_COUNTS.get(len(options.graph.units), _FEWEST)
    found = _search(leaves, _near(shares, keys, most), found)
  name = f"pareto_dp (epsilon {epsilon:.2g})"
  return selection.best(
    (
      TreePlan(root=_node(options, label, cluster.devices), label=name)
      for label in found
    ),
    workflow,
    profile,
    cluster,
    Budget(iterations=max(1, budget.iterations // 4)),
  )


def _search(leaves: Leaves, shares: Pools, found: list[Label]) -> list[Label]:
  """Returns labels of the whole workflow, with those found before."""
  workflow = leaves.options.modes.workflow
  limit_ns = objective_ns(found[0], workflow) + 1 if found else None
  found = found + Programme(leaves, shares, limit_ns).best()
  return sorted(found, key=lambda label: objective_ns(label, workflow))


def objective_ns(label: Label, workflow: Workflow) -> float:
  """Returns the period that the closed form gives the whole workflow."""
  alive = 1 + workflow.staleness
  if alive == 1:
    return label.total_ns
  return max(label.busy_ns, label.total_ns / alive)


class Leaves:
  """Options of single units, each priced once.

  Attributes:
    options: of the units, of which those of loops are used.
    streams: numbers of granules that differ for some stage.
  """

  def __init__(self, options: Options):
    self.options = options
    self._modes = options.modes
    cuts = {
      tuple(
        granules.of_stream(stage, stream)
        for stage in options.modes.workflow.stages
      ): stream
      for stream in reversed(STREAMS)
    }
    self.streams = tuple(sorted(cuts.values()))
    self._tokens: dict[str, int] = {}
    self._known: dict[tuple[str, int, int, Config, int], Option | None] = {}

  def of(self, unit: Unit, key: Key, stream: int) -> Iterator[Option]:
    """Yields a unit with about so many granules, in all configurations."""
    if unit.loop is not None:
      yield from self.options.of(unit, key)
      return
    stage = self._modes.workflow.stage(unit.name)
    granule = granules.of_stream(stage, stream)
    for p, entry in enumerate(key):
      for config in self._modes.configs(unit.name, p) if entry else ():
        for part in self._modes.keys(p, entry, config.devices):
          option = self._on(unit, stage, p, part, config, granule)
          if option is not None:
            yield option
            break

  def _on(
    self,
    unit: Unit,
    stage: Stage,
    p: int,
    key: int,
    config: Config,
    granule: int,
  ) -> Option | None:
    pool = self._modes.pools.pools[p]
    law = self._modes.profile.law(stage.name, pool.name, config)
    if isinstance(law, ComputeLaw) and pool.counts and pool.block == 1:
      key = _fewest_devices(stage, granule, key // config.devices)
      key *= config.devices
    at = (stage.name, p, key, config, granule)
    if at not in self._known:
      mode = self._modes.of_granule(stage.name, p, key, config, granule)
      self._known[at] = (
        None
        if mode is None
        else Option(
          unit=unit, modes=(mode,), emits=mode.emits, last_ns=mode.last_ns
        )
      )
    return self._known[at]

  def bound_ns(self, unit: Unit, key: Key) -> float:
    """Returns a bound of a decode's time that needs no simulation of it.

    Other units have none: 0.
    """
    if unit.loop is not None:
      return 0.0
    modes, least = self._modes, math.inf
    stage = modes.workflow.stage(unit.name)
    for p in sorted(self.options.pools_of(unit)):
      device, size = modes.device_class(p), modes.pools.size(key, p)
      for config in modes.configs(unit.name, p):
        law = modes.profile.law(unit.name, device.name, config)
        if not isinstance(law, DecodeLaw) or stage.lengths is None:
          return 0.0
        replicas = size // config.devices
        if replicas:
          # Never are more sequences decoded at once, nor with less context.
          active = min(law.max_active, -(-stage.items // replicas))
          context = stage.lengths.prompt_tokens
          token_s = law.token_s(active, context, device, config)
          time_s = self._num_tokens(stage) * token_s / (active * replicas)
          least = min(least, time_s * durations.NS_PER_S)
    return least

  def _num_tokens(self, stage: Stage) -> int:
    if stage.name not in self._tokens:
      seed = self._modes.prices.seed
      self._tokens[stage.name] = sum(decoding.draw_tokens(stage, seed))
    return self._tokens[stage.name]


def _fewest_devices(stage: Stage, granule: int, replicas: int) -> int:
  """Returns how many replicas take no longer for any granule than these."""
  batch = stage.items // stage.updates
  needed = 1
  for size in {min(granule, batch), batch % granule or granule}:
    each = -(-min(size, batch) // replicas)
    needed = max(needed, -(-min(size, batch) // each))
  return needed


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
    counts = self._shares.pools[0].counts
    few = [
      max(self._fewest_of(i) for i in range(g.bit_length()) if g >> i & 1)
      for g in (cut.first, cut.second)
    ]
    pairs = set()
    for count in counts[bisect.bisect_left(counts, min(few)) :]:
      if count >= whole:
        break
      rest = _floor(counts, whole - count)
      pairs |= {(count, rest), (rest, count)}
    return [
      ((first,), (second,))
      for first, second in sorted(pairs)
      if first >= few[0] and second >= few[1]
    ]

  def _fewest_of(self, i: int) -> int:
    """Returns the smallest count on which a unit may be fast enough."""
    if i not in self._fewest:
      counts = self._shares.pools[0].counts
      at = bisect.bisect_left(
        counts, True, key=lambda count: self._may_win(1 << i, (count,))
      )
      self._fewest[i] = counts[at] if at < len(counts) else counts[-1] + 1
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
      known = self._leaves.bound_ns(self._units[i], key)
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


def _shares(cluster: Cluster, num_units: int) -> tuple[Pools, float]:
  """Returns the devices with the counts to try, and by how much they grow."""
  num_pools = len(cluster.classes)
  exact = _MAX_EXACT.get(num_units, _FEWEST)
  most = _MAX_COUNTS.get(num_units, _FEWEST)
  if num_pools > 1:
    exact = most = max(4, int(most ** (1 / num_pools)))
  found = []
  for pool in pools.of_cluster(cluster, _FEWEST).pools:
    if pool.counts:
      whole = tuple(range(1, pool.full + 1))
      few = whole if pool.full <= exact else _series(pool.full, most)
      pool = dataclasses.replace(pool, counts=few)
    found.append(pool)
  shares = Pools(pools=tuple(found))
  return shares, _growth(shares)


def _thinned(shares: Pools, most: int) -> Pools:
  """Returns the same devices with at most about so many counts."""
  return Pools(
    pools=tuple(
      dataclasses.replace(pool, counts=_series(pool.full, most))
      if len(pool.counts) > most
      else pool
      for pool in shares.pools
    )
  )


def _near(shares: Pools, keys: Sequence[Key], most: int) -> Pools:
  """Returns the same devices with counts between the neighbours of keys.

  Args:
    shares: with the counts that were tried.
    keys: of the best trees.
    most: about so many counts of each class, or those of the keys alone.
  """
  found = []
  for i, pool in enumerate(shares.pools):
    if pool.counts:
      own = {key[i] for key in keys if key[i]}
      for refinement in _REFINEMENTS:
        counts = own | {pool.full}
        for count in own:
          at = bisect.bisect_left(pool.counts, count)
          low = pool.counts[max(0, at - 1)]
          high = pool.counts[min(len(pool.counts) - 1, at + 1)]
          step = max(1, (high - low) // refinement)
          counts |= {low, high, *range(low, high, step)}
        counts |= {pool.full - count for count in counts}
        if len(counts) <= most:
          break
      pool = dataclasses.replace(pool, counts=tuple(sorted(counts - {0})))
    found.append(pool)
  return Pools(pools=tuple(found))


def _series(full: int, most: int) -> tuple[int, ...]:
  """Returns about so many counts, growing by 2 % or, if need be, more."""
  growth = 1.02
  while True:
    counts, count = [], 1
    while count < full:
      counts.append(count)
      count = max(count + 1, int(count * growth))
    if len(counts) < most:
      return (*counts, full)
    growth = 1 + 1.25 * (growth - 1)


def _growth(shares: Pools) -> float:
  """Returns the most by which a count exceeds the one before, less one."""
  growths = [
    (b - 1) / a - 1
    for pool in shares.pools
    for a, b in itertools.pairwise(pool.counts)
  ]
  return max(growths, default=0.0)


def _floor(counts: Sequence[int], count: int) -> int:
  """Returns the largest of `counts` that is not above `count`, or 0."""
  at = bisect.bisect_right(counts, count)
  return counts[at - 1] if at else 0


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
    chosen = options.pools.choose(key, within)
    node = _node(options, part, chosen)
    if label.kind == "side by side":
      within = within - chosen
    children += _spliced(node, label)
  if label.kind == "side by side":
    return Spatial(children=tuple(children))
  turn = None
  if label.kind == "turns":
    first = next(runs(children[0]))
    turn = first.granule
  return Temporal(children=tuple(children), turn=turn)


def _spliced(node: Node, label: Label) -> tuple[Node, ...]:
  """Returns a part's own children where it is of the same kind."""
  if isinstance(node, Spatial) and label.kind == "side by side":
    return node.children
  if isinstance(node, Temporal):
    if label.kind == "turns" or (label.kind == "turn" and node.turn is None):
      return node.children
  return (node,)
