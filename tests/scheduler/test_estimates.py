"""The closed form against the exact period, and by hand."""

from __future__ import annotations

import random

import pytest

from scheduler import estimates, evaluation, plans
from scheduler.plans import Lanes, Run, Spatial, Temporal, TreePlan
from scheduler.workflows import Edge, Loop, TraceLengths, WeightSync
from tests.scheduler import toys, trees
from tests.scheduler.toys import run, stage

DECODE = TraceLengths(tokens=(1, 2, 4, 8))


def temporal(*children, turn=None):
  return Temporal(children=children, turn=turn)


def spatial(*children, capacity=None):
  return Spatial(children=children, capacity=capacity)


def both(root, workflow, profile, copies=(), memory=1000, **links):
  """Returns the estimate and the exact period, in seconds."""
  where = (
    TreePlan(root=root, copies=copies),
    workflow,
    profile,
    toys.cluster(8, memory=memory, **links),
  )
  exact = evaluation.evaluate(*where).seconds
  return round(estimates.estimate_s(*where), 8), round(exact, 8)


def chain(times, granule, items, **flow):
  """Returns stages that stream over devices of their own."""
  names = "abcdef"[: len(times)]
  return (
    spatial(*(run(n, str(i), granule) for i, n in enumerate(names))),
    toys.workflow(*(stage(n, items) for n in names), **flow),
    toys.profile(**dict(zip(names, times))),
  )


def test_a_chain_of_equal_granules_takes_head_bottleneck_and_tail():
  rng = random.Random(0)
  for _ in range(50):
    times = [float(rng.randint(1, 9)) for _ in range(rng.randint(2, 5))]
    granule, count = rng.randint(1, 3), rng.randint(1, 8)
    estimate, exact = both(*chain(times, granule, granule * count))
    worst = times.index(max(times))
    head, tail = sum(times[:worst]), sum(times[worst + 1 :])
    assert estimate == exact
    assert exact == granule * (head + count * times[worst] + tail)


def test_the_first_granule_of_a_decode_is_late():
  flow = toys.workflow(stage("g", 4, "decode", lengths=DECODE), stage("b", 4))
  profile = toys.profile(g=toys.TOKEN, b=3.0)
  # Items at 1, 2, 4 and 8 s; one of b takes 3 s: 1 + 4 * 3. In granules of two
  # the first is there at 2 s, and b ends at 2 + 2 * 6.
  each = spatial(run("g", "0", 1), run("b", "1", 1))
  assert both(each, flow, profile) == (13, 13)
  pairs = spatial(run("g", "0", 2), run("b", "1", 2))
  assert both(pairs, flow, profile) == (14, 14)
  # A fast reader waits for the longest: 8 + 1.
  fast = toys.profile(g=toys.TOKEN, b=1.0)
  assert both(each, flow, fast) == (9, 9)


def test_swaps_and_syncs_take_their_time():
  flow = toys.workflow(
    stage("a", 4, state_bytes=3),
    stage("b", 4, state_bytes=5),
    syncs=(WeightSync(source="b", target="a", num_bytes=8),),
  )
  root = temporal(
    run("a", "0-1", 4, is_resident=False), run("b", "0-1", 4, is_resident=False)
  )
  # Swaps 2 * (3 + 5); each device lacks 4 of 8 bytes of weights; 2 + 4 s. On
  # their way to a copy the 4 s pass while 3 s of swapping do.
  profile = toys.profile(a=1.0, b=2.0)
  assert both(root, flow, profile) == (26, 26)
  assert both(root, flow, profile, copies=("a",)) == (23, 23)


def test_moving_items_takes_its_time():
  flow = toys.workflow(
    stage("a", 4),
    stage("b", 4),
    edges=(Edge(source="a", target="b", item_bytes=2),),
  )
  root = spatial(run("a", "0", 1), run("b", "1", 1))
  profile = toys.profile(a=1.0, b=1.0)
  # The link is the bottleneck: 1 + 4 * 2 + 1; with latency 1 + 4 * 2.5 + 1.
  assert both(root, flow, profile) == (10, 10)
  assert both(root, flow, profile, latency_s=0.5) == (12, 12)


