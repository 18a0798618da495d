"""The evaluator: memory by hand, and the laws of accepted trees."""

from __future__ import annotations

import dataclasses
import random

import hypothesis
import pytest

from scheduler import checker, cycles, decoding, errors, evaluation, lowering
from scheduler.plans import Holding, Spatial, Temporal, TreePlan
from scheduler.workflows import LogNormalLengths
from tests.scheduler import strategies, toys, trees
from tests.scheduler.toys import S, run, stage


def two_stages(*, is_resident: bool = True, memory: int = 1000):
  """a and b of 4 and 6 bytes take turns, 2 s and 3 s."""
  flow = toys.workflow(
    stage("a", 2, state_bytes=4), stage("b", 2, state_bytes=6)
  )
  plan = TreePlan(
    root=Temporal(
      children=(
        run("a", "0", 2, is_resident=is_resident),
        run("b", "0", 2, is_resident=is_resident),
      )
    )
  )
  profile = toys.profile(a=toys.per_item(1.0, 1), b=toys.per_item(1.5, 2))
  return plan, flow, profile, toys.cluster(1, memory=memory)


def test_an_evaluation_says_period_memory_and_what_is_critical():
  found = evaluation.evaluate(*two_stages())
  assert found.period_ns == 5 * S
  assert found.seconds == 5.0
  # Both states, and two items of b at 2 bytes each.
  assert found.peak_bytes == {"0": 4 + 6 + 4}
  assert found.critical_stages == ("a", "b")


def test_swapped_stages_take_memory_in_turn():
  found = evaluation.evaluate(*two_stages(is_resident=False))
  # 2 * (4 + 6) s of swaps; a with its two items, then b with its own.
  assert found.seconds == 25.0
  assert found.peak_bytes == {"0": max(4 + 2, 6 + 4)}


@pytest.mark.parametrize("check", [True, False])
def test_a_plan_that_does_not_fit_in_memory_is_refused(check):
  evaluation.evaluate(*two_stages(memory=14), check=check)
  with pytest.raises(
    errors.InfeasiblePlanError,
    match="each device of '0' holds 14 bytes.* of 13",
  ):
    evaluation.evaluate(*two_stages(memory=13), check=check)


def test_a_flat_plan_is_evaluated_as_it_is():
  plan, *where = two_stages()
  flat = lowering.lower(plan, *where)
  assert evaluation.evaluate(flat, *where) == evaluation.evaluate(plan, *where)


def test_an_unchecked_flat_plan_may_be_wrong_in_ways_that_checking_finds():
  plan, *where = two_stages()
  flat = lowering.lower(plan, *where)
  short = dataclasses.replace(flat.activities[0], duration_ns=1)
  wrong = dataclasses.replace(flat, activities=(short, *flat.activities[1:]))
  assert evaluation.evaluate(wrong, *where, check=False).period_ns == 3 * S + 1
  with pytest.raises(errors.InfeasiblePlanError, match="takes 1 ns"):
    evaluation.evaluate(wrong, *where)


def test_what_is_held_longer_than_a_period_is_held_several_times():
  flow = toys.workflow(stage("a", 1), stage("b", 1), staleness=2)
  plan = TreePlan(root=Spatial(children=(run("a", "0", 1), run("b", "1", 1))))
  flat = lowering.lower(plan, flow, toys.profile(a=2.0, b=2.0), toys.cluster(2))
  held = dataclasses.replace(
    flat,
    holdings=tuple(
      Holding(
        resource=0, bytes_per_device=num, what="x", begin=0, end=1, lag=lag
      )
      for num, lag in ((1, 0), (10, 1), (100, -1))
    ),
  )
  schedule = cycles.schedule(held)
  assert schedule.period_ns == 2 * S
  # From a's start to b's end, 4 s: two periods. An iteration later, three; an
  # iteration earlier, one.
  assert evaluation.peak_bytes(held, schedule) == {"0": 2 + 30 + 100, "1": 0}


