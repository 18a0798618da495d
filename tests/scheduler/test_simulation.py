from __future__ import annotations

import dataclasses
import random

import hypothesis
import pytest

from scheduler import clusters, cycles, errors, simulation, timelines
from scheduler.devices import Devices
from scheduler.plans import Activity, Arc, FlatPlan, Holding, Resource, Slot
from tests.scheduler import strategies

CLUSTER = clusters.homogeneous(
  clusters.DeviceClass(name="any", memory_bytes=1), 8
)


def compute(stage: str, resource: int, duration_ns: int) -> Activity:
  return Activity(
    kind="compute",
    stage=stage,
    resources=(resource,),
    duration_ns=duration_ns,
    items=(0, 1),
  )


def two_stages(*arcs: Arc, **fields) -> FlatPlan:
  """a (3 ns) on device 0, then b (5 ns) on device 1."""
  return FlatPlan(
    resources=(
      Resource(name="0", devices=Devices.of([0])),
      Resource(name="1", devices=Devices.of([1])),
    ),
    activities=(compute("a", 0, 3), compute("b", 1, 5)),
    arcs=(Arc(source=0, target=1), *arcs),
    orders=((Slot(activity=0),), (Slot(activity=1),)),
    **fields,
  )


def spans(timeline: timelines.Timeline) -> list[tuple[str, int, int, int]]:
  return [
    (e.stage, e.iteration, e.start_ns, e.stop_ns) for e in timeline.events
  ]


def test_two_stages_overlap_across_iterations():
  # a follows a on device 0, every 3 ns; b waits for a, then for b.
  assert spans(simulation.run(two_stages(), iterations=3)) == [
    ("a", 0, 0, 3),
    ("a", 1, 3, 6),
    ("b", 0, 3, 8),
    ("a", 2, 6, 9),
    ("b", 1, 8, 13),
    ("b", 2, 13, 18),
  ]


def test_an_event_says_what_its_activity_does():
  event = simulation.run(two_stages(), iterations=2).events[-1]
  assert event == timelines.Event(
    kind="compute",
    stage="b",
    iteration=1,
    resources=("1",),
    start_ns=8,
    stop_ns=13,
    items=(0, 1),
    index=1,
  )


def test_back_pressure_waits_for_the_start_of_the_consumer():
  # One item fits between the two: a may start when b took the one before, so
  # that a of iteration 2 waits for b of iteration 1 to start, at 8.
  plan = two_stages(Arc(source=1, target=0, lag=1, after="start"))
  assert spans(simulation.run(plan, iterations=3)) == [
    ("a", 0, 0, 3),
    ("a", 1, 3, 6),
    ("b", 0, 3, 8),
    ("a", 2, 8, 11),
    ("b", 1, 8, 13),
    ("b", 2, 13, 18),
  ]


def test_a_resource_passes_over_iterations_that_do_not_exist():
  # Periods of a of iteration k and b of iteration k - 1 on one device: a0, a1,
  # b0, a2, b1, and at last b2 without an a.
  plan = FlatPlan(
    resources=(Resource(name="0"),),
    activities=(compute("a", 0, 2), compute("b", 0, 3)),
    arcs=(Arc(source=0, target=1),),
    orders=((Slot(activity=0), Slot(activity=1, shift=1)),),
  )
  assert spans(simulation.run(plan, iterations=3)) == [
    ("a", 0, 0, 2),
    ("a", 1, 2, 4),
    ("b", 0, 4, 7),
    ("a", 2, 7, 9),
    ("b", 1, 9, 12),
    ("b", 2, 12, 15),
  ]


def test_durations_may_differ_between_iterations():
  timeline = simulation.run(
    two_stages(), iterations=2, durations_fn=lambda plan, i: [1 + i, 10]
  )
  assert spans(timeline) == [
    ("a", 0, 0, 1),
    ("a", 1, 1, 3),
    ("b", 0, 1, 11),
    ("b", 1, 11, 21),
  ]


