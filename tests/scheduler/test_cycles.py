"""The exact period, by hand and against enumeration of every circuit."""

from __future__ import annotations

import dataclasses
import fractions
import functools
import random

import hypothesis
import pytest
from hypothesis import strategies as st

from scheduler import cycles, errors, plans
from scheduler.plans import Activity, Arc, FlatPlan, Resource, Slot
from tests.scheduler import strategies


def plan_of(
  durations: list[int],
  orders: list[list[int | tuple[int, int]]],
  arcs: list[tuple[int, ...]] = (),
  starts: list[tuple[int, ...]] = (),
) -> FlatPlan:
  """Returns a plan of activities 0, 1, ... called a, b, ..."""
  slots = [
    tuple(
      Slot(activity=e)
      if isinstance(e, int)
      else Slot(activity=e[0], shift=e[1])
      for e in order
    )
    for order in orders
  ]
  occupied = [
    tuple(r for r, o in enumerate(slots) if i in {slot.activity for slot in o})
    for i in range(len(durations))
  ]
  made = [Arc(source=s, target=t, lag=lag) for s, t, lag in arcs]
  made += [
    Arc(source=s, target=t, lag=lag, after="start") for s, t, lag in starts
  ]
  return FlatPlan(
    resources=tuple(Resource(name=f"r{i}") for i in range(len(orders))),
    activities=tuple(
      Activity(
        kind="compute",
        stage="abcdefgh"[i],
        resources=occupied[i],
        duration_ns=duration,
        items=(i, i + 1),
      )
      for i, duration in enumerate(durations)
    ),
    arcs=tuple(made),
    orders=tuple(slots),
  )


def all_arcs(plan: FlatPlan) -> list[tuple[int, int, int, int]]:
  """Returns (source, target, weight, lag) of arcs and orders."""
  return [
    (
      arc.source,
      arc.target,
      plan.activities[arc.source].duration_ns if arc.after == "end" else 0,
      arc.lag,
    )
    for arc in (*plan.arcs, *plans.order_arcs(plan))
  ]


def enumerated_period(plan: FlatPlan) -> fractions.Fraction:
  """Returns the largest ratio of all simple circuits, one by one."""
  leaving = [[] for _ in plan.activities]
  for source, target, weight, lag in all_arcs(plan):
    leaving[source].append((target, weight, lag))
  ratios = [fractions.Fraction(0)]

  def walk(begin: int, at: int, weight: int, lag: int, seen: frozenset[int]):
    for target, more, lags in leaving[at]:
      if target == begin:
        ratios.append(fractions.Fraction(weight + more, lag + lags))
      elif target > begin and target not in seen:
        walk(begin, target, weight + more, lag + lags, seen | {target})

  for begin in range(len(plan.activities)):
    walk(begin, begin, 0, 0, frozenset([begin]))
  return max(ratios)


PERIODS = [
  # a then b on devices of their own, unbounded: the busier device, 5.
  (plan_of([3, 5], [[0], [1]], [(0, 1, 0)]), 5),
  # The next a waits for b: 3 + 5.
  (plan_of([3, 5], [[0], [1]], [(0, 1, 0), (1, 0, 1)]), 8),
  # The a after the next waits for b: (3 + 5) / 2 is less than 5.
  (plan_of([3, 5], [[0], [1]], [(0, 1, 0), (1, 0, 2)]), 5),
  # Three in a chain, two iterations alive: (3 + 3 + 3) / 2.
  (
    plan_of([3, 3, 3], [[0], [1], [2]], [(0, 1, 0), (1, 2, 0), (2, 0, 2)]),
    fractions.Fraction(9, 2),
  ),
  # On one device one after the other: 3 + 5.
  (plan_of([3, 5], [[0, 1]]), 8),
  # a runs on two devices at once; the second also runs b: 3 + 5.
  (plan_of([3, 5, 4], [[0], [0, 1], [2]], [(0, 2, 0)]), 8),
  # A channel of one place: a waits for the start of the last b, not for its
  # end. The circuit a -> b -> a takes 1, b alone 4.
  (plan_of([1, 4], [[0], [1]], [(0, 1, 0)], [(1, 0, 1)]), 4),
  # With the end instead: 1 + 4.
  (plan_of([1, 4], [[0], [1]], [(0, 1, 0), (1, 0, 1)]), 5),
  # a and c share a device, b has another, a -> b -> c. In order (a, c) the
  # device idles while b runs: 2 + 5 + 2.
  (plan_of([2, 5, 2], [[0, 2], [1]], [(0, 1, 0), (1, 2, 0)]), 9),
  # c of the last iteration instead: a -> b -> c -> a has lag 2, (2 + 5 + 2) / 2
  # is less than b's 5.
  (plan_of([2, 5, 2], [[0, (2, 1)], [1]], [(0, 1, 0), (1, 2, 0)]), 5),
  # Nothing takes any time.
  (plan_of([0, 0], [[0, 1]]), 0),
]


