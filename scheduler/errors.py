"""Every way in which input to the scheduler can be wrong."""

from __future__ import annotations


class SchedulerError(ValueError):
  """Input that the scheduler cannot work with; the parent of the others."""


class DocumentError(SchedulerError):
  """JSON that does not describe what it should."""


class WorkflowError(SchedulerError):
  """A workflow that contradicts itself."""


class ProfileError(SchedulerError):
  """A profile that lacks what is asked, or contradicts itself."""


class ClusterError(SchedulerError):
  """A cluster that contradicts itself."""


class InfeasiblePlanError(SchedulerError):
  """A plan that cannot run, or a workflow for which there is none."""


class OutsideClassError(SchedulerError):
  """A case outside the class that an exact method is for."""
