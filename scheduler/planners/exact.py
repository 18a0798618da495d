"""The proven optimum, where the case belongs to class S."""

from __future__ import annotations

from scheduler import errors
from scheduler.clusters import Cluster
from scheduler.planners.granules import STREAMS
from scheduler.planners.protocol import Budget
from scheduler.plans import FlatPlan
from scheduler.profiles import Profile
from scheduler.workflows import Workflow

# For one number of granules. A search that it ends depends on the machine.
_TIME_LIMIT_S = 600.0


def exact(
  workflow: Workflow,
  profile: Profile,
  cluster: Cluster,
  budget: Budget,
  seed: int,
) -> FlatPlan:
  """Returns the best plan of class S that `scheduler.exact` finds.

  For the proof, the bound and the certificate call `scheduler.exact.solve`. Of
  a cluster without groups up to four stages can be planned, the groups with
  them. Where stages allow several numbers of granules each is solved for.

  Args:
    workflow: what is planned.
    profile: its durations.
    cluster: on what; with its groups, or without.
    budget: how often orders are decided by the solver, for each number of
      granules. Without groups only ten minutes limit the search.
    seed: of the solver.

  Raises:
    OutsideClassError: the case is not in class S; why.
    InfeasiblePlanError: a stage fits nowhere.
    ProfileError: a stage is profiled on no class of the cluster.
  """
  # A solver takes longer to import than most plans to find.
  from scheduler import exact as solver

  is_fixed = all(s.granule_min == s.largest_granule for s in workflow.stages)
  best: tuple[int, FlatPlan] | None = None
  reason: errors.SchedulerError | None = None
  for num_granules in (None,) if is_fixed else STREAMS:
    try:
      found = (
        solver.solve(
          workflow,
          profile,
          cluster,
          num_granules=num_granules,
          time_limit_s=_TIME_LIMIT_S,
          max_decisions=budget.iterations,
          seed=seed,
        )
        if cluster.groups
        else solver.solve_free(
          workflow,
          profile,
          cluster,
          num_granules=num_granules,
          time_limit_s=_TIME_LIMIT_S,
          seed=seed,
        )
      )
    except (errors.OutsideClassError, errors.InfeasiblePlanError) as error:
      reason = reason or error
      continue
    if best is None or found.period_ns < best[0]:
      best = found.period_ns, found.plan
  if best is None:
    assert reason is not None
    raise reason
  return best[1]
