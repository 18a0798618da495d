"""Trials: a planner on a problem, and what its plan is measured against."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Mapping, Sequence

from scheduler import bounds, errors, evaluation, exact, lowering, simulation
from scheduler.comparison.outcomes import Outcome, Status, Work
from scheduler.planners import Budget, Planner
from scheduler.plans import Plan
from scheduler.workloads import Problem, hardware

NOISES = (0.0, 0.1, 0.3, 0.5)
# Plans are made with the lengths of seed 0; these are never planned with.
_UNSEEN_SEED = 1000


def rank(
  planners: Mapping[str, Planner],
  problems: Iterable[Problem],
  *,
  budget: Budget | None = None,
  seed: int = 0,
) -> tuple[Outcome, ...]:
  """Returns the bound of each problem, and each planner's outcome on it.

  Args:
    planners: by name.
    problems: what they are tried on.
    budget: of each planner; None: the usual one.
    seed: of each planner.

  Raises:
    Exception: whatever a planner raises that is no SchedulerError.
  """
  budget = budget or Budget()
  found = []
  for problem in problems:
    found.append(bound_of(problem))
    for name, planner in planners.items():
      found.append(try_planner(problem, name, planner, budget, seed)[0])
  return tuple(found)


def try_planner(
  problem: Problem, name: str, planner: Planner, budget: Budget, seed: int
) -> tuple[Outcome, Plan | None]:
  """Returns what a planner's plan takes, and the plan, if it can run.

  Args:
    problem: what is planned.
    name: of the planner.
    planner: under test.
    budget: how much it may search.
    seed: of its draws.
  """
  given = (problem.workflow, problem.profile, problem.cluster)
  begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
  try:
    plan = planner(*given, budget, seed)
  except errors.SchedulerError as error:
    status: Status = "error"
    if isinstance(error, errors.InfeasiblePlanError | errors.OutsideClassError):
      status = "infeasible"
    return _failed(problem, name, status, error), None
  planned_s, planned_cpu_s = time.perf_counter(), time.process_time()
  try:
    found = evaluation.evaluate(plan, *given)
  except errors.SchedulerError as error:
    return _failed(problem, name, "refused", error), None
  values = {
    "period_s": found.seconds,
    "planning_s": planned_s - begin_s,
    "planning_cpu_s": planned_cpu_s - begin_cpu_s,
    "evaluation_s": time.perf_counter() - planned_s,
    "peak_memory": _peak_memory(found, problem),
    "activities": float(len(found.flat.activities)),
  }
  outcome = dataclasses.replace(
    _outcome("plan", problem, name),
    values=values,
    words={"critical": " -> ".join(found.critical_stages)},
  )
  return outcome, plan


def bound_of(problem: Problem) -> Outcome:
  """Returns what no plan of a problem can take less than."""
  given = (problem.workflow, problem.profile, problem.cluster)
  every, single = bounds.lower_bound(*given), bounds.single_mode_bound(*given)
  return dataclasses.replace(
    _outcome("bound", problem),
    values={"bound_s": every.seconds, "single_mode_s": single.seconds},
    words={"binds": every.binds, "single_mode_binds": single.binds},
  )


def optimum_of(
  problem: Problem, *, time_limit_s: float, workers: int = 1
) -> Outcome:
  """Returns the proven optimum of a problem of class S, or a bound of it.

  Args:
    problem: of class S.
    time_limit_s: of the search.
    workers: threads.

  Raises:
    OutsideClassError: the problem is not of class S.
  """
  found = exact.solve(
    problem.workflow,
    problem.profile,
    problem.cluster,
    time_limit_s=time_limit_s,
    workers=workers,
  )
  nanoseconds = {
    "optimum_s": found.period_ns,
    "bound_s": found.bound_ns,
    "first_s": found.first_period_ns,
    "first_bound_s": found.first_bound_ns,
  }
  return dataclasses.replace(
    _outcome("optimum", problem),
    values={name: ns * 1e-9 for name, ns in nanoseconds.items()}
    | {"search_s": found.seconds},
  )


def realism_of(
  problem: Problem,
  name: str,
  plan: Plan,
  *,
  noises: Sequence[float] = NOISES,
  num_seeds: int = 3,
  iterations: int = 4,
) -> Outcome:
  """Returns what a plan takes in worlds other than it was made for.

  Links are shared fairly by all that moves at the same time, lengths are drawn
  anew in each iteration, and the profile is wrong for each stage by up to
  `noise`. Worlds of a seed are the same for all plans.

  Args:
    problem: what was planned.
    name: of the planner.
    plan: that it made.
    noises: shares by which the profile may be wrong.
    num_seeds: worlds for each of them.
    iterations: that are measured, after the first ones.
  """
  given = (problem.workflow, problem.profile, problem.cluster)
  flat = lowering.lower(plan, *given)
  first = problem.workflow.staleness
  values = {}
  for noise in noises:
    for seed in range(num_seeds):
      timeline = simulation.run(
        flat,
        iterations=first + 1 + iterations,
        durations_fn=simulation.perturb(
          *given,
          lengths_seed=_UNSEEN_SEED + seed,
          noise=noise,
          noise_seed=seed,
        ),
        cluster=problem.cluster,
      )
      spent_ns = timeline.iteration_stop_ns(
        first + iterations
      ) - timeline.iteration_stop_ns(first)
      values[f"{noise:g} {seed}"] = spent_ns * 1e-9 / iterations
  return dataclasses.replace(_outcome("realism", problem, name), values=values)


def _outcome(work: Work, problem: Problem, planner: str = "") -> Outcome:
  cluster = problem.cluster
  return Outcome(
    work=work,
    problem=problem.name,
    workload=problem.workflow.name,
    num_devices=hardware.num_accelerators(cluster) or cluster.num_devices,
    planner=planner,
  )


def _failed(
  problem: Problem, name: str, status: Status, error: Exception
) -> Outcome:
  return dataclasses.replace(
    _outcome("plan", problem, name), status=status, message=str(error)
  )


def _peak_memory(found: evaluation.Evaluation, problem: Problem) -> float:
  """Returns the largest share of a device's memory that is taken."""
  return max(
    (
      found.peak_bytes[resource.name]
      / problem.cluster.class_of(resource.devices).memory_bytes
      for resource in found.flat.resources
      if resource.kind == "devices"
    ),
    default=0.0,
  )
