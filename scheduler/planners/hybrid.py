"""Stages divided into sets, each of which takes turns on its own devices."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from scheduler.clusters import Cluster
from scheduler.planners import divisions, parts, units
from scheduler.planners.parts import Draft, Part
from scheduler.planners.pools import Key
from scheduler.planners.protocol import Budget
from scheduler.planners.units import Options
from scheduler.plans import TreePlan
from scheduler.profiles import Profile
from scheduler.workflows import Workflow

# Divisions of the devices that are estimated for each plan evaluated.
_ESTIMATES_PER_ITERATION = 64
# Of each partition; where there are no more, all of them.
_MAX_DIVISIONS = 64
_MAX_PARTITIONS = 2048


def hybrid(
  workflow: Workflow,
  profile: Profile,
  cluster: Cluster,
  budget: Budget,
  seed: int,
) -> TreePlan:
  """Returns the best of the plans made of collocated sets of stages.

  Every partition of the stages into sets is considered, with devices in
  proportion to the sets' work; then, for the best partitions as far as the
  budget reaches, every division of the devices, or where there are too many,
  those that a descent finds.

  Args:
    workflow: what is planned.
    profile: its durations.
    cluster: on what.
    budget: of plans that are evaluated, and 64 times as many divisions that
      are estimated.
    seed: not used; nothing is drawn.

  Raises:
    InfeasiblePlanError: a stage fits nowhere.
    ProfileError: a stage is profiled on no class of the cluster.

  Source: the placement search of HybridFlow (arXiv 2409.19256, section 6).
  There a set's models run one after another within each of three phases; here
  granules stream between sets, and staleness is the workflow's.
  """
  del seed
  options = units.of(workflow, profile, cluster)
  work = [_work(options, i) for i in range(len(options.graph.units))]
  found: list[Draft] = []
  ranked: list[tuple[int, tuple[tuple[int, ...], ...]]] = []
  for sets in itertools.islice(_partitions(len(work)), _MAX_PARTITIONS):
    keys = divisions.by_weight(
      options.pools,
      [sum(work[i] for i in members) for members in sets],
      [options.pools_of_all(members) for members in sets],
    )
    drafts = list(_drafts(options, sets, keys)) if keys else []
    if drafts:
      found += drafts
      ranked.append((min(d.estimate_ns for d in drafts), sets))
  left = budget.iterations * _ESTIMATES_PER_ITERATION
  for _, sets in sorted(ranked):
    searched, count = _searched(options, sets, work, min(left, _MAX_DIVISIONS))
    found += searched
    left -= count
    if left <= 0:
      break
  return parts.plan(options, found, cluster, budget, "hybrid")


def _searched(
  options: Options,
  sets: tuple[tuple[int, ...], ...],
  work: list[float],
  limit: int,
) -> tuple[list[Draft], int]:
  """Returns the best drafts of a partition, and how many divisions it tried."""
  usable = [options.pools_of_all(members) for members in sets]
  if divisions.count(options.pools, usable) <= limit:
    tried = list(divisions.every(options.pools, options.pools.full, usable))
    found = [d for keys in tried for d in _drafts(options, sets, keys)]
    return found, len(tried)
  weights = [sum(work[i] for i in members) for members in sets]
  here = divisions.by_weight(options.pools, weights, usable)
  best = min(
    _drafts(options, sets, here) if here else (),
    key=lambda d: d.estimate_ns,
    default=None,
  )
  seen, passed = {here}, 0
  while best is not None and here is not None:
    start = best
    for keys in divisions.neighbours(options.pools, here, usable):
      if keys in seen or passed >= limit:
        continue
      seen.add(keys)
      passed += 1
      drafts = _drafts(options, sets, keys)
      better = min(drafts, key=lambda d: d.estimate_ns, default=best)
      if better.estimate_ns < best.estimate_ns:
        best, here = better, keys
        break
    if best is start:
      return [best], passed
  return [], passed


def _drafts(
  options: Options, sets: tuple[tuple[int, ...], ...], keys: tuple[Key, ...]
) -> Iterator[Draft]:
  return parts.drafts(
    options,
    tuple(Part(units=members, key=key) for members, key in zip(sets, keys)),
  )


def _partitions(n: int) -> Iterator[tuple[tuple[int, ...], ...]]:
  """Yields the partitions of 0..n-1 into sets, those into few sets first."""
  for k in range(1, n + 1):
    yield from _into(n, k)


def _into(n: int, k: int) -> Iterator[tuple[tuple[int, ...], ...]]:
  """Yields the partitions of 0..n-1 into k sets, ordered by first member."""
  if n == k:
    yield tuple((i,) for i in range(n))
    return
  if k > 1:
    for sets in _into(n - 1, k - 1):
      yield (*sets, (n - 1,))
  if k >= 1 and n > k:
    for sets in _into(n - 1, k):
      for j in range(k):
        yield (*sets[:j], (*sets[j], n - 1), *sets[j + 1 :])


def _work(options: Options, i: int) -> float:
  """Returns about how many devices a unit keeps busy for how long."""
  best = options.of(options.graph.units[i], options.pools.full)[0]
  return best.total_ns * float(sum(mode.num_devices for mode in best.modes))
