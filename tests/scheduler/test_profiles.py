"""Measured and modelled times by hand, and laws of their interpolation."""

from __future__ import annotations

import itertools
import random

import hypothesis
import pytest

from scheduler import errors, profiles
from scheduler.clusters import DeviceClass
from scheduler.profiles import (
  ComputeLaw,
  Config,
  DecodeLaw,
  Entry,
  Profile,
  ReplicaTable,
  Sample,
  Table,
)
from scheduler.workflows import LogNormalLengths, TraceLengths
from tests.scheduler import strategies


def table(*rows: tuple[float, ...], extrapolate: bool = False) -> Table:
  """Returns a table of (granule, devices, seconds, bytes)."""
  return Table(
    samples=tuple(
      Sample(granule=g, devices=n, seconds=s, num_bytes=int(b))
      for g, n, s, b in rows
    ),
    extrapolate=extrapolate,
  )


FOUR = table((8, 2, 4, 80), (16, 2, 6, 100), (8, 4, 2, 40), (16, 4, 4, 90))


@pytest.mark.parametrize(
  ("granule", "devices", "seconds"),
  [
    (8, 2, 4.0),
    (12, 2, 5.0),  # half way from 4 to 6
    (16, 4, 4.0),
    # The rate on 3 devices is half way from 1/4 to 1/2: 3/8.
    (8, 3, 8 / 3),
    # From 5 s on 2 and 3 s on 4 devices: (1/5 + 1/3) / 2 = 4/15.
    (12, 3, 15 / 4),
  ],
)
def test_times_are_interpolated(granule, devices, seconds):
  assert FOUR.seconds(granule, devices) == pytest.approx(seconds)


def test_bytes_are_those_of_fewer_devices():
  assert FOUR.num_bytes(8, 3) == 80
  assert FOUR.num_bytes(12, 4) == 65  # half way from 40 to 90


@pytest.mark.parametrize(
  ("granule", "devices", "message"),
  [
    (7, 2, "granule 7 is outside the measured 8 to 16"),
    (17, 4, "granule 17 is outside the measured 8 to 16"),
    (8, 1, "devices 1 is outside the measured 2 to 4"),
    (8, 5, "devices 5 is outside the measured 2 to 4"),
  ],
)
def test_outside_of_what_was_measured_is_refused(granule, devices, message):
  with pytest.raises(errors.ProfileError, match=message):
    FOUR.seconds(granule, devices)


def test_beyond_it_the_outermost_piece_goes_on_where_asked():
  wide = Table(samples=FOUR.samples, extrapolate=True)
  assert wide.seconds(24, 2) == pytest.approx(8)  # 4, 6, 8
  assert wide.seconds(4, 4) == pytest.approx(1)  # 1, 2, ..., 4
  # Rates 1/4 on 2 and 1/2 on 4: 3/4 on 6, 1/8 on 1.
  assert wide.seconds(8, 6) == pytest.approx(4 / 3)
  assert wide.seconds(8, 1) == pytest.approx(8)


def test_what_does_not_scale_is_not_extrapolated_as_if_it_did():
  flat = table((8, 1, 1, 0), (8, 2, 1, 0), extrapolate=True)
  assert flat.seconds(8, 4) == pytest.approx(1)


def test_one_number_of_devices_is_extrapolated_without_gain():
  only = table((8, 4, 1, 0), (16, 4, 2, 0), extrapolate=True)
  assert only.seconds(8, 8) == 1
  assert only.seconds(8, 2) == 2  # half the devices, the same work


def test_noise_is_smoothed():
  # A larger granule that took less, and more devices that took longer.
  noisy = table((1, 1, 5, 0), (2, 1, 4, 0), (1, 2, 6, 0), (2, 2, 7, 0))
  assert noisy.seconds(2, 1) == 5
  assert noisy.seconds(1, 2) == 5
  assert noisy.seconds(2, 2) == 5


def random_table(rng: random.Random) -> Table:
  counts = sorted(rng.sample(range(1, 9), rng.randint(1, 4)))
  return table(
    *(
      (granule, count, rng.randint(0, 9), rng.randint(0, 9))
      for count in counts
      for granule in sorted({1, 8, *rng.sample(range(1, 9), 2)})
    )
  )


@hypothesis.given(strategies.drawn(random_table))
def test_more_devices_or_fewer_items_never_take_longer(law: Table):
  counts = range(
    min(s.devices for s in law.samples), max(s.devices for s in law.samples) + 1
  )
  times = [[law.seconds(granule, n) for granule in range(1, 9)] for n in counts]
  for row in times:
    assert all(a <= b + 1e-9 for a, b in itertools.pairwise(row))
  for column in zip(*times):
    assert all(a >= b - 1e-9 for a, b in itertools.pairwise(column))


