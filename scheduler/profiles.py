"""Profiles: how long a stage takes, by granule, devices and configuration."""

from __future__ import annotations

import bisect
import dataclasses
import functools
import math
from collections.abc import Callable

from scheduler import errors
from scheduler.clusters import DeviceClass, Links
from scheduler.workflows import Lengths, LogNormalLengths, TraceLengths

# A smaller efficiency is a mistake, and too small a one divides by zero.
_LEAST_SHARE = 1e-9


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Config:
  """How one replica of a stage is laid out.

  Attributes:
    tp: tensor-parallel devices.
    pp: pipeline-parallel stages.
  """

  tp: int = 1
  pp: int = 1

  def __post_init__(self) -> None:
    if min(self.tp, self.pp) < 1:
      raise errors.ProfileError(f"degrees must be at least 1, got {self}")

  @property
  def devices(self) -> int:
    """Devices of one replica."""
    return self.tp * self.pp

  def __str__(self) -> str:
    return f"tp{self.tp}" + (f"pp{self.pp}" if self.pp > 1 else "")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
  """One measurement.

  Attributes:
    granule: items at once.
    devices: on how many devices.
    seconds: median time of one granule.
    num_bytes: transient bytes, per device.
    cores: of the host, that are busy meanwhile; 0 where it is not known.
  """

  granule: int
  devices: int
  seconds: float
  num_bytes: int = 0
  cores: float = 0.0

  def __post_init__(self) -> None:
    if self.granule < 1 or self.devices < 1:
      raise errors.ProfileError(
        f"a sample needs at least one item and one device, got {self}"
      )
    if min(self.seconds, self.num_bytes, self.cores) < 0:
      raise errors.ProfileError(f"a sample cannot be negative, got {self}")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Table:
  """Measured times on given numbers of devices.

  Piecewise linear in the granule. Between measured numbers of devices, the
  reciprocal of the time is interpolated linearly in their number: a stage that
  scales perfectly is then interpolated exactly. Times that fall as the granule
  grows, or rise with devices, are noise: the running maximum (minimum) is
  used.

  Attributes:
    samples: at least one; for each number of devices one or more granules.
    extrapolate: beyond what was measured continue the outermost piece, where
      otherwise an error is raised.
  """

  samples: tuple[Sample, ...]
  extrapolate: bool = False

  def __post_init__(self) -> None:
    _check_samples(self.samples)

  def seconds(self, granule: int, devices: int) -> float:
    """Returns the time of one granule; raises ProfileError outside."""
    counts = sorted(_curves(self.samples))
    if devices in counts:
      return self._measured(granule, devices)
    low, high = self._around(counts, devices, "devices")
    t_low = self._measured(granule, low)
    if low == high:  # measured on one number: fewer share its work evenly
      return t_low * max(1.0, low / devices)
    t_high = min(t_low, self._measured(granule, high))
    if min(t_low, t_high) <= 0:
      return max(0.0, t_high)
    w = (devices - low) / (high - low)
    rate = (1 - w) / t_low + w / t_high
    # Extrapolated below the fewest devices a rate may reach zero.
    return 1 / max(rate, min(devices, high) / (high * t_low))

  def _measured(self, granule: int, devices: int) -> float:
    """Returns the time on a measured number of devices, or on fewer if less."""
    curves = _curves(self.samples)
    times = [self._along(curves[devices], granule, 0)]
    times += [
      self._along(curve, max(granule, int(curve[0][0])), 0)
      for fewer, curve in curves.items()
      if fewer < devices and granule <= curve[-1][0]
    ]
    return max(0.0, min(times))

  def num_bytes(self, granule: int, devices: int) -> int:
    """Returns transient bytes per device; as `seconds`, never too little."""
    curves = _curves(self.samples)
    fewer = [n for n in sorted(curves) if n <= devices] or [min(curves)]
    return math.ceil(max(0.0, self._along(curves[fewer[-1]], granule, 1)))

  def _along(
    self, curve: tuple[tuple[float, ...], ...], granule: int, column: int
  ) -> float:
    sizes = [point[0] for point in curve]
    low, high = self._around(sizes, granule, "granule")
    if low == high:
      y = curve[sizes.index(low)][1 + column]
      outside = granule not in (low,)
      # A single granule was measured: time is taken as proportional to it.
      return y * granule / low if outside else y
    a = curve[sizes.index(low)][1 + column]
    b = curve[sizes.index(high)][1 + column]
    return a + (b - a) * (granule - low) / (high - low)

  def _around(self, known: list, value: int, what: str) -> tuple:
    if known[0] <= value <= known[-1]:
      i = bisect.bisect_left(known, value)
      return (value, value) if known[i] == value else (known[i - 1], known[i])
    if not self.extrapolate:
      raise errors.ProfileError(
        f"{what} {value} is outside the measured {known[0]} to {known[-1]};"
        " measure there, or set extrapolate"
      )
    if len(known) == 1:
      return known[0], known[0]
    return (known[0], known[1]) if value < known[0] else (known[-2], known[-1])


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ReplicaTable:
  """Measured times of one replica; more devices are more replicas.

  Attributes:
    samples: all with the same number of devices, that of one replica.
    extrapolate: see `Table`.
  """

  samples: tuple[Sample, ...]
  extrapolate: bool = False

  def __post_init__(self) -> None:
    _check_samples(self.samples)
    if len({s.devices for s in self.samples}) > 1:
      raise errors.ProfileError(
        "a ReplicaTable describes one replica: all samples need the same"
        " number of devices; use a Table"
      )

  def seconds(self, granule: int, devices: int) -> float:
    """Returns the time of one granule; raises ProfileError outside."""
    return self._table().seconds(*self._part(granule, devices))

  def num_bytes(self, granule: int, devices: int) -> int:
    """Returns transient bytes per device."""
    return self._table().num_bytes(*self._part(granule, devices))

  def _table(self) -> Table:
    return Table(samples=self.samples, extrapolate=self.extrapolate)

  def _part(self, granule: int, devices: int) -> tuple[int, int]:
    size = self.samples[0].devices
    if devices < size:
      raise errors.ProfileError(
        f"one replica has {size} devices; {devices} are too few"
      )
    return math.ceil(granule / (devices // size)), size


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ComputeLaw:
  """Time of a compute-bound stage: overhead + work / (rate * efficiency).

  Replicas share a granule; the fullest one decides.

  Attributes:
    flop_per_item: operations per item.
    efficiency: share of the device class's flops_per_s that is reached.
    overhead_s: of each granule (launches, collectives).
    bytes_per_item: transient bytes per item, over one replica.
    max_active: items that one replica holds at once, as micro-batches do;
      None: all.
  """

  flop_per_item: float
  efficiency: float
  overhead_s: float = 0.0
  bytes_per_item: float = 0.0
  max_active: int | None = None

  def __post_init__(self) -> None:
    if not _LEAST_SHARE <= self.efficiency <= 1:
      raise errors.ProfileError(
        f"efficiency must be in [{_LEAST_SHARE}, 1], got {self.efficiency}"
      )
    amounts = (self.flop_per_item, self.overhead_s, self.bytes_per_item)
    if min(amounts) < 0 or self.max_active is not None and self.max_active < 1:
      raise errors.ProfileError(
        f"a law cannot be negative, and max_active is at least 1, got {self}"
      )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DecodeLaw:
  """Time per token of one replica with b active sequences of context c.

  t0_s + max((read_bytes + b c kv_bytes) / (bandwidth * efficiency),
             2 * num_params * b / (flops * flop_efficiency)), where
  read_bytes = weight_bytes * (1 - (1 - weight_share)^b)

  Attributes:
    t0_s: fixed time per token.
    weight_bytes: of all parameters.
    kv_bytes_per_token: per sequence and token of context.
    num_params: active parameters.
    efficiency: share of memory bandwidth that is reached.
    flop_efficiency: share of flops_per_s that is reached.
    max_active: sequences that one replica decodes at once.
    weight_share: of the weights that a token of one sequence reads; experts of
      several sequences are drawn independently. 1: a dense model.
  """

  t0_s: float
  weight_bytes: float
  kv_bytes_per_token: float
  num_params: float
  efficiency: float = 0.8
  flop_efficiency: float = 0.5
  max_active: int = 256
  weight_share: float = 1.0

  def __post_init__(self) -> None:
    shares = (self.efficiency, self.flop_efficiency, self.weight_share)
    if min(shares) < _LEAST_SHARE or max(shares) > 1:
      raise errors.ProfileError(
        f"efficiencies and weight_share must be in [{_LEAST_SHARE}, 1], got"
        f" {shares}"
      )
    amounts = (
      self.t0_s,
      self.weight_bytes,
      self.kv_bytes_per_token,
      self.num_params,
    )
    if min(amounts) < 0 or self.max_active < 1:
      raise errors.ProfileError(
        f"a law cannot be negative, and max_active is at least 1, got {self}"
      )

  def token_fn(
    self, device: DeviceClass, config: Config
  ) -> Callable[[float, float], float]:
    """Returns (active, context) -> seconds of one token of each sequence."""
    size, share = config.devices, self.weight_share
    bytes_per_s = device.memory_bytes_per_s * self.efficiency * size
    flop_per_s = device.flops_per_s * self.flop_efficiency * size
    t0_s, weights = self.t0_s, self.weight_bytes
    kv_bytes, flop_per_token = self.kv_bytes_per_token, 2 * self.num_params

    def token_s(active: float, context: float) -> float:
      read = weights
      if share < 1:
        read *= 1 - (1 - share) ** active
      memory_s = (read + active * context * kv_bytes) / bytes_per_s
      compute_s = flop_per_token * active / flop_per_s
      return t0_s + (memory_s if memory_s > compute_s else compute_s)

    return token_s

  def token_s(
    self, active: float, context: float, device: DeviceClass, config: Config
  ) -> float:
    """Returns the seconds of one token of each of `active` sequences."""
    return self.token_fn(device, config)(active, context)


Law = Table | ReplicaTable | ComputeLaw | DecodeLaw


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
  """The law of one stage on one device class in one configuration.

  Attributes:
    stage: its name.
    device_class: the class's name.
    law: how long it takes.
    config: in which.
    compile_s: that compiling it took, once, for all that was measured.
  """

  stage: str
  device_class: str
  law: Law
  config: Config = Config()
  compile_s: float = 0.0

  def __post_init__(self) -> None:
    if self.compile_s < 0:
      raise errors.ProfileError(
        f"compile_s of stage {self.stage!r} cannot be negative, got"
        f" {self.compile_s}"
      )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
  """What is known of the stages' times.

  Attributes:
    entries: at most one for each stage, device class and configuration.
    provenance: what was measured, where, when; or how it was made.
    links: of the machine on which it was measured, where they were too.
  """

  entries: tuple[Entry, ...]
  provenance: str = ""
  links: Links | None = None

  def __post_init__(self) -> None:
    keys = [(e.stage, e.device_class, e.config) for e in self.entries]
    if len(set(keys)) != len(keys):
      twice = next(key for key in keys if keys.count(key) > 1)
      raise errors.ProfileError(f"two entries for {twice}")

  def configs(self, stage: str, device_class: str) -> tuple[Config, ...]:
    """Returns the configurations known for a stage on a device class."""
    return tuple(
      e.config
      for e in self.entries
      if e.stage == stage and e.device_class == device_class
    )

  def device_classes(self, stage: str) -> tuple[str, ...]:
    """Returns the device classes that a stage is profiled on."""
    found = dict.fromkeys(
      e.device_class for e in self.entries if e.stage == stage
    )
    return tuple(found)

  def law(self, stage: str, device_class: str, config: Config) -> Law:
    """Returns the law of a stage on a device class in a configuration.

    Raises:
      ProfileError: it is not in the profile.
    """
    for e in self.entries:
      if (e.stage, e.device_class, e.config) == (stage, device_class, config):
        return e.law
    known = [
      f"{e.device_class} {e.config}" for e in self.entries if e.stage == stage
    ]
    raise errors.ProfileError(
      f"stage {stage!r} is not profiled on {device_class!r} in {config};"
      f" known: {known or 'nothing of this stage'}"
    )


def mean_tokens(lengths: Lengths) -> float:
  """Returns the mean number of generated tokens of an item."""
  if isinstance(lengths, TraceLengths):
    return sum(lengths.tokens) / len(lengths.tokens)
  return _mean_log_normal(lengths)


@functools.lru_cache(maxsize=256)
def _mean_log_normal(lengths: LogNormalLengths) -> float:
  """E[min(X, m)] of a log-normal X, in closed form."""
  if lengths.sigma == 0:
    return min(lengths.median_tokens, float(lengths.max_tokens))
  mu, s, m = math.log(lengths.median_tokens), lengths.sigma, lengths.max_tokens
  z = (math.log(m) - mu) / s
  below = math.exp(mu + s * s / 2) * _normal_cdf(z - s)
  return below + m * (1 - _normal_cdf(z))


def _normal_cdf(z: float) -> float:
  return 0.5 * math.erfc(-z / math.sqrt(2))


def _check_samples(samples: tuple[Sample, ...]) -> None:
  if not samples:
    raise errors.ProfileError("a table needs at least one sample")
  keys = [(s.granule, s.devices) for s in samples]
  if len(set(keys)) != len(keys):
    twice = next(key for key in keys if keys.count(key) > 1)
    raise errors.ProfileError(
      f"two samples for granule {twice[0]} on {twice[1]} devices"
    )


@functools.lru_cache(maxsize=1024)
def _curves(
  samples: tuple[Sample, ...],
) -> dict[int, tuple[tuple[float, ...], ...]]:
  """Returns (granule, seconds, bytes) by number of devices, made monotone."""
  curves: dict[int, tuple[tuple[float, ...], ...]] = {}
  for devices in sorted({s.devices for s in samples}):
    points = sorted((s for s in samples if s.devices == devices),
                    key=lambda s: s.granule)  # fmt: skip
    curve: list[tuple[float, ...]] = []
    for s in points:
      last = curve[-1] if curve else (0.0, 0.0, 0.0)
      curve.append(
        (s.granule, max(s.seconds, last[1]), max(s.num_bytes, last[2]))
      )
    curves[devices] = tuple(curve)
  return curves
