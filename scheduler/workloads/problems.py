"""Problems: what a planner is given."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Literal

from scheduler import clusters, durations, errors, profiles, workflows

Split = Literal["development", "test", "published"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
  """A workflow, its profile and a cluster.

  Attributes:
    name: unique within a suite.
    workflow: what has to be done.
    profile: how long it takes.
    cluster: on what.
    split: "development" to tune planners on, "test" to report on; "published"
      is as close to a published row as is known.
  """

  name: str
  workflow: workflows.Workflow
  profile: profiles.Profile
  cluster: clusters.Cluster
  split: Split = "published"

  def __post_init__(self) -> None:
    check_memory(self.workflow, self.profile, self.cluster)


def problem(
  workflow: workflows.Workflow,
  entries: Iterable[profiles.Entry],
  cluster: clusters.Cluster,
) -> Problem:
  """Returns the problem of a workflow with a modelled profile.

  Raises:
    InfeasiblePlanError: a stage fits on no devices of the cluster.
  """
  return Problem(
    name=f"{workflow.name}_{cluster.num_devices}",
    workflow=workflow,
    profile=profiles.Profile(
      entries=tuple(entries), provenance="modelled by scheduler.workloads"
    ),
    cluster=cluster,
  )


def check_memory(
  workflow: workflows.Workflow,
  profile: profiles.Profile,
  cluster: clusters.Cluster,
) -> None:
  """Raises unless each stage, alone and at its smallest granule, fits.

  That stages fit one by one is what context switching needs at least.

  Raises:
    InfeasiblePlanError: a stage has no configuration that fits; the message
      has the closest one.
  """
  for stage in workflow.stages:
    needs = [
      need
      for name in profile.device_classes(stage.name)
      if name in {c.name for c in cluster.classes}
      for config in profile.configs(stage.name, name)
      for need in _needs(stage, profile, cluster, name, config)
    ]
    if not any(need.fits for need in needs):
      raise errors.InfeasiblePlanError(
        f"stage {stage.name!r} of {workflow.name!r} fits on no devices of this"
        f" cluster of {cluster.num_devices}:"
        f" {'; '.join(need.text for need in needs) or 'none it is profiled on'}"
      )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Need:
  fits: bool
  text: str


def _needs(
  stage: workflows.Stage,
  profile: profiles.Profile,
  cluster: clusters.Cluster,
  class_name: str,
  config: profiles.Config,
) -> list[_Need]:
  device = cluster.device_class(class_name)
  available = len(cluster.of_class(class_name))
  if not available:
    return []
  if config.devices > available:
    text = f"{config} needs {config.devices} {class_name}, there are"
    return [_Need(fits=False, text=f"{text} {available}")]
  count = available - available % config.devices
  state = durations.state_bytes(stage, config)
  transient = durations.transient_bytes(
    stage, profile, device, count, config, stage.granule_min
  )
  text = (
    f"{config} on {class_name} takes {state:,} + {transient:,} of"
    f" {device.memory_bytes:,} bytes"
  )
  return [_Need(fits=state + transient <= device.memory_bytes, text=text)]
