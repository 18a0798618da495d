"""Decodes worked by hand, token by token."""

from __future__ import annotations

import math
import statistics

import pytest

from scheduler import decoding
from scheduler.clusters import DeviceClass
from scheduler.profiles import Config, DecodeLaw, mean_tokens
from scheduler.workflows import LogNormalLengths, Stage, TraceLengths
from tests.scheduler import toys

DEVICE = DeviceClass(
  name="d", memory_bytes=1, flops_per_s=1.0, memory_bytes_per_s=1.0
)
# A token takes 6 s for the weights and 1 s for each token of context.
READING = DecodeLaw(
  t0_s=0,
  weight_bytes=6,
  kv_bytes_per_token=1,
  num_params=0,
  efficiency=1,
  flop_efficiency=1,
)

ONE = Config()


def decode(*tokens: int, group: int = 1, prompt: int = 0) -> Stage:
  return toys.stage(
    "g",
    len(tokens),
    "decode",
    group=group,
    lengths=TraceLengths(tokens=tokens, prompt_tokens=prompt),
  )


def ready(stage, law, *, replicas=1, cohort=None, config=ONE, seed=0):
  whole = cohort or (0, stage.items)
  return decoding.ready_s(stage, law, DEVICE, config, replicas, whole, seed)


def test_a_token_takes_what_its_bytes_or_its_operations_do():
  law = DecodeLaw(
    t0_s=0.5,
    weight_bytes=40,
    kv_bytes_per_token=2,
    num_params=6,
    efficiency=0.5,
    flop_efficiency=0.25,
  )
  device = DeviceClass(
    name="d", memory_bytes=1, flops_per_s=8.0, memory_bytes_per_s=10.0
  )
  # 40 + 3 * 5 * 2 bytes at 10 * 0.5 per second: 14 s; 2 * 6 * 3 operations at
  # 8 * 0.25: 18 s. A context of 20: 160 bytes, 32 s.
  assert law.token_s(3, 5, device, Config()) == 0.5 + 18
  assert law.token_s(3, 20, device, Config()) == 0.5 + 32
  # Two devices halve both, but not the fixed time.
  assert law.token_s(3, 20, device, Config(tp=2)) == 0.5 + 16


def test_few_sequences_read_few_experts():
  law = DecodeLaw(
    t0_s=0,
    weight_bytes=16,
    kv_bytes_per_token=0,
    num_params=0,
    efficiency=1,
    weight_share=0.5,
  )
  # Each sequence reads half of the experts: two read 1 - 0.5^2 of them.
  assert law.token_s(1, 0, DEVICE, Config()) == 8
  assert law.token_s(2, 0, DEVICE, Config()) == 12


def test_three_sequences_are_done_one_after_another():
  # Token 1 of three: 6 + 3 * 0.5 = 7.5 s (contexts grow from 0 to 1).
  # Token 2 of two: 6 + 2 * 1.5 = 9 s. Tokens 3 and 4 of one: 2 * (6 + 3) s.
  assert ready(decode(1, 2, 4), READING) == (7.5, 16.5, 34.5)


def test_a_prompt_is_context_from_the_first_token_on():
  # 2 tokens of one sequence with contexts 10 to 12: 2 * (6 + 11).
  assert ready(decode(2, prompt=10), READING) == (34.0,)


def test_items_come_shortest_first_whatever_their_index():
  stage = decode(4, 1, 2)
  assert decoding.emission_order(stage, 0) == (1, 2, 0)
  assert ready(stage, READING) == (7.5, 16.5, 34.5)


def test_a_group_comes_whole_when_its_longest_member_is_done():
  stage = decode(1, 9, 2, 3, group=2)
  assert decoding.emission_order(stage, 0) == (2, 3, 0, 1)
  assert ready(stage, toys.TOKEN) == (3.0, 3.0, 9.0, 9.0)


def test_replicas_take_every_so_manieth_item_by_length():
  # One of two replicas has the items of lengths 2, 4 and 6.
  assert ready(decode(1, 2, 3, 4, 5, 6), toys.TOKEN, replicas=2) == (
    2.0, 2.0, 4.0, 4.0, 6.0, 6.0,
  )  # fmt: skip


def test_what_exceeds_the_active_waits_for_a_place():
  one = DecodeLaw(
    t0_s=1, weight_bytes=0, kv_bytes_per_token=0, num_params=0, max_active=1
  )
  assert ready(decode(2, 2, 2), one) == (2.0, 4.0, 6.0)
  two = DecodeLaw(
    t0_s=1, weight_bytes=0, kv_bytes_per_token=0, num_params=0, max_active=2
  )
  # Lengths 1 and 2 run first. At 1 the other 2 enters, at 2 the other 1: both
  # end at 3. What counts is how many are out.
  assert ready(decode(1, 1, 2, 2), two) == (1.0, 2.0, 3.0, 3.0)


def test_a_cohort_is_decoded_by_itself():
  # The two longest of four: as if the others did not exist.
  stage = decode(1, 2, 3, 4)
  assert ready(stage, toys.TOKEN, cohort=(2, 4)) == (3.0, 4.0)
  assert ready(stage, toys.TOKEN, cohort=(0, 2)) == (1.0, 2.0)


def test_a_trace_is_rotated_by_the_seed():
  assert decoding.draw_tokens(decode(7, 8, 9), 1) == (8, 9, 7)


def test_lengths_of_a_fully_correlated_group_are_equal():
  stage = toys.stage(
    "g",
    64,
    "decode",
    group=8,
    lengths=LogNormalLengths(
      median_tokens=100, sigma=1.0, max_tokens=10_000, correlation=1.0
    ),
  )
  tokens = decoding.draw_tokens(stage, 3)
  groups = [set(tokens[i : i + 8]) for i in range(0, 64, 8)]
  assert all(len(group) == 1 for group in groups)
  assert len(set(tokens)) == 8
  assert decoding.draw_tokens(stage, 3) == tokens
  assert decoding.draw_tokens(stage, 4) != tokens


def test_drawn_lengths_have_the_median_spread_and_cut_asked_for():
  stage = toys.stage(
    "g",
    20_000,
    "decode",
    lengths=LogNormalLengths(median_tokens=500, sigma=0.7, max_tokens=2000),
  )
  tokens = decoding.draw_tokens(stage, 0)
  assert statistics.median(tokens) == pytest.approx(500, rel=0.03)
  # 2000 is log(4) / 0.7 = 1.98 deviations out: 2.4 % are cut to it.
  assert max(tokens) == 2000
  assert tokens.count(2000) / 20_000 == pytest.approx(0.024, abs=0.005)
  inner = [t for t in tokens if t < 2000]
  assert statistics.mean(math.log(t / 500) < -0.7 for t in inner) == (
    pytest.approx(0.1587 / 0.976, abs=0.01)
  )
  assert statistics.mean(tokens) == pytest.approx(
    mean_tokens(stage.lengths), rel=0.02
  )


def test_items_without_lengths_take_one_token():
  stage = toys.stage("g", 3, "decode")
  assert decoding.draw_tokens(stage, 0) == (1, 1, 1)
  assert ready(stage, toys.TOKEN) == (1.0, 1.0, 1.0)
