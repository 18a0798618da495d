"""The best plan of the fast planners."""

from __future__ import annotations

from fractions import Fraction

from scheduler import errors, evaluation
from scheduler.clusters import Cluster
from scheduler.planners.collocated import collocated
from scheduler.planners.disaggregated import disaggregated
from scheduler.planners.hybrid import hybrid
from scheduler.planners.protocol import Budget, Planner
from scheduler.planners.rlinf_dp import rlinf_dp
from scheduler.planners.rlinf_toolkit import rlinf_toolkit
from scheduler.plans import Plan
from scheduler.profiles import Profile
from scheduler.workflows import Workflow

# In this order the first of equals is the simplest.
FAST: tuple[Planner, ...] = (
  collocated,
  disaggregated,
  hybrid,
  rlinf_dp,
  rlinf_toolkit,
)


def auto(
  workflow: Workflow,
  profile: Profile,
  cluster: Cluster,
  budget: Budget,
  seed: int,
) -> Plan:
  """Returns the plan with the shortest period of all that `FAST` find.

  It is never worse than any of them, under the one evaluator.

  Args:
    workflow: what is planned.
    profile: its durations.
    cluster: on what.
    budget: of each planner.
    seed: of each planner.

  Raises:
    InfeasiblePlanError: no planner finds a plan that fits; why the first does
      not.
    ProfileError: a stage is profiled on no class of the cluster.
  """
  best: tuple[Fraction, Plan] | None = None
  first_error: errors.InfeasiblePlanError | None = None
  for planner in FAST:
    try:
      plan = planner(workflow, profile, cluster, budget, seed)
      found = evaluation.evaluate(plan, workflow, profile, cluster)
    except errors.InfeasiblePlanError as error:
      first_error = first_error or error
      continue
    if best is None or found.period_ns < best[0]:
      best = found.period_ns, plan
  if best is None:
    assert first_error is not None
    raise first_error
  return best[1]
