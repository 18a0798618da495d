"""The least time and the least work of a stage, whatever the plan.

Work is device-seconds. Granules, replicas, shares and devices may be any that
the stage, the profile and the cluster allow; where the best choice lies between
two measured ones the better of the two, in work, is taken.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import math
from collections.abc import Iterable

from scheduler import decoding, errors
from scheduler.clusters import Cluster, DeviceClass
from scheduler.profiles import (
  ComputeLaw,
  Config,
  DecodeLaw,
  Profile,
  ReplicaTable,
  Table,
)
from scheduler.workflows import Stage, Workflow


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
  """A stage on one device class in one configuration.

  Attributes:
    stage: the stage.
    turns: of its loop, in an iteration; 1 without one.
    device: the class.
    count: devices of it that there are.
    config: of each replica.
    law: from the profile.
    seed: of the lengths.
  """

  stage: Stage
  turns: int
  device: DeviceClass
  count: int
  config: Config
  law: Table | ReplicaTable | ComputeLaw | DecodeLaw
  seed: int

  def least_work(self) -> float:
    """Returns device-seconds of all items, of a loop's stage in one turn."""
    law, size, items = self.law, self.config.devices, self.stage.items
    if isinstance(law, DecodeLaw):
      return self._decode_work(items)
    if isinstance(law, ComputeLaw):
      granules = math.ceil(items / self.stage.largest_granule)
      flops = self.device.flops_per_s * law.efficiency
      return (
        granules * size * law.overhead_s + items * law.flop_per_item / flops
      )
    sizes = self._sizes(law)
    return items * min(n * self._item_s(law, n) for n in sizes)

  def least_s(self, devices: int) -> float:
    """Returns seconds of all items on so many devices."""
    law, items = self.law, self.stage.items
    replicas = devices // self.config.devices
    if isinstance(law, DecodeLaw):
      return self._decode_work(math.ceil(items / replicas)) / devices
    if isinstance(law, ComputeLaw):
      granules = math.ceil(items / self.stage.largest_granule)
      rate = self.device.flops_per_s * law.efficiency * devices
      return granules * law.overhead_s + items * law.flop_per_item / rate
    if isinstance(law, ReplicaTable):
      size = law.samples[0].devices
      return items * self._item_s(law, size) / max(1, devices // size)
    return items * self._item_s(law, devices)

  def granule_s(self) -> float:
    """Returns seconds of the shortest granule."""
    law = self.law
    if isinstance(law, DecodeLaw):
      tokens = decoding.draw_tokens(self.stage, self.seed)
      size = self.stage.group
      groups = range(0, len(tokens), size)
      return self._sequence_s(min(max(tokens[g : g + size]) for g in groups))
    if isinstance(law, ComputeLaw):
      rate = self.device.flops_per_s * law.efficiency * self.config.devices
      return law.overhead_s + law.flop_per_item / rate
    return min(
      (s for n in self._sizes(law) for _, s in self._measured(law, n)),
      default=math.inf,
    )

  def longest_s(self) -> float:
    """Returns seconds of the longest sequence by itself; 0: no decode."""
    if not isinstance(self.law, DecodeLaw):
      return 0.0
    return self._sequence_s(max(decoding.draw_tokens(self.stage, self.seed)))

  def _sequence_s(self, tokens: int) -> float:
    law, size = self.law, self.config.devices
    assert isinstance(law, DecodeLaw)
    read = law.weight_bytes * law.weight_share
    context = self._prompt() * tokens + tokens * tokens / 2
    memory = tokens * read + context * law.kv_bytes_per_token
    memory_s = memory / (self.device.memory_bytes_per_s * law.efficiency * size)
    flop = 2 * law.num_params * tokens
    flop_s = flop / (self.device.flops_per_s * law.flop_efficiency * size)
    return tokens * law.t0_s + max(memory_s, flop_s)

  def _decode_work(self, together: int) -> float:
    """Returns the device-seconds of all tokens, of which so many share a step.

    A step's fixed time and its reading of the weights are shared by all that
    are active in it; contexts and operations are each sequence's own.
    """
    law = self.law
    assert isinstance(law, DecodeLaw)
    active = max(1, min(law.max_active, together))
    total, context = _totals(self.stage, self.seed)
    read = law.weight_bytes * (1 - (1 - law.weight_share) ** active)
    memory = total * read / active + context * law.kv_bytes_per_token
    return total * self.config.devices * law.t0_s / active + max(
      memory / (self.device.memory_bytes_per_s * law.efficiency),
      2
      * law.num_params
      * total
      / (self.device.flops_per_s * law.flop_efficiency),
    )

  def _prompt(self) -> int:
    return self.stage.lengths.prompt_tokens if self.stage.lengths else 0

  def _sizes(self, law: Table | ReplicaTable) -> set[int]:
    """Returns numbers of devices among which the least work is found.

    Between two of them work grows or falls all the way.
    """
    measured = {s.devices for s in law.samples}
    if isinstance(law, Table) and law.extrapolate:
      measured |= {self.config.devices, max(self.count, self.config.devices)}
    return measured

  def _item_s(self, law: Table | ReplicaTable, devices: int) -> float:
    """Returns the least seconds per item of a granule on so many devices."""
    counts = sorted({s.devices for s in law.samples})
    sizes = {s.granule for s in law.samples}
    if devices in counts or len(sizes) == 1 or len(counts) == 1:
      each = [s / granule for granule, s in self._measured(law, devices)]
      return min(each, default=math.inf)
    if not counts[0] < devices < counts[-1] and not law.extrapolate:
      return math.inf
    # As the table: rates are linear in devices. Each of the two may be best at
    # another granule, and what is subtracted is left out.
    at = min(max(bisect.bisect_left(counts, devices), 1), len(counts) - 1)
    low, high = counts[at - 1], counts[at]
    w = (devices - low) / (high - low)
    slow, fast = self._item_s(law, low), self._item_s(law, high)
    if min(slow, fast) <= 0:
      return 0.0
    rate = max(0.0, 1 - w) / slow + max(0.0, w) / fast
    return 1 / max(rate, min(devices, high) / (high * slow))

  def _measured(
    self, law: Table | ReplicaTable, devices: int
  ) -> Iterable[tuple[int, float]]:
    """Yields granules, and their seconds, among which the least one is found.

    Between two of them seconds per item grow or fall all the way.
    """
    largest = self.stage.largest_granule
    sizes = {s.granule for s in law.samples} | {1, largest}
    for granule in sizes:
      if granule <= largest:
        try:
          yield granule, law.seconds(granule, devices)
        except errors.ProfileError:
          continue  # not measured there, so that no plan can use it


@functools.lru_cache(maxsize=64)
def _totals(stage: Stage, seed: int) -> tuple[int, float]:
  """Returns the tokens of all items, and of their contexts at every token."""
  tokens = decoding.draw_tokens(stage, seed)
  prompt = stage.lengths.prompt_tokens if stage.lengths else 0
  return sum(tokens), sum(n * prompt + n * n / 2 for n in tokens)


def layouts(
  workflow: Workflow, profile: Profile, cluster: Cluster, seed: int
) -> dict[str, tuple[Layout, ...]]:
  """Returns how each stage can run.

  Raises:
    ProfileError: a stage is profiled on no class of the cluster, or for no
      granule that it allows.
  """
  found = {}
  for stage in workflow.stages:
    loop = workflow.loop_of(stage.name)
    own = [
      Layout(
        stage=stage,
        turns=loop.turns if loop else 1,
        device=device,
        count=count,
        config=config,
        law=profile.law(stage.name, device.name, config),
        seed=seed,
      )
      for device in cluster.classes
      for config in profile.configs(stage.name, device.name)
      if config.devices <= (count := len(cluster.of_class(device.name)))
    ]
    own = [layout for layout in own if math.isfinite(layout.least_work())]
    if not own:
      raise errors.ProfileError(
        f"stage {stage.name!r} can run on none of the cluster's device classes"
        f" {[c.name for c in cluster.classes]}: profile it there, in granules"
        f" of up to {stage.largest_granule} items and in a configuration that"
        " is small enough"
      )
    found[stage.name] = tuple(own)
  return found
