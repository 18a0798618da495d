r"""Planning time of the three-stage GRPO workflow, and how it grows.

  python -m benchmarks.planning_time
  python -m benchmarks.planning_time --planners=auto --sizes=1024,16384

Rollout, log-probabilities and training of a 1.5B model on 8 to 16,384 H100s.
Each planner runs in a fresh process for each size, as what one planner has
looked up another would find. No JAX; one core.
"""

from __future__ import annotations

import dataclasses
import math
import multiprocessing
import time
from collections.abc import Sequence
from typing import Any

from absl import app, flags

from scheduler import evaluation, planners, workloads

_PLANNERS = flags.DEFINE_list(
  "planners", ["pareto_dp", "auto", "rlinf_dp"], "Which planners."
)
_SIZES = flags.DEFINE_list(
  "sizes", ["8", "64", "1024", "4096", "16384"], "Numbers of devices."
)
_BUDGET = flags.DEFINE_integer("budget", 32, "Plans they may evaluate.", 1)
_REPEATS = flags.DEFINE_integer("repeats", 3, "Of each; the median counts.", 1)

STAGES = ("rollout", "logprob", "train")


def problem(num_devices: int) -> Any:
  """Returns GRPO 1.5B with its three stages that run on devices."""
  found = workloads.build("grpo_1_5b_h100", num_devices, "test")
  flow = found.workflow
  workflow = dataclasses.replace(
    flow,
    stages=tuple(s for s in flow.stages if s.name in STAGES),
    edges=tuple(
      e for e in flow.edges if e.source in STAGES and e.target in STAGES
    ),
    syncs=tuple(
      s for s in flow.syncs if s.source in STAGES and s.target in STAGES
    ),
  )
  return dataclasses.replace(found, workflow=workflow)


def plan_once(name: str, num_devices: int, budget: int) -> tuple[float, float]:
  """Returns seconds of planning, and the plan's period."""
  given = problem(num_devices)
  args = (given.workflow, given.profile, given.cluster)
  start_s = time.perf_counter()
  plan = planners.PLANNERS[name](*args, planners.Budget(iterations=budget), 0)
  spent_s = time.perf_counter() - start_s
  return spent_s, evaluation.evaluate(plan, *args).seconds


def exponent(sizes: Sequence[int], seconds: Sequence[float]) -> float:
  """Returns the slope of log(seconds) over log(devices), by least squares."""
  xs, ys = [math.log(n) for n in sizes], [math.log(t) for t in seconds]
  x0, y0 = sum(xs) / len(xs), sum(ys) / len(ys)
  above = sum((x - x0) * (y - y0) for x, y in zip(xs, ys))
  return above / sum((x - x0) ** 2 for x in xs)


def main(argv: list[str]) -> None:
  """Measures and prints one line for each planner and size."""
  del argv
  sizes = [int(size) for size in _SIZES.value]
  context = multiprocessing.get_context("fork")
  for name in _PLANNERS.value:
    medians = []
    for size in sizes:
      with context.Pool(1, maxtasksperchild=1) as pool:
        found = [
          pool.apply(plan_once, (name, size, _BUDGET.value))
          for _ in range(_REPEATS.value)
        ]
      times = sorted(spent_s for spent_s, _ in found)
      medians.append(times[len(times) // 2])
      print(
        f"{name}, {size:,} devices: planned in {medians[-1]:.3f} s"
        f" ({times[0]:.3f} to {times[-1]:.3f}); its plan takes"
        f" {found[0][1]:.1f} s",
        flush=True,
      )
    if len(sizes) > 1:
      print(f"{name}: grows as devices^{exponent(sizes, medians):.2f}")


if __name__ == "__main__":
  app.run(main)
