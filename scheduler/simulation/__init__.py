"""A deterministic simulator of plans.

`run` executes a flat plan: as an event graph, whose steady state
`scheduler.cycles` knows exactly, or on a cluster whose links all that moves
shares fairly. `perturb` draws other durations than the plan's, and `serve`
batches a decode continuously. `run_online` lets a policy change the plan.
"""

from __future__ import annotations

from scheduler import timelines
from scheduler.clusters import Cluster
from scheduler.plans import FlatPlan
from scheduler.simulation import event_graph, instances, records
from scheduler.simulation import routes as routing
from scheduler.simulation.batching import (
  Replicas,
  Served,
  make_ready_fn,
  recomputation,
  serve,
  swapping,
)
from scheduler.simulation.clock import Clock
from scheduler.simulation.perturbations import DurationsFn, perturb
from scheduler.simulation.replanning import run_online
from scheduler.simulation.snapshots import (
  Disturbance,
  Drift,
  Join,
  Leave,
  OnlinePolicy,
  Snapshot,
)
from scheduler.simulation.stretches import Stretch, check_iterations

__all__ = [
  "Disturbance",
  "Drift",
  "DurationsFn",
  "Join",
  "Leave",
  "OnlinePolicy",
  "Replicas",
  "Served",
  "Snapshot",
  "make_ready_fn",
  "perturb",
  "recomputation",
  "run",
  "run_online",
  "serve",
  "swapping",
]


def run(
  plan: FlatPlan,
  *,
  iterations: int,
  durations_fn: DurationsFn | None = None,
  cluster: Cluster | None = None,
) -> timelines.Timeline:
  """Returns what a plan does when everything starts as soon as it can.

  An activity starts when all its arcs and the orders of its resources allow.
  Nothing waits for iterations before the first or after the last.

  Args:
    plan: a flat plan.
    iterations: how many.
    durations_fn: how long activities take; None: what the plan says.
    cluster: whose links are shared by all that moves at the same time, max-min
      fairly; None: everything takes its duration.

  Raises:
    InfeasiblePlanError: activities wait for each other in a circle.
  """
  check_iterations(iterations)
  nominal = [a.duration_ns for a in plan.activities]
  lengths_ns: list[int] = []
  for i in range(iterations):
    lengths_ns += durations_fn(plan, i) if durations_fn else nominal
  # Where links are shared, too: it finds what waits for itself.
  starts, stops = event_graph.instants_ns(plan, lengths_ns, iterations)
  if cluster is not None:
    routes = routing.routes(plan, cluster)
    clock = Clock()
    nodes = instances.add(clock, plan, lengths_ns, routes)
    clock.run()
    starts = [clock.starts_ns[node] for node in nodes]
    stops = [clock.stops_ns[node] for node in nodes]
  return records.timeline(
    [Stretch(plan=plan, starts_ns=starts, stops_ns=stops)]
  )
