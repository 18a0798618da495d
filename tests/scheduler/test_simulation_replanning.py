from __future__ import annotations

import hypothesis
import pytest
from hypothesis import strategies as st

from scheduler import errors, lowering, plans, profiles, simulation, workflows
from scheduler.devices import Devices
from tests.scheduler import toys
from tests.scheduler.toys import S


def runs_in_s(timeline) -> list[tuple]:
  """Returns (what, iteration, devices, start, stop) of all that took time."""
  return [
    (
      f"{e.stage}{list(e.items)}" if e.kind == "compute" else e.kind,
      e.iteration,
      ",".join(e.resources),
      e.start_ns / S,
      e.stop_ns / S,
    )
    for e in timeline.events
    if e.stop_ns > e.start_ns
  ]


def go_on(snapshot: simulation.Snapshot) -> None:
  """A policy that changes nothing."""


def answering(plan: plans.Plan, asked: list | None = None):
  """Returns a policy that answers once, and its snapshots to `asked`."""
  seen = [] if asked is None else asked

  def policy(snapshot: simulation.Snapshot) -> plans.Plan | None:
    seen.append(snapshot)
    return plan if len(seen) == 1 else None

  return policy


# a and then b, four items of a second each.
CHAIN = toys.workflow(toys.stage("a", 4), toys.stage("b", 4))
CHAIN_PROFILE = toys.profile(a=1, b=1)


def side_by_side(a: str, b: str, *, granule: int = 1) -> plans.TreePlan:
  children = (toys.run("a", a, granule), toys.run("b", b, granule))
  return plans.TreePlan(root=plans.Spatial(children=children))


def in_turn(devices: str, *, granule: int = 4) -> plans.TreePlan:
  children = (
    toys.run("a", devices, granule),
    toys.run("b", devices, granule),
  )
  return plans.TreePlan(root=plans.Temporal(children=children))


def run_chain(plan: plans.Plan, policy, *, workflow=CHAIN, **options):
  return simulation.run_online(
    plan,
    policy,
    **{
      "iterations": 1,
      "workflow": workflow,
      "profile": CHAIN_PROFILE,
      "cluster": toys.cluster(2),
      **options,
    },
  )


def leave(at_s: float, devices: str) -> simulation.Leave:
  return simulation.Leave(at_ns=int(at_s * S), devices=Devices.parse(devices))


def join(at_s: float, devices: str) -> simulation.Join:
  return simulation.Join(at_ns=int(at_s * S), devices=Devices.parse(devices))


@pytest.mark.parametrize("plan", [side_by_side("0", "1"), in_turn("0-1")])
def test_a_policy_that_changes_nothing_changes_nothing(plan: plans.Plan):
  cluster = toys.cluster(2)
  flat = lowering.lower(plan, CHAIN, CHAIN_PROFILE, cluster)
  assert run_chain(plan, go_on, iterations=3) == simulation.run(
    flat, iterations=3, cluster=cluster
  )


# ---- Devices ----


def test_devices_that_leave_take_nothing_new_until_they_return():
  # b of item 1 runs from 2 to 3 and ends; items 2 and 3 wait for 6.
  timeline = run_chain(
    side_by_side("0", "1"),
    go_on,
    disturbances=[leave(2.5, "1"), join(6, "1")],
  )
  assert [r for r in runs_in_s(timeline) if r[0].startswith("b")] == [
    ("b[0, 1]", 0, "1", 1, 2),
    ("b[1, 2]", 0, "1", 2, 3),
    ("b[2, 3]", 0, "1", 6, 7),
    ("b[3, 4]", 0, "1", 7, 8),
  ]


def test_devices_that_only_join_are_away_before():
  timeline = run_chain(
    side_by_side("0", "1"), go_on, disturbances=[join(6, "1")]
  )
  assert runs_in_s(timeline)[-1] == ("b[3, 4]", 0, "1", 9, 10)


