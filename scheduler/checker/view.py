"""A flat plan as the laws look at it."""

from __future__ import annotations

import bisect
import collections
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

from scheduler import cycles, prices
from scheduler.clusters import DeviceClass
from scheduler.devices import Devices
from scheduler.plans import FlatPlan, Run
from scheduler.prices import Interval
from scheduler.profiles import Config, DecodeLaw
from scheduler.workflows import Loop

Atoms = tuple[int, ...]
T = TypeVar("T")


class Granule(NamedTuple):
  """An activity that handles items of its stage.

  Attributes:
    activity: its index.
    start: its first item.
    stop: its last item, plus one.
    atoms: of a compute the resources that are devices; of a transfer all.
    place: shift and position in the order of the first of these: of two
      granules of one iteration there, the larger place comes later.
  """

  activity: int
  start: int
  stop: int
  atoms: Atoms
  place: tuple[int, int]


class Chain:
  """Granules on the same resources, where they follow each other.

  Attributes:
    atoms: the resources.
    granules: by their items.
  """

  def __init__(self, atoms: Atoms, granules: list[Granule]):
    self.atoms = atoms
    self.granules = sorted(granules, key=lambda g: (g.start, g.stop))
    self._starts = [g.start for g in self.granules]
    self._stops = [g.stop for g in self.granules]
    self._latest = list(itertools.accumulate(self.granules, _later))

  def first(self) -> int:
    """Returns the activity that precedes the others of its iteration."""
    return min(self.granules, key=lambda g: g.place).activity

  def last(self, start: int, stop: int) -> int | None:
    """Returns the last activity with items in an interval, if there is one."""
    low = bisect.bisect_right(self._stops, start)
    high = bisect.bisect_left(self._starts, stop)
    if low >= high:
      return None
    if low == 0:
      return self._latest[high - 1].activity
    return functools.reduce(_later, self.granules[low:high]).activity


def _later(a: Granule, b: Granule) -> Granule:
  return b if b.place > a.place else a


