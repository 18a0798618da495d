"""Certificates: what a result of the exact solver rests on.

A certificate names the modes and the schedule of the plan, and shops of which
no schedule is shorter than the bound. Whoever doubts it needs to believe four
things, which `replay` checks one by one: the schedule obeys the rules and takes
the stated period; so does the flat plan, for checker and evaluator; every shop
whose own bound is below the stated one is no easier than one of those that are
named; and those have no shorter schedule.
"""

from __future__ import annotations

import dataclasses
from fractions import Fraction

from scheduler import checker, cycles
from scheduler.clusters import Cluster
from scheduler.exact import assignments, class_s, flat, sequencing, shops
from scheduler.exact.class_s import Assignment
from scheduler.exact.shops import Shop, Starts
from scheduler.profiles import Profile
from scheduler.workflows import Workflow


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Certificate:
  """Why a period is possible, and why none below the bound is.

  Attributes:
    period: ticks of the plan's period.
    bound: ticks.
    assignment: the plan's modes.
    starts: the plan's schedule.
    refuted: shops that have no schedule below the bound.
  """

  period: int
  bound: int
  assignment: Assignment
  starts: Starts
  refuted: tuple[Shop, ...]


def replay(
  certificate: Certificate,
  workflow: Workflow,
  profile: Profile,
  cluster: Cluster,
  *,
  num_granules: int | None = None,
  time_limit_s: float = 600.0,
  workers: int = 1,
  seed: int = 1,
) -> None:
  """Raises unless a certificate holds.

  Args:
    certificate: of a solution.
    workflow: what was planned.
    profile: its durations.
    cluster: on what.
    num_granules: as it was given to `solve`.
    time_limit_s: for each of the shops.
    workers: threads.
    seed: of CP-SAT; other than that of the search.

  Raises:
    ValueError: what does not hold.
  """
  problem = class_s.read(workflow, profile, cluster, num_granules=num_granules)
  shop = shops.of(problem, certificate.assignment)
  found = shops.period(shop, certificate.starts)
  if found != certificate.period:
    raise ValueError(
      f"the schedule takes {found} ticks, not {certificate.period} as stated"
    )
  plan = flat.of_schedule(
    problem, workflow, certificate.assignment, certificate.starts
  )
  checker.check(plan, workflow, profile, cluster)
  stated = Fraction(certificate.period * problem.tick_ns)
  if (exact := cycles.period_ns(plan)) > stated:
    raise ValueError(f"the plan takes {exact} ns, not {stated} ns as stated")
  candidates = assignments.below(problem, certificate.bound - 1)
  assert candidates is not None
  is_covered = candidates.bounds >= certificate.bound
  for refuted in certificate.refuted:
    is_covered |= candidates.no_easier_than(refuted)
  for i in (~is_covered).nonzero()[0].tolist():
    uncovered = candidates.shop(i)
    if shops.bound(uncovered) < certificate.bound:
      raise ValueError(
        f"nothing shows that modes {candidates.modes[i].tolist()} take at least"
        f" {certificate.bound} ticks; their bound is {shops.bound(uncovered)}"
      )
  for refuted in certificate.refuted:
    verdict = sequencing.decide(
      refuted,
      certificate.bound - 1,
      effort=float("inf"),
      time_limit_s=time_limit_s,
      workers=workers,
      seed=seed,
    )
    if verdict.status != "refuted":
      raise ValueError(
        f"a shop that was refuted below {certificate.bound} ticks is"
        f" {verdict.status}: {refuted}"
      )
