"""Durations of a stage's granules: the only place where a profile is read."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

from scheduler import decoding, errors, profiles
from scheduler.clusters import DeviceClass
from scheduler.profiles import (
  ComputeLaw,
  Config,
  DecodeLaw,
  Profile,
)
from scheduler.workflows import Stage

T = TypeVar("T")
NS_PER_S = 1_000_000_000


def to_ns(seconds: float) -> int:
  """Returns seconds as whole nanoseconds, rounded up.

  Raises:
    ProfileError: there is no such time, or it is longer than 292 years.
  """
  if not 0 <= seconds * NS_PER_S < 2**63:
    raise errors.ProfileError(f"a duration of {seconds} s is out of range")
  return math.ceil(round(seconds * NS_PER_S, 3))


def split(share: tuple[int, int], granule: int) -> tuple[tuple[int, int], ...]:
  """Returns the granules of a share, as half-open intervals of items."""
  start, stop = share
  return tuple((i, min(i + granule, stop)) for i in range(start, stop, granule))


def granules_ns(
  stage: Stage,
  profile: Profile,
  device: DeviceClass,
  devices: int,
  config: Config,
  granule: int,
  share: tuple[int, int],
  cohort: tuple[int, int] | None = None,
  seed: int = 0,
) -> tuple[int, ...]:
  """Returns how long each granule of a Run takes, in order.

  A decode works on its whole cohort at once; the duration of its granule is the
  time from the previous granule's completion to its own, so that the first is
  long and the tail is seen.

  Args:
    stage: the stage.
    profile: measured or modelled times.
    device: the class of the devices.
    devices: how many.
    config: of each replica.
    granule: items of a granule; the last may be smaller.
    share: half-open interval of items, in emission order.
    cohort: of a decode, see `plans.Run`; None: the share.
    seed: of the lengths, where they vary.

  Returns:
    Nanoseconds.

  Raises:
    ProfileError: the profile lacks the stage, class or configuration, or was
      not measured there.
  """
  law = profile.law(stage.name, device.name, config)
  if isinstance(law, DecodeLaw):
    base, *_ = whole = cohort or share
    stops = [stop - base for _, stop in split(share, granule)]
    if share[0] > base:
      stops.insert(0, share[0] - base)
    ends = emitted_ns(stage, law, device, devices, config, whole, seed, stops)
    first = 0 if share[0] == base else ends[0]
    ends = ends if share[0] == base else ends[1:]
    return tuple(b - a for a, b in zip((first, *ends), ends))
  full, rest = divmod(share[1] - share[0], granule)
  times: tuple[int, ...] = ()
  if full:
    each_ns = compute_ns(stage, profile, device, devices, config, granule)
    times = (each_ns,) * full
  if rest:
    rest_ns = compute_ns(stage, profile, device, devices, config, rest)
    times = (*times, rest_ns)
  return times


def emitted_ns(
  stage: Stage,
  law: DecodeLaw,
  device: DeviceClass,
  devices: int,
  config: Config,
  cohort: tuple[int, int],
  seed: int,
  stops: Sequence[int],
) -> tuple[int, ...]:
  """Returns when the first so many items of a decode's cohort are emitted."""
  each = decoding.emitted_s(
    stage,
    law,
    device,
    config,
    replicas(devices, config),
    cohort,
    seed,
    tuple(stops),
  )
  return tuple(map(to_ns, each))


def compute_ns(
  stage: Stage,
  profile: Profile,
  device: DeviceClass,
  devices: int,
  config: Config,
  granule: int,
) -> int:
  """Returns the nanoseconds of one granule of a stage that is not a decode."""
  law = profile.law(stage.name, device.name, config)
  if isinstance(law, DecodeLaw):
    raise errors.ProfileError(
      f"stage {stage.name!r} decodes: its granules have no time of their own"
    )
  if isinstance(law, ComputeLaw):
    if device.flops_per_s <= 0:
      raise errors.ProfileError(
        f"stage {stage.name!r} needs flops_per_s of device class"
        f" {device.name!r}"
      )
    items = math.ceil(granule / replicas(devices, config))
    rate = device.flops_per_s * law.efficiency * config.devices
    return to_ns(law.overhead_s + items * law.flop_per_item / rate)
  return to_ns(_named(stage, law.seconds, granule, devices))


def transient_bytes(
  stage: Stage,
  profile: Profile,
  device: DeviceClass,
  devices: int,
  config: Config,
  granule: int,
) -> int:
  """Returns bytes per device that a granule takes while it runs."""
  law = profile.law(stage.name, device.name, config)
  own = stage.item_bytes * math.ceil(granule / replicas(devices, config))
  of_law = 0.0
  if isinstance(law, ComputeLaw):
    items = math.ceil(granule / replicas(devices, config))
    of_law = min(items, law.max_active or items) * law.bytes_per_item
    of_law /= config.devices
  elif isinstance(law, DecodeLaw):
    active = min(law.max_active, math.ceil(granule / replicas(devices, config)))
    context = float(stage.lengths.prompt_tokens) if stage.lengths else 0.0
    context += profiles.mean_tokens(stage.lengths) if stage.lengths else 0.0
    of_law = active * context * law.kv_bytes_per_token / config.devices
  else:
    of_law = _named(stage, law.num_bytes, granule, devices)
  return math.ceil(own / config.devices + of_law)


def state_bytes(stage: Stage, config: Config) -> int:
  """Returns bytes per device of a stage's resident state."""
  return math.ceil(stage.state_bytes / config.devices)


def replicas(devices: int, config: Config) -> int:
  """Returns how many replicas `devices` devices hold.

  Raises:
    ProfileError: not one, or devices are left over.
  """
  if devices < config.devices or devices % config.devices:
    raise errors.ProfileError(
      f"{devices} devices do not divide into replicas of {config.devices}"
      f" ({config})"
    )
  return devices // config.devices


def _named(
  stage: Stage, law_fn: Callable[[int, int], T], granule: int, devices: int
) -> T:
  try:
    return law_fn(granule, devices)
  except errors.ProfileError as error:
    raise errors.ProfileError(f"stage {stage.name!r}: {error}") from None
