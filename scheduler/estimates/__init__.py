"""The time of a tree in closed form, for planners that try very many.

A tree is walked Run by Run. A Run begins when its devices are free and the
items of its first granule are there; at a few of its granules, the first and
the last among them, it waits until theirs are. For granules that all take
equally long this is head + (M - 1) * bottleneck + tail, exactly. The first
granule of a decode is there only after its longest member.

What is neglected:
- between the eight granules at which a Run is looked at, evenly apart, it may
  wait longer, or earlier, than it says;
- the capacity of channels, and memory;
- with staleness, most circuits that lead through several iterations: what
  counts is how long an iteration keeps each set of devices (under a Spatial
  root, were what it reads of other children there from the start) and each
  link, and an iteration's length over the iterations alive;
- of a train stage divided into shares, applies that wait for the others;
- in a loop, lanes that wait for each other in any but the first turn;
- whether the tree fits its workflow: `lowering.lower` checks that.
"""

from __future__ import annotations

from collections.abc import Iterator

from scheduler import prices
from scheduler.clusters import Cluster
from scheduler.estimates.walks import Walk
from scheduler.plans import Node, Spatial, TreePlan
from scheduler.profiles import Profile
from scheduler.workflows import Workflow

__all__ = ["estimate_s"]


def estimate_s(
  plan: TreePlan,
  workflow: Workflow,
  profile: Profile,
  cluster: Cluster,
  *,
  seed: int = 0,
) -> float:
  """Returns about how many seconds an iteration of a tree takes.

  Args:
    plan: a tree that fits the workflow.
    workflow: what is planned.
    profile: its durations.
    cluster: on what.
    seed: of lengths that vary.

  Raises:
    ProfileError: the profile lacks what the tree uses.
  """
  costs = prices.of(workflow, profile, cluster, seed=seed)
  whole = Walk(plan, costs)
  whole.visit(plan.root, None)
  if workflow.staleness == 0:
    return whole.iteration_ns() * 1e-9
  period_ns = whole.iteration_ns() / (1 + workflow.staleness)
  period_ns = max(period_ns, whole.links_ns())
  for part in _side_by_side(plan.root):
    walk = whole
    if part is not plan.root:
      walk = Walk(plan, costs)
      walk.visit(part, None)
    period_ns = max(period_ns, walk.devices_ns())
  return period_ns * 1e-9


def _side_by_side(node: Node) -> Iterator[Node]:
  """Yields the parts of a tree that may work on different iterations."""
  if isinstance(node, Spatial):
    for child in node.children:
      yield from _side_by_side(child)
  else:
    yield node