@pytest.mark.parametrize(("plan", "expected"), PERIODS)
def test_period_worked_by_hand(plan: FlatPlan, expected: fractions.Fraction):
  assert cycles.period_ns(plan) == expected
  assert enumerated_period(plan) == expected


def test_starts_worked_by_hand():
  # Period 5; a at 0, b when a ends at 2, c when b ends at 7.
  plan = plan_of([2, 5, 2], [[0, (2, 1)], [1]], [(0, 1, 0), (1, 2, 0)])
  assert cycles.start_times(plan) == (0, 2, 7)
  assert cycles.critical_cycle(plan) == (1,)


def test_a_longer_period_starts_no_earlier_than_arcs_allow():
  # With period 10 the a of an iteration comes 10 after the last: c, which
  # follows a and precedes the next a but one, stays at 7.
  plan = plan_of([2, 5, 2], [[0, (2, 1)], [1]], [(0, 1, 0), (1, 2, 0)])
  assert cycles.start_times(plan, fractions.Fraction(10)) == (0, 2, 12)


def test_a_shorter_period_is_refused_with_the_cycle_that_it_breaks():
  plan = plan_of([3, 5], [[0], [1]], [(0, 1, 0), (1, 0, 1)])
  with pytest.raises(
    errors.InfeasiblePlanError,
    match=(
      r"period of 7 ns is too short: compute of 'b' \[1, 2\) waits for compute"
      r" of 'a' \[0, 1\) waits for compute of 'b' \[1, 2\), which takes 8 ns"
    ),
  ):
    cycles.start_times(plan, fractions.Fraction(7))


DEADLOCKS = [
  # Each waits for the other's end.
  plan_of([3, 5], [[0], [1]], [(0, 1, 0), (1, 0, 0)]),
  # So they do if both take no time, or only the start is waited for.
  plan_of([0, 0], [[0], [1]], [(0, 1, 0), (1, 0, 0)]),
  plan_of([0, 0], [[0], [1]], [], [(0, 1, 0), (1, 0, 0)]),
  # The order runs b first, which waits for a.
  plan_of([3, 5], [[1, 0]], [(0, 1, 0)]),
  # a waits for what b does an iteration later.
  plan_of([3, 5], [[0], [1]], [(0, 1, 0), (1, 0, -1)]),
]


@pytest.mark.parametrize("plan", DEADLOCKS)
def test_a_deadlock_is_named(plan: FlatPlan):
  with pytest.raises(
    errors.InfeasiblePlanError,
    match=r"deadlocks: within one iteration compute of '[ab]' \[\d, \d\) waits"
    r" for compute of '[ab]'",
  ):
    cycles.schedule(plan)


def test_an_activity_that_waits_for_itself_is_named():
  plan = plan_of([3], [[0]], [(0, 0, 0)])
  with pytest.raises(
    errors.InfeasiblePlanError,
    match=r"compute of 'a' \[0, 1\) waits for itself",
  ):
    cycles.period_ns(plan)


@hypothesis.given(strategies.flat_plans)
def test_period_is_the_largest_ratio_of_all_circuits(plan: FlatPlan):
  assert cycles.period_ns(plan) == enumerated_period(plan)


@hypothesis.given(strategies.flat_plans)
def test_critical_cycle_takes_the_whole_period(plan: FlatPlan):
  found = cycles.schedule(plan)
  if not found.cycle:  # nothing takes any time
    assert found.period_ns == 0
    return
  ends = [
    [(w, lag) for s, t, w, lag in all_arcs(plan) if (s, t) == pair]
    for pair in zip(found.cycle, (*found.cycle[1:], found.cycle[0]))
  ]
  # Parallel arcs: some choice of one for each step has the period as ratio.
  ratios = {(0, 0)}
  for choices in ends:
    ratios = {(w + x, l + y) for w, l in ratios for x, y in choices}
  assert found.period_ns in {fractions.Fraction(w, l) for w, l in ratios if l}


