"""Models, laws and tables of workloads, by numbers worked by hand."""

from __future__ import annotations

import dataclasses
import math
import random
import statistics

import pytest

from scheduler import (
  decoding,
  durations,
  errors,
  profiles,
  transfers,
  workflows,
)
from scheduler.workloads import (
  constants,
  distributions,
  embodied,
  graphs,
  hardware,
  laws,
  models,
  problems,
  variations,
)


def test_training_takes_six_operations_per_parameter_and_token():
  # 6 x 7.62e9 x 1000
  assert models.QWEN_7B.train_flop(1000) == pytest.approx(4.572e13)
  assert models.QWEN_7B.forward_flop(1000) == pytest.approx(1.524e13)


def test_attention_adds_its_width_times_the_squared_length():
  # 10,000 tokens read 5,000 earlier ones on average; two products of two
  # operations each: 4 x 28 layers x 3584 x 10,000 x 5,000 = 2.007e13.
  extra = models.QWEN_7B.forward_flop(1e4, 1e8) - models.QWEN_7B.forward_flop(
    1e4
  )
  assert extra == pytest.approx(2.007e13, rel=1e-3)


def test_a_mixture_of_experts_computes_with_the_active_parameters_only():
  assert models.MOE_30B.train_flop(1) == pytest.approx(6 * 3.3e9)
  assert models.MOE_30B.weight_bytes == 61_000_000_000


def test_training_state_takes_16_to_18_bytes_per_parameter():
  for model in (models.QWEN_1_5B, models.QWEN_32B, models.MOE_30B):
    assert 16 <= model.train_bytes / model.num_params <= 18


def test_weights_and_caches_are_those_of_the_published_models():
  known = {
    models.QWEN_1_5B: (28_672, 3.1e9),
    models.QWEN_7B: (57_344, 15.2e9),
    models.QWEN_32B: (262_144, 65.6e9),
  }
  for model, (kv_bytes, weight_bytes) in known.items():
    assert model.kv_bytes_per_token == kv_bytes
    assert model.weight_bytes == pytest.approx(weight_bytes, rel=0.01)


def straggler_s(fitted: constants.Constants) -> float:
  stage = workflows.Stage(
    name="rollout",
    kind="decode",
    items=1,
    lengths=workflows.TraceLengths(tokens=(27_600,)),
  )
  config = profiles.Config()
  law = laws.decode_law(
    models.QWEN_7B, hardware.H100, config, context_tokens=27_600, fitted=fitted
  )
  (ready,) = decoding.ready_s(stage, law, hardware.H100, config, 1, (0, 1), 0)
  return ready


def test_a_straggler_of_the_7b_alone_takes_132_s_at_full_bandwidth():
  # 27,600 x 15.24e9 / 3.35e12 = 125.6 s for the weights, and for the cache
  # 27,600^2 / 2 x 57,344 / 3.35e12 = 6.5 s.
  full = dataclasses.replace(
    constants.FITTED, decode_t0_s=0.0, decode_efficiency=1.0
  )
  assert straggler_s(full) == pytest.approx(132.1, abs=0.1)
  most = dataclasses.replace(full, decode_efficiency=0.84)
  assert straggler_s(most) == pytest.approx(157.2, abs=0.1)
  assert straggler_s(constants.FITTED) > 157.2


def test_one_sequence_reads_only_its_experts():
  config = profiles.Config()
  law = laws.decode_law(
    models.MOE_30B, hardware.H100, config, context_tokens=8000
  )
  # 61 GB x 3.3 / 30.5 = 6.6 GB over 3.35 TB/s at the fitted efficiency.
  alone = law.token_s(1, 0.0, hardware.H100, config) - law.t0_s
  rate = 3.35e12 * constants.FITTED.decode_efficiency
  assert alone == pytest.approx(6.6e9 / rate)
  # Two read 1 - (1 - 3.3/30.5)^2 = 0.2047 of the weights.
  both = law.token_s(2, 0.0, hardware.H100, config) - law.t0_s
  assert both == pytest.approx(0.2047 * 61e9 / rate, rel=1e-3)


def test_weights_of_the_30b_arrive_over_cx7_in_about_seven_seconds():
  # 61 GB / 8.25 GB/s = 7.39 s
  cluster = hardware.h100_over_cx7(16)
  source, target = cluster.devices.first(8), cluster.devices
  ns = transfers.sync_ns(
    cluster, source, target - source, models.MOE_30B.weight_bytes
  )
  assert ns == pytest.approx(7.39e9, rel=1e-3)


