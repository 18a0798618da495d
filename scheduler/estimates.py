"""The time of a tree in closed form, for planners that try very many.

A tree is walked Run by Run, not granule by granule. A Run begins when its
devices are free and the items of its first granule are there. It ends when it
has handled all granules one after another, or its last granule, counted from
when the last items that it reads are there, whichever is later. For granules
that all take equally long this is head + (M - 1) * bottleneck + tail, exactly.
The first granule of a decode is there only after its longest member.

What is neglected:
- between a Run's first and last granule it is taken to keep an even pace, so
  that unequal granules in the middle may wait longer or shorter than it says;
- the capacity of channels, and memory;
- with staleness, most circuits that lead through several iterations: what
  counts is how long an iteration keeps each set of devices (under a Spatial
  root, were what it reads of other children there from the start) and each
  link, and an iteration's length over the iterations alive;
- in a loop, lanes that wait for each other in any but the first turn;
- whether the tree fits its workflow: `lowering.lower` checks that.
"""

from __future__ import annotations

import bisect
from collections.abc import Container, Iterable, Iterator, Sequence

from scheduler import durations, prices
from scheduler.clusters import Cluster
from scheduler.devices import Devices
from scheduler.lowering import tracks, turns
from scheduler.plans import Lanes, Node, Run, Spatial, Temporal, TreePlan, runs
from scheduler.prices import Interval, Prices
from scheduler.profiles import Profile
from scheduler.workflows import Edge, WeightSync, Workflow


def estimate_s(
  plan: TreePlan,
  workflow: Workflow,
  profile: Profile,
  cluster: Cluster,
  *,
  seed: int = 0,
) -> float:
  """Returns about how many seconds an iteration of a tree takes.

  Args:
    plan: a tree that fits the workflow.
    workflow: what is planned.
    profile: its durations.
    cluster: on what.
    seed: of lengths that vary.

  Raises:
    ProfileError: the profile lacks what the tree uses.
  """
  costs = prices.of(workflow, profile, cluster, seed=seed)
  whole = _Walk(plan, costs)
  whole.visit(plan.root, None)
  if workflow.staleness == 0:
    return whole.iteration_ns() * 1e-9
  period_ns = whole.iteration_ns() / (1 + workflow.staleness)
  period_ns = max(period_ns, whole.links_ns())
  for part in _side_by_side(plan.root):
    walk = whole
    if part is not plan.root:
      walk = _Walk(plan, costs)
      walk.visit(part, None)
    period_ns = max(period_ns, walk.devices_ns())
  return period_ns * 1e-9


def _side_by_side(node: Node) -> Iterator[Node]:
  """Yields the parts of a tree that may work on different iterations."""
  if isinstance(node, Spatial):
    for child in node.children:
      yield from _side_by_side(child)
  else:
    yield node


class _Visit:
  """A stretch in which a Run has its devices.

  Attributes:
    begin: first item.
    begin_ns: when its first granule begins.
    stop_ns: when its last granule is done.
    stops: last item of each granule, plus one.
    ends_ns: when each is done, were none kept waiting, from the beginning.
  """

  __slots__ = ("begin", "begin_ns", "ends_ns", "stop_ns", "stops")

  def __init__(
    self,
    begin: int,
    begin_ns: int,
    stop_ns: int,
    stops: Sequence[int],
    ends_ns: Sequence[int],
  ):
    self.begin, self.begin_ns, self.stop_ns = begin, begin_ns, stop_ns
    self.stops, self.ends_ns = stops, ends_ns

  def ready(self, item: int) -> tuple[int, int]:
    """Returns when the granule that holds `item - 1` is done, and its index."""
    last = len(self.stops) - 1
    k = min(bisect.bisect_left(self.stops, item), last)
    if k == last:
      return self.stop_ns, k
    waited = self.stop_ns - self.begin_ns - self.ends_ns[-1]
    return self.begin_ns + self.ends_ns[k] + waited * k // last, k


class _Writer:
  """The visits of one Run, in the order of their items."""

  __slots__ = ("run", "starts", "visits")

  def __init__(self, run: Run):
    self.run = run
    self.starts: list[int] = []
    self.visits: list[_Visit] = []

  def before(self, item: int) -> _Visit | None:
    """Returns the visit that emits the last of its items before `item`."""
    k = bisect.bisect_left(self.starts, item) - 1
    return self.visits[k] if k >= 0 else None


