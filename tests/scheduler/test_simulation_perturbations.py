from __future__ import annotations

import pytest

from scheduler import errors, lowering, plans, simulation, workflows
from scheduler.simulation import batching, perturbations
from tests.scheduler import toys
from tests.scheduler.toys import S

# Mean 3. Iteration 0 of seed 0 has 1, 2, 4 and 8 tokens, iteration 4 the rest.
LENGTHS = workflows.TraceLengths(tokens=(1, 2, 4, 8, 1, 1, 1, 6))
WORKFLOW = toys.workflow(
  toys.stage("rollout", 4, "decode", lengths=LENGTHS),
  toys.stage("reward", 4),
  toys.stage("train", 4, "train", lengths=LENGTHS),
)
PROFILE = toys.profile(rollout=toys.TOKEN, reward=1, train=10)
CLUSTER = toys.cluster(3)
PLAN = lowering.lower(
  plans.TreePlan(
    root=plans.Spatial(
      children=(
        toys.run("rollout", "0", 2),
        toys.run("reward", "1", 4),
        toys.run("train", "2", 2),
      )
    )
  ),
  WORKFLOW,
  PROFILE,
  CLUSTER,
)


def seconds(iteration: int, **options) -> dict[str, list[float]]:
  durations_fn = perturbations.perturb(WORKFLOW, PROFILE, CLUSTER, **options)
  found: dict[str, list[float]] = {}
  for a, ns in zip(PLAN.activities, durations_fn(PLAN, iteration)):
    if a.kind == "compute":
      found.setdefault(a.stage, []).append(round(ns / S, 9))
  return found


def test_without_options_durations_are_the_plans():
  durations_fn = perturbations.perturb(WORKFLOW, PROFILE, CLUSTER)
  assert durations_fn(PLAN, 3) == [a.duration_ns for a in PLAN.activities]


def test_a_decode_is_timed_with_the_lengths_of_its_iteration():
  # A second per token: the first two are done after 2 s, the last after 8.
  assert seconds(0, lengths_seed=0)["rollout"] == [2, 6]
  assert seconds(4, lengths_seed=0)["rollout"] == [1, 5]


def test_what_handles_tokens_takes_time_by_them():
  # 20 s for two items of 3 tokens: 1 + 2 of 6 tokens in the first granule,
  # 4 + 8 in the second; and 2 and 7 of 6 in iteration 4.
  assert seconds(0, lengths_seed=0)["train"] == [10, 40]
  assert seconds(4, lengths_seed=0)["train"] == pytest.approx([20 / 3, 70 / 3])


def test_prompts_are_tokens_too():
  lengths = workflows.TraceLengths(tokens=(1, 5), prompt_tokens=1)
  workflow = toys.workflow(toys.stage("train", 2, "train", lengths=lengths))
  profile = toys.profile(train=8)
  plan = lowering.lower(
    plans.TreePlan(root=toys.run("train", "0", 1)), workflow, profile, CLUSTER
  )
  durations_fn = perturbations.perturb(
    workflow, profile, CLUSTER, lengths_seed=0
  )
  # Mean 3 + 1: the items have 2 and 6 tokens.
  computes = [i for i, a in enumerate(plan.activities) if a.kind == "compute"]
  drawn_ns = durations_fn(plan, 0)
  assert [drawn_ns[i] for i in computes] == [4 * S, 12 * S]


def test_other_stages_do_not_depend_on_lengths():
  assert seconds(4, lengths_seed=7)["reward"] == [4]


def test_noise_is_one_factor_for_each_stage():
  first = seconds(0, noise=0.3, noise_seed=1)
  assert first == seconds(5, noise=0.3, noise_seed=1)
  factors = {
    name: {round(got / planned, 6) for got, planned in zip(times, nominal)}
    for (name, times), nominal in zip(
      first.items(), seconds(0).values(), strict=True
    )
  }
  for of_stage in factors.values():
    (factor,) = of_stage
    assert 0.7 <= factor <= 1.3
  assert len(set(map(tuple, factors.values()))) == 3
  assert first != seconds(0, noise=0.3, noise_seed=2)


def test_noise_leaves_transfers_alone():
  workflow = toys.workflow(
    toys.stage("a", 1),
    toys.stage("b", 1),
    edges=(workflows.Edge(source="a", target="b", item_bytes=5),),
  )
  profile = toys.profile(a=1, b=1)
  root = plans.Spatial(children=(toys.run("a", "0", 1), toys.run("b", "1", 1)))
  plan = lowering.lower(plans.TreePlan(root=root), workflow, profile, CLUSTER)
  durations_fn = perturbations.perturb(workflow, profile, CLUSTER, noise=0.5)
  moved = [
    (a.duration_ns, ns)
    for a, ns in zip(plan.activities, durations_fn(plan, 0))
    if a.kind == "transfer"
  ]
  assert moved == [(5 * S, 5 * S)]


def test_noise_of_a_whole_duration_is_refused():
  with pytest.raises(errors.SchedulerError, match=r"\[0, 1\)"):
    seconds(0, noise=1.0)


def test_a_batched_decode_has_granules_as_its_groups_are_done():
  # One replica, two at once, a second per step. In the order of arrival: 1, 2,
  # 4 and 8 tokens. 4 enters at 1 s and is done at 5, 8 enters at 2 and is done
  # at 10: granules end at 2 and at 10.
  law = toys.TOKEN.__class__(
    t0_s=1,
    weight_bytes=0,
    kv_bytes_per_token=0,
    num_params=0,
    max_active=2,
  )
  profile = toys.profile(rollout=law, reward=1, train=10)
  durations_fn = perturbations.perturb(
    WORKFLOW,
    profile,
    CLUSTER,
    lengths_seed=0,
    ready_fn=batching.make_ready_fn(cache_bytes=0),
  )
  drawn_ns = durations_fn(PLAN, 0)
  decoded = [
    ns
    for a, ns in zip(PLAN.activities, drawn_ns)
    if (a.kind, a.stage) == ("compute", "rollout")
  ]
  assert decoded == [2 * S, 8 * S]


def test_unseen_lengths_change_the_timeline():
  durations_fn = perturbations.perturb(
    WORKFLOW, PROFILE, CLUSTER, lengths_seed=1
  )
  planned = simulation.run(PLAN, iterations=8)
  drawn = simulation.run(PLAN, iterations=8, durations_fn=durations_fn)
  assert drawn != planned
  assert len(drawn.events) == len(planned.events)