def test_devices_that_never_return_are_named():
  with pytest.raises(errors.InfeasiblePlanError, match="'b'.*devices '1'"):
    run_chain(side_by_side("0", "1"), go_on, disturbances=[leave(2.5, "1")])


def test_a_policy_moves_what_is_left_to_devices_that_stay():
  # Device 1 leaves at 2.5 s. There b of item 1 goes on to 3 s, on device 0 a of
  # item 2. What is left, in turn on device 0: a of item 3, at 3 s; b of items
  # 2 and 3.
  asked = []
  timeline = run_chain(
    side_by_side("0", "1"),
    answering(in_turn("0"), asked),
    disturbances=[leave(2.5, "1")],
  )
  assert runs_in_s(timeline) == [
    ("a[0, 1]", 0, "0", 0, 1),
    ("a[1, 2]", 0, "0", 1, 2),
    ("b[0, 1]", 0, "1", 1, 2),
    ("a[2, 3]", 0, "0", 2, 3),
    ("b[1, 2]", 0, "1", 2, 3),
    ("a[3, 4]", 0, "0", 3, 4),
    ("b[2, 4]", 0, "0", 4, 6),
  ]
  (snapshot,) = asked
  assert (snapshot.reason, snapshot.now_ns) == ("leave", 2_500_000_000)
  assert snapshot.devices == Devices.of([0])
  assert snapshot.begun == {"a": ((0, 3),), "b": ((0, 2),)}


def test_later_iterations_follow_the_new_plan():
  timeline = run_chain(
    side_by_side("0", "1"),
    answering(in_turn("0")),
    iterations=2,
    disturbances=[leave(2.5, "1")],
  )
  assert runs_in_s(timeline)[-2:] == [
    ("a[0, 4]", 1, "0", 6, 10),
    ("b[0, 4]", 1, "0", 10, 14),
  ]


def test_what_is_left_waits_for_what_is_under_way():
  # In turn on both devices a takes 2 s, b 2 s. At 1 s device 2 joins, and b
  # goes there: it waits for a, which still runs, until 2 s.
  timeline = run_chain(
    in_turn("0-1"),
    answering(side_by_side("0-1", "2", granule=4)),
    cluster=toys.cluster(3),
    disturbances=[join(1, "2")],
  )
  assert runs_in_s(timeline) == [
    ("a[0, 4]", 0, "0-1", 0, 2),
    ("b[0, 4]", 0, "2", 2, 6),
  ]


def test_state_is_loaded_where_it_was_not():
  # b has 3 bytes of state; at a byte per second device 0 has it after 3 s. It
  # begins to load at 3 s, when its item is done.
  workflow = toys.workflow(
    toys.stage("a", 4), toys.stage("b", 4, state_bytes=3)
  )
  timeline = run_chain(
    side_by_side("0", "1"),
    answering(in_turn("0")),
    workflow=workflow,
    iterations=2,
    disturbances=[leave(2.5, "1")],
  )
  assert runs_in_s(timeline)[5:] == [
    ("swap_in", 0, "0", 3, 6),
    ("a[3, 4]", 0, "0", 6, 7),
    ("b[2, 4]", 0, "0", 7, 9),
    ("a[0, 4]", 1, "0", 9, 13),
    ("b[0, 4]", 1, "0", 13, 17),
  ]
  held = {
    resource: [
      (m.at_ns / S, m.bytes_per_device)
      for m in timeline.memory
      if m.resource == resource
    ]
    for resource in ("0", "1")
  }
  # Under the second plan only device 0 has the state, which counts at once.
  assert held == {"0": [(2.5, 3)], "1": [(0, 3), (2.5, 0)]}


# ---- Tails ----

