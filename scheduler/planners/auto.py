"""The best plan of the fast planners, and of a short search from there."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

from scheduler import durations, errors
from scheduler.bounds import work
from scheduler.clusters import Cluster
from scheduler.planners import (
  collocated,
  disaggregated,
  layouts,
  local_search,
  pareto_dp,
  rlinf_dp,
  rlinf_toolkit,
)
from scheduler.planners.protocol import Budget, Planner
from scheduler.planners.trials import Trials
from scheduler.plans import Plan
from scheduler.profiles import Profile
from scheduler.workflows import Workflow

# In this order the first of equals is the simplest.
FAST: tuple[Planner, ...] = (
  collocated.collocated,
  disaggregated.disaggregated,
  rlinf_dp.rlinf_dp,
  rlinf_toolkit.rlinf_toolkit,
)
_FASTEST: tuple[Planner, ...] = (collocated.collocated, pareto_dp.pareto_dp)
# Up to so many devices, all that one device fewer allows is tried too.
_FEW = 4
# Of so many items a decode is priced at once.
_MANY = 4096


def auto(
  workflow: Workflow,
  profile: Profile,
  cluster: Cluster,
  budget: Budget,
  seed: int,
) -> Plan:
  """Returns the best of what `FAST` find, and of a local search from there.

  It is never worse than any of them, under the one evaluator. Where devices are
  not in a few groups, it begins with `pareto_dp`'s plan too. On clusters of
  one class it also plans for fewer devices: of up to 4, for every number that
  may be better, so that a device more never makes it worse; of more, for halves
  of them, by `collocated` and `pareto_dp` alone.

  Args:
    workflow: what is planned.
    profile: its durations.
    cluster: on what.
    budget: of each planner, and of the local search, which looks at as many
      layouts; at a quarter where decoding many items takes long to price.
    seed: of all choices.

  Raises:
    InfeasiblePlanError: no planner finds a plan that fits; why the first does
      not.
    ProfileError: a stage is profiled on no class of the cluster.
  """
  trials = Trials(workflow, profile, cluster, budget.iterations)
  local_search.offer_all(trials, FAST, budget, seed)
  if not 0 < len(cluster.groups) <= layouts.MAX_ATOMS:
    small = Budget(iterations=max(1, budget.iterations // 4))
    local_search.offer_all(trials, (pareto_dp.pareto_dp,), small, seed)
  trials.left = budget.iterations
  num_layouts = _num_layouts(workflow, budget)
  local_search.improve(
    trials, num_layouts=num_layouts, seed=seed, is_quick=True
  )
  _try_fewer(trials, cluster, budget, seed)
  plan = trials.result()
  return dataclasses.replace(plan, label=plan.label or "auto")


def _try_fewer(
  trials: Trials, cluster: Cluster, budget: Budget, seed: int
) -> None:
  """Offers plans for fewer devices, as far as they may be better."""
  given = trials.workflow, trials.profile
  is_small = cluster.num_devices <= _FEW
  while (smaller := _smaller(cluster)) is not None:
    cluster = smaller
    inner = Trials(*given, cluster, budget.iterations)
    try:
      if _least_ns(*given, cluster) >= (trials.best_ns or 0):
        return
      planners = FAST if is_small else _FASTEST
      local_search.offer_all(inner, planners, budget, seed)
    except errors.SchedulerError:
      return
    if is_small:
      inner.left = budget.iterations
      num_layouts = _num_layouts(trials.workflow, budget)
      local_search.improve(
        inner, num_layouts=num_layouts, seed=seed, is_quick=True
      )
    if inner.best is not None:
      trials.offer(inner.best)


def _num_layouts(workflow: Workflow, budget: Budget) -> int:
  most = max(stage.items for stage in workflow.stages)
  return max(1, budget.iterations // (1 if most <= _MANY else 4))


def _smaller(cluster: Cluster) -> Cluster | None:
  """Returns the first devices of a cluster of one class, a few or a half."""
  total = cluster.num_devices
  if len(cluster.classes) > 1 or cluster.groups or total == 1:
    return None
  left = total - 1 if total <= _FEW else total // 2
  nodes = []
  for kind in cluster.nodes:
    count, rest = divmod(left, kind.devices_per_node)
    whole = min(count, kind.num_nodes)
    if whole:
      nodes.append(dataclasses.replace(kind, num_nodes=whole))
    left -= whole * kind.devices_per_node
    if whole < kind.num_nodes:
      if rest:
        nodes.append(
          dataclasses.replace(kind, num_nodes=1, devices_per_node=rest)
        )
      break
  return dataclasses.replace(cluster, nodes=tuple(nodes))


def _least_ns(
  workflow: Workflow, profile: Profile, cluster: Cluster
) -> Fraction:
  """Returns the work of all stages at its least, over all devices."""
  found = work.layouts(workflow, profile, cluster, 0)
  seconds = sum(
    min(layout.turns * layout.least_work() for layout in own)
    for own in found.values()
  )
  return Fraction(seconds) * durations.NS_PER_S / cluster.num_devices
