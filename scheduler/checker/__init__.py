"""The one independent checker, which guards every plan, whoever made it.

It derives from the workflow, profile and cluster what has to hold, and does not
know how plans are made. What it reads of a flat plan:
- a compute handles its items on its devices; in a loop its `index` is the turn;
- an apply ends the update of its `index`, after the granules of that update;
- a swap moves the state of its stage on the devices of its one resource;
- a transfer moves items of the one granule that it waits for;
- a weight sync occupies the devices that it brings weights to, or none where
  they go to a second copy.

Precedence must be implied by arcs and orders, whatever durations are: a path of
no more lag than is allowed. Memory is what the holdings say, at every instant
of the earliest 1-periodic schedule; they must account for all that has to lie
on devices. Each law is a function that raises the first violation.
"""

from __future__ import annotations

from scheduler import cycles, prices
from scheduler.checker import (
  memory,
  moves,
  precedence,
  structure,
  swaps,
  weights,
  work,
)
from scheduler.checker.view import Law, View
from scheduler.clusters import Cluster
from scheduler.plans import FlatPlan
from scheduler.profiles import Profile
from scheduler.workflows import Workflow

__all__ = ["LAWS", "check"]

LAWS: tuple[Law, ...] = (
  structure.stages_are_known,
  structure.resources_are_disjoint,
  structure.orders_are_complete,
  structure.devices_fit,
  work.items_are_handled_once,
  work.granules_are_allowed,
  work.cohorts_are_whole,
  work.updates_are_applied,
  work.computes_take_their_time,
  precedence.nothing_deadlocks,
  swaps.swaps_alternate,
  swaps.swaps_take_their_time,
  moves.items_are_moved,
  moves.links_are_shared,
  weights.weights_are_synced,
  precedence.activities_wait,
  memory.holdings_cover_what_is_needed,
  memory.devices_hold_all,
  memory.hosts_hold_what_is_swapped,
)


def check(
  plan: FlatPlan,
  workflow: Workflow,
  profile: Profile,
  cluster: Cluster,
  *,
  seed: int = 0,
  schedule: cycles.Schedule | None = None,
) -> None:
  """Raises unless a plan can run and does what the workflow says.

  Args:
    plan: a flat plan.
    workflow: what has to be done.
    profile: how long it takes.
    cluster: on what.
    seed: of lengths that vary.
    schedule: of this plan, where the caller has it already.

  Raises:
    InfeasiblePlanError: naming the stage, the devices, the instant and the
      numbers where they matter, and what to do.
    ProfileError: the profile lacks what the plan uses.
  """
  costs = prices.of(workflow, profile, cluster, seed=seed)
  view = View(plan=plan, costs=costs, schedule=schedule)
  for law in LAWS:
    law(view)