def test_a_decode_keeps_as_many_sequences_as_its_cache_holds():
  # 0.9 x 80 GB - 15.24 GB = 56.76 GB; 10,000 x 57,344 bytes each: 98.9.
  law = laws.decode_law(
    models.QWEN_7B, hardware.H100, profiles.Config(), context_tokens=10_000
  )
  assert law.max_active == 98
  two = laws.decode_law(
    models.QWEN_7B, hardware.H100, profiles.Config(tp=2), context_tokens=10_000
  )
  # 0.9 x 160 GB - 15.24 GB = 128.8 GB: 224; 56 reductions of 10 us per token.
  assert two.max_active == 224
  assert two.t0_s - law.t0_s == pytest.approx(56e-5)


def test_a_reward_has_one_process_for_each_64_devices():
  law = laws.reward_law(0.01)
  assert law.seconds(2048, 1) == pytest.approx(20.48)
  assert law.seconds(2048, 64) == pytest.approx(20.48)
  assert law.seconds(2048, 128) == pytest.approx(10.24)
  assert law.seconds(1, 16_384) == pytest.approx(0.01 / 256)


def test_layouts_lose_three_percent_for_each_doubling_of_tp():
  assert laws.layout_efficiency(profiles.Config(tp=4)) == pytest.approx(0.9409)
  assert laws.layout_efficiency(profiles.Config(tp=8, pp=2)) == pytest.approx(
    0.97**3 * 0.9
  )


def test_moments_agree_with_the_distributions_quantiles():
  lengths = workflows.LogNormalLengths(
    median_tokens=9000, sigma=0.6, max_tokens=20_000, prompt_tokens=300
  )
  drawn = distributions.quantiles(lengths, 20_000)
  mean, square = distributions.moments(lengths)
  assert mean == pytest.approx(300 + statistics.fmean(drawn), rel=1e-4)
  expected = statistics.fmean((300 + x) ** 2 for x in drawn)
  assert square == pytest.approx(expected, rel=1e-4)


def test_lengths_that_do_not_vary_have_the_obvious_moments():
  lengths = workflows.LogNormalLengths(
    median_tokens=50, sigma=0.0, max_tokens=40
  )
  assert distributions.moments(lengths) == (40, 1600)


@pytest.mark.parametrize("sigma", [0.1, 0.45, 1.2])
def test_a_median_gives_back_its_mean(sigma: float):
  median = distributions.median_of(10_000, sigma, 27_648)
  lengths = workflows.LogNormalLengths(
    median_tokens=median, sigma=sigma, max_tokens=27_648
  )
  assert profiles.mean_tokens(lengths) == pytest.approx(10_000)


def test_a_mean_beyond_the_maximum_is_refused():
  with pytest.raises(errors.WorkflowError, match="at most 100 cannot have"):
    distributions.median_of(100, 0.5, 100)


def table(
  problem: problems.Problem, stage: str, class_name: str
) -> profiles.ReplicaTable:
  law = problem.profile.law(stage, class_name, profiles.Config())
  assert isinstance(law, profiles.ReplicaTable)
  return law


def test_libero_keeps_its_outlier_and_is_linear_in_between():
  problem = embodied.libero(hardware.h100_and_cpu(4))
  assert table(problem, "simulator", "cpu").seconds(64, 1) == 18.5
  assert table(problem, "policy", "h100").seconds(64, 1) == 15.3
  # Half way between 32 (4.66 s) and 64 (18.5 s).
  assert table(problem, "simulator", "cpu").seconds(48, 1) == pytest.approx(
    11.58
  )


def test_maniskill_is_flat_in_time_and_linear_in_memory():
  problem = embodied.maniskill(hardware.h100(4))
  assert table(problem, "simulator", "h100").seconds(10, 1) == 0.8
  assert table(problem, "simulator", "h100").seconds(40, 1) == 0.85
  # Half way between 10 (0.4 s) and 20 (0.6 s).
  assert table(problem, "policy", "h100").seconds(15, 1) == pytest.approx(0.5)
  law = table(problem, "simulator", "h100")
  assert law.num_bytes(40, 1) == 4 * law.num_bytes(10, 1)


def test_behavior_takes_the_published_time_end_to_end():
  problem = embodied.behavior(hardware.rtx_4090d(4))
  simulator = table(problem, "simulator", "rtx4090d")
  policy = table(problem, "policy", "rtx4090d")
  # Six instances on three devices, and the policy on one: 32 x 41.2 ms.
  total = simulator.seconds(6, 3) + policy.seconds(6, 1)
  assert total == pytest.approx(32 * 41.2e-3)


