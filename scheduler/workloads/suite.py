"""The suite: workloads, cluster sizes, and the draws to tune and report on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from scheduler import clusters
from scheduler.workloads import (
  agents,
  embodied,
  graphs,
  grpo,
  hardware,
  ppo,
  problems,
  variations,
)

WorkloadFn = Callable[..., problems.Problem]
ClusterFn = Callable[[int], clusters.Cluster]

# Planners are tuned on the one and reported on the other; both are frozen by a
# digest in the tests.
SEEDS: dict[problems.Split, int] = {"development": 2509, "test": 15965}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Case:
  """A workload on clusters of one kind.

  Attributes:
    workload_fn: (cluster, variation=) -> problem.
    cluster_fn: num_devices -> cluster.
    development: numbers of devices of the development draw.
    test: numbers of devices of the test draw.
    left_out: numbers of devices on which it does not fit in memory.
  """

  workload_fn: WorkloadFn
  cluster_fn: ClusterFn
  development: tuple[int, ...]
  test: tuple[int, ...]
  left_out: tuple[int, ...] = ()


SUITE = {
  "grpo_1_5b_h100": Case(
    workload_fn=grpo.grpo_1_5b,
    cluster_fn=hardware.h100,
    development=(1, 8, 48, 1024),
    test=(3, 8, 24, 96, 1024, 16_384),
  ),
  "grpo_1_5b_mixed": Case(
    workload_fn=grpo.grpo_1_5b,
    cluster_fn=hardware.h20_and_h800,
    development=(16,),
    test=(3, 24, 96),
  ),
  "grpo_7b_h100": Case(
    workload_fn=grpo.grpo_7b,
    cluster_fn=hardware.h100,
    development=(8, 64, 4096),
    test=(3, 24, 48, 64, 1024, 16_384),
    left_out=(1,),
  ),
  "grpo_7b_one_step_off": Case(
    workload_fn=grpo.grpo_7b_one_step_off,
    cluster_fn=hardware.h100,
    development=(16,),
    test=(8, 48, 256),
    left_out=(1,),
  ),
  "grpo_7b_h200": Case(
    workload_fn=grpo.grpo_7b,
    cluster_fn=hardware.h200,
    development=(8,),
    test=(16, 48),
    left_out=(1,),
  ),
  "grpo_7b_h20": Case(
    workload_fn=grpo.grpo_7b,
    cluster_fn=hardware.h20,
    development=(32,),
    test=(24, 128),
    left_out=(1,),
  ),
  "grpo_7b_mixed": Case(
    workload_fn=grpo.grpo_7b,
    cluster_fn=hardware.h20_and_h800,
    development=(48,),
    test=(16, 96, 1024),
    left_out=(2,),
  ),
  "grpo_32b_h800": Case(
    workload_fn=grpo.grpo_32b,
    cluster_fn=hardware.h800,
    development=(64,),
    test=(24, 48, 96, 256, 4096),
    left_out=(1, 3),
  ),
  "grpo_32b_mixed": Case(
    workload_fn=grpo.grpo_32b,
    cluster_fn=hardware.h20_and_h800,
    development=(64,),
    test=(48, 256),
    left_out=(3, 8),
  ),
  "grpo_moe_30b_cx7": Case(
    workload_fn=grpo.grpo_moe_30b,
    cluster_fn=hardware.h100_over_cx7,
    development=(16, 256),
    test=(24, 96, 2048),
    left_out=(1, 3),
  ),
  "ppo_7b_h100": Case(
    workload_fn=ppo.ppo_7b,
    cluster_fn=hardware.h100,
    development=(8, 128),
    test=(3, 16, 48, 96, 8192),
    left_out=(1,),
  ),
  "tool_use_7b": Case(
    workload_fn=agents.tool_use_7b,
    cluster_fn=hardware.h100_and_cpu,
    development=(8, 64),
    test=(16, 24, 256),
    left_out=(1,),
  ),
  "maniskill": Case(
    workload_fn=embodied.maniskill,
    cluster_fn=hardware.h100,
    development=(4, 32),
    test=(3, 8, 24, 96, 1024),
    left_out=(1,),
  ),
  "libero": Case(
    workload_fn=embodied.libero,
    cluster_fn=hardware.h100_and_cpu,
    development=(4, 32),
    test=(3, 8, 24, 96, 1024),
    left_out=(1,),
  ),
  "behavior": Case(
    workload_fn=embodied.behavior,
    cluster_fn=hardware.rtx_4090d,
    development=(4, 32),
    test=(8, 24, 96),
    left_out=(1, 3),
  ),
  "series_parallel": Case(
    workload_fn=graphs.series_parallel,
    cluster_fn=hardware.h100,
    development=(3, 8, 24, 96),
    test=(1, 3, 8, 16, 24, 48, 96, 1024),
  ),
  "layered": Case(
    workload_fn=graphs.layered,
    cluster_fn=hardware.h100,
    development=(3, 8, 24, 96),
    test=(1, 3, 8, 16, 24, 48, 96, 1024),
  ),
}


def build(
  name: str, num_devices: int, split: problems.Split
) -> problems.Problem:
  """Returns one problem of the suite, or one like it of another size.

  Args:
    name: a key of `SUITE`.
    num_devices: that the model's stages may use; a workload that needs host
      cores has as many devices of class "cpu" besides.
    split: which draw; "published": as close to published rows as is known.

  Raises:
    InfeasiblePlanError: a stage fits on no devices of such a cluster.
  """
  case, variation = SUITE[name], variations.Variation()
  if split != "published":
    variation = variations.draw(SEEDS[split], name, num_devices)
  problem = case.workload_fn(case.cluster_fn(num_devices), variation=variation)
  return dataclasses.replace(
    problem, name=f"{name}_{num_devices}_{split}", split=split
  )


def problems_of(split: problems.Split) -> Iterator[problems.Problem]:
  """Yields the problems of one draw."""
  for name, case in SUITE.items():
    sizes = {"development": case.development, "test": case.test}[split]
    for num_devices in sizes:
      yield build(name, num_devices, split)
