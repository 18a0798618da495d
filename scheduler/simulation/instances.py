"""The instances of a plan as nodes of a clock."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence

from scheduler import plans
from scheduler.simulation import event_graph
from scheduler.simulation.clock import Clock
from scheduler.simulation.routes import Routes

# By instance or resource, nodes that something waits for.
Nodes = Mapping[int, Sequence[int]]
_NONE: Nodes = types.MappingProxyType({})


def add(
  clock: Clock,
  plan: plans.FlatPlan,
  lengths_ns: Sequence[int],
  routes: Routes,
  *,
  inherited: Nodes = _NONE,
  before: Nodes = _NONE,
) -> list[int]:
  """Adds what is left of a plan to a clock; returns each instance's node.

  Args:
    clock: to which nodes are added.
    plan: whose activities, arcs and orders they have.
    lengths_ns: of each instance; their number tells the iterations.
    routes: of the plan; a flow takes its own length.
    inherited: instances of which nothing is left to do, with the nodes under
      way that end them; they get no nodes, and -1 is returned for them.
    before: by resource, nodes that come before all others on it.
  """
  n = len(plan.activities)
  iterations = len(lengths_ns) // n if n else 0
  nodes, first = [], len(clock.flows)
  clock.flows += routes.flows
  for k, length_ns in enumerate(lengths_ns):
    flow = routes.of_activity[k % n]
    if flow is not None:
      flow, length_ns = first + flow, routes.lengths_ns[k % n]
    nodes.append(-1 if k in inherited else clock.add(length_ns, flow))
  for arc in plan.arcs:
    for i in range(max(0, arc.lag), iterations + min(0, arc.lag)):
      source = (i - arc.lag) * n + arc.source
      node = nodes[i * n + arc.target]
      if node < 0:
        continue
      if nodes[source] >= 0:
        clock.wait(node, nodes[source], arc.after)
      elif arc.after == "end":
        for under_way in inherited[source]:
          clock.wait(node, under_way)
  for resource, order in enumerate(plan.orders):
    previous = before.get(resource, ())
    for k, _ in event_graph.turns(order, n, iterations):
      if nodes[k] >= 0:
        for node in previous:
          clock.wait(nodes[k], node)
        previous = (nodes[k],)
  return nodes