class _Walk:
  """The time so far on each atom, and what each stage has done."""

  def __init__(self, plan: TreePlan, costs: Prices):
    self._costs, self._copies = costs, plan.copies
    self._runs = tuple(runs(plan.root))
    sets = tuple(run.devices for run in self._runs)
    self._atoms, parts = costs.atoms(sets)
    self._parts = dict(zip(sets, parts))
    self._free = [0] * len(self._atoms)
    self._begun = [-1] * len(self._atoms)
    self._ahead = 0
    self._latency = durations.to_ns(costs.cluster.links.latency_s)
    self._links: dict[tuple[str, Devices, Devices], int] = {}
    self._writers: dict[str, dict[int, _Writer]] = {s: {} for s in costs.stages}
    self._synced: dict[tuple[str, str], Devices] = {}
    self._devices = {run.stage: run.devices for run in self._runs}

  def iteration_ns(self) -> int:
    """Returns the time from the start of an iteration to its end."""
    return max(self._free) + self._ahead

  def devices_ns(self) -> int:
    """Returns the longest that one iteration keeps devices."""
    return max(
      end - start for end, start in zip(self._free, self._begun) if start >= 0
    )

  def links_ns(self) -> int:
    """Returns the longest that one iteration keeps a link."""
    return max(self._links.values(), default=0)

  def visit(self, node: Node, window: turns.Window | None) -> None:
    """Adds a subtree, or a turn of it."""
    if isinstance(node, Run):
      self._visit_run(node, window)
    elif isinstance(node, Lanes):
      self._visit_lanes(node)
    else:
      each: Iterable[turns.Window | None] = (window,)
      if isinstance(node, Temporal) and node.turn is not None:
        each = turns.windows(node, node.turn, window, self._costs)
      for inner in each:
        for child in node.children:
          self.visit(child, inner)

  def _visit_run(self, run: Run, window: turns.Window | None) -> None:
    low, high = self._costs.share(run)
    if window is not None:
      start, stop = window[run.stage]
      low, high = max(low, start), min(high, stop)
    if low >= high:
      return
    granules = self._costs.granules(run, (low, high))
    self._swap_in(run)
    begin = self._free_at(run)
    first, last = self._arrivals(run, granules.stops)
    ends = granules.ends_ns
    begin = max(begin, first)
    if self._writers[run.stage]:
      begin = max(begin, self._left_off(run, low))
    self._begin(run, begin)
    stop = max(begin + ends[-1], last + granules.durations_ns[-1])
    self._add(run, _Visit(low, begin, stop, granules.stops, ends))
    self._end(run, stop)

  def _left_off(self, run: Run, low: int) -> int:
    """Returns when other Runs of the stage have done what this one needs."""
    stage = self._costs.stages[run.stage]
    size = stage.items // stage.updates
    goal = low // size * size if run.cohort is None else low
    done = 0
    for writer in self._writers[run.stage].values():
      if writer.run is not run and (visit := writer.before(goal)):
        if run.cohort is None or run.cohort == writer.run.cohort:
          done = max(done, visit.ready(goal)[0])
    return done

  def _begin(self, run: Run, at: int) -> None:
    for i in self._parts[run.devices]:
      if self._begun[i] < 0:
        self._begun[i] = at

  def _swap_in(self, run: Run) -> None:
    if not run.is_resident:
      for i, swap_ns in zip(self._parts[run.devices], self._swaps(run)):
        if swap_ns and self._begun[i] < 0:
          self._begun[i] = self._free[i]
        self._free[i] += swap_ns

  def _free_at(self, run: Run) -> int:
    """Returns when a Run's devices are free, and have the weights."""
    begin = max([self._free[i] for i in self._parts[run.devices]])
    for sync in self._costs.syncs_into[run.stage]:
      begin = self._sync(run, sync, begin)
    return begin

  def _sync(self, run: Run, sync: WeightSync, begin: int) -> int:
    key = (sync.source, sync.target)
    synced = self._synced.get(key, Devices())
    if run.devices.issubset(synced):
      return begin
    self._synced[key] = synced | run.devices
    source = self._costs.union(
      tuple(r.devices for r in self._runs if r.stage == sync.source)
    )
    sync_ns = self._costs.sync_ns(
      source, run.devices, sync.num_bytes, run.config.devices
    )
    if run.stage in self._copies:
      self._links["weights", source, run.devices] = sync_ns
      if self._costs.workflow.staleness == 0:
        return max(begin, sync_ns)
      # It is on its way while earlier iterations have the devices.
      self._ahead = max(self._ahead, sync_ns - begin)
      return begin
    if sync_ns:
      self._begin(run, begin)
    return begin + sync_ns

  def _end(self, run: Run, stop: int) -> None:
    part = self._parts[run.devices]
    swaps = (0,) * len(part) if run.is_resident else self._swaps(run)
    for i, swap_ns in zip(part, swaps):
      self._free[i] = stop + swap_ns

  def _swaps(self, run: Run) -> list[int]:
    num_bytes = self._costs.state_bytes(run)
    return [
      self._costs.swap_ns(self._atoms[i], num_bytes)
      for i in self._parts[run.devices]
    ]

  def _add(self, run: Run, visit: _Visit) -> None:
    writers = self._writers[run.stage]
    writer = writers.get(id(run))
    if writer is None:
      writer = writers[id(run)] = _Writer(run)
    writer.starts.append(visit.begin)
    writer.visits.append(visit)

  def _arrivals(
    self, run: Run, stops: Sequence[int], *, skip: Container[str] = ()
  ) -> tuple[int, int]:
    """Returns when a Run's first and its last granule have their items."""
    first = last = 0
    cohort = None if skip else self._costs.cohort(run)
    ends = (stops[0], stops[-1]) if cohort is None else cohort[1:]
    target = self._costs.stages[run.stage]
    for edge in self._costs.edges_into[run.stage]:
      if edge.source in skip:
        continue
      source = self._costs.stages[edge.source]
      needs = [source.items]
      if not target.needs_all:
        needs = [
          tracks.needed(edge, source, target, (0, stop))[1] for stop in ends
        ]
      for writer in self._writers[edge.source].values():
        first = max(first, self._arrival(edge, writer, run, needs[0]))
        last = max(last, self._arrival(edge, writer, run, needs[-1]))
    return first, last

  def _arrival(self, edge: Edge, writer: _Writer, run: Run, item: int) -> int:
    """Returns when all items before `item` of a Run are at another."""
    visit = writer.before(item)
    if visit is None:
      return 0
    done, k = visit.ready(item)
    source, target = writer.run.devices, run.devices
    if edge.item_bytes == 0 or source == target:
      return done
    begin = visit.stops[k - 1] if k else visit.begin
    last = (visit.stops[k] - begin) * edge.item_bytes
    every = (visit.stops[k] - visit.begin) * edge.item_bytes
    move_ns = self._costs.edge_ns(source, target, last)
    moved_ns = move_ns
    if k:
      moved_ns = self._costs.edge_ns(source, target, every) + k * self._latency
    key = ("items", source, target)
    self._links[key] = max(moved_ns, self._links.get(key, 0))
    return max(done + move_ns, visit.begin_ns + visit.ends_ns[0] + moved_ns)

  def _visit_lanes(self, lanes: Lanes) -> None:
    """Adds a loop: its first turn, and the others at an even pace."""
    loop = next(x for x in self._costs.workflow.loops if x.name == lanes.loop)
    body = list(runs(lanes.body))
    begins = {run.stage: self._free_at(run) for run in body}
    load = [0] * len(self._atoms)
    ends: dict[str, list[int]] = {run.stage: [] for run in body}
    slowest = 0
    for span in tracks.lane_spans(lanes):
      paths: dict[str, tuple[int, int]] = {}
      for run in body:
        lane_ns = self._costs.lane(run, span)
        if not run.is_resident:
          lane_ns += 2 * max(self._swaps(run))
        begin, path = self._lane(run, span, ends, paths)
        if not ends[run.stage]:
          begins[run.stage] = begin = max(begin, begins[run.stage])
        begin = max([begin, *(self._free[i] for i in self._parts[run.devices])])
        self._begin(run, begin)
        for i in self._parts[run.devices]:
          self._free[i] = begin + lane_ns
          load[i] += lane_ns
        ends[run.stage].append(begin + lane_ns)
        paths[run.stage] = (path, path + lane_ns)
      for edge in self._costs.workflow.edges:
        if edge.source in paths and edge.target in paths:
          if self._costs.workflow.is_back_edge(edge):
            moved = self._lane_move_ns(edge, span)
            circuit = paths[edge.source][1] + moved - paths[edge.target][0]
            slowest = max(slowest, circuit)
    rest = (loop.turns - 1) * max(slowest, *load)
    stops = [stop for _, stop in tracks.lane_spans(lanes)]
    for run in body:
      begin, done = begins[run.stage], [e + rest for e in ends[run.stage]]
      since = [e - begin for e in done]
      self._add(run, _Visit(0, begin, done[-1], stops, since))
    for i, work in enumerate(load):
      if work:
        self._free[i] += rest

  def _lane(
    self,
    run: Run,
    span: Interval,
    ends: dict[str, list[int]],
    paths: dict[str, tuple[int, int]],
  ) -> tuple[int, int]:
    """Returns when a lane has its items, and when it had if it were alone."""
    begin, _ = self._arrivals(run, span[1:], skip=ends)
    path = 0
    for edge in self._costs.edges_into[run.stage]:
      if edge.source in paths:
        moved = self._lane_move_ns(edge, span)
        begin = max(begin, ends[edge.source][-1] + moved)
        path = max(path, paths[edge.source][1] + moved)
    return begin, path

  def _lane_move_ns(self, edge: Edge, span: Interval) -> int:
    source, target = self._devices[edge.source], self._devices[edge.target]
    num_bytes = (span[1] - span[0]) * edge.item_bytes
    return self._costs.edge_ns(source, target, num_bytes)