def test_a_tail_on_fewer_devices_overlaps_with_training():
  flow = toys.workflow(
    stage("g", 4, "decode", lengths=DECODE), stage("t", 4, "train")
  )
  root = temporal(
    run("g", "0-1", 1, share=(0, 2), cohort=(0, 4)),
    spatial(run("g", "0", 1, share=(2, 4), cohort=(0, 4)), run("t", "1", 1)),
  )
  assert both(root, flow, toys.profile(g=toys.TOKEN, t=1.0)) == (9, 9)


@pytest.mark.parametrize(
  ("lanes", "devices", "seconds"),
  [
    # Each of 3 turns: 4 s of a lane on both devices, or both lanes on each.
    ((4,), ("0", "1"), 3 * (4 + 8)),
    ((2, 2), ("0", "1"), 3 * 8 + 2),
    # Lanes of 3 and 1: the first takes 3 + 6 a turn, longer than the load 8.
    ((3, 1), ("0", "1"), 3 * 9 + 2),
    ((3, 1), ("0", "0"), 3 * 12),
  ],
)
def test_loops_take_turns(lanes, devices, seconds):
  flow = toys.workflow(
    stage("sim", 4, "simulate"),
    stage("act", 4),
    edges=(("sim", "act"), ("act", "sim")),
    loops=(Loop(name="l", stages=("sim", "act"), turns=3),),
  )
  kind = temporal if devices[0] == devices[1] else spatial
  body = kind(run("sim", devices[0], 4), run("act", devices[1], 4))
  root = Lanes(loop="l", body=body, lanes=lanes)
  profile = toys.profile(sim=1.0, act=2.0)
  assert both(root, flow, profile) == (seconds, seconds)


def test_stale_iterations_overlap_as_far_as_devices_allow():
  # Work 8 s on the busiest device; 2 + 8 + 1 s over 1 + s alive.
  args = [2.0, 8.0, 1.0], 1, 1
  for staleness, seconds in ((0, 11), (1, 8), (2, 8)):
    root, flow, profile = chain(*args, staleness=staleness)
    assert both(root, flow, profile) == (seconds, seconds)
  root, flow, profile = chain([2.0, 3.0, 3.0], 1, 1, staleness=1)
  assert both(root, flow, profile) == (4, 4)


def test_a_temporal_tree_is_estimated_exactly():
  seen = 0
  for seed in range(400):
    made = trees.problem(random.Random(seed))
    if _kinds(made.plan.root) <= {Run, Temporal}:
      seen += 1
      exact = evaluation.evaluate(*made).seconds
      assert estimates.estimate_s(*made) == pytest.approx(exact, rel=1e-12)
  assert seen > 50


def test_a_random_tree_is_estimated_closely():
  # Of 1,950 such trees 1,935 were estimated exactly, and the others at 0.969 to
  # 1.2 times what they take.
  ratios = []
  for seed in range(400):
    made = trees.problem(random.Random(seed))
    num_runs = len(list(plans.runs(made.plan.root)))
    exact = evaluation.evaluate(*made, check=False).seconds
    if exact and num_runs == len(made.workflow.stages):  # no shares
      ratios.append(estimates.estimate_s(*made) / exact)
  is_exact = [abs(ratio - 1) < 1e-9 for ratio in ratios]
  assert sum(is_exact) >= 0.98 * len(ratios)
  assert min(ratios) >= 0.95 and max(ratios) <= 1.2


def test_a_chain_of_unequal_granules_is_estimated_within_a_tenth():
  rng = random.Random(1)
  for _ in range(150):
    names = "abcd"[: rng.randint(2, 4)]
    root = spatial(
      *(
        run(name, str(i), rng.choice([1, 2, 3, 4, 6, 8]))
        for i, name in enumerate(names)
      )
    )
    flow = toys.workflow(*(stage(name, 24) for name in names))
    profile = toys.profile(**{name: rng.randint(1, 9) for name in names})
    estimate, exact = both(root, flow, profile)
    assert estimate == pytest.approx(exact, rel=0.1)


def _kinds(node) -> set[type]:
  if isinstance(node, Run):
    return {Run}
  if isinstance(node, Lanes):
    return {Lanes}
  return {type(node)}.union(*map(_kinds, node.children))