LENGTHS = workflows.TraceLengths(tokens=(1, 2, 4, 8))
TAIL = toys.workflow(
  toys.stage("rollout", 4, "decode", lengths=LENGTHS),
  toys.stage("train", 4, "train"),
)
TAIL_PROFILE = profiles.Profile(
  entries=(
    *toys.profile(rollout=toys.TOKEN, train=1).entries,
    profiles.Entry(
      stage="rollout",
      device_class="d",
      law=toys.TOKEN,
      config=profiles.Config(tp=2),
    ),
  )
)


def test_training_starts_beside_the_tail():
  # A second per token: items are emitted at 1, 2, 4 and 8 s. In turn on both
  # devices training would go from 8 to 10. When one item is left, at 4 s, it
  # stays on device 0, and device 1 trains a second each: three items at once,
  # the fourth at 8.
  both = profiles.Config(tp=2)
  on_both = toys.run("rollout", "0-1", 1, config=both)
  plan = plans.TreePlan(
    root=plans.Temporal(children=(on_both, toys.run("train", "0-1", 4)))
  )
  most = toys.run("rollout", "0-1", 1, config=both, share=(0, 3), cohort=(0, 4))
  tail = toys.run("rollout", "0", 1, share=(3, 4), cohort=(0, 4))
  elastic = plans.TreePlan(
    root=plans.Temporal(
      children=(
        most,
        plans.Spatial(children=(tail, toys.run("train", "1", 1))),
      )
    )
  )
  asked = []
  timeline = simulation.run_online(
    plan,
    answering(elastic, asked),
    iterations=1,
    workflow=TAIL,
    profile=TAIL_PROFILE,
    cluster=toys.cluster(2),
    tail_share=0.25,
  )
  assert [(s.reason, s.stage, s.now_ns) for s in asked] == [
    ("tail", "rollout", 4 * S)
  ]
  assert runs_in_s(timeline) == [
    ("rollout[0, 1]", 0, "0-1", 0, 1),
    ("rollout[1, 2]", 0, "0-1", 1, 2),
    ("rollout[2, 3]", 0, "0-1", 2, 4),
    ("train[0, 1]", 0, "1", 4, 5),
    ("rollout[3, 4]", 0, "0", 4, 8),
    ("train[1, 2]", 0, "1", 5, 6),
    ("train[2, 3]", 0, "1", 6, 7),
    ("train[3, 4]", 0, "1", 8, 9),
  ]


# ---- Drifts ----


def test_a_drift_slows_a_stage_down_and_is_reported_once_it_is_seen():
  # b takes 2 s per item from 2.5 s on: in iteration 0 items 2 and 3 do, 6 s of
  # 4 in all, until 7 s. Then iteration 1 begins: a second of a, 8 of b.
  asked = []
  run_chain(
    side_by_side("0", "1"),
    lambda snapshot: asked.append(snapshot),
    iterations=3,
    disturbances=[simulation.Drift(at_ns=2_500_000_000, stage="b", factor=2.0)],
  )
  assert [(s.reason, s.stage, s.ratios["b"]) for s in asked] == [
    ("drift", "b", 1.5),
    ("drift", "b", 2.0),
  ]
  assert [s.now_ns / S for s in asked] == [7, 16]


def test_a_small_drift_is_not_reported():
  asked = []
  run_chain(
    side_by_side("0", "1"),
    lambda snapshot: asked.append(snapshot),
    iterations=3,
    disturbances=[simulation.Drift(at_ns=0, stage="b", factor=1.1)],
  )
  assert asked == []


def test_a_drift_from_the_start_slows_all_down():
  timeline = run_chain(
    side_by_side("0", "1"),
    go_on,
    disturbances=[simulation.Drift(at_ns=0, stage="a", factor=3.0)],
  )
  assert [r[3:] for r in runs_in_s(timeline) if r[0] == "a[0, 1]"] == [(0, 3)]