class View:
  """A flat plan with what several laws look up in it.

  Attributes:
    plan: the plan.
    costs: durations and bytes of its workflow, profile and cluster.
  """

  def __init__(
    self,
    *,
    plan: FlatPlan,
    costs: prices.Prices,
    schedule: cycles.Schedule | None = None,
  ):
    self.plan = plan
    self.costs = costs
    self._schedule = schedule
    self._devices: dict[Atoms, Devices] = {}
    self._found: dict[Callable[[View], Any], Any] = {}

  @property
  def lag(self) -> int:
    """How many iterations may be alive."""
    return 1 + self.costs.workflow.staleness

  @functools.cached_property
  def schedule(self) -> cycles.Schedule:
    return self._schedule or cycles.schedule(self.plan)

  @functools.cached_property
  def starts(self) -> list[int]:
    """When each activity of iteration 0 starts, in units; see `unit`."""
    return [
      start.numerator * (self.unit // start.denominator)
      for start in self.schedule.start_ns
    ]

  @property
  def unit(self) -> int:
    """Units of one nanosecond, so that instants are whole numbers."""
    return self.schedule.period_ns.denominator

  @property
  def period(self) -> int:
    """Units from one iteration to the next."""
    return self.schedule.period_ns.numerator

  def stop(self, i: int) -> int:
    """Returns when an activity of iteration 0 ends, in units."""
    return self.starts[i] + self.plan.activities[i].duration_ns * self.unit

  @functools.cached_property
  def by_kind(self) -> dict[tuple[str, str], list[int]]:
    """Indices of activities by kind and stage."""
    found: dict[tuple[str, str], list[int]] = collections.defaultdict(list)
    for i, a in enumerate(self.plan.activities):
      found[a.kind, a.stage].append(i)
    return found

  @functools.cached_property
  def places(self) -> list[dict[int, tuple[int, int]]]:
    """For each resource the shift and position of each of its activities."""
    return [
      {slot.activity: (slot.shift, p) for p, slot in enumerate(order)}
      for order in self.plan.orders
    ]

  @functools.cached_property
  def turns(self) -> dict[str, list[list[Granule]]]:
    """The computes of each stage by their items; in a loop, of each turn."""
    found = {}
    for name in self.costs.stages:
      loop = self.loop_of(name)
      turns: list[list[Granule]] = [
        [] for _ in range(loop.turns if loop else 1)
      ]
      for i in self.by_kind["compute", name]:
        a = self.plan.activities[i]
        granule = self.granule(i, self.atoms[i])
        turns[a.index if loop else 0].append(granule)
      for granules in turns:
        granules.sort(key=lambda g: (g.start, g.stop))
      found[name] = turns
    return found

  @functools.cached_property
  def computes(self) -> list[list[int]]:
    """For each resource its computes and applies, in order."""
    return [
      sorted(
        (
          i
          for i in places
          if self.plan.activities[i].kind in ("compute", "apply")
        ),
        key=places.__getitem__,
      )
      for places in self.places
    ]

  @functools.cached_property
  def placements(self) -> dict[tuple[str, Atoms, Config], int]:
    """A compute of each stage, resources and configuration that there are."""
    found: dict[tuple[str, Atoms, Config], int] = {}
    for i, a in enumerate(self.plan.activities):
      if a.kind == "compute":
        found.setdefault((a.stage, self.atoms[i], a.config), i)
    return found

  def loop_of(self, stage: str) -> Loop | None:
    return self.costs.workflow.loop_of(stage)

  @functools.cached_property
  def atoms(self) -> list[Atoms]:
    """For each activity its resources that are devices."""
    is_link = [r.kind == "link" for r in self.plan.resources]
    return [
      tuple(r for r in a.resources if not is_link[r])
      if any(is_link[r] for r in a.resources)
      else a.resources
      for a in self.plan.activities
    ]

  def once(self, find_fn: Callable[[View], T]) -> T:
    """Returns what a function finds in this view, which it does once."""
    if find_fn not in self._found:
      self._found[find_fn] = find_fn(self)
    return self._found[find_fn]

  def devices(self, atoms: Atoms) -> Devices:
    """Returns the devices of these resources."""
    if atoms not in self._devices:
      devices = Devices()
      for r in atoms:
        devices = devices | self.plan.resources[r].devices
      self._devices[atoms] = devices
    return self._devices[atoms]

  def granule(self, i: int, resources: Atoms) -> Granule:
    """Returns an activity as a granule on some of its resources."""
    start, stop = self.plan.activities[i].items
    return Granule(i, start, stop, resources, self.places[resources[0]][i])

  def chains(self, granules: Iterable[Granule]) -> list[Chain]:
    """Returns the chains in which granules follow each other."""
    found: dict[Atoms, list[Granule]] = {}
    for g in granules:
      found.setdefault(g.atoms, []).append(g)
    return [Chain(atoms, own) for atoms, own in found.items()]

  def run(self, i: int) -> Run:
    """Returns a compute as a Run, of as many items as it has."""
    a = self.plan.activities[i]
    return Run(
      stage=a.stage,
      devices=self.devices(self.atoms[i]),
      granule=max(1, a.items[1] - a.items[0]),
      config=a.config,
    )

  def device_class(self, i: int) -> DeviceClass:
    """Returns the class of a compute's devices, which must be of one."""
    return self.costs.device_class(self.run(i))

  @functools.cached_property
  def cohorts(self) -> list[Interval | None]:
    """For each compute the items that are decoded together with its own.

    None where each granule takes its own time, whatever is decoded with it.
    """
    decodes = set()
    for key, i in self.placements.items():
      stage, _, config = key
      device = self.device_class(i)
      if isinstance(
        self.costs.profile.law(stage, device.name, config), DecodeLaw
      ):
        decodes.add(key)
    return [
      (a.cohort or a.items)
      if (a.stage, self.atoms[i], a.config) in decodes
      else None
      for i, a in enumerate(self.plan.activities)
    ]

  def compute_ns(self, i: int) -> int:
    """Returns how long a compute takes by the profile."""
    run, cohort = self.run(i), self.cohorts[i]
    part = (0, run.granule)
    if cohort is not None:
      part = self.plan.activities[i].items
      run = dataclasses.replace(run, share=part, cohort=cohort)
    return self.costs.granules(run, part).durations_ns[0]

  def state_bytes(self, i: int) -> int:
    """Returns bytes on each device of the state of a compute's stage."""
    return self.costs.state_bytes(self.run(i))

  def transient_bytes(self, i: int) -> int:
    """Returns bytes on each device that a compute takes while it runs.

    A decode takes them for all that is left of its cohort.
    """
    run, cohort = self.run(i), self.cohorts[i]
    start = self.plan.activities[i].items[0]
    items = run.granule if cohort is None else cohort[1] - start
    return self.costs.transient_bytes(run, items)

  def words(self, i: int) -> str:
    """Returns an activity in words, with what it occupies."""
    a = self.plan.activities[i]
    names = ", ".join(self.plan.resources[r].name for r in a.resources)
    return f"{a} on '{names}'" if names else str(a)


Law = Callable[[View], None]
