"""Small random plans and problems, from a seed or drawn by hypothesis.

Every maker takes a `random.Random`, so that a test can draw by seed; the
strategies hand it one that hypothesis drives, and shrinks.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeVar

from hypothesis import strategies as st

from scheduler.plans import Activity, Arc, FlatPlan, Resource, Slot

T = TypeVar("T")


def drawn(make_fn: Callable[[random.Random], T]) -> st.SearchStrategy[T]:
  """Returns the strategy of all that a maker makes."""
  return st.randoms(use_true_random=False).map(make_fn)


def flat_plan(
  rng: random.Random,
  *,
  max_activities: int = 8,
  max_resources: int = 3,
  max_shift: int = 2,
) -> FlatPlan:
  """Returns a flat plan that does not deadlock, of no workflow.

  Without shifts activities stand in the order of their indices on every
  resource, and arcs of lag 0 ascend. Then each activity's iterations are
  counted from another one, which makes some lags negative.
  """
  n = rng.randint(1, max_activities)
  num_resources = rng.randint(1, max_resources)
  shifts = [rng.randint(0, max_shift) for _ in range(n)]
  activities = []
  orders: list[list[Slot]] = [[] for _ in range(num_resources)]
  for i in range(n):
    occupied = rng.sample(
      range(num_resources), min(num_resources, rng.choice([1, 1, 1, 2]))
    )
    for resource in occupied:
      orders[resource].append(Slot(activity=i, shift=shifts[i]))
    activities.append(
      Activity(
        kind="compute",
        stage=f"s{i}",
        resources=tuple(sorted(occupied)),
        duration_ns=rng.randint(0, 9),
        items=(i, i + 1),
      )
    )
  arcs = []
  for _ in range(rng.randint(0, n)):
    source, target = rng.randrange(n), rng.randrange(n)
    lag = rng.randint(int(target <= source), 2)
    arcs.append(
      Arc(
        source=source,
        target=target,
        lag=lag + shifts[source] - shifts[target],
        after=rng.choice(["end", "end", "start"]),
      )
    )
  return FlatPlan(
    resources=tuple(Resource(name=f"r{i}") for i in range(num_resources)),
    activities=tuple(activities),
    arcs=tuple(arcs),
    orders=tuple(map(tuple, orders)),
  )


flat_plans = drawn(flat_plan)
