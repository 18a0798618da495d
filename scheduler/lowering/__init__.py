"""From a plan as a tree to a flat one.

What a tree means:
- A Run handles its share granule by granule. Granules end where updates do;
  turns of a Temporal end where granules do.
- On every device activities follow each other as in the tree, so that children
  of a Temporal alternate and those of a Spatial run side by side.
- Where the staleness allows several iterations and the root is a Spatial, a
  stage that waits for devices elsewhere, and returns to devices that an
  earlier stage of its chain used, is run an iteration later than that one:
  those devices need not wait.
- Items flow in emission order; a granule waits for all items up to the last
  that it reads, in whole groups of their stage.
- Between different devices items of a granule are moved as soon as it ends, in
  order, on a link of these two sets. A weight sync precedes the first granule
  on each set of devices that received no weights in this iteration.
- Nothing is charged for moving sequences that a later Run of a cohort goes on
  with, nor for weights that are read from the host of a stage swapped out.
"""

from __future__ import annotations

from scheduler import prices
from scheduler.clusters import Cluster
from scheduler.lowering import arcs, emission, holdings, tracks
from scheduler.lowering.limits import MAX_ACTIVITIES
from scheduler.plans import FlatPlan, Plan, Resource
from scheduler.profiles import Profile
from scheduler.workflows import Workflow

__all__ = ["MAX_ACTIVITIES", "lower"]


def lower(
  plan: Plan,
  workflow: Workflow,
  profile: Profile,
  cluster: Cluster,
  *,
  seed: int = 0,
) -> FlatPlan:
  """Returns the flat plan that a tree stands for; a flat one as it is.

  Args:
    plan: a tree, or a flat plan.
    workflow: what is planned.
    profile: its durations.
    cluster: on what.
    seed: of lengths that vary.

  Raises:
    InfeasiblePlanError: the tree contradicts itself or the workflow.
    ProfileError: the profile lacks what the tree uses.
  """
  if isinstance(plan, FlatPlan):
    return plan
  costs = prices.of(workflow, profile, cluster, seed=seed)
  layout = tracks.arrange(plan, costs)
  emitted = emission.Emission(plan, layout, costs)
  return FlatPlan(
    resources=(
      *(Resource(name=str(atom), devices=atom) for atom in layout.atoms),
      *(Resource(name=name, kind="link") for name in emitted.links),
    ),
    activities=tuple(emitted.activities),
    arcs=arcs.connect(plan, layout, emitted, costs),
    orders=emitted.slots(),
    holdings=holdings.charge(plan, layout, costs),
    label=plan.label,
  )
