"""Lower bounds: worked by hand, and against plans of every kind."""

from __future__ import annotations

import dataclasses
import random

import pytest

from scheduler import bounds, errors, evaluation
from scheduler.devices import Devices
from scheduler.profiles import ComputeLaw, Config, Entry, Profile, Sample, Table
from scheduler.workflows import Loop, TraceLengths
from tests.scheduler import strategies, toys


def table(*seconds: float) -> Table:
  """Returns times of one item on 1, 2, ... devices."""
  return Table(
    samples=tuple(
      Sample(granule=1, devices=n + 1, seconds=s) for n, s in enumerate(seconds)
    )
  )


def test_all_devices_busy_all_the_time_is_a_bound():
  # 8 items of 3 s and of 1 s on 4 devices: 32 device-seconds.
  case = (
    toys.workflow(toys.stage("a", 8), toys.stage("b", 8)),
    toys.profile(a=3, b=1),
    toys.cluster(4),
  )
  found = bounds.lower_bound(*case)
  assert found.binds == "work"
  assert found.ns == 8 * toys.S
  assert found.seconds == 8
  # The last granule of b takes 1 s after a has taken 24 / 4 s.
  assert found.values_ns["path"] == 7 * toys.S


@pytest.mark.parametrize("staleness, expected_s", [(0, 4), (1, 2)])
def test_a_chain_of_granules_is_shared_by_iterations_alive(
  staleness, expected_s
):
  case = (
    toys.workflow(toys.stage("a", 1), toys.stage("b", 1), staleness=staleness),
    toys.profile(a=3, b=1),
    toys.cluster(4),
  )
  found = bounds.lower_bound(*case)
  assert (found.binds, found.ns) == ("path", expected_s * toys.S)


def test_a_barrier_keeps_stages_from_overlapping():
  # On 2 devices 8 items of 1 s take 4 s, in each stage.
  stages = (toys.stage("a", 8), toys.stage("b", 8, needs_all=True))
  case = (toys.workflow(*stages), toys.profile(a=1, b=1), toys.cluster(2))
  assert bounds.lower_bound(*case).values_ns["path"] == 8 * toys.S


def test_a_lane_takes_all_turns_of_its_loop():
  # 5 turns of 1 s + 2 s, whatever the devices; then 3 s.
  case = (
    toys.workflow(
      toys.stage("env", 4),
      toys.stage("act", 4),
      toys.stage("train", 4),
      edges=(("env", "act"), ("act", "env"), ("act", "train")),
      loops=(Loop(name="loop", stages=("env", "act"), turns=5),),
    ),
    toys.profile(env=1, act=2, train=3),
    toys.cluster(100),
  )
  found = bounds.lower_bound(*case)
  assert (found.binds, found.ns) == ("path", 18 * toys.S)


def test_the_longest_sequence_holds_up_the_iteration():
  # One token per second, for up to 4 sequences at once.
  decode = toys.stage(
    "a", 4, "decode", lengths=TraceLengths(tokens=(1, 1, 1, 9))
  )
  case = (
    toys.workflow(decode, toys.stage("b", 4)),
    toys.profile(a=toys.TOKEN, b=1),
    toys.cluster(4),
  )
  found = bounds.lower_bound(*case)
  # 9 tokens, and one granule of b.
  assert (found.binds, found.ns) == ("straggler", 10 * toys.S)
  # 12 tokens in 3 s of one device, and 4 s of b, on 4 devices.
  assert found.values_ns["work"] == 1.75 * toys.S


def test_state_that_does_not_fit_is_swapped_every_iteration():
  # Of 3 states of 400 bytes one of 1000 bytes' devices cannot hold one; it
  # leaves and returns at 1 byte per second.
  stages = [toys.stage(name, 1, state_bytes=400) for name in "abc"]
  flow, profile = toys.workflow(*stages), toys.profile(a=1, b=1, c=1)
  one = bounds.lower_bound(flow, profile, toys.cluster(1, memory=1000))
  assert one.values_ns["memory"] == 800 * toys.S
  # Besides, each stage works for 1 s.
  assert (one.binds, one.ns) == ("modes", 803 * toys.S)
  two = bounds.lower_bound(flow, profile, toys.cluster(2, memory=1000))
  assert two.values_ns["memory"] == 0


def grouped(num_devices: int):
  groups = tuple(Devices.span(i, i + 1) for i in range(num_devices))
  return dataclasses.replace(toys.cluster(num_devices), groups=groups)


