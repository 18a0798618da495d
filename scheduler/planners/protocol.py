"""What every planner is: a function that returns a plan."""

from __future__ import annotations

import dataclasses
from typing import Protocol

from scheduler import errors
from scheduler.clusters import Cluster
from scheduler.plans import Plan
from scheduler.profiles import Profile
from scheduler.workflows import Workflow


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
  """How much a planner may search.

  It counts work, not seconds: the same budget gives the same plan on any
  machine, however busy.

  Attributes:
    iterations: candidate plans that a planner may evaluate exactly; what it
      estimates before that is bounded in proportion.
  """

  iterations: int = 32

  def __post_init__(self) -> None:
    if self.iterations < 1:
      raise errors.SchedulerError(
        f"a budget of {self.iterations} iterations allows no plan at all; give"
        " at least 1"
      )


class Planner(Protocol):
  """Returns where, when and at what granule each stage runs.

  Raises:
    InfeasiblePlanError: no plan of the planner's kind fits the cluster.
    ProfileError: a stage is not profiled on any class of the cluster.
  """

  def __call__(
    self,
    workflow: Workflow,
    profile: Profile,
    cluster: Cluster,
    budget: Budget,
    seed: int,
  ) -> Plan: ...
