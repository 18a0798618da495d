from __future__ import annotations

import dataclasses
import itertools
from fractions import Fraction

import pytest

from scheduler import evaluation, planners
from scheduler.clusters import Cluster
from scheduler.devices import Devices
from scheduler.exact import suite
from scheduler.planners import Budget
from scheduler.plans import FlatPlan, Lanes, Plan, TreePlan
from scheduler.profiles import DecodeLaw, Profile, Sample, Table
from scheduler.workflows import Loop, TraceLengths, Workflow
from tests.scheduler import toys
from tests.scheduler.toys import S

# Everything that shapes of plans are looked for by; see the last test.
SEARCHES = ("auto", "local_search")


def plan(
  name: str,
  workflow: Workflow,
  profile: Profile,
  cluster: Cluster,
  seed: int = 0,
) -> Plan:
  return planners.PLANNERS[name](workflow, profile, cluster, Budget(), seed)


def seconds(found: Plan, *given) -> Fraction:
  return evaluation.evaluate(found, *given).period_ns / S


def once(seconds: float, devices: int, granule: int) -> Table:
  """Returns a law that was measured on so many devices only."""
  return Table(
    samples=tuple(
      Sample(granule=g, devices=devices, seconds=seconds * g / granule)
      for g in (1, granule)
    )
  )


def used(found: FlatPlan, stage: str) -> list[Devices]:
  """Returns the devices of a stage's granules, in order, each set once."""
  sets = []
  for a in found.activities:
    if a.kind == "compute" and a.stage == stage:
      devices = Devices()
      for r in a.resources:
        devices = devices | found.resources[r].devices
      sets.append(devices)
  return [key for key, _ in itertools.groupby(sets)]


# Tokens of 16 sequences: 15 short, one long.
LENGTHS = TraceLengths(tokens=(2,) * 15 + (22,))
# A second per token and sequence, for two devices together.
BUSY = DecodeLaw(t0_s=0, weight_bytes=0, kv_bytes_per_token=0, num_params=0.5)


@pytest.mark.parametrize("name", SEARCHES)
def test_the_tail_keeps_two_devices_while_training_starts_on_the_rest(name):
  # A replica of two devices takes b seconds for a token of each of b sequences.
  # On all six, the three replicas have 6, 5 and 5: 2 * 6 s, then 20 s for the
  # long one. Training takes 6 s per item and device. If it waits for all:
  # 32 + 3 * 6 s. If the long one is left to two devices, and the other four
  # train four items at a time from 12 s on, the last four end at 38 s; at 36 s,
  # if these two have three of the others with it from the start: 8 + 20 s, then
  # the last four items.
  workflow = toys.workflow(
    toys.stage("rollout", 16, "decode", lengths=LENGTHS),
    toys.stage("train", 16, "train"),
  )
  profile = toys.profile(tp2={"rollout": BUSY}, train=6)
  given = workflow, profile, toys.cluster(6)
  for other in ("collocated", "disaggregated", "hybrid", "rlinf_dp"):
    assert seconds(plan(other, *given), *given) >= 50
  found = plan(name, *given)
  assert isinstance(found, FlatPlan)
  assert 36 <= seconds(found, *given) <= 38
  last = next(
    a for a in found.activities if a.stage == "rollout" and a.items[1] == 16
  )
  tail = Devices()
  for r in last.resources:
    tail = tail | found.resources[r].devices
  (trained,) = used(found, "train")
  assert (len(tail), len(trained)) == (2, 4)
  assert trained.isdisjoint(tail)
  assert any(not trained.isdisjoint(own) for own in used(found, "rollout"))


@pytest.mark.parametrize("name", SEARCHES)
def test_iterations_overlap_where_weights_may_be_stale(name):
  # a and c on device 0, b on device 1, 4 s each: by itself an iteration takes
  # 12 s or, in granules, 9 s; device 0 works 8 s.
  workflow = toys.workflow(
    toys.stage("a", 4, "simulate"),
    toys.stage("b", 4),
    toys.stage("c", 4, "train"),
    syncs=(("c", "a"),),
    staleness=1,
  )
  profile = toys.profile(a=once(4, 1, 4), b=once(4, 1, 4), c=once(4, 1, 4))
  given = workflow, profile, toys.cluster(2)
  assert seconds(plan(name, *given), *given) == 8


@pytest.mark.parametrize("name", SEARCHES)
def test_a_stage_runs_on_the_union_of_the_devices_of_two_others(name):
  # a and b were measured on one device, 8 s for all items; c needs both, and
  # takes 4 s on two devices: 8 + 4 s.
  workflow = toys.workflow(
    toys.stage("a", 8, "simulate"),
    toys.stage("b", 8, "simulate"),
    toys.stage("c", 8, "train", needs_all=True),
    edges=(("a", "c"), ("b", "c")),
  )
  profile = toys.profile(a=once(8, 1, 8), b=once(8, 1, 8), c=1)
  given = workflow, profile, toys.cluster(2)
  assert seconds(plan(name, *given), *given) == 12


