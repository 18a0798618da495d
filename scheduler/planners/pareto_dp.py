"""A dynamic programme over cuts that keeps every label which may win."""

from __future__ import annotations

from collections.abc import Iterator

from scheduler import plans
from scheduler.clusters import Cluster
from scheduler.devices import Devices
from scheduler.planners import counts, pools, programmes, selection
from scheduler.planners.labels import Label
from scheduler.planners.leaves import Leaves
from scheduler.planners.modes import Modes
from scheduler.planners.pools import Key, Pools
from scheduler.planners.programmes import Programme
from scheduler.planners.protocol import Budget
from scheduler.planners.units import Options
from scheduler.plans import Node, Spatial, Temporal, TreePlan
from scheduler.profiles import Profile
from scheduler.workflows import Workflow

# Counts of a first pass, which finds a period that others have to beat.
_COARSE = 12
# Trees around which more counts are tried.
_REFINED = 3


def pareto_dp(
  workflow: Workflow,
  profile: Profile,
  cluster: Cluster,
  budget: Budget,
  seed: int,
) -> TreePlan:
  """Returns the best tree by the closed form of `labels`.

  A subgraph on n devices is cut in two, which take turns, once or granule by
  granule, or divide the devices; loops are collapsed. For each number of
  granules the programme keeps the labels that no other dominates and that may
  still beat all stages in turn. On chains, where memory is plenty, it finds the
  best of all such trees for the counts of devices that it tries: of few devices
  of one class all of them (64 for three stages, 16 for six; the tree's label
  says "epsilon 0"), of more a series that grows by epsilon. A stage is then
  given at most a share of epsilon fewer devices than in the best tree, and all
  counts near those of the best trees follow.

  Args:
    workflow: what is planned.
    profile: its durations.
    cluster: on what.
    budget: of trees that are evaluated, a quarter of its iterations; of fewer
      than 32, as many fewer counts of many devices are tried.
    seed: not used; nothing is drawn.

  Raises:
    InfeasiblePlanError: a stage fits nowhere, or no tree that was found fits.
    ProfileError: a stage is profiled on no class of the cluster.
  """
  del seed
  options = Options(
    Modes(workflow, profile, cluster, pools.of_cluster(cluster, counts.FEWEST))
  )
  options.check()
  leaves = Leaves(options)
  found: list[Label] = []
  shares, epsilon = counts.grid(
    cluster, len(options.graph.units), budget.iterations
  )
  for finer in (counts.thinned(shares, _COARSE), shares):
    found = _search(leaves, finer, found)
  if epsilon:
    keys = [k for label in found[:_REFINED] for k in _keys(label, shares.full)]
    found = _search(
      leaves,
      counts.near(shares, keys, len(options.graph.units), budget.iterations),
      found,
    )
  name = f"pareto_dp (epsilon {epsilon:.2g})"
  return selection.best(
    (
      TreePlan(root=_node(options, label, cluster.devices), label=name)
      for label in found
    ),
    workflow,
    profile,
    cluster,
    Budget(iterations=max(1, budget.iterations // 4)),
  )


def _search(leaves: Leaves, shares: Pools, found: list[Label]) -> list[Label]:
  """Returns labels of the whole workflow, with those found before."""
  workflow = leaves.options.modes.workflow
  limit_ns = programmes.objective_ns(found[0], workflow) + 1 if found else None
  found = found + Programme(leaves, shares, limit_ns).best()
  return sorted(
    found, key=lambda label: programmes.objective_ns(label, workflow)
  )


def _keys(label: Label, key: Key) -> Iterator[Key]:
  yield key
  for part, share in label.parts:
    yield from _keys(part, share)


def _node(options: Options, label: Label, within: Devices) -> Node:
  """Returns a label as a tree on devices out of a share's."""
  if label.option is not None:
    return options.node(label.option, within)
  children: list[Node] = []
  for part, key in label.parts:
    chosen = options.pools.choose(key, within)
    node = _node(options, part, chosen)
    if label.kind == "side by side":
      within = within - chosen
    children += _spliced(node, label)
  if label.kind == "side by side":
    return Spatial(children=tuple(children))
  turn = None
  if label.kind == "turns":
    first = next(plans.runs(children[0]))
    turn = first.granule
  return Temporal(children=tuple(children), turn=turn)


def _spliced(node: Node, label: Label) -> tuple[Node, ...]:
  """Returns a part's own children where it is of the same kind."""
  if isinstance(node, Spatial) and label.kind == "side by side":
    return node.children
  if isinstance(node, Temporal):
    if label.kind == "turns" or (label.kind == "turn" and node.turn is None):
      return node.children
  return (node,)