def test_what_overlaps_for_part_of_a_period_counts_while_it_does():
  flow = toys.workflow(stage("a", 1), stage("b", 1))
  plan = TreePlan(root=Temporal(children=(run("a", "0", 1), run("b", "0", 1))))
  flat = lowering.lower(plan, flow, toys.profile(a=1.0, b=3.0), toys.cluster(1))

  def peak(*holdings: tuple[int, int, int, int]) -> int:
    held = dataclasses.replace(
      flat,
      holdings=tuple(
        Holding(
          resource=0,
          bytes_per_device=num,
          what="x",
          begin=begin,
          end=end,
          lag=lag,
        )
        for num, begin, end, lag in holdings
      ),
    )
    return evaluation.peak_bytes(held, cycles.schedule(held))["0"]

  # a: 0 to 1, b: 1 to 4, period 4. What ends when another begins is gone.
  assert peak((1, 0, 0, 0), (2, 1, 1, 0)) == 2
  # From b's start to the end of the next a, 1 to 5: always one, never two.
  assert peak((5, 1, 0, 1)) == 5
  # From a's start to the next a's end, 0 to 5: two while a runs.
  assert peak((5, 0, 0, 1)) == 10
  assert peak((5, 0, 0, 1), (1, 0, 0, 0), (7, 1, 1, 0)) == 12


def evaluated(made: trees.Problem) -> evaluation.Evaluation | None:
  """Returns the evaluation; None where its channels are too small."""
  try:
    return evaluation.evaluate(*made)
  except errors.InfeasiblePlanError as error:
    assert "deadlocks" in str(error)
    return None


@hypothesis.given(made=strategies.drawn(trees.problem))
@hypothesis.settings(max_examples=100, deadline=None)
def test_an_accepted_tree_lowers_to_an_accepted_flat_plan(made):
  flat = lowering.lower(*made)
  checker.check(flat, *made[1:])


def test_only_channels_make_trees_deadlock():
  refused = 0
  for seed in range(150):
    made = trees.problem(random.Random(seed), has_channels=True)
    found = evaluated(made)
    refused += found is None
    if found is None:
      free = made._replace(plan=_without_channels(made.plan))
      assert evaluated(free) is not None
  assert 0 < refused < 50


def _without_channels(plan: TreePlan) -> TreePlan:
  def free(node):
    if isinstance(node, (Temporal, Spatial)):
      node = dataclasses.replace(node, children=tuple(map(free, node.children)))
    if isinstance(node, Spatial):
      node = dataclasses.replace(node, capacity=None)
    return node

  return dataclasses.replace(plan, root=free(plan.root))


def test_channels_never_make_a_tree_faster():
  slower = 0
  for seed in (*range(60), 898, 926, 988):  # where channels are what binds
    made = trees.problem(random.Random(seed), has_channels=True)
    bounded = evaluated(made)
    if bounded is not None:
      free = evaluated(made._replace(plan=_without_channels(made.plan)))
      assert free.period_ns <= bounded.period_ns
      slower += free.period_ns < bounded.period_ns
  assert slower


@hypothesis.given(
  made=strategies.drawn(trees.problem), rng=hypothesis.strategies.randoms()
)
@hypothesis.settings(max_examples=60, deadline=None)
def test_names_and_numbers_do_not_matter(made, rng):
  a = evaluation.evaluate(*made)
  b = evaluation.evaluate(*trees.renamed(made, rng))
  assert a.period_ns == b.period_ns
  assert sorted(a.peak_bytes.values()) == sorted(b.peak_bytes.values())


@hypothesis.given(made=strategies.drawn(trees.problem))
@hypothesis.settings(max_examples=60, deadline=None)
def test_the_peak_is_what_devices_need(made):
  found = evaluation.evaluate(*made)
  peak = max(found.peak_bytes.values())
  if peak < 2:
    return

  def with_memory(num_bytes):
    (device,) = made.cluster.classes
    classes = (dataclasses.replace(device, memory_bytes=num_bytes),)
    return made._replace(
      cluster=dataclasses.replace(made.cluster, classes=classes)
    )

  assert evaluation.evaluate(*with_memory(peak)).period_ns == found.period_ns
  for check in (True, False):
    with pytest.raises(errors.InfeasiblePlanError, match="each device of"):
      evaluation.evaluate(*with_memory(peak - 1), check=check)


def test_a_seed_draws_other_lengths():
  lengths = LogNormalLengths(median_tokens=50, sigma=1.0, max_tokens=1000)
  decode = stage("g", 8, "decode", lengths=lengths)
  plan = TreePlan(root=run("g", "0", 1))
  where = (toys.workflow(decode), toys.profile(g=toys.TOKEN), toys.cluster(1))
  for seed in range(3):
    longest = max(decoding.draw_tokens(decode, seed))
    found = evaluation.evaluate(plan, *where, seed=seed)
    assert found.period_ns == longest * S
  assert len({decoding.draw_tokens(decode, seed) for seed in range(3)}) == 3
