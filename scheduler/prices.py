"""What a workflow's activities cost on a cluster, looked up once.

Planners ask for the same few durations thousands of times. Hashing a profile
takes longer than lowering a plan, so that `of` goes by the identity of its
arguments, and its result remembers by what is small.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import Any, TypeVar

from scheduler import devices as device_sets
from scheduler import durations, errors, transfers, workflows
from scheduler.clusters import Cluster, DeviceClass
from scheduler.devices import Devices
from scheduler.plans import Run
from scheduler.profiles import DecodeLaw, Profile
from scheduler.workflows import (
  Edge,
  Stage,
  WeightSync,
  Workflow,
)

T = TypeVar("T")
Interval = tuple[int, int]
# Disjoint sets of devices, and for each given set the indices of its atoms.
Atoms = tuple[tuple[Devices, ...], tuple[tuple[int, ...], ...]]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Granules:
  """Granules that a Run handles one after another.

  Attributes:
    starts: first item of each.
    stops: last item of each, plus one.
    durations_ns: of each.
    ends_ns: when each is done, counted from the first one's start.
  """

  starts: tuple[int, ...]
  stops: tuple[int, ...]
  durations_ns: tuple[int, ...]
  ends_ns: tuple[int, ...]


class Prices:
  """Durations and bytes of one workflow, profile, cluster and seed."""

  def __init__(
    self, workflow: Workflow, profile: Profile, cluster: Cluster, seed: int
  ):
    self.workflow = workflow
    self.profile = profile
    self.cluster = cluster
    self.seed = seed
    self.stages: dict[str, Stage] = {s.name: s for s in workflow.stages}
    self.order: tuple[str, ...] = workflows.topological_order(workflow)
    self.edges_into: dict[str, tuple[Edge, ...]] = {
      name: tuple(e for e in workflow.edges if e.target == name)
      for name in self.stages
    }
    self.syncs_into: dict[str, tuple[WeightSync, ...]] = {
      name: tuple(s for s in workflow.syncs if s.target == name)
      for name in self.stages
    }
    self._known: dict[Any, Any] = {}

  def device_class(self, run: Run) -> DeviceClass:
    """Returns the class of a Run's devices.

    Raises:
      InfeasiblePlanError: they are not all of one class, or do not exist.
    """
    key = ("class", run.devices.spans)
    if key not in self._known:
      try:
        self._known[key] = self.cluster.class_of(run.devices)
      except errors.ClusterError as error:
        raise errors.InfeasiblePlanError(
          f"stage {run.stage!r}: {error}"
        ) from None
    return self._known[key]

  def granules(self, run: Run, part: Interval) -> Granules:
    """Returns the granules of a part of a Run's share.

    They end where updates do; `run.granule` items or fewer each.
    """
    whole = run.cohort or self.share(run)
    key = (*_of_run(run), run.granule, part, whole)
    found = self._known.get(key)
    if found is None:
      found = self._known[key] = self._cut(run, part, whole)
    return found

  def emitted_ns(self, run: Run, stops: tuple[int, ...]) -> tuple[int, ...]:
    """Returns when a decode by itself has emitted so many items."""
    device, config = self.device_class(run), run.config
    law = self.profile.law(run.stage, device.name, config)
    assert isinstance(law, DecodeLaw)
    return durations.emitted_ns(
      self.stages[run.stage],
      law,
      device,
      len(run.devices),
      config,
      (0, self.stages[run.stage].items),
      self.seed,
      stops,
    )

  def lane(self, run: Run, part: Interval) -> int:
    """Returns the nanoseconds of one turn of a lane, a granule of its own."""
    key = ("lane", *_of_run(run), part)
    found = self._known.get(key)
    if found is None:
      (found,) = self._granules_ns(run, part[1] - part[0], part, part)
      self._known[key] = found
    return found

  def recall(self, key: tuple[Any, ...], make_fn: Callable[[], T]) -> T:
    """Returns what `make_fn` gave for this key; it is called once for each."""
    found: T | None = self._known.get(key)
    if found is None:
      found = self._known[key] = make_fn()
    return found

  def share(self, run: Run) -> Interval:
    """Returns the items that a Run emits."""
    return run.share or (0, self.stages[run.stage].items)

  def cohort(self, run: Run) -> Interval | None:
    """Returns what a Run decodes together, of a stage outside of loops.

    None where each granule takes its own time, whatever is handled with it.
    """
    key = ("is decode", *_of_run(run))
    found = self._known.get(key)
    if found is None:
      device = self.device_class(run)
      law = self.profile.law(run.stage, device.name, run.config)
      found = self._known[key] = isinstance(law, DecodeLaw)
    return (run.cohort or self.share(run)) if found else None

  def transient_bytes(self, run: Run, items: int) -> int:
    """Returns bytes per device that so many items at once take."""
    key = ("transient", *_of_run(run), items)
    found = self._known.get(key)
    if found is None:
      found = self._known[key] = durations.transient_bytes(
        self.stages[run.stage],
        self.profile,
        self.device_class(run),
        len(run.devices),
        run.config,
        items,
      )
    return found

  def state_bytes(self, run: Run) -> int:
    """Returns bytes per device of the state of a Run's stage."""
    return durations.state_bytes(self.stages[run.stage], run.config)

  def swap_ns(self, devices: Devices, bytes_per_device: int) -> int:
    """See `transfers.swap_ns`."""
    key = ("swap", devices.spans, bytes_per_device)
    found = self._known.get(key)
    if found is None:
      found = self._known[key] = transfers.swap_ns(
        self.cluster, devices, bytes_per_device
      )
    return found

  def edge_ns(self, source: Devices, target: Devices, num_bytes: int) -> int:
    """See `transfers.edge_ns`."""
    key = ("edge", source.spans, target.spans, num_bytes)
    found = self._known.get(key)
    if found is None:
      found = self._known[key] = transfers.edge_ns(
        self.cluster, source, target, num_bytes
      )
    return found

  def sync_ns(
    self, source: Devices, target: Devices, num_bytes: int, shards: int
  ) -> int:
    """See `transfers.sync_ns`."""
    key = ("sync", source.spans, target.spans, num_bytes, shards)
    found = self._known.get(key)
    if found is None:
      found = self._known[key] = transfers.sync_ns(
        self.cluster, source, target, num_bytes, shards=shards
      )
    return found

  def check_no_queue(self, run: Run) -> None:
    """Refuses to divide a cohort of which not all are decoded at once.

    Those that wait have no length yet at which another Run could go on, which
    would get their tokens for nothing.

    Raises:
      InfeasiblePlanError: the Run divides such a cohort.
    """
    if run.cohort is None or run.cohort == run.share:
      return
    law = self.profile.law(run.stage, self.device_class(run).name, run.config)
    if not isinstance(law, DecodeLaw):
      return
    places = len(run.devices) // run.config.devices * law.max_active
    num_items = run.cohort[1] - run.cohort[0]
    if num_items > places:
      raise errors.InfeasiblePlanError(
        f"stage {run.stage!r} divides its cohort {run.cohort} between Runs, of"
        f" which one has {places} places for its {num_items} sequences; use"
        " more devices, or do not divide it"
      )

  def union(self, sets: tuple[Devices, ...]) -> Devices:
    """Returns all devices of several sets."""
    if len(sets) == 1:
      return sets[0]
    key = ("union", *[devices.spans for devices in sets])
    found = self._known.get(key)
    if found is None:
      found = functools.reduce(Devices.__or__, sets)
      self._known[key] = found
    return found

  def atoms(self, sets: tuple[Devices, ...]) -> Atoms:
    """Returns the atoms of sets of devices, and those of each set."""
    key = ("atoms", *[devices.spans for devices in sets])
    found = self._known.get(key)
    if found is None:
      atoms = device_sets.atoms(sets)
      parts = tuple(
        tuple(i for i, atom in enumerate(atoms) if atom.issubset(devices))
        for devices in sets
      )
      found = self._known[key] = (atoms, parts)
    return found

  def _cut(self, run: Run, part: Interval, whole: Interval) -> Granules:
    stage = self.stages[run.stage]
    update = stage.items // stage.updates
    starts: list[int] = []
    stops: list[int] = []
    each: list[int] = []
    low, high = part
    while low < high:
      border = min(high, low // update * update + update)
      starts += range(low, border, run.granule)
      stops += range(low + run.granule, border, run.granule)
      stops.append(border)
      each += self._granules_ns(run, run.granule, (low, border), whole)
      low = border
    return Granules(
      starts=tuple(starts),
      stops=tuple(stops),
      durations_ns=tuple(each),
      ends_ns=tuple(itertools.accumulate(each)),
    )

  def _granules_ns(
    self, run: Run, granule: int, part: Interval, whole: Interval
  ) -> tuple[int, ...]:
    device, config = self.device_class(run), run.config
    key = (
      "times",
      run.stage,
      device.name,
      len(run.devices),
      config.tp,
      config.pp,
      granule,
      part,
      whole,
    )
    found = self._known.get(key)
    if found is None:
      found = self._known[key] = durations.granules_ns(
        self.stages[run.stage],
        self.profile,
        device,
        len(run.devices),
        config,
        granule,
        part,
        whole,
        self.seed,
      )
    return found


def of(
  workflow: Workflow, profile: Profile, cluster: Cluster, *, seed: int = 0
) -> Prices:
  """Returns the prices of these very objects, the same on every call."""
  return _of(_Identity(workflow), _Identity(profile), _Identity(cluster), seed)


def _of_run(run: Run) -> tuple[Any, ...]:
  """Returns what hashes quickly, and tells Runs apart by all but their items.

  Hashing tuples takes a fraction of what hashing dataclasses does.
  """
  return run.stage, run.devices.spans, run.config.tp, run.config.pp


class _Identity:
  """Equal only where the value is the same object."""

  __slots__ = ("value",)

  def __init__(self, value: Any):
    self.value = value

  def __hash__(self) -> int:
    return id(self.value)

  def __eq__(self, other: object) -> bool:
    return isinstance(other, _Identity) and self.value is other.value


@functools.lru_cache(maxsize=64)
def _of(
  workflow: _Identity, profile: _Identity, cluster: _Identity, seed: int
) -> Prices:
  return Prices(workflow.value, profile.value, cluster.value, seed)