def test_two_instances_of_behavior_fit_on_a_device_and_three_do_not():
  problem = embodied.behavior(hardware.rtx_4090d(4))
  stage, config = problem.workflow.stage("simulator"), profiles.Config()
  two, three = (
    durations.transient_bytes(
      stage, problem.profile, hardware.RTX_4090D, 1, config, count
    )
    for count in (2, 3)
  )
  assert two <= hardware.RTX_4090D.memory_bytes < three


def is_series_parallel(edges: list[tuple[int, int]], sink: int) -> bool:
  """Reduces parallel edges to one and stages of one edge in and out to none."""
  left = list(edges)
  while len(left) > 1:
    left = list(set(left))
    for stage in range(1, sink):
      into = [e for e in left if e[1] == stage]
      out = [e for e in left if e[0] == stage]
      if len(into) == len(out) == 1:
        left.remove(into[0])
        left.remove(out[0])
        left.append((into[0][0], out[0][1]))
        break
    else:
      return left == [(0, sink)]
  return left == [(0, sink)]


@pytest.mark.parametrize("seed", range(40))
def test_series_parallel_graphs_reduce_to_one_edge(seed: int):
  rng = random.Random(seed)
  num_stages = rng.randint(3, 8)
  edges = graphs.series_parallel_edges(rng, num_stages)
  assert {i for e in edges for i in e} == set(range(num_stages))
  assert is_series_parallel(edges, num_stages - 1)


def test_the_reduction_refuses_a_graph_that_is_not_series_parallel():
  bridge = [(0, 1), (0, 2), (1, 2), (1, 3), (2, 3)]
  assert not is_series_parallel(bridge, 3)


@pytest.mark.parametrize("seed", range(40))
def test_layered_graphs_lead_every_stage_to_the_next_layer(seed: int):
  problem = graphs.layered(
    hardware.h100(8), variation=variations.Variation(seed=seed)
  )
  names = [stage.name for stage in problem.workflow.stages]
  assert 3 <= len(names) <= 8
  # The edges rise, so that stages without a source are the first layer and
  # those without a target the last.
  pairs = [
    (names.index(e.source), names.index(e.target))
    for e in problem.workflow.edges
  ]
  assert all(a < b for a, b in pairs)
  first = {i for i in range(len(names)) if not any(b == i for _, b in pairs)}
  last = {i for i in range(len(names)) if not any(a == i for a, _ in pairs)}
  assert first == set(range(len(first))) and len(first) <= 3
  assert last == set(range(len(names) - len(last), len(names)))
  assert len(last) <= 3


def test_measured_graphs_scale_no_better_than_their_devices():
  for seed in range(10):
    problem = graphs.series_parallel(
      hardware.h100(8), variation=variations.Variation(seed=seed)
    )
    for entry in problem.profile.entries:
      if isinstance(entry.law, profiles.Table):
        one, eight = (entry.law.seconds(64, n) for n in (1, 8))
        assert one / 8 - 1e-6 <= eight <= one


def test_a_batch_is_whole_multiples_of_groups_and_updates():
  variation = variations.Variation(sequences_per_device=64)
  # 64 x 3 = 192 is less than the least, 64 x 24 = 1536 a multiple of 256,
  # 64 x 16,384 more than the most.
  assert [variation.sequences(n) for n in (3, 24, 30, 16_384)] == [
    512,
    1536,
    2048,
    65_536,
  ]


def test_laws_are_faster_with_more_devices_and_slower_with_longer_sequences():
  lengths = workflows.LogNormalLengths(
    median_tokens=8000, sigma=0.4, max_tokens=27_648
  )
  longer = dataclasses.replace(lengths, median_tokens=9000)
  config = profiles.Config()
  stage = workflows.Stage(name="train", kind="train", items=512)

  def ns(devices: int, drawn: workflows.LogNormalLengths) -> int:
    law = laws.train_law(models.QWEN_1_5B, hardware.H100, config, drawn)
    entry = profiles.Entry(stage="train", device_class="h100", law=law)
    profile = profiles.Profile(entries=(entry,))
    return durations.compute_ns(
      stage, profile, hardware.H100, devices, config, 512
    )

  times = [ns(devices, lengths) for devices in (1, 2, 3, 8, 64, 512, 1024)]
  assert times == sorted(times, reverse=True)
  assert ns(8, longer) > ns(8, lengths)
  assert math.isclose(times[0] - 5e7, 8 * (times[3] - 5e7), rel_tol=1e-6)
