"""Lower bounds of the period, and which of them binds.

They hold for every plan of a workflow that the checker accepts, tree or flat,
whatever its granules, replicas, divisions and staleness; `single_mode_bound`
only where each stage has one mode, which does not change.

One thing is taken for granted: where Runs divide a cohort between them, none
of its sequences waits for a place.
"""

from __future__ import annotations

import dataclasses
import math

from scheduler import durations
from scheduler.bounds import modes, paths, states, work
from scheduler.clusters import Cluster
from scheduler.profiles import Profile
from scheduler.workflows import Workflow

__all__ = ["Bound", "lower_bound", "single_mode_bound"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Bound:
  """A lower bound of the period.

  Attributes:
    ns: nanoseconds; no plan has a shorter period.
    binds: name of the bound that is the largest.
    values_ns: each by its name.
      work: device-seconds of all stages, over all devices.
      path: the longest chain of waiting in an iteration, over 1 + staleness.
      straggler: the same, where decoding its longest sequence holds it up.
      memory: state that cannot stay on devices, over the bandwidth to hosts.
      modes: a linear program that divides work and swaps between groups or
        classes of devices; in `single_mode_bound` an integer one.
  """

  ns: int
  binds: str
  values_ns: dict[str, int]

  @property
  def seconds(self) -> float:
    return self.ns / durations.NS_PER_S


def lower_bound(
  workflow: Workflow, profile: Profile, cluster: Cluster, *, seed: int = 0
) -> Bound:
  """Returns a lower bound of the period of every plan.

  Args:
    workflow: what is planned.
    profile: its durations.
    cluster: on what.
    seed: of lengths that vary.

  Raises:
    ProfileError: a stage is not profiled where it could run.
    InfeasiblePlanError: a stage can run on no union of the cluster's groups.
  """
  return _bound(workflow, profile, cluster, seed, is_single=False)


def single_mode_bound(
  workflow: Workflow, profile: Profile, cluster: Cluster, *, seed: int = 0
) -> Bound:
  """Returns a lower bound where each stage has one mode.

  A mode is a set of devices and a configuration: such plans neither divide a
  stage between replicas of different kinds nor change where it runs.

  Args:
    workflow: what is planned.
    profile: its durations.
    cluster: on what.
    seed: of lengths that vary.

  Raises:
    ProfileError: a stage is not profiled where it could run.
    InfeasiblePlanError: a stage can run on no union of the cluster's groups.
  """
  return _bound(workflow, profile, cluster, seed, is_single=True)


def _bound(
  workflow: Workflow,
  profile: Profile,
  cluster: Cluster,
  seed: int,
  *,
  is_single: bool,
) -> Bound:
  layouts = work.layouts(workflow, profile, cluster, seed)
  granule_s = {
    name: min(x.granule_s() for x in own) for name, own in layouts.items()
  }
  # All classes together: each takes the share that it is fast at.
  whole_s = {name: _shared_s(own) for name, own in layouts.items()}
  longest_s = {
    name: max(whole_s[name], min(x.longest_s() for x in own))
    for name, own in layouts.items()
  }
  swap_work = states.swap_work(list(layouts.values()), cluster)
  least = [
    min(x.turns * x.least_work() for x in own) for own in layouts.values()
  ]
  alive = 1 + workflow.staleness
  load_fn = modes.undivided_s if is_single else modes.divided_s
  values = {
    "work": sum(least) / cluster.num_devices,
    "path": paths.latency_s(workflow, granule_s, whole_s) / alive,
    "straggler": paths.latency_s(workflow, granule_s, longest_s) / alive,
    "memory": swap_work / cluster.num_devices,
    "modes": load_fn(list(layouts.values()), cluster, swap_work),
  }
  values_ns = {
    name: math.floor(round(seconds * durations.NS_PER_S, 3))
    for name, seconds in values.items()
  }
  # Of equal ones the simplest.
  binds = max(values_ns, key=lambda name: values_ns[name])
  return Bound(ns=values_ns[binds], binds=binds, values_ns=values_ns)


def _shared_s(layouts: tuple[work.Layout, ...]) -> float:
  """Returns the least seconds of all items on all devices together."""
  found: dict[str, float] = {}
  for layout in layouts:
    seconds = layout.least_work() / layout.count
    name = layout.device.name
    found[name] = min(found.get(name, math.inf), seconds)
  if min(found.values()) <= 0:
    return 0.0
  return 1 / sum(1 / seconds for seconds in found.values())
