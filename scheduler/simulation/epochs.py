"""Plans in force, one after the other."""

from __future__ import annotations

import dataclasses

from scheduler.devices import Devices
from scheduler.plans import Activity, FlatPlan
from scheduler.simulation import remainders
from scheduler.simulation.clock import Clock
from scheduler.simulation.stretches import Stretch


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Epoch:
  """What is left of a plan, since it came into force.

  Attributes:
    given: the plan, as the policy gave it.
    plan: the same with loads.
    left: of it.
    lengths_ns: of each instance, but for drifts.
    nodes: of each instance.
    begin_ns: when it came into force.
  """

  given: FlatPlan
  plan: FlatPlan
  left: remainders.Remainder
  lengths_ns: list[int]
  nodes: list[int]
  begin_ns: int

  def activity(self, instance: int) -> Activity:
    return self.plan.activities[instance % len(self.plan.activities)]

  def iteration(self, instance: int) -> int:
    return instance // len(self.plan.activities)

  def items(self, instance: int) -> remainders.Interval:
    """Returns the items that an instance handles."""
    whole = remainders.span(self.activity(instance))
    return self.left.items.get(instance, whole)

  def devices(self, instance: int) -> Devices:
    """Returns the devices that an instance occupies."""
    devices = Devices()
    for r in self.activity(instance).resources:
      devices = devices | self.plan.resources[r].devices
    return devices

  def stretch(self, clock: Clock, stop_ns: int) -> Stretch:
    """Returns what ran until another plan came into force."""
    starts_ns, stops_ns = (
      [known[node] if node >= 0 else self.begin_ns for node in self.nodes]
      for known in (clock.starts_ns, clock.stops_ns)
    )
    return Stretch(
      plan=self.plan,
      starts_ns=starts_ns,
      stops_ns=stops_ns,
      begin_ns=self.begin_ns,
      stop_ns=stop_ns,
      inherited=frozenset(self.left.inherited),
      items=self.left.items,
    )
