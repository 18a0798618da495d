from __future__ import annotations

import dataclasses

import pytest

from scheduler import durations, lowering, planners, plans, simulation
from scheduler.devices import Devices
from scheduler.planners import Budget, online
from scheduler.profiles import ComputeLaw, Config, Entry, Profile
from scheduler.workflows import TraceLengths
from tests.scheduler import toys
from tests.scheduler.toys import S

SMALL = Budget(iterations=8)

# a and then b, eight items of a second each.
CHAIN = toys.workflow(toys.stage("a", 8), toys.stage("b", 8))
CHAIN_PROFILE = toys.profile(a=1, b=1)

# Items are emitted at 1, 2, 4 and 8 s, on two devices together or on one.
TAIL = toys.workflow(
  toys.stage("rollout", 4, "decode", lengths=TraceLengths(tokens=(1, 2, 4, 8))),
  toys.stage("train", 4, "train"),
)
PAIR = Config(tp=2)
TAIL_PROFILE = Profile(
  entries=(
    *toys.profile(rollout=toys.TOKEN, train=1).entries,
    Entry(stage="rollout", device_class="d", law=toys.TOKEN, config=PAIR),
  )
)
IN_TURN = plans.TreePlan(
  root=plans.Temporal(
    children=(
      toys.run("rollout", "0-1", 1, config=PAIR),
      toys.run("train", "0-1", 4),
    )
  )
)


def run(plan, workflow, profile, cluster, *, iterations=1, policy=None, **more):
  """Returns when all is done, under the policy or another, and its answers."""
  own = online.make_policy(workflow, profile, cluster, SMALL, 0)
  answers = []

  def listening(snapshot: simulation.Snapshot) -> plans.Plan | None:
    answer = (policy or own)(snapshot)
    answers.append((snapshot.reason, snapshot.now_ns / S, answer is not None))
    return answer

  timeline = simulation.run_online(
    plan,
    listening,
    iterations=iterations,
    workflow=workflow,
    profile=profile,
    cluster=cluster,
    **more,
  )
  return timeline.stop_ns / S, answers


def go_on(snapshot: simulation.Snapshot) -> None:
  """A policy that changes nothing."""


def leave(at_s: float, devices: str) -> simulation.Leave:
  return simulation.Leave(at_ns=int(at_s * S), devices=Devices.parse(devices))


def join(at_s: float, devices: str) -> simulation.Join:
  return simulation.Join(at_ns=int(at_s * S), devices=Devices.parse(devices))


def test_it_begins_with_the_plan_of_auto():
  given = CHAIN, CHAIN_PROFILE, toys.cluster(2), SMALL, 0
  first = planners.PLANNERS["online"](*given)
  assert first == dataclasses.replace(
    planners.PLANNERS["auto"](*given), label="online"
  )


def test_what_is_left_moves_to_the_devices_that_stay():
  # On two devices each iteration takes 4 + 4 s. Device 1 leaves at 9 s, when
  # both work on the second a, which ends at 12 s: then device 0 has b's 8 items
  # to do by itself.
  plan = plans.TreePlan(
    root=plans.Temporal(
      children=(toys.run("a", "0-1", 8), toys.run("b", "0-1", 8))
    )
  )
  stop_s, answers = run(
    plan,
    CHAIN,
    CHAIN_PROFILE,
    toys.cluster(2),
    iterations=2,
    disturbances=[leave(9, "1")],
  )
  assert answers == [("leave", 9, True)]
  assert stop_s == 12 + 8


def test_devices_that_join_are_used():
  # Alone device 0 takes 16 s an iteration. Device 1 joins at 2 s: what is left
  # of the first iteration, and the second, go to both; 8 s for the second.
  plan = plans.TreePlan(
    root=plans.Temporal(children=(toys.run("a", "0", 1), toys.run("b", "0", 1)))
  )
  given = plan, CHAIN, CHAIN_PROFILE, toys.cluster(2)
  more = {"iterations": 2, "disturbances": [join(2, "1")]}
  slow_s, _ = run(*given, policy=go_on, **more)
  stop_s, answers = run(*given, **more)
  assert slow_s == 32
  assert answers == [("join", 2, True)]
  # 3 items of a are begun at 2 s; 5 + 8 are left for two devices.
  assert stop_s <= 3 + 7 + 1 + 8


