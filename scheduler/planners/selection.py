"""The best of a planner's candidates, under the one evaluator."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from fractions import Fraction

from scheduler import errors, evaluation, prices
from scheduler.clusters import Cluster
from scheduler.planners import residency
from scheduler.planners.protocol import Budget
from scheduler.plans import TreePlan
from scheduler.profiles import Profile
from scheduler.workflows import Workflow


def best(
  candidates: Iterable[TreePlan],
  workflow: Workflow,
  profile: Profile,
  cluster: Cluster,
  budget: Budget,
) -> TreePlan:
  """Returns the candidate with the shortest period of those that can run.

  Args:
    candidates: in the order in which they are tried; their Runs are swapped
      here, where memory needs it.
    workflow: what is planned.
    profile: its durations.
    cluster: on what.
    budget: of candidates that are evaluated. Where none of them can run,
      further ones are, up to the first that can.

  Raises:
    InfeasiblePlanError: none can run; why the first cannot.
  """
  found: tuple[Fraction, TreePlan] | None = None
  first_error: errors.SchedulerError | None = None
  for tried, candidate in enumerate(candidates):
    if tried >= budget.iterations and found is not None:
      break
    for plan in variants(candidate, workflow, profile, cluster):
      try:
        period_ns = evaluation.evaluate(
          plan, workflow, profile, cluster, check=False
        ).period_ns
        if found is not None and period_ns >= found[0]:
          continue
        # Checking takes longer than all the rest: only what may be returned.
        evaluation.evaluate(plan, workflow, profile, cluster)
      except (errors.InfeasiblePlanError, errors.ProfileError) as error:
        first_error = first_error or error
        continue
      found = period_ns, plan
  if found is None:
    raise errors.InfeasiblePlanError(
      f"workflow {workflow.name!r}: no plan of this kind fits the cluster."
      + (f" Of the one that came nearest: {first_error}" if first_error else "")
    )
  return found[1]


def variants(
  plan: TreePlan, workflow: Workflow, profile: Profile, cluster: Cluster
) -> Iterator[TreePlan]:
  """Yields a plan swapped so that it fits, as far as it can.

  Where the staleness lets a rollout go on while it receives new weights, also
  with second copies of them.
  """
  known = prices.of(workflow, profile, cluster)
  yield from residency.settled(plan, known)
  targets = tuple(
    dict.fromkeys(s.target for s in workflow.syncs if s.num_bytes)
  )
  if workflow.staleness and targets:
    yield from residency.settled(
      dataclasses.replace(plan, copies=targets), known
    )
