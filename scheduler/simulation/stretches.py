"""Stretches of time in which one plan was in force, and what ran in them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from scheduler import errors, plans

NEVER_NS = 1 << 62


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Stretch:
  """What ran while one plan was in force.

  Instance a of iteration i, the plan's activity a in that iteration, has the
  number i * len(plan.activities) + a.

  Attributes:
    plan: which activities there were.
    starts_ns: of each instance; NEVER_NS where it did not start.
    stops_ns: of each instance.
    begin_ns: when the plan came into force.
    stop_ns: when another one did.
    inherited: instances of which nothing was left to do when the stretch began;
      they have its beginning for start and stop.
    items: of instances of which only some items were left.
  """

  plan: plans.FlatPlan
  starts_ns: Sequence[int]
  stops_ns: Sequence[int]
  begin_ns: int = 0
  stop_ns: int = NEVER_NS
  inherited: frozenset[int] = frozenset()
  items: Mapping[int, tuple[int, int]] = dataclasses.field(default_factory=dict)


def check_iterations(iterations: int) -> None:
  """Raises SchedulerError unless there is something to simulate."""
  if iterations < 1:
    raise errors.SchedulerError(
      f"cannot simulate {iterations} iterations; at least 1 is needed"
    )
