"""Trials: candidate plans of a search, under the one evaluator."""

from __future__ import annotations

from fractions import Fraction

from scheduler import errors, evaluation
from scheduler.clusters import Cluster
from scheduler.planners import selection
from scheduler.plans import FlatPlan, Plan
from scheduler.profiles import Profile
from scheduler.workflows import Workflow


class Trials:
  """What a search has tried, and what it may still try.

  Attributes:
    left: evaluations that the budget still allows.
  """

  def __init__(
    self, workflow: Workflow, profile: Profile, cluster: Cluster, limit: int
  ):
    self.workflow, self.profile, self.cluster = workflow, profile, cluster
    self.left = limit
    self._found: list[tuple[Fraction, int, Plan]] = []
    self._error: errors.SchedulerError | None = None

  @property
  def best_ns(self) -> Fraction | None:
    """The shortest period so far; None: nothing can run yet."""
    return min((entry[0] for entry in self._found), default=None)

  @property
  def best(self) -> Plan | None:
    """The plan with the shortest period so far, the first of equals."""
    found = min(self._found, key=lambda entry: entry[:2], default=None)
    return None if found is None else found[2]

  def ranked(self) -> list[Plan]:
    """Returns the plans that were tried and can run, the best first."""
    return [plan for _, _, plan in sorted(self._found, key=lambda e: e[:2])]

  def offer(self, plan: Plan) -> Fraction | None:
    """Evaluates a plan, a tree with its variants; None: it cannot run.

    The checker sees only the result, because it takes longer than the rest.
    """
    best: Fraction | None = None
    given = (self.workflow, self.profile, self.cluster)
    variants = (
      (plan,)
      if isinstance(plan, FlatPlan)
      else selection.variants(plan, *given)
    )
    for variant in variants:
      self.left -= 1
      try:
        found = evaluation.evaluate(variant, *given, check=False).period_ns
      except (errors.InfeasiblePlanError, errors.ProfileError) as error:
        self._error = self._error or error
        continue
      self._found.append((found, len(self._found), variant))
      best = found if best is None else min(best, found)
    return best

  def result(self) -> Plan:
    """Returns the best plan that passes the checker.

    Raises:
      InfeasiblePlanError: none does; why the first cannot run.
    """
    given = (self.workflow, self.profile, self.cluster)
    for _, _, plan in sorted(self._found, key=lambda entry: entry[:2]):
      try:
        evaluation.evaluate(plan, *given)
      except errors.InfeasiblePlanError as error:
        self._error = self._error or error
        continue
      return plan
    reason = f" Of the first that was tried: {self._error}"
    raise errors.InfeasiblePlanError(
      f"workflow {self.workflow.name!r}: no plan was found that can run."
      + (reason if self._error else "")
    )
