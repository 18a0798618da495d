r"""Measures how many activities per second `scheduler.simulation` simulates.

  python -m benchmarks.simulator_speed

On one core, in about a minute; needs no JAX. What is timed is a whole call of
`simulation.run`: it returns a timeline with an `Event` for each activity and
the memory ledger as `MemorySample` objects, all of them made and sorted.

- streamed: GRPO of a 1.5B model on 8 devices, its three stages side by side and
  joined by transfers of granules; an event graph.
- in turn: the same stages in turn on the same 8 devices, swapped after every 64
  sequences: an event graph with many holdings.
- fair links: eight stages on one node send granules of unequal sizes to eight
  on another without a pause, so that eight flows share a link all the time and
  hardly any set of them occurs twice.

Seconds are those of the process on the processor. What else runs on the machine
does not count, but slows it down: compare figures of an idle machine only.
"""

from __future__ import annotations

import os
import random
import statistics
import time

from absl import app, flags

from scheduler import clusters, lowering, plans, simulation, timelines
from scheduler.devices import Devices
from scheduler.workloads import grpo, hardware

FLAGS = flags.FLAGS

flags.DEFINE_integer("rounds", 5, "How often each is measured.", 1)
flags.DEFINE_integer(
  "activities", 200_000, "About how many are simulated in a round.", 1
)

NUM_FLOWS = 8


def main(argv: list[str]) -> None:
  """Measures and prints a markdown table."""
  if len(argv) > 1:
    raise app.UsageError(f"unknown arguments: {argv[1:]}")
  print(f"Load average {os.getloadavg()[0]:.2f}.\n")
  print("| plan | activities | memory samples | in flight | activities/s |")
  print("| --- | --- | --- | --- | --- |")
  cases = {
    "streamed": (streamed(), None),
    "in turn": (in_turn(), None),
    "fair links": (fair_links(), two_nodes()),
  }
  for name, (plan, cluster) in cases.items():
    iterations = max(1, FLAGS.activities // len(plan.activities))
    rates = []
    for _ in range(FLAGS.rounds):
      start_s = time.process_time()
      timeline = simulation.run(plan, iterations=iterations, cluster=cluster)
      seconds = time.process_time() - start_s
      rates.append(len(timeline.events) / seconds)
    print(
      f"| {name} | {len(timeline.events):,} | {len(timeline.memory):,} |"
      f" {moving(timeline):.2f} | {statistics.median(rates):,.0f}"
      f" ({min(rates):,.0f} to {max(rates):,.0f}) |",
      flush=True,
    )


def streamed() -> plans.FlatPlan:
  """Returns stages side by side, joined by transfers."""
  return _grpo(
    plans.Spatial(
      children=(
        plans.Run(stage="rollout", devices=Devices.span(0, 4), granule=16),
        plans.Run(stage="logprob", devices=Devices.span(4, 5), granule=16),
        plans.Run(stage="train", devices=Devices.span(5, 8), granule=16),
      )
    )
  )


def in_turn() -> plans.FlatPlan:
  """Returns stages in turn, swapped in and out."""
  return _grpo(
    plans.Temporal(
      turn=64,
      children=tuple(
        plans.Run(
          stage=stage, devices=Devices.span(0, 8), granule=16, is_resident=False
        )
        for stage in ("rollout", "logprob", "train")
      ),
    )
  )


def _grpo(root: plans.Node) -> plans.FlatPlan:
  problem = grpo.grpo_1_5b(hardware.h100(8))
  return lowering.lower(
    plans.TreePlan(root=root),
    problem.workflow,
    problem.profile,
    problem.cluster,
  )


def two_nodes() -> clusters.Cluster:
  """Returns two nodes of eight; a node sends 8 bytes per nanosecond."""
  return clusters.homogeneous(
    hardware.H100,
    2 * NUM_FLOWS,
    devices_per_node=NUM_FLOWS,
    links=clusters.Links(inter_node_bytes_per_s=8e9),
  )


def fair_links() -> plans.FlatPlan:
  """Returns pairs of stages between which bytes move all the time."""
  rng, n = random.Random(0), NUM_FLOWS
  devices = [
    plans.Resource(name=str(i), devices=Devices.of([i])) for i in range(2 * n)
  ]
  links = [plans.Resource(name=f"{i} > {i + n}", kind="link") for i in range(n)]
  activities: list[plans.Activity] = []
  arcs: list[plans.Arc] = []
  orders: list[list[plans.Slot]] = [[] for _ in range(3 * n)]
  holdings: list[plans.Holding] = []

  def add(activity: plans.Activity) -> int:
    for r in activity.resources:
      orders[r].append(plans.Slot(activity=len(activities)))
    activities.append(activity)
    return len(activities) - 1

  for i in range(n):
    made, read = (
      add(
        plans.Activity(
          kind="compute", stage=stage, resources=(r,), duration_ns=1_000
        )
      )
      for stage, r in ((f"a{i}", i), (f"b{i}", i + n))
    )
    sizes = [rng.randint(10_000, 99_999) for _ in range(100)]
    # Each sends half a percent more than the one before: in every iteration the
    # pairs are shifted against each other.
    scale = 5_500_000 * (1 + 0.005 * i) / sum(sizes)
    for g, size in enumerate(sizes):
      num_bytes = round(size * scale)
      sent = add(
        plans.Activity(
          kind="transfer",
          stage=f"a{i}",
          target=f"b{i}",
          resources=(2 * n + i,),
          # Of 8 bytes per nanosecond it could have some.
          duration_ns=num_bytes // rng.choice([2, 3, 4]),
          items=(g, g + 1),
          index=g,
          num_bytes=num_bytes,
        )
      )
      arcs.append(plans.Arc(source=made, target=sent))
      arcs.append(plans.Arc(source=sent, target=read))
      holdings.append(
        plans.Holding(
          resource=i + n,
          bytes_per_device=num_bytes,
          what="items",
          begin=sent,
          end=read,
        )
      )
  return plans.FlatPlan(
    resources=(*devices, *links),
    activities=tuple(activities),
    arcs=tuple(arcs),
    orders=tuple(map(tuple, orders)),
    holdings=tuple(holdings),
  )


def moving(timeline: timelines.Timeline) -> float:
  """Returns how many activities of kind transfer were under way, on average."""
  moved_ns = sum(
    e.stop_ns - e.start_ns for e in timeline.events if e.kind == "transfer"
  )
  return moved_ns / timeline.stop_ns


if __name__ == "__main__":
  app.run(main)
