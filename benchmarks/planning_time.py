r"""Measures how long planners take for GRPO on clusters of growing size.

  python -m benchmarks.planning_time
  python -m benchmarks.planning_time --planners=auto --sizes=1024 --rounds=5

The workflow has three stages: rollout, log-probabilities and training of a 1.5B
model on H100, with 64 sequences per device up to 65,536. Every plan is made in
a process of its own, so that nothing is remembered, one after another; imports
are not counted. Seconds are those of the process on the processor, the least of
all rounds. What else runs on the machine does not count, but slows it down:
compare figures of an idle machine only.

The growth exponent is the slope of log seconds over log devices, from 64
devices on. A few minutes; needs no JAX.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import time
from collections.abc import Sequence

from absl import app, flags

from scheduler import evaluation, planners
from scheduler.workloads import grpo, hardware

FLAGS = flags.FLAGS

flags.DEFINE_list(
  "sizes",
  ["8", "64", "256", "1024", "4096", "16384"],
  "Numbers of devices.",
)
flags.DEFINE_list(
  "planners",
  ["collocated", "disaggregated", "rlinf_dp", "pareto_dp", "auto"],
  "Names of planners.",
)
flags.DEFINE_integer("rounds", 3, "How often each plan is made.", 1)

_FROM = 64


def main(argv: list[str]) -> None:
  """Measures and prints a markdown table."""
  if len(argv) > 1:
    raise app.UsageError(f"unknown arguments: {argv[1:]}")
  sizes = [int(size) for size in FLAGS.sizes]
  print(f"Load average {os.getloadavg()[0]:.2f}.\n")
  print(f"| planner |{''.join(f' {n:,} |' for n in sizes)} exponent |")
  print(f"| --- |{' --- |' * (len(sizes) + 1)}")
  for name in FLAGS.planners:
    cells, seconds = [], []
    for num_devices in sizes:
      found = [measured(name, num_devices) for _ in range(FLAGS.rounds)]
      seconds.append(min(planning_s for planning_s, _ in found))
      cells.append(f"{seconds[-1]:.2f} s ({found[0][1]:.1f} s)")
    grows = _written(exponent(sizes, seconds))
    print(f"| {name} | {' | '.join(cells)} | {grows} |", flush=True)
  print("\nIn brackets the period of the plan.")


def measured(name: str, num_devices: int) -> tuple[float, float]:
  """Returns the seconds to make a plan, and its period."""
  context = multiprocessing.get_context("spawn")
  with context.Pool(1) as pool:
    return pool.apply(_plan, (name, num_devices))


def exponent(sizes: Sequence[int], seconds: Sequence[float]) -> float | None:
  """Returns e where seconds grow as sizes to the power of e.

  None: there are fewer than two sizes that are large enough.
  """
  points = [
    (math.log(n), math.log(s)) for n, s in zip(sizes, seconds) if n >= _FROM
  ]
  if len(points) < 2:
    return None
  x_mean = sum(x for x, _ in points) / len(points)
  y_mean = sum(y for _, y in points) / len(points)
  spread = sum((x - x_mean) ** 2 for x, _ in points)
  return sum((x - x_mean) * (y - y_mean) for x, y in points) / spread


def _written(found: float | None) -> str:
  return "-" if found is None else f"{found:.2f}"


def _plan(name: str, num_devices: int) -> tuple[float, float]:
  cluster = hardware.h100(num_devices)
  problem = grpo.grpo_1_5b(cluster)
  given = problem.workflow, problem.profile, cluster
  start_s = time.process_time()
  plan = planners.PLANNERS[name](*given, planners.Budget(), 0)
  planning_s = time.process_time() - start_s
  return planning_s, evaluation.evaluate(plan, *given).seconds


if __name__ == "__main__":
  app.run(main)
