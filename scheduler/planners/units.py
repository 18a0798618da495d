"""Units: stages, and loops as one piece, on a share of the cluster."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator

from scheduler import decoding, durations, errors
from scheduler.clusters import Cluster
from scheduler.devices import Devices
from scheduler.planners import granules, graphs, pools
from scheduler.planners.graphs import Unit
from scheduler.planners.modes import Emits, Mode, Modes
from scheduler.planners.pools import Key
from scheduler.plans import Lanes, Node, Run, Spatial, Temporal
from scheduler.profiles import Config, DecodeLaw, Profile
from scheduler.workflows import Stage, Workflow

# Of a loop on one share only so many of the fastest layouts are kept.
_MAX_LAYOUTS = 16
# Counts of devices of the one class that units compete for, and combinations
# where they compete for several.
_MAX_COUNTS, _MAX_KEYS = 64, 400


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Option:
  """A unit on a share of the cluster.

  Attributes:
    unit: the unit.
    modes: of its stages.
    lanes: of a loop, the items of each lane.
    is_shared: of a loop, whether all its stages are on the same devices.
    emits: see `modes.Mode`, with all that it reads at hand.
    last_ns: from the arrival of the last of what it reads to its end.
  """

  unit: Unit
  modes: tuple[Mode, ...]
  lanes: tuple[int, ...] = ()
  is_shared: bool = False
  emits: Emits
  last_ns: int

  @property
  def total_ns(self) -> int:
    """From its start to its end."""
    return self.emits[-1][1]

  @property
  def visits(self) -> int:
    """How often it would be swapped: inside a loop in each lane's turn."""
    loop = self.unit.loop
    return loop.turns * len(self.lanes) if loop else 1

  @property
  def swap_ns(self) -> int:
    """Time in which the states of all its stages leave or return."""
    return self.visits * sum(mode.swap_ns for mode in self.modes)


def of(
  workflow: Workflow,
  profile: Profile,
  cluster: Cluster,
  resolution: int | None = None,
) -> Options:
  """Returns the options of a workflow on the shares of a cluster.

  Args:
    workflow: what is planned.
    profile: its durations.
    cluster: on what.
    resolution: see `pools.of_cluster`; None: 64, or where units compete for
      several classes of devices, what makes 400 combinations.

  Raises:
    ProfileError: a stage is not profiled on the cluster's classes.
    InfeasiblePlanError: a stage, or the stages of a loop, fit nowhere.
  """
  if resolution is None:
    competing = max(1, num_contested(workflow, profile, cluster))
    resolution = min(_MAX_COUNTS, round(_MAX_KEYS ** (1 / competing)))
  shares = pools.of_cluster(cluster, resolution)
  options = Options(Modes(workflow, profile, cluster, shares))
  options.check()
  return options


def num_contested(
  workflow: Workflow, profile: Profile, cluster: Cluster
) -> int:
  """Returns how many device classes several units can use."""
  known = [
    {c for name in unit.stages for c in profile.device_classes(name)}
    for unit in graphs.collapse(workflow).units
  ]
  return sum(
    sum(c.name in classes for classes in known) > 1 for c in cluster.classes
  )


