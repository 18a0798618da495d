"""Class S with groups that are chosen too.

Every division of the devices into 4 groups is a case of class S, whose stages
may use unions of groups: fewer groups are among them. Divisions are searched
one after another, the most promising first, each only for what beats the best.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Iterator
from typing import Literal

from scheduler import errors
from scheduler.clusters import Cluster
from scheduler.devices import Devices
from scheduler.exact import class_s, flat, modes
from scheduler.exact.certificates import Certificate
from scheduler.exact.search import Search
from scheduler.plans import FlatPlan
from scheduler.profiles import Profile
from scheduler.workflows import Workflow

MAX_STAGES = 4


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class FreeSolution:
  """What is known of a case without groups.

  Attributes:
    status: whether the plan is proven to be the best.
    plan: the best plan found.
    period_ns: of the plan.
    bound_ns: no division has a plan with a shorter period.
    groups: of the best plan's division.
    num_divisions: that there are.
    certificate: of the best plan, for the cluster with its groups.
    seconds: that the search took.
  """

  status: Literal["optimal", "bounded"]
  plan: FlatPlan
  period_ns: int
  bound_ns: int
  groups: tuple[Devices, ...]
  num_divisions: int
  certificate: Certificate
  seconds: float


def solve_free(
  workflow: Workflow,
  profile: Profile,
  cluster: Cluster,
  *,
  num_granules: int | None = None,
  time_limit_s: float = 60.0,
  workers: int = 1,
  seed: int = 0,
) -> FreeSolution:
  """Returns the best plan over all divisions of the devices into groups.

  Args:
    workflow: up to 4 stages.
    profile: its durations on any number of devices.
    cluster: whose groups, if it has some, are not used.
    num_granules: of every stage; None: the only number that it allows.
    time_limit_s: seconds.
    workers: threads.
    seed: of the search.

  Raises:
    OutsideClassError: there are more stages, or the case is not in class S.
    InfeasiblePlanError: a stage fits into memory nowhere.
    ProfileError: the profile was not measured where it is needed.
  """
  begin = time.monotonic()
  if len(workflow.stages) > MAX_STAGES:
    raise errors.OutsideClassError(
      f"{len(workflow.stages)} stages are too many to choose the groups; up to"
      f" {MAX_STAGES} can be, or set Cluster.groups and call solve"
    )
  cases = [
    (class_s.read(workflow, profile, divided, num_granules=num_granules))
    for divided in divisions(cluster)
  ]
  relaxed = [
    problem.tick_ns * modes.relaxed_period(problem)[0] for problem in cases
  ]
  best: tuple[int, class_s.Problem, Search] | None = None
  bounds = []
  for k in sorted(range(len(cases)), key=lambda k: (relaxed[k], k)):
    problem = cases[k]
    # In ticks of this division, the first period that is no better.
    cutoff = None if best is None else -(-best[0] // problem.tick_ns)
    search = Search(
      problem,
      deadline=begin + time_limit_s,
      workers=workers,
      seed=seed,
      cutoff=cutoff,
    )
    search.run()
    bounds.append(search.bound * problem.tick_ns)
    if search.starts:
      best = search.period * problem.tick_ns, problem, search
  assert best is not None
  period_ns, problem, search = best
  bound_ns = min(period_ns, *bounds)
  return FreeSolution(
    status="optimal" if bound_ns == period_ns else "bounded",
    plan=flat.of_schedule(problem, workflow, search.assignment, search.starts),
    period_ns=period_ns,
    bound_ns=bound_ns,
    groups=problem.groups,
    num_divisions=len(cases),
    certificate=search.certificate(),
    seconds=time.monotonic() - begin,
  )


def divisions(cluster: Cluster) -> Iterator[Cluster]:
  """Yields the cluster with each division of its devices into 4 groups.

  Of fewer devices each is a group. Which devices a group has does not matter in
  class S: only sizes are enumerated.
  """
  total = cluster.num_devices
  for sizes in _partitions(total, min(class_s.MAX_GROUPS, total), 1):
    stops = list(itertools.accumulate(sizes))
    yield dataclasses.replace(
      cluster,
      groups=tuple(
        Devices.span(stop - size, stop) for size, stop in zip(sizes, stops)
      ),
    )


def _partitions(
  total: int, count: int, least: int
) -> Iterator[tuple[int, ...]]:
  if count == 1:
    yield (total,)
    return
  for first in range(least, total // count + 1):
    for rest in _partitions(total - first, count - 1, first):
      yield (first, *rest)