def test_undivided_stages_leave_groups_unequally_busy():
  # Three stages of 2 s, however many devices. Divided freely two groups take
  # 3 s each; one of them has two whole stages.
  case = (
    toys.workflow(*(toys.stage(name, 1) for name in "abc"), staleness=2),
    toys.profile(a=table(2, 2), b=table(2, 2), c=table(2, 2)),
    grouped(2),
  )
  assert bounds.lower_bound(*case).ns == 3 * toys.S
  single = bounds.single_mode_bound(*case)
  assert single.binds == "modes"
  # The integer program's value is lowered by a millionth.
  assert single.ns == pytest.approx(4 * toys.S, rel=2e-6)
  assert single.ns <= 4 * toys.S


def test_undivided_stages_pay_for_the_devices_that_make_them_fast():
  # In less than 4 s each of two stages needs 2 devices for 3 s: 12
  # device-seconds, which 3 devices do in 4 s.
  case = (
    toys.workflow(toys.stage("a", 1), toys.stage("b", 1), staleness=1),
    toys.profile(a=table(4, 3, 3), b=table(4, 3, 3)),
    toys.cluster(3),
  )
  assert bounds.lower_bound(*case).ns == 3 * toys.S
  single = bounds.single_mode_bound(*case).ns
  assert single == pytest.approx(4 * toys.S, rel=1e-8)


def test_classes_share_work_by_how_fast_they_are():
  # Class x takes 1 s per item, y 3 s: 4 items take 3 s on one of each.
  slow = dataclasses.replace(toys.cluster(1).classes[0], name="y")
  plain = toys.cluster(2, per_node=1)
  mixed = dataclasses.replace(
    plain,
    classes=(plain.classes[0], slow),
    nodes=(
      dataclasses.replace(plain.nodes[0], num_nodes=1),
      dataclasses.replace(plain.nodes[0], num_nodes=1, device_class="y"),
    ),
  )
  profile = Profile(
    entries=(
      *toys.profile(a=1).entries,
      Entry(stage="a", device_class="y", law=toys.per_item(3)),
    )
  )
  found = bounds.lower_bound(toys.workflow(toys.stage("a", 4)), profile, mixed)
  assert found.values_ns["modes"] == 3 * toys.S


def test_granules_pay_their_overhead():
  # 8 items in granules of up to 4: two granules of 1 s + 4 items / 2 per s.
  law = ComputeLaw(flop_per_item=0.5, efficiency=1.0, overhead_s=1.0)
  case = (
    toys.workflow(toys.stage("a", 8, granule_max=4)),
    toys.profile(a=law),
    toys.cluster(1),
  )
  assert bounds.lower_bound(*case).ns == 6 * toys.S


def test_a_stage_that_can_run_nowhere_is_named():
  flow = toys.workflow(toys.stage("a", 4, granule_max=1))
  law = Table(samples=(Sample(granule=2, devices=1, seconds=1.0),))
  with pytest.raises(errors.ProfileError, match="'a' can run on none"):
    bounds.lower_bound(flow, toys.profile(a=law), toys.cluster(1))
  wide = Profile(
    entries=(Entry(stage="a", device_class="d", law=law, config=Config(tp=2)),)
  )
  flow = toys.workflow(toys.stage("a", 4))
  ones = dataclasses.replace(toys.cluster(3), groups=(Devices.span(0, 3),))
  with pytest.raises(errors.InfeasiblePlanError, match="'a' can run on no"):
    bounds.lower_bound(flow, wide, ones)


@pytest.mark.parametrize("seed", range(60))
def test_no_plan_is_faster(seed):
  rng = random.Random(seed)
  given = strategies.problem(rng)
  case = (given.workflow, given.profile, given.cluster)
  bound = bounds.lower_bound(*case)
  for _ in range(3):
    try:
      found = evaluation.evaluate(strategies.tree(rng, given), *case)
    except errors.InfeasiblePlanError:
      continue
    assert bound.ns <= found.period_ns


@pytest.mark.parametrize("seed", range(20))
def test_more_devices_never_raise_a_bound(seed):
  given = strategies.problem(random.Random(seed))
  smaller = toys.cluster(2, memory=1_000_000)
  for count in (3, 5, 16, 300):
    larger = toys.cluster(count, memory=1_000_000)
    for bound_fn in (bounds.lower_bound, bounds.single_mode_bound):
      before = bound_fn(given.workflow, given.profile, smaller).values_ns
      after = bound_fn(given.workflow, given.profile, larger).values_ns
      for name, ns in after.items():
        assert ns <= before[name] * (1 + 1e-8), name
    smaller = larger
