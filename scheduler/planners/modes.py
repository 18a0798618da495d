"""Modes: how a stage can run on a share of the cluster, and how long."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from scheduler import errors, prices
from scheduler.clusters import Cluster, DeviceClass
from scheduler.devices import Devices
from scheduler.planners import granules
from scheduler.planners.pools import Key, Pool, Pools
from scheduler.plans import Run
from scheduler.profiles import (
  Config,
  DecodeLaw,
  Profile,
  ReplicaTable,
  Table,
)
from scheduler.workflows import Stage, Workflow

# Shares of the items, and nanoseconds by which they are done.
Emits = tuple[tuple[float, int], ...]
# Of more granules in a batch, only the first that fit into memory are tried.
_MAX_GRANULES = 128
_SHARES = (0.0, 0.25, 0.5, 0.75, 0.875, 0.9375, 1.0)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Mode:
  """One stage on devices of one class.

  Attributes:
    stage: its name.
    pool: index of the device class in a key.
    key: the devices, as that class's entry of a key.
    num_devices: how many they are.
    config: of each replica.
    granule: items handled at once.
    emits: at some of its granules' ends, the share of the items done by then
      and nanoseconds since the start; the last is (1, total_ns).
    last_ns: time of the last granule.
    state_bytes: resident state, per device.
    transient_bytes: what a granule takes while it runs, per device.
    swap_ns: time in which the state leaves the devices, or returns.
  """

  stage: str
  pool: int
  key: int
  num_devices: int
  config: Config
  granule: int
  emits: Emits
  last_ns: int
  state_bytes: int
  transient_bytes: int
  swap_ns: int

  @property
  def total_ns(self) -> int:
    """Time of all granules."""
    return self.emits[-1][1]

  @property
  def num_bytes(self) -> int:
    """Device memory that the stage takes while it runs."""
    return self.state_bytes + self.transient_bytes


class Modes:
  """The modes of a workflow's stages; each is priced once."""

  def __init__(
    self, workflow: Workflow, profile: Profile, cluster: Cluster, pools: Pools
  ):
    self.workflow = workflow
    self.profile = profile
    self.cluster = cluster
    self.pools = pools
    self.prices = prices.of(workflow, profile, cluster)
    self._known: dict[tuple[str, int, int], tuple[Mode, ...]] = {}
    self._sizes: dict[tuple[str, int, int, int, int], tuple[int, ...]] = {}
    self._single: dict[tuple[str, int, int, int, int, int], Mode | None] = {}

  def device_class(self, pool: int) -> DeviceClass:
    """Returns the class of a pool's devices."""
    return self.cluster.device_class(self.pools.pools[pool].name)

  def pools_of(self, stage: str) -> frozenset[int]:
    """Returns the indices of the classes that a stage is profiled on."""
    known = self.profile.device_classes(stage)
    return frozenset(
      i for i, pool in enumerate(self.pools.pools) if pool.name in known
    )

  def of(self, stage: str, key: Key) -> tuple[Mode, ...]:
    """Returns modes that fit into memory alone, on devices of a key.

    For each class and configuration all candidate granules, on as many of the
    class's devices as the configuration can use.
    """
    found: list[Mode] = []
    for i in sorted(self.pools_of(stage)):
      if key[i]:
        found += self._of_pool(stage, i, key[i])
    return tuple(found)

  def configs(self, stage: str, pool: int) -> tuple[Config, ...]:
    """Returns the configurations of a stage on a device class."""
    return self.profile.configs(stage, self.pools.pools[pool].name)

  def keys(self, pool: int, key: int, divisor: int) -> Iterator[int]:
    """Yields keys of parts in which whole replicas fit, the largest first."""
    return _keys(self.pools.pools[pool], key, divisor, None)

  def measured_keys(
    self, stage: str, pool: int, key: int, config: Config
  ) -> Iterator[int]:
    """Yields keys of parts that a stage can use whole, the largest first."""
    law = self.profile.law(stage, self.pools.pools[pool].name, config)
    most = _most_devices(law, self.prices.stages[stage])
    return _keys(self.pools.pools[pool], key, config.devices, most)

  def of_lanes(
    self,
    stage: str,
    pool: int,
    key: int,
    config: Config,
    lanes: tuple[int, ...],
  ) -> tuple[Mode, tuple[int, ...]] | None:
    """Returns a loop's stage on devices, and the times of its lanes in a turn.

    None: it was not measured so, or does not fit into memory alone.
    """
    devices = self._devices(pool, key)
    run = Run(stage=stage, devices=devices, granule=max(lanes), config=config)
    try:
      times = {size: self.prices.lane(run, (0, size)) for size in set(lanes)}
      each = tuple(times[size] for size in lanes)
      mode = self._mode(run, pool, key, ((1.0, sum(each)),), each[-1])
    except errors.ProfileError:
      return None
    return (mode, each) if self.fits(mode) else None

  def nearest(
    self, stage: str, pool: int, key: int, wanted: int
  ) -> Iterator[Mode]:
    """Yields the mode of each configuration whose granule is nearest to one.

    Smaller granules come before larger ones.
    """
    for config in self.configs(stage, pool):
      for part in self.measured_keys(stage, pool, key, config):
        mode = self._nearest(stage, pool, part, config, wanted)
        if mode is not None:
          yield mode
          break

  def of_granule(
    self, stage: str, pool: int, key: int, config: Config, granule: int
  ) -> Mode | None:
    """Returns a stage on devices with one granule.

    None: it was not measured so, or does not fit into memory alone.
    """
    at = (stage, pool, key, config.tp, config.pp, granule)
    if at not in self._single:
      try:
        mode = self._priced(stage, pool, key, config, granule)
      except (errors.ProfileError, errors.InfeasiblePlanError):
        self._single[at] = None
      else:
        self._single[at] = mode if self.fits(mode) else None
    return self._single[at]

  def fits(self, mode: Mode, others_bytes: int = 0) -> bool:
    """Returns whether a mode fits beside what others keep on its devices."""
    memory = self.device_class(mode.pool).memory_bytes
    return mode.num_bytes + others_bytes <= memory

  def reason(self, stage: str) -> errors.SchedulerError:
    """Returns why a stage has no mode on the whole cluster.

    A ProfileError where it is profiled on no class of the cluster, or not for
    granules that it allows; an InfeasiblePlanError where every configuration
    needs more devices, or more memory, than there is.
    """
    if not self.pools_of(stage):
      return errors.ProfileError(
        f"stage {stage!r} is profiled on"
        f" {list(self.profile.device_classes(stage))}; the cluster has"
        f" {[pool.name for pool in self.pools.pools]}. Profile it on one of"
        " them"
      )
    fewest = min(
      config.devices
      for i in self.pools_of(stage)
      for config in self.configs(stage, i)
    )
    other: errors.SchedulerError = errors.InfeasiblePlanError(
      f"stage {stage!r} needs {fewest} devices for its smallest configuration,"
      " more than a class (or a union of its groups) has; give it more devices"
    )
    least: tuple[int, str] | None = None
    for i in sorted(self.pools_of(stage)):
      pool, memory = self.pools.pools[i], self.device_class(i).memory_bytes
      for config in self.configs(stage, i):
        for key in _keys(pool, pool.full, config.devices, None):
          num_devices = pool.size(key)
          for granule in self._granules(stage, i, config, num_devices):
            try:
              mode = self._priced(stage, i, key, config, granule)
            except errors.ProfileError as error:
              other = error
              continue
            excess = mode.num_bytes - memory
            if excess > 0 and (least is None or excess < least[0]):
              least = (
                excess,
                f"stage {stage!r} does not fit: on {num_devices}"
                f" {pool.name!r} devices in {config}, with granules of"
                f" {granule}, each holds {mode.state_bytes:,} bytes of state"
                f" and {mode.transient_bytes:,} of the granule, more than its"
                f" {memory:,}; and this is its best configuration. Profile one"
                " with more devices per replica, or allow smaller granules",
              )
    return errors.InfeasiblePlanError(least[1]) if least else other

  def _of_pool(self, stage: str, index: int, key: int) -> tuple[Mode, ...]:
    known = self._known.get((stage, index, key))
    if known is not None:
      return known
    found: list[Mode] = []
    for config in self.configs(stage, index):
      for part in self.measured_keys(stage, index, key, config):
        modes = list(self._on(stage, index, part, config))
        found += modes
        if modes:
          break
    self._known[stage, index, key] = tuple(found)
    return tuple(found)

  def _on(
    self, stage: str, index: int, key: int, config: Config
  ) -> Iterator[Mode]:
    num_devices = self.pools.pools[index].size(key)
    items, has_any = self.prices.stages[stage].items, False
    for granule in reversed(self._granules(stage, index, config, num_devices)):
      if has_any and granule * _MAX_GRANULES < items:
        return
      mode = self.of_granule(stage, index, key, config, granule)
      if mode is not None:
        has_any = True
        yield mode

  def _nearest(
    self, stage: str, index: int, key: int, config: Config, wanted: int
  ) -> Mode | None:
    """Returns the mode of `_on` whose granule is nearest to the wanted one."""
    num_devices = self.pools.pools[index].size(key)
    items = self.prices.stages[stage].items
    sizes = self._granules(stage, index, config, num_devices)
    usual = [size for size in sizes if size * _MAX_GRANULES >= items]
    usual.sort(key=lambda size: (size > wanted, abs(size - wanted)))
    for size in (*usual, *reversed(sizes)):
      mode = self.of_granule(stage, index, key, config, size)
      if mode is not None:
        return mode
    return None

  def _granules(
    self, stage: str, index: int, config: Config, num_devices: int
  ) -> tuple[int, ...]:
    at = (stage, index, config.tp, config.pp, num_devices)
    if at not in self._sizes:
      law = self.profile.law(stage, self.pools.pools[index].name, config)
      self._sizes[at] = granules.candidates(
        self.prices.stages[stage], law, num_devices // config.devices
      )
    return self._sizes[at]

  def _devices(self, index: int, key: int) -> Devices:
    pool = self.pools.pools[index]
    return pool.choose(key, pool.devices)

  def _priced(
    self, stage: str, index: int, key: int, config: Config, granule: int
  ) -> Mode:
    run = Run(
      stage=stage,
      devices=self._devices(index, key),
      granule=granule,
      config=config,
    )
    return self._mode(run, index, key, *_times(self.prices, run))

  def _mode(
    self, run: Run, index: int, key: int, emits: Emits, last_ns: int
  ) -> Mode:
    state = self.prices.state_bytes(run)
    return Mode(
      stage=run.stage,
      pool=index,
      key=key,
      num_devices=len(run.devices),
      config=run.config,
      granule=run.granule,
      emits=emits,
      last_ns=last_ns,
      state_bytes=state,
      transient_bytes=self._transient_bytes(run),
      swap_ns=self.prices.swap_ns(run.devices, state),
    )

  def _transient_bytes(self, run: Run) -> int:
    stage = self.prices.stages[run.stage]
    items = min(run.granule, stage.items)
    if stage.kind == "decode" and not self.workflow.loop_of(run.stage):
      # It works on all its items at once, however it hands them on.
      items = stage.items
    return self.prices.transient_bytes(run, items)


