"""Durations of granules, worked by hand."""

from __future__ import annotations

import pytest

from scheduler import durations, errors
from scheduler.clusters import DeviceClass
from scheduler.profiles import (
  ComputeLaw,
  Config,
  DecodeLaw,
  Entry,
  Profile,
  Sample,
  Table,
)
from scheduler.workflows import TraceLengths
from tests.scheduler import toys
from tests.scheduler.toys import S

DEVICE = DeviceClass(
  name="d", memory_bytes=1, flops_per_s=10.0, memory_bytes_per_s=1.0
)
TOKENS = TraceLengths(tokens=(1, 2, 4, 8))

ONE = Config()


def granules_ns(stage, law, granule, *, devices=1, config=ONE, **where):
  entry = Entry(stage=stage.name, device_class="d", law=law, config=config)
  return durations.granules_ns(
    stage,
    Profile(entries=(entry,)),
    DEVICE,
    devices,
    config,
    granule,
    **{"share": (0, stage.items), **where},
  )


def test_nanoseconds_are_rounded_up():
  assert durations.to_ns(1.5) == 1_500_000_000
  assert durations.to_ns(1.2e-9) == 2
  # A third of a picosecond is noise of the arithmetic, not time.
  assert durations.to_ns(2e-9 + 3e-13) == 2


def test_a_share_is_cut_into_granules_of_which_the_last_may_be_smaller():
  assert durations.split((2, 9), 3) == ((2, 5), (5, 8), (8, 9))


def test_a_granule_takes_as_long_as_the_replica_with_most_of_it():
  law = ComputeLaw(flop_per_item=20, efficiency=0.5, overhead_s=1)
  # 5 items on 2 replicas of 2 devices: one has 3; 3 * 20 operations at
  # 10 * 0.5 * 2 per second, and the overhead.
  stage = toys.stage("a", 5)
  got = granules_ns(stage, law, 5, devices=4, config=Config(tp=2))
  assert got == (7 * S,)


def test_a_smaller_last_granule_takes_less():
  stage = toys.stage("a", 5)
  law = ComputeLaw(flop_per_item=10, efficiency=1)
  assert granules_ns(stage, law, 2) == (2 * S, 2 * S, S)


def test_the_first_granule_of_a_decode_waits_for_its_longest_member():
  stage = toys.stage("g", 4, "decode", lengths=TOKENS)
  # Items are there at 1, 2, 4 and 8 s.
  assert granules_ns(stage, toys.TOKEN, 1) == (S, S, 2 * S, 4 * S)
  assert granules_ns(stage, toys.TOKEN, 2) == (2 * S, 6 * S)
  assert granules_ns(stage, toys.TOKEN, 3) == (4 * S, 4 * S)


def test_a_tail_goes_on_where_its_cohort_was_left():
  stage = toys.stage("g", 4, "decode", lengths=TOKENS)
  head = granules_ns(stage, toys.TOKEN, 1, share=(0, 2), cohort=(0, 4))
  tail = granules_ns(stage, toys.TOKEN, 1, share=(2, 4), cohort=(0, 4))
  assert head + tail == (S, S, 2 * S, 4 * S)
  # On one replica of two the items of lengths 2 and 8: there at 2, 2, 8, 8 s.
  two = granules_ns(
    stage, toys.TOKEN, 1, share=(0, 2), cohort=(0, 4), devices=2
  )
  assert two == (2 * S, 0)


def test_a_share_without_a_cohort_is_decoded_by_itself():
  stage = toys.stage("g", 4, "decode", lengths=TOKENS)
  assert granules_ns(stage, toys.TOKEN, 1, share=(2, 4)) == (4 * S, 4 * S)


def test_a_decode_has_no_time_for_a_granule_alone():
  stage = toys.stage("g", 4, "decode", lengths=TOKENS)
  profile = toys.profile(g=toys.TOKEN)
  with pytest.raises(errors.ProfileError, match="no time of their own"):
    durations.compute_ns(stage, profile, DEVICE, 1, Config(), 1)


def test_a_granule_takes_memory_for_the_items_of_a_replica():
  stage = toys.stage("a", 8, item_bytes=6)
  profile = Profile(
    entries=(
      Entry(
        stage="a",
        device_class="d",
        law=ComputeLaw(flop_per_item=1, efficiency=1, bytes_per_item=10),
        config=Config(tp=2),
      ),
    )
  )
  # 8 items on 2 replicas: 4 each, of 6 + 10 bytes over 2 devices.
  got = durations.transient_bytes(stage, profile, DEVICE, 4, Config(tp=2), 8)
  assert got == 32


def test_micro_batches_bound_what_a_granule_takes():
  stage = toys.stage("a", 8)
  law = ComputeLaw(
    flop_per_item=1, efficiency=1, bytes_per_item=10, max_active=3
  )
  profile = toys.profile(a=law)
  assert durations.transient_bytes(stage, profile, DEVICE, 1, Config(), 2) == 20
  assert durations.transient_bytes(stage, profile, DEVICE, 1, Config(), 8) == 30


def test_a_decode_holds_the_context_of_its_active_sequences():
  lengths = TraceLengths(tokens=(1, 3), prompt_tokens=4)
  stage = toys.stage("g", 6, "decode", lengths=lengths)
  law = DecodeLaw(
    t0_s=1, weight_bytes=0, kv_bytes_per_token=5, num_params=0, max_active=3
  )
  profile = toys.profile(g=law)
  # A prompt of 4 and 2 tokens on average, 5 bytes each, of 2 or 3 sequences.
  assert durations.transient_bytes(stage, profile, DEVICE, 1, Config(), 2) == 60
  assert durations.transient_bytes(stage, profile, DEVICE, 1, Config(), 6) == 90


def test_state_is_divided_over_the_devices_of_a_replica():
  assert (
    durations.state_bytes(toys.stage("a", 1, state_bytes=10), Config()) == 10
  )
  assert durations.state_bytes(
    toys.stage("a", 1, state_bytes=10), Config(tp=2, pp=2)
  ) == 3  # fmt: skip


def test_devices_that_make_no_whole_replica_are_refused():
  with pytest.raises(errors.ProfileError, match="3 devices do not divide"):
    durations.replicas(3, Config(tp=2))
  with pytest.raises(errors.ProfileError, match="1 devices do not divide"):
    durations.replicas(1, Config(tp=2))


def test_what_was_not_measured_names_the_stage():
  stage = toys.stage("a", 9)
  law = Table(samples=(Sample(granule=2, devices=1, seconds=1.0),))
  with pytest.raises(errors.ProfileError, match="stage 'a': granule 9"):
    granules_ns(stage, law, 9)


def test_operations_need_a_rate():
  slow = DeviceClass(name="d", memory_bytes=1)
  law = ComputeLaw(flop_per_item=1, efficiency=1)
  with pytest.raises(errors.ProfileError, match="'a' needs flops_per_s"):
    durations.compute_ns(
      toys.stage("a", 1), toys.profile(a=law), slow, 1, Config(), 1
    )
