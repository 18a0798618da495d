"""Leaves: single units on a share of the cluster, each priced once."""

from __future__ import annotations

import math
from collections.abc import Iterator

from scheduler import decoding, durations
from scheduler.planners import granules
from scheduler.planners.pools import Key
from scheduler.planners.units import Option, Options, Unit
from scheduler.profiles import ComputeLaw, Config, DecodeLaw
from scheduler.workflows import Stage

# Into how many granules a stage may be divided.
STREAMS = (1, 2, 4, 8, 16, 32, 64)


class Leaves:
  """Options of single units, each priced once.

  Attributes:
    options: of the units, of which those of loops are used.
    streams: numbers of granules that differ for some stage.
  """

  def __init__(self, options: Options):
    self.options = options
    self._modes = options.modes
    cuts = {
      tuple(
        granules.of_stream(stage, stream)
        for stage in options.modes.workflow.stages
      ): stream
      for stream in reversed(STREAMS)
    }
    self.streams = tuple(sorted(cuts.values()))
    self._tokens: dict[str, int] = {}
    self._known: dict[tuple[str, int, int, Config, int], Option | None] = {}

  def of(self, unit: Unit, key: Key, stream: int) -> Iterator[Option]:
    """Yields a unit with about so many granules, in all configurations."""
    if unit.loop is not None:
      yield from self.options.of(unit, key)
      return
    stage = self._modes.workflow.stage(unit.name)
    granule = granules.of_stream(stage, stream)
    for p, entry in enumerate(key):
      for config in self._modes.configs(unit.name, p) if entry else ():
        for part in self._modes.measured_keys(unit.name, p, entry, config):
          option = self._on(unit, stage, p, part, config, granule)
          if option is not None:
            yield option
            break

  def _on(
    self,
    unit: Unit,
    stage: Stage,
    p: int,
    key: int,
    config: Config,
    granule: int,
  ) -> Option | None:
    pool = self._modes.pools.pools[p]
    law = self._modes.profile.law(stage.name, pool.name, config)
    if isinstance(law, ComputeLaw) and pool.counts and pool.block == 1:
      key = _fewest_devices(stage, granule, key // config.devices)
      key *= config.devices
    at = (stage.name, p, key, config, granule)
    if at not in self._known:
      mode = self._modes.of_granule(stage.name, p, key, config, granule)
      self._known[at] = (
        None
        if mode is None
        else Option(
          unit=unit, modes=(mode,), emits=mode.emits, last_ns=mode.last_ns
        )
      )
    return self._known[at]

  def bound_ns(self, unit: Unit, key: Key) -> float:
    """Returns a bound of a decode's time that needs no simulation of it.

    Other units have none: 0.
    """
    if unit.loop is not None:
      return 0.0
    modes, least = self._modes, math.inf
    stage = modes.workflow.stage(unit.name)
    for p in sorted(self.options.pools_of(unit)):
      device, size = modes.device_class(p), modes.pools.size(key, p)
      for config in modes.configs(unit.name, p):
        law = modes.profile.law(unit.name, device.name, config)
        if not isinstance(law, DecodeLaw) or stage.lengths is None:
          return 0.0
        replicas = size // config.devices
        if replicas:
          # Never are more sequences decoded at once, nor with less context.
          active = min(law.max_active, -(-stage.items // replicas))
          context = stage.lengths.prompt_tokens
          token_s = law.token_s(active, context, device, config)
          time_s = self._num_tokens(stage) * token_s / (active * replicas)
          least = min(least, time_s * durations.NS_PER_S)
    return least

  def _num_tokens(self, stage: Stage) -> int:
    if stage.name not in self._tokens:
      seed = self._modes.prices.seed
      self._tokens[stage.name] = sum(decoding.draw_tokens(stage, seed))
    return self._tokens[stage.name]


def _fewest_devices(stage: Stage, granule: int, replicas: int) -> int:
  """Returns how many replicas take no longer for any granule than these."""
  batch = stage.items // stage.updates
  needed = 1
  for size in {min(granule, batch), batch % granule or granule}:
    each = -(-min(size, batch) // replicas)
    needed = max(needed, -(-min(size, batch) // each))
  return needed