def test_a_stage_that_became_slow_gets_more_devices():
  # One step apart, a and b take 8 s on two devices each. When b takes three
  # times as long, 24 s; on all four devices in turn 2 + 6 s, or on one and
  # three 8 s.
  workflow = dataclasses.replace(CHAIN, staleness=1)
  plan = plans.TreePlan(
    root=plans.Spatial(
      children=(toys.run("a", "0-1", 8), toys.run("b", "2-3", 8))
    )
  )
  given = plan, workflow, CHAIN_PROFILE, toys.cluster(4)
  more = {
    "iterations": 8,
    "disturbances": [simulation.Drift(at_ns=1, stage="b", factor=3.0)],
  }
  slow_s, _ = run(*given, policy=go_on, **more)
  stop_s, answers = run(*given, **more)
  assert answers[0][0] == "drift" and answers[0][2]
  assert stop_s < 0.8 * slow_s


def test_training_begins_beside_the_tail():
  # In turn, training goes from 8 to 10 s. At 4 s one item is left: it stays on
  # one device, and the other trains a second each, three before 8 s.
  given = IN_TURN, TAIL, TAIL_PROFILE, toys.cluster(2)
  slow_s, _ = run(*given, policy=go_on, tail_share=0.25)
  stop_s, answers = run(*given, tail_share=0.25)
  assert slow_s == 10
  assert answers == [("tail", 4, True)]
  assert stop_s == 9


def test_nothing_changes_for_less_than_a_hundredth():
  # Training takes 0.08 s on both devices, 0.04 s less beside the tail, of 12 s.
  profile = Profile(
    entries=(
      *toys.profile(rollout=toys.TOKEN, train=0.04).entries,
      TAIL_PROFILE.entries[-1],
    )
  )
  _, answers = run(IN_TURN, TAIL, profile, toys.cluster(2), tail_share=0.25)
  assert answers == [("tail", 4, False)]


def test_devices_that_are_needed_and_gone_leave_no_plan():
  workflow = toys.workflow(toys.stage("a", 4), toys.stage("b", 4))
  profile = toys.profile(a=1, b=1)
  policy = online.make_policy(workflow, profile, toys.cluster(2), SMALL, 0)
  flat = lowering.lower(
    plans.TreePlan(
      root=plans.Temporal(
        children=(toys.run("a", "0-1", 4), toys.run("b", "0-1", 4))
      )
    ),
    workflow,
    profile,
    toys.cluster(2),
  )
  snapshot = simulation.Snapshot(
    reason="leave",
    stage="",
    now_ns=0,
    plan=flat,
    devices=Devices(),
    iteration=0,
    begun={"a": (), "b": ()},
    ratios={"a": 1.0, "b": 1.0},
  )
  assert policy(snapshot) is None


# ---- What it reckons with ----


def test_what_is_begun_is_not_left():
  # a takes 4 granules of 2 s on device 0, b as many of 1 s on device 1. When
  # three of a and one of b are begun: 2 s of a, then b's last; 1 s of b before.
  flat = lowering.lower(
    plans.TreePlan(
      root=plans.Spatial(
        children=(toys.run("a", "0", 1), toys.run("b", "1", 1))
      )
    ),
    *(toys.workflow(toys.stage("a", 4), toys.stage("b", 4)),),
    toys.profile(a=2, b=1),
    toys.cluster(2),
  )
  assert online.remaining_ns(flat, {}) == 9 * S
  assert online.remaining_ns(flat, {"a": ((0, 3),), "b": ((0, 1),)}) == 3 * S
  assert online.remaining_ns(flat, {"a": ((0, 4),), "b": ((0, 4),)}) == 0


@pytest.mark.parametrize(
  "law",
  [
    toys.per_item(2),
    toys.TOKEN,
    ComputeLaw(flop_per_item=3, efficiency=0.5, overhead_s=2),
  ],
  ids=["table", "decode", "compute"],
)
def test_scaled_stages_take_as_much_longer(law):
  lengths = TraceLengths(tokens=(3, 5)) if law is toys.TOKEN else None
  kind = "decode" if lengths else "infer"
  stage = toys.stage("a", 2, kind, lengths=lengths)
  profile = toys.profile(a=law)
  device = toys.cluster(1).classes[0]

  def times(of: Profile) -> tuple[int, ...]:
    return durations.granules_ns(stage, of, device, 1, Config(), 1, (0, 2))

  slower = online.scaled(profile, {"a": 1.5})
  assert times(slower) == tuple(1.5 * ns for ns in times(profile))
  assert online.scaled(profile, {"b": 1.5}) == profile
