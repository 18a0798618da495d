"""Leaves: single units on a share of the cluster, each priced once."""

from __future__ import annotations

from collections.abc import Iterator

from scheduler.planners import granules
from scheduler.planners.pools import Key
from scheduler.planners.units import Option, Options, Unit
from scheduler.profiles import ComputeLaw, Config
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
    stages = options.modes.workflow.stages
    self.streams = granules.distinct(stages, STREAMS)
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


def _fewest_devices(stage: Stage, granule: int, replicas: int) -> int:
  """Returns how many replicas take no longer for any granule than these."""
  batch = stage.items // stage.updates
  needed = 1
  for size in {min(granule, batch), batch % granule or granule}:
    each = -(-min(size, batch) // replicas)
    needed = max(needed, -(-min(size, batch) // each))
  return needed