def _times(known: prices.Prices, run: Run) -> tuple[Emits, int]:
  """Returns when a Run's items are done, and the time of its last granule."""
  stage = known.stages[run.stage]
  law = known.profile.law(run.stage, known.device_class(run).name, run.config)
  if isinstance(law, DecodeLaw):
    last = -(-stage.items // run.granule) - 1
    chosen = {math.ceil(share * last) for share in _SHARES} | {max(0, last - 1)}
    stops = tuple(
      min((k + 1) * run.granule, stage.items) for k in sorted(chosen)
    )
    ends = known.emitted_ns(run, stops)
    emits = tuple((stop / stage.items, ns) for stop, ns in zip(stops, ends))
    return emits, ends[-1] - ends[-2] if last else ends[-1]
  # All granules but an update's last one are alike.
  batch = stage.items // stage.updates
  granule = min(run.granule, batch)
  whole, rest = divmod(batch, granule)
  full_ns = known.lane(run, (0, granule))
  rest_ns = known.lane(run, (0, rest)) if rest else 0
  total_ns = (whole * full_ns + rest_ns) * stage.updates
  first = (granule / stage.items, full_ns)
  emits = (first, (1.0, total_ns)) if granule < stage.items else (first,)
  return emits, rest_ns or full_ns


def _most_devices(law: object, stage: Stage) -> int | None:
  """Returns the most devices that a law covers; None: any number."""
  if isinstance(law, Table) and not law.extrapolate:
    return max(sample.devices for sample in law.samples)
  if isinstance(law, ReplicaTable) and not law.extrapolate:
    fewest = min(sample.granule for sample in law.samples)
    size = law.samples[0].devices
    return max(1, stage.largest_granule // fewest) * size
  return None


def _keys(
  pool: Pool, key: int, divisor: int, most: int | None
) -> Iterator[int]:
  """Yields keys of parts that a configuration can use, the largest first."""
  limit = pool.size(key) if most is None else min(most, pool.size(key))
  if not pool.groups:
    if limit >= divisor:
      yield limit // divisor * divisor
    return
  for part in pool.parts(key):
    if pool.size(part) <= limit and pool.size(part) % divisor == 0:
      yield part
