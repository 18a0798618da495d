"""The evaluator by which plans are compared."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

from scheduler import checker, cycles, errors, lowering
from scheduler.clusters import Cluster
from scheduler.plans import FlatPlan, Plan
from scheduler.profiles import Profile
from scheduler.workflows import Workflow


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
  """What a plan takes.

  Attributes:
    flat: the plan in its flat form.
    period_ns: from one iteration to the next, in the steady state, exactly.
    peak_bytes: the most that is taken on each device of a resource, by the
      resource's name.
    critical_stages: stages of the activities that wait for each other the
      whole period, in the order in which they do.
  """

  flat: FlatPlan
  period_ns: Fraction
  peak_bytes: dict[str, int]
  critical_stages: tuple[str, ...]

  @property
  def seconds(self) -> float:
    """The period in seconds."""
    return float(self.period_ns) * 1e-9


def evaluate(
  plan: Plan,
  workflow: Workflow,
  profile: Profile,
  cluster: Cluster,
  *,
  seed: int = 0,
  check: bool = True,
) -> Evaluation:
  """Returns how long an iteration of a plan takes, and what memory.

  Lowering and the period take about 1 ms for a hundred activities, checking
  several: a search evaluates its candidates without, and its result with it.

  Args:
    plan: a tree, or a flat plan.
    workflow: what is planned.
    profile: its durations.
    cluster: on what.
    seed: of lengths that vary.
    check: by the checker; else only deadlocks and what devices hold are looked
      at, which is enough for plans lowered from trees but for hosts' memory.

  Raises:
    InfeasiblePlanError: the plan cannot run.
    ProfileError: the profile lacks what the plan uses.
  """
  flat = lowering.lower(plan, workflow, profile, cluster, seed=seed)
  schedule = cycles.schedule(flat)
  peaks = peak_bytes(flat, schedule)
  if check:
    checker.check(
      flat, workflow, profile, cluster, seed=seed, schedule=schedule
    )
  else:
    _check_memory(flat, peaks, cluster)
  stages = [flat.activities[i].stage for i in schedule.cycle]
  return Evaluation(
    flat=flat,
    period_ns=schedule.period_ns,
    peak_bytes=peaks,
    critical_stages=tuple(dict.fromkeys(stages)),
  )


def peak_bytes(flat: FlatPlan, schedule: cycles.Schedule) -> dict[str, int]:
  """Returns the most that is taken on each device, by the resource's name.

  What is freed at an instant is gone before what is taken then.
  """
  unit = schedule.period_ns.denominator
  period = schedule.period_ns.numerator
  always = [0] * len(flat.resources)
  changes: list[list[tuple[int, int]]] = [[] for _ in flat.resources]
  for held in flat.holdings:
    num_bytes = held.bytes_per_device
    if held.begin is None or held.end is None or not period:
      always[held.resource] += num_bytes
      continue
    start = int(schedule.start_ns[held.begin] * unit)
    stop = int(schedule.start_ns[held.end] * unit) + held.lag * period
    stop += flat.activities[held.end].duration_ns * unit
    # One of every iteration is held: so many at any time, and one more in the
    # rest of the period.
    whole, rest = divmod(stop - start, period)
    always[held.resource] += whole * num_bytes
    start, stop = start % period, (start + rest) % period
    if rest:
      changes[held.resource] += [(start, num_bytes), (stop, -num_bytes)]
      if stop < start:
        always[held.resource] += num_bytes
  peaks = {}
  for resource, base, steps in zip(flat.resources, always, changes):
    taken = highest = base
    for _, step in sorted(steps):
      taken += step
      highest = max(highest, taken)
    peaks[resource.name] = highest
  return {r.name: peaks[r.name] for r in flat.resources if r.kind == "devices"}


def _check_memory(
  flat: FlatPlan, peaks: dict[str, int], cluster: Cluster
) -> None:
  for resource in flat.resources:
    peak = peaks.get(resource.name, 0)
    if peak and peak > (
      memory := cluster.class_of(resource.devices).memory_bytes
    ):
      raise errors.InfeasiblePlanError(
        f"each device of '{resource.devices}' holds {peak} bytes, of {memory};"
        " swap the state of a stage, or use smaller granules or more devices"
      )