class Options:
  """The options of a workflow's units, each priced once."""

  def __init__(self, modes: Modes):
    self.modes = modes
    self.pools = modes.pools
    self.graph = graphs.collapse(modes.workflow)
    self.sources = tuple(map(self.graph.sources, range(len(self.graph.units))))
    self._known: dict[tuple[str, Key], tuple[Option, ...]] = {}
    self._bounds: dict[tuple[str, Key], float] = {}
    self._tokens: dict[str, int] = {}
    self._streams: dict[tuple[str, Key, int, int], Option | None] = {}

  def pools_of(self, unit: Unit) -> frozenset[int]:
    """Returns the indices of the device classes that a unit can use."""
    return frozenset().union(*(self.modes.pools_of(s) for s in unit.stages))

  def pools_of_all(self, members: Iterable[int]) -> frozenset[int]:
    """Returns the indices of the classes that some of the units can use."""
    return frozenset().union(
      *(self.pools_of(self.graph.units[i]) for i in members)
    )

  def needed(self, members: Iterable[int]) -> frozenset[int]:
    """Returns the indices of the classes that some stage cannot do without."""
    each = (
      self.modes.pools_of(name)
      for i in members
      for name in self.graph.units[i].stages
    )
    return frozenset().union(*(found for found in each if len(found) == 1))

  def of(self, unit: Unit, key: Key) -> tuple[Option, ...]:
    """Returns a unit's options on a share, the fastest first."""
    usable = self.pools_of(unit)
    key = tuple(n if i in usable else 0 for i, n in enumerate(key))
    known = self._known.get((unit.name, key))
    if known is not None:
      return known
    if unit.loop is None:
      found = [_of_mode(unit, mode) for mode in self.modes.of(unit.name, key)]
    else:
      found = [*self._shared(unit, key), *self._side_by_side(unit, key)]
    found.sort(key=_rank)
    if unit.loop is not None:
      del found[_MAX_LAYOUTS:]
    self._known[unit.name, key] = tuple(found)
    return tuple(found)

  def of_stream(
    self, unit: Unit, key: Key, stream: int, *, swaps: int = 0
  ) -> Option | None:
    """Returns the fastest option that has about `stream` granules.

    Where that granule does not fit, or was not measured, the next smaller one
    that does, or else the smallest. None: the unit cannot run on this share.

    Args:
      unit: the unit.
      key: the share.
      stream: how many granules.
      swaps: how many times an iteration its state is taken to be moved.
    """
    at = (unit.name, key, stream, swaps)
    if at not in self._streams:
      self._streams[at] = self._of_stream(unit, key, stream, swaps)
    return self._streams[at]

  def _of_stream(
    self, unit: Unit, key: Key, stream: int, swaps: int
  ) -> Option | None:
    if unit.loop is not None:
      found = list(self.of(unit, key))
    else:
      wanted = granules.of_stream(self.modes.prices.stages[unit.name], stream)
      found = [
        _of_mode(unit, mode)
        for pool in sorted(self.pools_of(unit))
        if key[pool]
        for mode in self.modes.nearest(unit.name, pool, key[pool], wanted)
      ]
    return min(
      found,
      key=lambda o: (o.total_ns + swaps * o.swap_ns, _rank(o)),
      default=None,
    )

  def bound_ns(self, unit: Unit, key: Key) -> float:
    """Returns a bound of a decode's time that needs no simulation of it.

    Other units have none: 0.
    """
    at = (unit.name, key)
    if at not in self._bounds:
      self._bounds[at] = 0.0 if unit.loop else self._bound_ns(unit, key)
    return self._bounds[at]

  def check(self) -> None:
    """Raises why a unit can run nowhere, if there is one.

    Raises:
      ProfileError: a stage is not profiled on the cluster's classes.
      InfeasiblePlanError: a stage, or the stages of a loop, fit nowhere.
    """
    for unit in self.graph.units:
      if self.of(unit, self.pools.full):
        continue
      for name in unit.stages:
        if not self.modes.of(name, self.pools.full):
          raise self.modes.reason(name)
      raise errors.InfeasiblePlanError(
        f"{unit.name}: each of its stages {list(unit.stages)} fits alone, but"
        " they have no devices on which all fit side by side or in turn in the"
        " granules that they allow; add devices, or allow smaller granules"
      )

  def node(self, option: Option, within: Devices) -> Node:
    """Returns an option as a tree on devices out of a share's."""
    runs, left = [], within
    for mode in option.modes:
      pool = self.pools.pools[mode.pool]
      devices = pool.choose(mode.key, left)
      if not option.is_shared:
        left = left - devices
      runs.append(
        Run(
          stage=mode.stage,
          devices=devices,
          granule=mode.granule,
          config=mode.config,
        )
      )
    if option.unit.loop is None:
      return runs[0]
    body: Node = runs[0]
    if len(runs) > 1:
      children = tuple(runs)
      body = (
        Temporal(children=children)
        if option.is_shared
        else Spatial(children=children)
      )
    return Lanes(loop=option.unit.loop.name, body=body, lanes=option.lanes)

  def _bound_ns(self, unit: Unit, key: Key) -> float:
    modes, least = self.modes, math.inf
    stage = modes.prices.stages[unit.name]
    for p in sorted(self.pools_of(unit)):
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
      seed = self.modes.prices.seed
      self._tokens[stage.name] = sum(decoding.draw_tokens(stage, seed))
    return self._tokens[stage.name]

  def _shared(self, unit: Unit, key: Key) -> Iterator[Option]:
    """Yields layouts of a loop with all its stages on the same devices."""
    for index, entry in enumerate(key):
      configs = [self.modes.configs(name, index) for name in unit.stages]
      for chosen in itertools.product(*configs) if entry else ():
        divisor = math.lcm(*(config.devices for config in chosen))
        for part in self.modes.keys(index, entry, divisor):
          layouts = list(
            self._laid_out(
              unit, [(index, part, config) for config in chosen], is_shared=True
            )
          )
          yield from layouts
          if layouts:
            break

  def _side_by_side(self, unit: Unit, key: Key) -> Iterator[Option]:
    """Yields layouts of a loop with each stage on devices of its own."""
    if len(unit.stages) < 2:
      return
    for shares in self._divided(unit.stages, key):
      places = [
        [
          (index, part, config)
          for index, entry in enumerate(share)
          for config in (self.modes.configs(name, index) if entry else ())
          for part in itertools.islice(
            self.modes.keys(index, entry, config.devices), 1
          )
        ]
        for name, share in zip(unit.stages, shares)
      ]
      for chosen in itertools.product(*places):
        yield from self._laid_out(unit, list(chosen), is_shared=False)

  def _divided(
    self, stages: tuple[str, ...], key: Key
  ) -> Iterator[tuple[Key, ...]]:
    """Yields shares of a key, one for each of the stages."""
    if len(stages) == 1:
      yield (key,)
      return
    first = self.modes.pools_of(stages[0])
    others = frozenset().union(*map(self.modes.pools_of, stages[1:]))
    for own, rest in self.pools.splits(key, first, others):
      for shares in self._divided(stages[1:], rest):
        yield (own, *shares)

  def _laid_out(
    self,
    unit: Unit,
    places: list[tuple[int, int, Config]],
    *,
    is_shared: bool,
  ) -> Iterator[Option]:
    assert unit.loop is not None
    stages = tuple(self.modes.workflow.stage(name) for name in unit.stages)
    replicas = tuple(
      self.pools.pools[index].size(part) // config.devices
      for index, part, config in places
    )
    for lanes in granules.lane_candidates(stages, replicas):
      found = [
        self.modes.of_lanes(stage.name, *place, lanes)
        for stage, place in zip(stages, places)
      ]
      laid = [entry for entry in found if entry is not None]
      if len(laid) < len(found):
        continue
      times = [lane_ns for _, lane_ns in laid]
      total = turns_ns(times, unit.loop.turns, is_shared=is_shared)
      yield Option(
        unit=unit,
        modes=tuple(mode for mode, _ in laid),
        lanes=lanes,
        is_shared=is_shared,
        emits=((1.0, total),),
        last_ns=total,
      )