@hypothesis.given(strategies.flat_plans, st.integers(0, 7))
def test_starts_are_the_least_that_obey_every_arc(plan: FlatPlan, slack: int):
  period = cycles.period_ns(plan) + fractions.Fraction(slack, 3)
  least = [fractions.Fraction(0)] * len(plan.activities)
  for _ in range(len(least) + 1):
    for source, target, weight, lag in all_arcs(plan):
      earliest = least[source] + weight - lag * period
      least[target] = max(least[target], earliest)
  assert cycles.start_times(plan, period) == tuple(least)
  assert min(least) == 0


@hypothesis.given(strategies.flat_plans, st.randoms(use_true_random=False))
def test_shortening_a_duration_never_raises_the_period(
  plan: FlatPlan, rng: random.Random
):
  activities = list(plan.activities)
  i = rng.randrange(len(activities))
  activities[i] = dataclasses.replace(
    activities[i], duration_ns=rng.randint(0, activities[i].duration_ns)
  )
  shorter = dataclasses.replace(plan, activities=tuple(activities))
  assert cycles.period_ns(shorter) <= cycles.period_ns(plan)


@pytest.mark.slow
@hypothesis.given(strategies.flat_plans, st.randoms(use_true_random=False))
def test_relabelling_leaves_period_and_cyclicity_unchanged(
  plan: FlatPlan, rng: random.Random
):
  n, r = len(plan.activities), len(plan.resources)
  new_index = rng.sample(range(n), n)
  new_resource = rng.sample(range(r), r)
  activities, orders = [None] * n, [None] * r
  for i, a in enumerate(plan.activities):
    occupied = tuple(sorted(new_resource[j] for j in a.resources))
    activities[new_index[i]] = dataclasses.replace(a, resources=occupied)
  for j, order in enumerate(plan.orders):
    orders[new_resource[j]] = tuple(
      dataclasses.replace(slot, activity=new_index[slot.activity])
      for slot in order
    )
  arcs = [
    dataclasses.replace(
      arc, source=new_index[arc.source], target=new_index[arc.target]
    )
    for arc in plan.arcs
  ]
  rng.shuffle(arcs)
  renamed = dataclasses.replace(
    plan,
    activities=tuple(activities),
    arcs=tuple(arcs),
    orders=tuple(orders),
  )
  assert cycles.period_ns(renamed) == cycles.period_ns(plan)
  assert cycles.cyclicity(renamed) == cycles.cyclicity(plan)


@pytest.mark.slow
@hypothesis.given(strategies.flat_plans)
def test_it_does_not_matter_where_an_order_is_cut(plan: FlatPlan):
  # What a period begins with, the period before may end with as well: then
  # it is one iteration further on.
  orders = [
    (*order[1:], dataclasses.replace(order[0], shift=order[0].shift - 1))
    if order
    else order
    for order in plan.orders
  ]
  cut = dataclasses.replace(plan, orders=tuple(orders))
  assert cycles.start_times(cut) == cycles.start_times(plan)


def pipeline(stages: int, granules: int, staleness: int) -> FlatPlan:
  """Returns stages on devices of their own; stage s takes s + 1 a granule."""
  last = stages * granules - 1
  return FlatPlan(
    resources=tuple(Resource(name=f"r{s}") for s in range(stages)),
    activities=tuple(
      Activity(
        kind="compute",
        stage=f"s{s}",
        resources=(s,),
        duration_ns=s + 1,
        items=(m, m + 1),
      )
      for s in range(stages)
      for m in range(granules)
    ),
    arcs=(
      *(
        Arc(source=i, target=i + granules)
        for i in range((stages - 1) * granules)
      ),
      Arc(source=last, target=0, lag=1 + staleness),
    ),
    orders=tuple(
      tuple(Slot(activity=s * granules + m) for m in range(granules))
      for s in range(stages)
    ),
  )


