"""The suite of workloads: frozen, within memory, and planned sensibly."""

from __future__ import annotations

import dataclasses
import hashlib
import statistics

import pytest

from scheduler import (
  devices,
  documents,
  errors,
  evaluation,
  planners,
  plans,
  profiles,
)
from scheduler.workloads import (
  figures,
  grpo,
  hardware,
  problems,
  suite,
  variations,
)

# Of the JSON of every problem of a draw, in the suite's order:
#   python -m pytest tests/scheduler/test_workloads.py -k frozen
# shows the new one. A change makes results incomparable: say so in the commit.
DIGESTS: dict[problems.Split, str] = {
  "development": "147cdfe1e3baf2a2",
  "test": "ff05cad0a9a59150",
}
SPLITS: tuple[problems.Split, ...] = ("development", "test")


def all_problems() -> list[problems.Problem]:
  return [p for split in SPLITS for p in suite.problems_of(split)]


@pytest.mark.parametrize("split", SPLITS)
def test_a_draw_is_frozen(split: problems.Split):
  digest = hashlib.sha256()
  for problem in suite.problems_of(split):
    digest.update(documents.to_json(problem).encode())
  assert digest.hexdigest()[:16] == DIGESTS[split]


def test_every_problem_survives_json():
  for problem in all_problems():
    text = documents.to_json(problem)
    assert documents.from_json(problems.Problem, text) == problem


def test_names_are_unique_and_say_the_draw():
  names = [problem.name for problem in all_problems()]
  assert len(set(names)) == len(names)
  assert all(
    p.name.endswith(p.split) and p.split in SPLITS for p in all_problems()
  )


def test_the_draws_differ_where_they_share_a_workload_and_size():
  name, size = "grpo_1_5b_h100", 8
  case = suite.SUITE[name]
  assert size in case.development and size in case.test
  one, other = (suite.build(name, size, split) for split in SPLITS)
  assert one.workflow != other.workflow


def test_the_suite_spans_the_cluster_sizes_and_classes():
  sizes = {
    size
    for case in suite.SUITE.values()
    for size in case.development + case.test
  }
  assert {1, 3, 24, 48, 96, 16_384} <= sizes
  classes = [
    {c.name for c in problem.cluster.classes} for problem in all_problems()
  ]
  assert set.union(*classes) >= {"h100", "h200", "h20", "h800", "cpu"}
  assert {"h20", "h800"} in classes


def test_mixed_clusters_have_entries_for_both_classes():
  problem = suite.build("grpo_7b_mixed", 16, "test")
  for stage in problem.workflow.stages:
    assert set(problem.profile.device_classes(stage.name)) == {"h20", "h800"}


def test_training_fits_on_its_devices_with_room_to_spare():
  for problem in all_problems():
    for stage in problem.workflow.stages:
      if stage.kind != "train":
        continue
      # Of the layouts offered, at least one leaves 2 % of the memory to work.
      shares = [
        stage.state_bytes
        / entry.config.devices
        / problem.cluster.device_class(entry.device_class).memory_bytes
        for entry in problem.profile.entries
        if entry.stage == stage.name
      ]
      assert min(shares) <= 0.98, problem.name


@pytest.mark.parametrize(
  ("name", "num_devices"),
  [(name, n) for name, case in suite.SUITE.items() for n in case.left_out],
)
def test_what_is_left_out_says_what_does_not_fit(name: str, num_devices: int):
  case = suite.SUITE[name]
  assert num_devices not in case.development + case.test
  with pytest.raises(
    errors.InfeasiblePlanError,
    match=r"stage 'train\w*' of '\w+' fits on no devices .* bytes",
  ):
    suite.build(name, num_devices, "test")


def test_the_7b_does_not_train_on_one_h100():
  # 18 x 7.62e9 = 137.16e9 bytes on 80e9.
  with pytest.raises(errors.InfeasiblePlanError, match="137,160,000,000"):
    suite.build("grpo_7b_h100", 1, "published")


def test_an_edited_document_is_checked_for_memory_too():
  problem = suite.build("grpo_1_5b_h100", 8, "published")
  text = documents.to_json(problem).replace('"80000000000"', "")
  text = text.replace("80000000000", "8000000000")
  with pytest.raises(errors.InfeasiblePlanError, match="stage 'train'"):
    documents.from_json(problems.Problem, text)


def test_a_stage_without_a_profile_on_the_cluster_is_refused():
  problem = suite.build("libero", 4, "published")
  without = dataclasses.replace(
    problem.profile,
    entries=tuple(
      e for e in problem.profile.entries if e.device_class != "cpu"
    ),
  )
  with pytest.raises(errors.InfeasiblePlanError, match="none it is profiled"):
    dataclasses.replace(problem, profile=without)


def test_workloads_are_built_the_same_twice():
  for name in suite.SUITE:
    size = suite.SUITE[name].development[0]
    first, second = (suite.build(name, size, "test") for _ in range(2))
    assert first == second


def test_the_published_step_of_grpo_1_5b_comes_out_within_five_percent():
  """The phases are fitted: this checks that the workload is that row."""
  problem = grpo.grpo_1_5b(hardware.h100(8))
  row = figures.ROWS["rlinf_1_5b"]
  rollout = problem.workflow.stage("rollout")
  assert (rollout.items, problem.cluster.num_devices) == (
    row.sequences,
    row.num_devices,
  )
  everywhere = devices.Devices.span(0, 8)
  plan = plans.TreePlan(
    root=plans.Temporal(
      children=tuple(
        plans.Run(stage=stage, devices=everywhere, granule=granule)
        for stage, granule in (
          ("rollout", 512),
          ("logprob", 512),
          ("train", 128),
        )
      )
    )
  )
  seconds = [
    evaluation.evaluate(
      plan, problem.workflow, problem.profile, problem.cluster, seed=seed
    ).seconds
    for seed in range(4)
  ]
  assert statistics.fmean(seconds) == pytest.approx(346, rel=0.05)


@pytest.mark.parametrize("name", suite.SUITE)
def test_every_workload_runs_in_minutes_when_collocated(name: str):
  case = suite.SUITE[name]
  problem = suite.build(name, min(case.development + case.test), "published")
  plan = planners.PLANNERS["collocated"](
    problem.workflow,
    problem.profile,
    problem.cluster,
    planners.Budget(iterations=1),
    0,
  )
  evaluated = evaluation.evaluate(
    plan, problem.workflow, problem.profile, problem.cluster
  )
  assert 10 < evaluated.seconds < 3 * 3600


def test_a_variation_changes_batch_groups_and_updates():
  variation = variations.Variation(
    length_scale=0.5, sequences_per_device=128, group=8, updates=2
  )
  stages = grpo.grpo_1_5b(hardware.h100(8), variation=variation).workflow.stages
  rollout, train = stages[0], stages[-1]
  assert (rollout.items, rollout.group, train.updates) == (1024, 8, 2)
  assert rollout.lengths is not None
  mean = profiles.mean_tokens(rollout.lengths)
  assert mean == pytest.approx(13_975 / 2, rel=1e-3)