def turns_ns(
  times: list[tuple[int, ...]], turns: int, *, is_shared: bool
) -> int:
  """Returns the time of a loop.

  Args:
    times: of each stage, for each lane, of one turn.
    turns: how many.
    is_shared: whether the stages take turns on the same devices, where lanes
      cannot overlap.
  """
  if is_shared:
    return turns * sum(map(sum, times))
  # One turn of all lanes, each stage serving them in order; every further turn
  # adds what the busiest stage, or the longest lane on its way round, takes.
  ends = [0] * len(times[0])
  for of_stage in times:
    free = 0
    for lane, lane_ns in enumerate(of_stage):
      free = ends[lane] = max(free, ends[lane]) + lane_ns
  busiest = max(map(sum, times))
  longest = max(map(sum, zip(*times)))
  return ends[-1] + (turns - 1) * max(busiest, longest)


def _of_mode(unit: Unit, mode: Mode) -> Option:
  return Option(
    unit=unit,
    modes=(mode,),
    emits=mode.emits,
    last_ns=mode.last_ns,
  )


def _rank(option: Option) -> tuple[object, ...]:
  """Orders options by time; equal ones by fewer granules and bytes."""
  largest = max(mode.granule for mode in option.modes)
  num_bytes = sum(mode.num_bytes for mode in option.modes)
  return (option.total_ns, -largest, num_bytes, option.lanes)