@pytest.mark.parametrize(
  ("make_fn", "message"),
  [
    (lambda: simulation.Drift(at_ns=0, stage="a", factor=0.0), "positive"),
    (lambda: simulation.Drift(at_ns=0, stage="z", factor=2.0), "no stage 'z'"),
    (lambda: leave(-1, "0"), "at least 0"),
  ],
)
def test_a_disturbance_that_cannot_be_is_refused(make_fn, message: str):
  with pytest.raises(errors.SchedulerError, match=message):
    run_chain(in_turn("0"), go_on, disturbances=[make_fn()])


# ---- Laws ----


MOVING = toys.workflow(
  toys.stage("a", 4),
  toys.stage("b", 4, state_bytes=3),
  edges=(workflows.Edge(source="a", target="b", item_bytes=1),),
  syncs=(workflows.WeightSync(source="b", target="a", num_bytes=2),),
)


@pytest.mark.parametrize("workflow", [CHAIN, MOVING])
@hypothesis.given(rng=st.randoms(use_true_random=False))
@hypothesis.settings(deadline=None)
def test_each_item_is_handled_once_whatever_the_policy_does(workflow, rng):
  cluster = toys.cluster(3)
  choices = [
    side_by_side("0", "1"),
    side_by_side("0-1", "2", granule=2),
    side_by_side("2", "0", granule=4),
    in_turn("0-2", granule=3),
    in_turn("1"),
  ]

  def policy(snapshot):
    return rng.choice([None, *choices])

  disturbances = [
    simulation.Drift(
      at_ns=rng.randint(0, 20) * S // 2,
      stage=rng.choice("ab"),
      factor=rng.choice([0.5, 1.0, 2.0]),
    )
    for _ in range(4)
  ]
  for at_s in rng.sample(range(1, 20), 2):
    away = str(rng.randrange(3))
    disturbances += [leave(at_s, away), join(at_s + rng.randint(1, 5), away)]
  timeline = run_chain(
    rng.choice(choices),
    policy,
    workflow=workflow,
    iterations=3,
    cluster=cluster,
    disturbances=disturbances,
    drift_share=0.01,
  )
  for stage in ("a", "b"):
    for iteration in range(3):
      handled = sorted(
        e.items
        for e in timeline.events
        if (e.kind, e.stage, e.iteration) == ("compute", stage, iteration)
      )
      assert handled[0][0] == 0
      assert handled[-1][1] == 4
      for before, after in zip(handled, handled[1:]):
        assert before[1] == after[0]
  # Item i of b waits for item i of a.
  computes = [e for e in timeline.events if e.kind == "compute"]
  for b in computes:
    for a in computes:
      if (a.stage, b.stage) == ("a", "b") and a.iteration == b.iteration:
        assert a.stop_ns <= b.start_ns or a.items[0] >= b.items[1]
  assert all(sample.bytes_per_device >= 0 for sample in timeline.memory)
  # A device does one thing at a time.
  for device in range(3):
    own = [
      e
      for e in timeline.events
      for name in e.resources
      if ">" not in name and device in Devices.parse(name)
    ]
    for before, after in zip(own, own[1:]):
      assert before.stop_ns <= after.start_ns


def test_the_same_policy_has_the_same_timeline():
  def timeline():
    return run_chain(
      side_by_side("0", "1"),
      answering(in_turn("0")),
      iterations=3,
      disturbances=[leave(2.5, "1")],
    )

  assert timeline() == timeline()


def test_bytes_are_not_moved_twice_over_the_same_way():
  # a sends 1 byte per item to b, a second each. At 2.5 s a drift of nothing
  # makes no difference; the policy answers with the same plan when device 2
  # joins: no transfer is repeated.
  workflow = toys.workflow(
    toys.stage("a", 4),
    toys.stage("b", 4),
    edges=(workflows.Edge(source="a", target="b", item_bytes=1),),
  )
  plan = side_by_side("0", "1")
  options = dict(workflow=workflow, cluster=toys.cluster(3))
  changed = run_chain(
    plan, answering(plan), disturbances=[join(2.5, "2")], **options
  )
  assert runs_in_s(changed) == runs_in_s(run_chain(plan, go_on, **options))
