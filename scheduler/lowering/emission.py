"""Activities, in the order in which the tree puts them on each resource."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from scheduler import plans
from scheduler.devices import Devices
from scheduler.lowering import limits, shifts, tracks, turns
from scheduler.lowering.tracks import Layout, Track
from scheduler.plans import (
  Activity,
  ActivityKind,
  Lanes,
  Node,
  Run,
  Slot,
  Temporal,
  TreePlan,
)
from scheduler.prices import Interval, Prices
from scheduler.profiles import Config


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Route:
  """A track that reads a granule's items elsewhere.

  Attributes:
    target: that track.
    item_bytes: per item.
    link: index of the resource on which they move.
    span: the source's items that the target reads.
    is_inside: source and target are in one loop.
    is_back: the target reads them in the loop's next turn.
  """

  target: Track
  item_bytes: int
  link: int
  span: Interval
  is_inside: bool
  is_back: bool


class Emission:
  """Walks a tree and collects what it stands for.

  Attributes:
    activities: of the flat plan.
    links: names of links, with their indices among the resources.
    orders: for each resource its activities in order.
    moves: the transfer of a granule to a track, by the granule's activity and
      the track's identity.
  """

  def __init__(self, plan: TreePlan, layout: Layout, costs: Prices):
    self.activities: list[Activity] = []
    self.links: dict[str, int] = {}
    self.orders: list[list[int]] = [[] for _ in layout.atoms]
    self.moves: dict[tuple[int, int], int] = {}
    self._plan, self._layout, self._costs = plan, layout, costs
    self._shifts = shifts.pipeline_shifts(plan.root, costs)
    self._counts: dict[str, int] = {}
    self._synced: dict[tuple[str, str, Config], Devices] = {}
    self._place = {t.run.stage: i for i, t in enumerate(layout.tracks)}
    self._routes = {id(t): self._find_routes(t) for t in layout.tracks}
    self._visit(plan.root, None)

  def shift(self, index: int) -> int:
    """Returns by how many periods an activity's iteration is behind."""
    activity = self.activities[index]
    is_sync = activity.kind == "weight_sync"
    stage = activity.target if is_sync else activity.stage
    return self._shifts.get(stage, 0)

  def slots(self) -> tuple[tuple[Slot, ...], ...]:
    """Returns the cyclic order of every resource."""
    made = [
      Slot(activity=i, shift=self.shift(i) if self._shifts else 0)
      for i in range(len(self.activities))
    ]
    return tuple(tuple(made[i] for i in order) for order in self.orders)

  def _visit(self, node: Node, window: turns.Window | None) -> None:
    if isinstance(node, Run):
      self._visit_run(self._layout.of_run[id(node)], window)
    elif isinstance(node, Lanes):
      self._visit_lanes(node)
    else:
      each: Iterable[turns.Window | None] = (window,)
      if isinstance(node, Temporal) and node.turn is not None:
        each = turns.windows(node, node.turn, window, self._costs)
      for inner in each:
        for child in node.children:
          self._visit(child, inner)

  def _visit_run(self, track: Track, window: turns.Window | None) -> None:
    run, stage = track.run, track.stage
    low, high = track.share
    if window is not None:
      start, stop = window[stage.name]
      low, high = max(low, start), min(high, stop)
    if low >= high:
      return
    swapped = self._swap(track, "swap_in")
    self._sync(track)
    update = stage.items // stage.updates
    granules = self._costs.granules(run, (low, high))
    track.starts += granules.starts
    track.stops += granules.stops
    index = self._counts.get(stage.name, 0)
    self._counts[stage.name] = index + len(granules.starts)
    first, largest = len(self.activities), 0
    for start, stop, duration_ns in zip(
      granules.starts, granules.stops, granules.durations_ns
    ):
      made = self._compute(track, (start, stop), duration_ns, index)
      track.last.append(made)
      self._move(track, made, (start, stop), is_last=True)
      if stage.kind == "train" and stop % update == 0:
        self._apply(track, stop // update - 1)
      largest, index = max(largest, stop - start), index + 1
    track.first = track.last
    last = track.last[-1]
    self._swap_out(track, swapped)
    track.visits.append((first, last, largest))

  def _visit_lanes(self, lanes: Lanes) -> None:
    body = [self._layout.of_run[id(run)] for run in plans.runs(lanes.body)]
    num_turns = next(
      loop.turns
      for loop in self._costs.workflow.loops
      if loop.name == lanes.loop
    )
    spans = tracks.lane_spans(lanes)
    durations = {
      id(track): [self._costs.lane(track.run, span) for span in spans]
      for track in body
    }
    for turn in range(num_turns):
      is_last = turn + 1 == num_turns
      for track in body:
        track.turns.append([])
      for lane, span in enumerate(spans):
        for track in body:
          swapped = self._swap(track, "swap_in")
          if turn == lane == 0:
            self._sync(track)
          made = self._compute(track, span, durations[id(track)][lane], turn)
          track.turns[-1].append(made)
          self._move(track, made, span, is_last=is_last)
          self._swap_out(track, swapped)
          track.visits.append((made, made, span[1] - span[0]))
    for track in body:
      track.first, track.last = track.turns[0], track.turns[-1]
      track.starts = [start for start, _ in spans]
      track.stops = [stop for _, stop in spans]

  def _compute(
    self, track: Track, items: Interval, duration_ns: int, index: int
  ) -> int:
    run = track.run
    return self._add(
      Activity(
        kind="compute",
        stage=run.stage,
        resources=track.resources,
        duration_ns=duration_ns,
        items=items,
        index=index,
        config=run.config,
        cohort=track.cohort,
      )
    )

  def _apply(self, track: Track, update: int) -> None:
    track.applies[update] = self._add(
      Activity(
        kind="apply",
        stage=track.run.stage,
        resources=track.resources,
        duration_ns=0,
        index=update,
        config=track.run.config,
      )
    )

  def _swap(self, track: Track, kind: ActivityKind) -> list[int]:
    """Swaps a stage's state, where it does not stay; returns one per atom."""
    num_bytes = self._costs.state_bytes(track.run)
    if track.run.is_resident or num_bytes == 0:
      return []
    made = []
    for resource in track.resources:
      atom = self._layout.atoms[resource]
      made.append(
        self._add(
          Activity(
            kind=kind,
            stage=track.run.stage,
            resources=(resource,),
            duration_ns=self._costs.swap_ns(atom, num_bytes),
            index=len(track.visits),
            num_bytes=num_bytes * len(atom),
          )
        )
      )
    return made

  def _swap_out(self, track: Track, swapped: list[int]) -> None:
    if swapped:
      left = self._swap(track, "swap_out")
      track.swaps += zip(track.resources, swapped, left)

  def _sync(self, track: Track) -> None:
    """Brings new weights to devices that have none of this iteration."""
    run = track.run
    syncs = self._costs.syncs_into[run.stage]
    for sync in sorted(syncs, key=lambda sync: self._place[sync.source]):
      key = (sync.source, sync.target, run.config)
      synced = self._synced.get(key, Devices())
      if run.devices.issubset(synced):
        continue
      self._synced[key] = synced | run.devices
      source = self._costs.union(
        tuple(t.run.devices for t in self._layout.of_stage[sync.source])
      )
      duration_ns = self._costs.sync_ns(
        source, run.devices, sync.num_bytes, run.config.devices
      )
      if duration_ns == 0:
        continue
      is_copied = run.stage in self._plan.copies
      resources = () if is_copied else track.resources
      if is_copied or source != run.devices:
        link = self._link(f"weights {source} > {run.devices}")
        resources = (*resources, link)
      track.syncs[sync.source] = self._add(
        Activity(
          kind="weight_sync",
          stage=sync.source,
          target=sync.target,
          resources=resources,
          duration_ns=duration_ns,
          num_bytes=sync.num_bytes,
        )
      )

  def _move(
    self, track: Track, made: int, items: Interval, *, is_last: bool
  ) -> None:
    """Moves a granule's items to the devices of those that read them."""
    for route in self._routes[id(track)]:
      start, stop = max(items[0], route.span[0]), min(items[1], route.span[1])
      if start >= stop or is_last and route.is_back:
        continue
      if not is_last and not route.is_inside:
        continue
      num_bytes = (stop - start) * route.item_bytes
      self.moves[made, id(route.target)] = self._add(
        Activity(
          kind="transfer",
          stage=track.run.stage,
          target=route.target.run.stage,
          resources=(route.link,),
          duration_ns=self._costs.edge_ns(
            track.run.devices, route.target.run.devices, num_bytes
          ),
          items=(start, stop),
          index=self.activities[made].index,
          num_bytes=num_bytes,
        )
      )

  def _find_routes(self, track: Track) -> list[Route]:
    """Returns who reads a track's items elsewhere, in the tree's order."""
    workflow, own = self._costs.workflow, track.stage
    loop = workflow.loop_of(own.name)
    edges = {
      edge.target: edge
      for edge in workflow.edges
      if edge.source == own.name and edge.item_bytes
    }
    routes = []
    for target in self._layout.tracks if edges else ():
      edge = edges.get(target.run.stage)
      source, to = track.run.devices, target.run.devices
      if edge is None or not self._costs.edge_ns(source, to, edge.item_bytes):
        continue
      start, stop = tracks.received(edge, own, target)
      if start < track.share[1] and track.share[0] < stop:
        routes.append(
          Route(
            target=target,
            item_bytes=edge.item_bytes,
            link=self._link(f"{source} > {to}"),
            span=(start, stop),
            is_inside=loop is not None and edge.target in loop.stages,
            is_back=workflow.is_back_edge(edge),
          )
        )
    return routes

  def _add(self, activity: Activity) -> int:
    index = len(self.activities)
    if index >= limits.MAX_ACTIVITIES:
      raise limits.too_many(index + 1)
    self.activities.append(activity)
    for resource in activity.resources:
      self.orders[resource].append(index)
    return index

  def _link(self, name: str) -> int:
    if name not in self.links:
      self.links[name] = len(self.orders)
      self.orders.append([])
    return self.links[name]
