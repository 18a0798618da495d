"""Rollout and training on disjoint devices, joined by a stream of granules."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from scheduler.clusters import Cluster
from scheduler.planners import collocated, parts, units
from scheduler.planners.parts import Draft, Part
from scheduler.planners.pools import Key, Pools
from scheduler.planners.protocol import Budget
from scheduler.planners.units import Options, Unit
from scheduler.plans import TreePlan
from scheduler.profiles import Profile
from scheduler.workflows import Workflow

# Of more stages that could be on either side, all of them go to one.
_MAX_FREE = 4
# Every division of so many devices; of more, first these and then ever finer
# ones around the best.
_MAX_EXHAUSTIVE, _FIRST_COUNTS = 64, 20
_REFINEMENT, _MAX_ROUNDS, _MAX_NEAR = 4, 8, 3
# Divisions that are worse than the best by more do not matter.
_SLACK = 1.5


def disaggregated(
  workflow: Workflow,
  profile: Profile,
  cluster: Cluster,
  budget: Budget,
  seed: int,
) -> TreePlan:
  """Returns a plan with rollout on some devices and training on the others.

  Decoding, simulation and what runs on the host is one side, training the
  other; inference is tried on both. Every division of the devices is tried
  where there are at most 64 of them; of more, a series of divisions and then
  ever finer ones around the best. With staleness 0 training begins with the
  first granule; with staleness 1 it is one step behind the rollout.

  What cannot be divided, because there is one stage or one device, is
  collocated.

  Args:
    workflow: what is planned.
    profile: its durations.
    cluster: on what.
    budget: of plans that are evaluated; it also widens the search around the
      best divisions of many devices.
    seed: not used; nothing is drawn.

  Raises:
    InfeasiblePlanError: a stage fits nowhere, or the two sides do not.
    ProfileError: a stage is profiled on no class of the cluster.
  """
  competing = units.num_contested(workflow, profile, cluster)
  is_large = cluster.num_devices > _MAX_EXHAUSTIVE and competing < 2
  options = units.of(
    workflow, profile, cluster, _FIRST_COUNTS if is_large else None
  )
  shares = options.pools
  tried: set[object] = set()
  found: list[Draft] = []
  for side in _sides(options, workflow):
    _divide(options, shares, side, tried, found)
  if not found:
    return collocated.collocated(workflow, profile, cluster, budget, seed)
  for _ in range(_MAX_ROUNDS):
    ranked = sorted(found, key=lambda d: d.estimate_ns)
    side = ranked[0].parts[0].units
    divided = [d.parts for d in ranked if d.parts[0].units == side]
    near = list(dict.fromkeys(divided))[
      : min(_MAX_NEAR, 1 + budget.iterations // 16)
    ]
    keys = [part.key for both in near for part in both]
    if competing < 2:
      finer = shares.refined(keys, _REFINEMENT)
    else:
      finer = shares.narrowed([shares.full, *keys[:2]])
    if finer == shares:
      break
    shares = finer
    _divide(options, shares, side, tried, found)
  return parts.plan(options, found, cluster, budget, "disaggregated")


def _sides(options: Options, workflow: Workflow) -> Iterator[tuple[int, ...]]:
  """Yields the units of the rollout's side; the others are training's."""
  graph = options.graph
  everyone = range(len(graph.units))
  if len(graph.units) < 2:
    return
  kinds = [_kinds(unit, workflow) for unit in graph.units]
  trains = {i for i in everyone if "train" in kinds[i]} or {everyone[-1]}
  free = [i for i in everyone if kinds[i] <= {"infer", "sync"}]
  free = [i for i in free if i not in trains]
  fixed = [i for i in everyone if i not in trains and i not in free]
  if len(free) > _MAX_FREE:
    choices = [(), tuple(free)]
  else:
    choices = [
      chosen
      for size in range(len(free) + 1)
      for chosen in itertools.combinations(free, size)
    ]
  for chosen in choices:
    if side := tuple(sorted({*fixed, *chosen})):
      yield side


def _kinds(unit: Unit, workflow: Workflow) -> set[str]:
  return {workflow.stage(name).kind for name in unit.stages}


def _divide(
  options: Options,
  shares: Pools,
  rollout: tuple[int, ...],
  tried: set[object],
  found: list[Draft],
) -> None:
  """Adds drafts for every division between the sides not tried before.

  Divisions are left out on which decoding alone takes longer than all of the
  best one.
  """
  everyone = range(len(options.graph.units))
  training = tuple(i for i in everyone if i not in rollout)
  if not training:
    return
  usable = [options.pools_of_all(side) for side in (rollout, training)]
  best_ns = min((draft.estimate_ns for draft in found), default=math.inf)
  # Even divisions first: they are never far from the best.
  splits = sorted(
    shares.splits(shares.full, *usable),
    key=lambda pair: sum(abs(a - b) for a, b in zip(*pair)),
  )
  for first, second in splits:
    if (rollout, first, second) in tried:
      continue
    tried.add((rollout, first, second))
    if _bound_ns(options, rollout, first) > _SLACK * best_ns:
      continue
    made = parts.drafts(
      options,
      (Part(units=rollout, key=first), Part(units=training, key=second)),
    )
    for draft in made:
      found.append(draft)
      best_ns = min(best_ns, draft.estimate_ns)


def _bound_ns(options: Options, members: tuple[int, ...], key: Key) -> float:
  return max(options.bound_ns(options.graph.units[i], key) for i in members)