@pytest.mark.parametrize("staleness", [0, 1, 2])
@pytest.mark.parametrize(("stages", "granules"), [(1, 1), (3, 4), (20, 1000)])
def test_period_of_a_pipeline_is_its_closed_form(
  stages: int, granules: int, staleness: int
):
  # An iteration takes 1 + 2 + ... + S for its first granule, and S for each of
  # the other M - 1; 1 + staleness of them overlap, but the slowest stage alone
  # needs M S.
  latency = stages * (stages + 1) // 2 + (granules - 1) * stages
  expected = max(
    fractions.Fraction(latency, 1 + staleness),
    fractions.Fraction(granules * stages),
  )
  assert cycles.period_ns(pipeline(stages, granules, staleness)) == expected


CYCLICITIES = [
  # One device, one turn in each iteration.
  (plan_of([3], [[0]]), 1),
  # Both circuits through a and b have lag 2, but (4 + 6) / 2 is less than 6:
  # b's own circuit is critical.
  (plan_of([4, 6], [[0], [1]], [(0, 1, 0), (1, 0, 2)]), 1),
  # (6 + 6 + 6) / 2 is more than 6: two iterations in turn.
  (plan_of([6, 6, 6], [[0], [1], [2]], [(0, 1, 0), (1, 2, 0), (2, 0, 2)]), 2),
  # Apart from each other, one of lag 2 and 3 + 3 + 2 and one of lag 3 and four
  # times 3, both of ratio 4: together every sixth iteration is like the first.
  (
    plan_of(
      [3, 3, 2, 3, 3, 3, 3],
      [[0], [1], [2], [3], [4], [5], [6]],
      [(0, 1, 0), (1, 2, 0), (2, 0, 2)]
      + [(3, 4, 1), (4, 5, 1), (5, 6, 0), (6, 3, 1)],
    ),
    6,
  ),
  # a, b of lag 2 and a, b, c of lag 3, both of ratio 2, share a and b: each
  # breaks the other's rhythm.
  (plan_of([2, 2, 2], [], [(0, 1, 0), (1, 0, 2), (1, 2, 1), (2, 0, 2)]), 1),
]


@pytest.mark.parametrize(("plan", "expected"), CYCLICITIES)
def test_cyclicity_worked_by_hand(plan: FlatPlan, expected: int):
  assert cycles.cyclicity(plan) == expected


@hypothesis.settings(deadline=None)
@hypothesis.given(
  strategies.drawn(
    functools.partial(strategies.flat_plan, max_activities=5, max_shift=0)
  )
)
def test_run_at_once_a_plan_repeats_itself_after_its_cyclicity(plan: FlatPlan):
  # x(k) = max over arcs of x(k - lag) + weight, in the order of the indices.
  arcs = sorted(all_arcs(plan), key=lambda arc: arc[1])
  ends, starts = [], []
  for k in range(400):
    starts.append([0] * len(plan.activities))
    for source, target, weight, lag in arcs:
      if lag <= k:
        earliest = starts[k - lag][source] + weight
        starts[k][target] = max(starts[k][target], earliest)
    ends.append(
      max(s + a.duration_ns for s, a in zip(starts[k], plan.activities))
    )
  c, period = cycles.cyclicity(plan), cycles.period_ns(plan)
  assert all(ends[k + c] - ends[k] == c * period for k in range(350, 400 - c))


@hypothesis.given(strategies.flat_plans)
def test_what_has_ended_is_the_shortest_path_by_lag(plan: FlatPlan):
  n = len(plan.activities)
  arcs = (*plan.arcs, *plans.order_arcs(plan))
  for order, found in zip(
    plan.orders, cycles.last_ended(plan, plan.orders), strict=True
  ):
    expected = [[] for _ in range(n)]
    for p, slot in enumerate(order):
      # The least lag of a path that begins with the source's end.
      lags = [float("inf")] * n
      for _ in range(n + 1):
        for arc in arcs:
          before = lags[arc.source]
          if arc.after == "end" and arc.source == slot.activity:
            before = min(before, 0)
          lags[arc.target] = min(lags[arc.target], before + arc.lag)
      for target, lag in enumerate(lags):
        if lag < float("inf"):
          expected[target].append((slot.shift - lag) * len(order) + p)
    for last, ended in zip(found, expected, strict=True):
      assert last == max(ended) if ended else last < -(10**9)