def test_memory_is_what_the_holdings_hold():
  # The state of a, always; the item, from the start of a to the end of b. In
  # iteration 0 from 0 to 8, in iteration 1 from 3 to 13: both from 3 to 8.
  plan = two_stages(
    holdings=(
      Holding(resource=0, bytes_per_device=100, what="state"),
      Holding(resource=0, bytes_per_device=7, what="item", begin=0, end=1),
    )
  )
  samples = simulation.run(plan, iterations=2).memory
  assert [(s.resource, s.at_ns, s.bytes_per_device) for s in samples] == [
    ("0", 0, 107),
    ("0", 3, 114),
    ("0", 8, 107),
    ("0", 13, 100),
  ]


def test_memory_across_iterations_is_held_before_the_first_begins():
  # Taken by b in one iteration and freed by a in the next: before iteration 0
  # it was taken by one that does not exist, after the last it stays.
  plan = two_stages(
    holdings=(
      Holding(
        resource=1, bytes_per_device=5, what="carry", begin=1, end=0, lag=1
      ),
    )
  )
  samples = simulation.run(plan, iterations=1).memory
  # From 0 to 3, when a ends; and b takes its own at 3.
  assert [(s.at_ns, s.bytes_per_device) for s in samples] == [(0, 5)]


def test_freed_memory_is_taken_again_at_the_same_instant():
  plan = two_stages(
    holdings=(
      Holding(resource=1, bytes_per_device=9, what="work", begin=1, end=1),
    )
  )
  samples = simulation.run(plan, iterations=3).memory
  # b runs from 3 to 18 without a pause, one after the other.
  assert [(s.at_ns, s.bytes_per_device) for s in samples] == [
    (3, 9),
    (18, 0),
  ]


def test_activities_that_wait_for_each_other_are_named():
  plan = two_stages(Arc(source=1, target=0))
  with pytest.raises(errors.InfeasiblePlanError, match="'b'.*'a'.*circle"):
    simulation.run(plan, iterations=2)


def test_an_iteration_is_needed():
  with pytest.raises(errors.SchedulerError, match="at least 1"):
    simulation.run(two_stages(), iterations=0)


def test_more_time_than_can_be_counted_is_refused():
  plan = two_stages()
  with pytest.raises(errors.InfeasiblePlanError, match="ns"):
    simulation.run(plan, iterations=2, durations_fn=lambda p, i: [1, 1 << 62])


def test_more_bytes_than_can_be_counted_are_refused():
  holding = Holding(resource=0, bytes_per_device=1 << 62, what="state")
  with pytest.raises(errors.InfeasiblePlanError, match="bytes"):
    simulation.run(two_stages(holdings=(holding,)), iterations=2)


def test_a_holding_of_countless_iterations_is_refused():
  holding = Holding(
    resource=0, bytes_per_device=1, what="x", begin=0, end=1, lag=1 << 40
  )
  with pytest.raises(errors.InfeasiblePlanError, match="iterations"):
    simulation.run(two_stages(holdings=(holding,)), iterations=2)


@pytest.mark.parametrize("cluster", [None, CLUSTER])
def test_shifts_may_be_large(cluster):
  # One device runs a of iteration k in period k, b in period k + 10**12: all
  # of a comes first.
  plan = FlatPlan(
    resources=(Resource(name="0"),),
    activities=(compute("a", 0, 2), compute("b", 0, 3)),
    arcs=(),
    orders=((Slot(activity=0), Slot(activity=1, shift=10**12)),),
  )
  assert spans(simulation.run(plan, iterations=2, cluster=cluster)) == [
    ("a", 0, 0, 2),
    ("a", 1, 2, 4),
    ("b", 0, 4, 7),
    ("b", 1, 7, 10),
  ]


def test_a_plan_without_activities_has_an_empty_timeline():
  plan = FlatPlan(resources=(), activities=(), arcs=(), orders=())
  assert simulation.run(plan, iterations=2).events == ()


