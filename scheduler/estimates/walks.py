"""One walk through a tree, Run by Run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from scheduler import durations, plans
from scheduler.devices import Devices
from scheduler.estimates import visits
from scheduler.lowering import tracks, turns
from scheduler.plans import Lanes, Node, Run, Temporal, TreePlan
from scheduler.prices import Granules, Interval, Prices
from scheduler.workflows import Edge, WeightSync


class Walk:
  """The time so far on each atom, and what each stage has done."""

  def __init__(self, plan: TreePlan, costs: Prices):
    self._costs, self._copies = costs, plan.copies
    self._runs = tuple(plans.runs(plan.root))
    sets = tuple(run.devices for run in self._runs)
    self._atoms, parts = costs.atoms(sets)
    self._parts = {id(r): part for r, part in zip(self._runs, parts)}
    self._free = [0] * len(self._atoms)
    self._begun = [-1] * len(self._atoms)
    self._ahead = 0
    self._latency = durations.to_ns(costs.cluster.links.latency_s)
    self._longest_link_ns = 0
    self._writers: dict[str, dict[int, visits.Writer]] = {
      s: {} for s in costs.stages
    }
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
    return self._longest_link_ns

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
    if self._writers[run.stage]:
      begin = max(begin, self._left_off(run, low))
    begin, waits = self._waits(run, granules, begin)
    self._begin(run, begin)
    self._add(
      run, visits.Visit(low, begin, granules.stops, granules.ends_ns, waits)
    )
    self._end(run, begin + granules.ends_ns[-1] + waits[-1])

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
    for i in self._parts[id(run)]:
      if self._begun[i] < 0:
        self._begun[i] = at

  def _swap_in(self, run: Run) -> None:
    if not run.is_resident:
      for i, swap_ns in zip(self._parts[id(run)], self._swaps(run)):
        if swap_ns and self._begun[i] < 0:
          self._begun[i] = self._free[i]
        self._free[i] += swap_ns

  def _free_at(self, run: Run) -> int:
    """Returns when a Run's devices are free, and have the weights."""
    begin = max([self._free[i] for i in self._parts[id(run)]])
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
      self._longest_link_ns = max(self._longest_link_ns, sync_ns)
      if self._costs.workflow.staleness == 0:
        return max(begin, sync_ns)
      # It is on its way while earlier iterations have the devices.
      self._ahead = max(self._ahead, sync_ns - begin)
      return begin
    if sync_ns:
      self._begin(run, begin)
    return begin + sync_ns

  def _end(self, run: Run, stop: int) -> None:
    part = self._parts[id(run)]
    swaps = (0,) * len(part) if run.is_resident else self._swaps(run)
    for i, swap_ns in zip(part, swaps):
      self._free[i] = stop + swap_ns

  def _swaps(self, run: Run) -> list[int]:
    num_bytes = self._costs.state_bytes(run)
    return [
      self._costs.swap_ns(self._atoms[i], num_bytes)
      for i in self._parts[id(run)]
    ]

  def _add(self, run: Run, visit: visits.Visit) -> None:
    writers = self._writers[run.stage]
    writer = writers.get(id(run))
    if writer is None:
      writer = writers[id(run)] = visits.Writer(run)
    writer.starts.append(visit.begin)
    writer.visits.append(visit)

  def _waits(
    self, run: Run, granules: Granules, begin: int
  ) -> tuple[int, list[int]]:
    """Returns when a Run begins, and how long its samples are kept waiting."""
    samples = visits.samples(len(granules.stops))
    arrivals = [begin] * len(samples)
    for edge in self._costs.edges_into[run.stage]:
      needs: Sequence[int] = ()
      for writer in self._writers[edge.source].values():
        item_ns = self._item_ns(edge, writer.run, run)
        if item_ns == 0 and writer.visits[-1].stop_ns <= begin:
          continue  # all is there: they took turns
        needs = needs or self._needs(edge, run, granules)
        for i, k in enumerate(samples):
          arrival = self._arrival(writer, needs[k], item_ns)
          if arrival > arrivals[i]:
            arrivals[i] = arrival
    begin, waited, waits = arrivals[0], 0, [0]
    for k, arrival in zip(samples[1:], arrivals[1:]):
      waited = max(waited, arrival - begin - granules.ends_ns[k - 1])
      waits.append(waited)
    return begin, waits

  def _needs(self, edge: Edge, run: Run, granules: Granules) -> tuple[int, ...]:
    """Returns how many items are there before each granule starts."""
    cohort = self._costs.cohort(run)
    return self._costs.recall(
      ("needs", id(granules), edge.source),
      lambda: tuple(
        self._need(edge, cohort[1] if cohort else stop)
        for stop in granules.stops
      ),
    )

  def _need(self, edge: Edge, stop: int) -> int:
    source = self._costs.stages[edge.source]
    target = self._costs.stages[edge.target]
    if target.needs_all:
      return source.items
    return tracks.needed(edge, source, target, (0, stop))[1]

  def _item_ns(self, edge: Edge, source: Run, target: Run) -> float:
    """Returns how long a link is busy with an item, but for its latency."""
    if edge.item_bytes == 0 or source.devices == target.devices:
      return 0.0
    items = self._costs.stages[edge.source].items
    every_ns = self._costs.edge_ns(
      source.devices, target.devices, items * edge.item_bytes
    )
    return (every_ns - self._latency) / items

  def _arrival(self, writer: visits.Writer, item: int, item_ns: float) -> int:
    """Returns when all items before `item` of a Run are where they are read."""
    visit = writer.before(item)
    if visit is None:
      return 0
    done, k = visit.ready(item)
    if item_ns == 0:
      return done
    stops = visit.stops
    begin = stops[k - 1] if k else visit.begin
    last_ns = self._latency + round((stops[k] - begin) * item_ns)
    every_ns = round((stops[k] - visit.begin) * item_ns)
    every_ns += (k + 1) * self._latency
    self._longest_link_ns = max(self._longest_link_ns, every_ns)
    return max(done + last_ns, visit.begin_ns + visit.ends_ns[0] + every_ns)

  def _visit_lanes(self, lanes: Lanes) -> None:
    """Adds a loop: its first turn, and the others at an even pace."""
    loop = next(x for x in self._costs.workflow.loops if x.name == lanes.loop)
    body = list(plans.runs(lanes.body))
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
        begin = max([begin, *(self._free[i] for i in self._parts[id(run)])])
        self._begin(run, begin)
        for i in self._parts[id(run)]:
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
      self._add(run, visits.Visit(0, begin, stops, since, [0] * len(since)))
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
    begin = path = 0
    for edge in self._costs.edges_into[run.stage]:
      if edge.source in paths:
        moved = self._lane_move_ns(edge, span)
        begin = max(begin, ends[edge.source][-1] + moved)
        path = max(path, paths[edge.source][1] + moved)
      elif edge.source not in ends:
        need = self._need(edge, span[1])
        for writer in self._writers[edge.source].values():
          item_ns = self._item_ns(edge, writer.run, run)
          begin = max(begin, self._arrival(writer, need, item_ns))
    return begin, path

  def _lane_move_ns(self, edge: Edge, span: Interval) -> int:
    source, target = self._devices[edge.source], self._devices[edge.target]
    num_bytes = (span[1] - span[0]) * edge.item_bytes
    return self._costs.edge_ns(source, target, num_bytes)
