"""All stages in turn on all devices."""

from __future__ import annotations

from scheduler.clusters import Cluster
from scheduler.planners import parts, units
from scheduler.planners.protocol import Budget
from scheduler.plans import TreePlan
from scheduler.profiles import Profile
from scheduler.workflows import Workflow


def collocated(
  workflow: Workflow,
  profile: Profile,
  cluster: Cluster,
  budget: Budget,
  seed: int,
) -> TreePlan:
  """Returns a plan in which stages take turns on the whole cluster.

  Each stage has the configuration and granule that are best for it, on all
  devices of its class: those of different classes, such as simulators on host
  cores, run side by side. States are swapped only where memory needs it.

  Args:
    workflow: what is planned.
    profile: its durations.
    cluster: on what.
    budget: of plans that are evaluated.
    seed: not used; nothing is drawn.

  Raises:
    InfeasiblePlanError: a stage fits nowhere.
    ProfileError: a stage is profiled on no class of the cluster.
  """
  del seed
  options = units.of(workflow, profile, cluster)
  everyone = tuple(range(len(options.graph.units)))
  whole = parts.Part(units=everyone, key=options.pools.full)
  found = parts.drafts(options, (whole,))
  return parts.plan(options, found, cluster, budget, "collocated")