@hypothesis.given(strategies.drawn(random_table))
def test_samples_that_are_no_noise_are_met(law: Table):
  counts = sorted({s.devices for s in law.samples})
  alone = {
    n: Table(samples=tuple(s for s in law.samples if s.devices == n))
    for n in counts
  }
  for s in law.samples:
    smaller = [
      o.seconds
      for o in law.samples
      if o.devices == s.devices and o.granule < s.granule
    ]
    on_fewer = [alone[n].seconds(s.granule, n) for n in counts if n < s.devices]
    # What is no faster than fewer items, nor slower than on fewer devices, is
    # found as it was measured.
    if max(smaller, default=0) <= s.seconds <= min(on_fewer, default=s.seconds):
      assert law.seconds(s.granule, s.devices) == s.seconds


def test_replicas_share_a_granule():
  law = ReplicaTable(
    samples=(
      Sample(granule=1, devices=2, seconds=3.0, num_bytes=10),
      Sample(granule=5, devices=2, seconds=7.0, num_bytes=50),
    )
  )
  # 8 devices are 4 replicas of 2; the fullest has ceil(10 / 4) = 3 items.
  assert law.seconds(10, 8) == 5.0
  assert law.num_bytes(10, 8) == 30
  with pytest.raises(errors.ProfileError, match="has 2 devices; 1 are too few"):
    law.seconds(1, 1)


def test_a_token_takes_what_binds():
  device = DeviceClass(
    name="d", memory_bytes=1, flops_per_s=100.0, memory_bytes_per_s=10.0
  )
  law = DecodeLaw(
    t0_s=1.0,
    weight_bytes=8,
    kv_bytes_per_token=2,
    num_params=5,
    efficiency=0.8,
    flop_efficiency=0.5,
  )
  # One sequence of context 4: 8 + 8 bytes at 8 per second; 10 operations at 50.
  assert law.token_s(1, 4, device, Config()) == pytest.approx(1 + 2)
  # Sixteen without context: 8 bytes, 160 operations.
  assert law.token_s(16, 0, device, Config()) == pytest.approx(1 + 3.2)
  assert law.token_s(16, 0, device, Config(tp=2)) == pytest.approx(1 + 1.6)


def test_mean_lengths():
  assert profiles.mean_tokens(TraceLengths(tokens=(1, 2, 6))) == 3
  fixed = LogNormalLengths(median_tokens=50, sigma=0, max_tokens=20)
  assert profiles.mean_tokens(fixed) == 20
  # Without a cut the mean is exp(sigma^2 / 2) medians.
  free = LogNormalLengths(median_tokens=100, sigma=0.5, max_tokens=10**9)
  assert profiles.mean_tokens(free) == pytest.approx(113.3148453)


def test_the_mean_of_cut_lengths_is_that_of_many_draws():
  lengths = LogNormalLengths(median_tokens=100, sigma=1, max_tokens=200)
  rng = random.Random(0)
  drawn = [min(200, rng.lognormvariate(4.605170186, 1)) for _ in range(40_000)]
  mean = sum(drawn) / len(drawn)
  assert profiles.mean_tokens(lengths) == pytest.approx(mean, rel=0.01)


LAW = ComputeLaw(flop_per_item=1.0, efficiency=0.5)
PROFILE = Profile(
  entries=(
    Entry(stage="a", device_class="d", law=LAW),
    Entry(stage="a", device_class="d", law=LAW, config=Config(tp=2)),
    Entry(stage="a", device_class="e", law=LAW),
  )
)


def test_entries_are_found():
  assert PROFILE.configs("a", "d") == (Config(), Config(tp=2))
  assert PROFILE.device_classes("a") == ("d", "e")
  assert PROFILE.law("a", "e", Config()) == LAW


def test_what_is_not_profiled_is_named():
  with pytest.raises(
    errors.ProfileError,
    match=r"'a' is not profiled on 'e' in tp2; known: \['d tp1', 'd tp2', 'e"
    r" tp1'\]",
  ):
    PROFILE.law("a", "e", Config(tp=2))
  with pytest.raises(errors.ProfileError, match="nothing of this stage"):
    PROFILE.law("b", "d", Config())


@pytest.mark.parametrize(
  ("make_fn", "message"),
  [
    (lambda: Config(tp=0), "degrees must be at least 1"),
    (lambda: Sample(granule=0, devices=1, seconds=1.0), "at least one item"),
    (lambda: Sample(granule=1, devices=1, seconds=-1.0), "cannot be negative"),
    (lambda: Table(samples=()), "at least one sample"),
    (
      lambda: table((1, 1, 1, 0), (1, 1, 2, 0)),
      "two samples for granule 1 on 1",
    ),
    (
      lambda: ReplicaTable(samples=FOUR.samples),
      "all samples need the same number of devices",
    ),
    (
      lambda: ComputeLaw(flop_per_item=1, efficiency=0),
      "efficiency must be in",
    ),
    (
      lambda: ComputeLaw(flop_per_item=-1, efficiency=1),
      "a law cannot be negative",
    ),
    (
      lambda: Profile(entries=PROFILE.entries + PROFILE.entries[:1]),
      "two entries for",
    ),
  ],
)
def test_a_profile_that_contradicts_itself_is_refused(make_fn, message):
  with pytest.raises(errors.ProfileError, match=message):
    make_fn()