def test_short_and_long_items_get_replicas_of_different_sizes():
  # 6 sequences of 2 tokens, 2 of 20. One device takes a second per token, two
  # together half a second, but for two sequences at once only. On 3 devices:
  # all on replicas of one, 20 s; all on the replica of two, 6 * 2 / 2 / 2 + 10
  # s; the short ones on one device beside the long ones on two, 10 s.
  workflow = toys.workflow(
    toys.stage(
      "rollout", 8, "decode", lengths=TraceLengths(tokens=(2,) * 6 + (20,) * 2)
    ),
    toys.stage("train", 8, "train"),
  )
  pair = dataclasses.replace(toys.TOKEN, t0_s=0.5, max_active=2)
  profile = toys.profile(tp2={"rollout": pair}, rollout=toys.TOKEN, train=0.125)
  given = workflow, profile, toys.cluster(3)
  assert seconds(plan("hybrid", *given), *given) > 13
  found = plan("local_search", *given)
  assert 10 <= seconds(found, *given) < 11
  assert isinstance(found, FlatPlan)
  sizes = {
    items: {len(found.resources[r].devices) for r in a.resources}
    for a in found.activities
    if a.kind == "compute" and a.stage == "rollout"
    for items in range(*a.items)
  }
  assert sizes == {**dict.fromkeys(range(6), {1}), 6: {2}, 7: {2}}


@pytest.mark.parametrize(
  "name",
  [
    "v4-g4-m8-chain-tight-equal",
    pytest.param("v5-g3-m8-branches-loose-unequal", marks=pytest.mark.slow),
  ],
)
def test_interleaved_stages_beat_trees_and_reach_the_optimum(name):
  # Optima proven by `exact`, in milliseconds; no tree that any other planner
  # finds is within a tenth of them.
  optimum_ms = {
    "v4-g4-m8-chain-tight-equal": 15101,
    "v5-g3-m8-branches-loose-unequal": 20808,
  }
  case = next(x for x in suite.draw("development") if x.name == name)
  given = case.workflow, case.profile, case.cluster
  for other in ("collocated", "disaggregated", "hybrid", "rlinf_dp"):
    assert seconds(plan(other, *given), *given) > 1.1 * optimum_ms[name] / 1000
  found = plan("auto", *given)
  assert isinstance(found, FlatPlan)
  assert seconds(found, *given) <= 1.01 * optimum_ms[name] / 1000
  turns = [
    [
      key
      for key, _ in itertools.groupby(
        found.activities[slot.activity].stage for slot in order
      )
    ]
    for order in found.orders
  ]
  assert any(len(of) > 2 * len(set(of)) for of in turns)


@pytest.mark.parametrize("name", SEARCHES)
def test_lanes_of_a_loop_may_be_unequal(name):
  # 5 items; a lane of n takes the simulator and the policy n + 2 s each. One
  # lane: 7 + 7 s a turn; 3 and 2: 5 + 5 s, the longer one's way round; more
  # lanes keep each stage busy for 11 s.
  law = Table(
    samples=(
      Sample(granule=1, devices=1, seconds=3),
      Sample(granule=5, devices=1, seconds=7),
    )
  )
  workflow = toys.workflow(
    toys.stage("sim", 5, "simulate"),
    toys.stage("policy", 5),
    edges=(("sim", "policy"), ("policy", "sim")),
    loops=(Loop(name="steps", stages=("sim", "policy"), turns=9),),
  )
  given = workflow, toys.profile(sim=law, policy=law), toys.cluster(2)
  found = plan(name, *given)
  assert isinstance(found, TreePlan)
  assert isinstance(found.root, Lanes)
  assert sorted(found.root.lanes) == [2, 3]
  # The simulator begins with the second lane after 5 s, and its way back is
  # shorter: 9 turns of the first, and the second's last policy step.
  assert 90 <= seconds(found, *given) <= 94


@pytest.mark.parametrize("name", SEARCHES)
def test_odd_numbers_of_devices_are_found(name):
  # On 5 and 2 of 7 devices a and b take 70 items in 5 * 14 and 2 * 35 s; on 4
  # and 3, or 6 and 1, one of them takes 90 or 140 s. One step apart.
  workflow = toys.workflow(
    toys.stage("a", 70, "simulate", state_bytes=600),
    toys.stage("b", 70, "train", state_bytes=600),
    staleness=1,
  )
  given = workflow, toys.profile(a=5, b=2), toys.cluster(7)
  assert seconds(plan(name, *given), *given) == 70


@pytest.mark.parametrize("name", SEARCHES)
def test_unlike_devices_get_what_they_are_good_at(name):
  # Class e takes 1 s per item of b, class d 9 s; both take 1 s of a. On one
  # device each: a on d, b on e, one granule behind: 8 + 1 s.
  base = toys.cluster(1)
  cluster = dataclasses.replace(
    base,
    classes=(*base.classes, dataclasses.replace(base.classes[0], name="e")),
    nodes=(
      *base.nodes,
      dataclasses.replace(base.nodes[0], device_class="e"),
    ),
  )
  slow = toys.profile(a=1, b=9)
  fast = [
    dataclasses.replace(entry, device_class="e")
    for entry in toys.profile(a=1, b=1).entries
  ]
  workflow = toys.workflow(toys.stage("a", 8), toys.stage("b", 8))
  given = workflow, Profile(entries=(*slow.entries, *fast)), cluster
  assert seconds(plan(name, *given), *given) == 9


def test_another_seed_may_find_another_plan_but_the_same_one_does_not():
  case = suite.draw("development")[5]
  given = case.workflow, case.profile, case.cluster
  assert plan("local_search", *given, seed=1) == plan(
    "local_search", *given, seed=1
  )
