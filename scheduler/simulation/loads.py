"""State that a new plan keeps on devices that do not have it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from scheduler import durations, transfers
from scheduler.clusters import Cluster
from scheduler.devices import Devices
from scheduler.plans import Activity, FlatPlan, Slot
from scheduler.simulation.remainders import COMPUTES
from scheduler.workflows import Workflow

INDEX = -1  # of activities that load; those of plans count from 0


def added(
  plan: FlatPlan,
  present: Mapping[str, Devices],
  workflow: Workflow,
  cluster: Cluster,
) -> FlatPlan:
  """Returns a plan with swaps of the state that it lacks.

  Each comes first on its resource, in every iteration: it is up to the caller
  to let it happen once.

  Args:
    plan: that follows another.
    present: by stage the devices that have its state.
    workflow: that is planned.
    cluster: on which.
  """
  activities, orders = list(plan.activities), list(plan.orders)
  for (stage, r), user in _residents(plan).items():
    devices = plan.resources[r].devices - present.get(stage, Devices())
    num_bytes = durations.state_bytes(workflow.stage(stage), user.config)
    if not devices.spans or not num_bytes:
      continue
    shift = min(slot.shift for slot in orders[r])
    orders[r] = (Slot(activity=len(activities), shift=shift), *orders[r])
    activities.append(
      Activity(
        kind="swap_in",
        stage=stage,
        resources=(r,),
        duration_ns=transfers.swap_ns(cluster, devices, num_bytes),
        index=INDEX,
        num_bytes=num_bytes * len(devices),
        config=user.config,
      )
    )
  return dataclasses.replace(
    plan, activities=tuple(activities), orders=tuple(orders)
  )


def is_load(activity: Activity) -> bool:
  """Returns whether `added` made the activity."""
  return activity.kind == "swap_in" and activity.index == INDEX


def residents(plan: FlatPlan) -> dict[str, Devices]:
  """Returns by stage the devices that keep its state under a plan."""
  kept: dict[str, Devices] = {}
  for stage, r in _residents(plan):
    kept[stage] = kept.get(stage, Devices()) | plan.resources[r].devices
  return kept


def _residents(plan: FlatPlan) -> dict[tuple[str, int], Activity]:
  """Returns an activity of each stage on each resource that keeps its state."""
  found: dict[tuple[str, int], Activity] = {}
  swapped: set[tuple[str, int]] = set()
  for a in plan.activities:
    for r in a.resources:
      if a.kind in COMPUTES:
        found.setdefault((a.stage, r), a)
      elif a.kind == "swap_in" and not is_load(a):
        swapped.add((a.stage, r))
  return {key: a for key, a in found.items() if key not in swapped}