@hypothesis.given(strategies.flat_plans)
def test_growth_per_cyclicity_is_the_cycle_ratio(plan: FlatPlan):
  c = cycles.cyclicity(plan)
  # Cycles of at most 8 activities of at most 9 ns: the transient of most is
  # over in some dozens of iterations, which are added until it is.
  for iterations in (100, 400, 1600):
    timeline = simulation.run(plan, iterations=iterations + 20 + c)
    stops = [0] * timeline.num_iterations
    for event in timeline.events:
      stops[event.iteration] = max(stops[event.iteration], event.stop_ns)
    # The last 20 do not wait for what comes after them.
    grown_ns = stops[iterations + c] - stops[iterations]
    if grown_ns == c * cycles.period_ns(plan):
      return
  assert grown_ns == c * cycles.period_ns(plan)


@hypothesis.given(strategies.flat_plans)
def test_a_clock_runs_an_event_graph_as_its_arcs_alone_do(plan: FlatPlan):
  by_arcs = simulation.run(plan, iterations=5)
  by_clock = simulation.run(plan, iterations=5, cluster=CLUSTER)
  assert by_arcs.events == by_clock.events
  assert by_arcs.memory == by_clock.memory


@hypothesis.given(strategies.flat_plans)
def test_a_resource_runs_one_activity_at_a_time(plan: FlatPlan):
  timeline = simulation.run(plan, iterations=4)
  for resource in plan.resources:
    own = [e for e in timeline.events if resource.name in e.resources]
    for before, after in zip(own, own[1:]):
      assert before.stop_ns <= after.start_ns


@hypothesis.given(strategies.flat_plans)
def test_no_run_is_shorter_than_the_work_on_a_resource(plan: FlatPlan):
  timeline = simulation.run(plan, iterations=4)
  for r in range(len(plan.resources)):
    work_ns = sum(a.duration_ns for a in plan.activities if r in a.resources)
    assert timeline.stop_ns >= 4 * work_ns


def with_holdings(rng: random.Random) -> FlatPlan:
  plan = strategies.flat_plan(rng)
  activities, resources = len(plan.activities), len(plan.resources)
  holdings = []
  for i in range(rng.randint(0, 5)):
    begin, end = (
      rng.choice([None, rng.randrange(activities)]) for _ in range(2)
    )
    holdings.append(
      Holding(
        resource=rng.randrange(resources),
        bytes_per_device=1 << i,
        what="something",
        begin=begin,
        end=end,
        lag=rng.randint(-1, 2),
      )
    )
  return dataclasses.replace(plan, holdings=tuple(holdings))


@hypothesis.given(strategies.drawn(with_holdings))
def test_memory_at_an_instant_is_the_sum_of_what_is_held_then(plan: FlatPlan):
  iterations = 3
  timeline = simulation.run(plan, iterations=iterations)
  when = {
    (e.index, e.iteration): (e.start_ns, e.stop_ns) for e in timeline.events
  }
  held = []
  for h in plan.holdings:
    # Without a begin it is taken once, otherwise in every iteration, of which
    # those before the first were before the start.
    for i in [0] if h.begin is None else range(-2, iterations):
      start, stop = 0, timeline.stop_ns + 1
      if h.begin is not None and i >= 0:
        start = when[h.begin, i][0]
      if h.begin is not None and i < 0 and (h.end is None or i + h.lag < 0):
        continue
      if h.end is not None and i + h.lag < iterations:
        stop = when[h.end, i + h.lag][1] if i + h.lag >= 0 else 0
      held.append((plan.resources[h.resource].name, start, stop, h))
  for at in range(timeline.stop_ns + 1):
    for resource in plan.resources:
      known = [
        m.bytes_per_device
        for m in timeline.memory
        if m.resource == resource.name and m.at_ns <= at
      ]
      assert (known or [0])[-1] == sum(
        h.bytes_per_device
        for name, start, stop, h in held
        if name == resource.name and start <= at < stop
      )


@pytest.mark.parametrize("cluster", [None, CLUSTER])
@pytest.mark.parametrize("seed", range(5))
def test_the_same_plan_has_the_same_timeline(seed: int, cluster):
  plan = strategies.flat_plan(random.Random(seed))
  first, again = (
    simulation.run(plan, iterations=7, cluster=cluster) for _ in range(2)
  )
  assert first.events == again.events
  assert first.memory == again.memory
