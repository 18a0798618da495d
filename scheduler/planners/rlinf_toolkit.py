"""What RLinf's public placement tool chooses, its faults included."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from scheduler.clusters import Cluster
from scheduler.planners import parts, selection, units
from scheduler.planners.modes import Mode
from scheduler.planners.parts import Draft, Part
from scheduler.planners.pools import Key
from scheduler.planners.protocol import Budget
from scheduler.planners.units import Option, Options
from scheduler.plans import TreePlan
from scheduler.profiles import DecodeLaw, Profile
from scheduler.workflows import Workflow

# Of a queue of at least 128 requests the tool trusts nine tenths.
_TRUSTED_SHARE, _TRUSTED_FROM = 0.9, 128


def rlinf_toolkit(
  workflow: Workflow,
  profile: Profile,
  cluster: Cluster,
  budget: Budget,
  seed: int,
) -> TreePlan:
  """Returns the plan that RLinf's public tool would choose, made to fit.

  The tool measures each stage once, on all devices, and scales that time to
  fewer: a decode by their number unless all requests still run at once, other
  stages by a curve of its own, which can make fewer devices look faster. It
  adds times of stages that share devices, prices a pipeline as warm-up plus
  the slowest stage's remaining groups, and
  - prices neither switching nor memory,
  - has one granule, a prompt's group of items, at any number of devices,
  - cuts only the prefixes of one topological order,
  - never gives the downstream side a single device,
  - refuses to mix stages that share devices with stages that do not,
  - cannot cost a cycle. A loop is one piece here; beside it nothing is
    disaggregated, and within it two equal lanes are tried.
  What it would not see is then put right, so that its plan can be compared:
  stages are swapped where memory needs it, a granule is as large as a stage has
  replicas, and a choice that fits nowhere gives way to its next.

  It knows one class of accelerator: that on which most stages can run, and on
  which they are fastest. Stages that cannot, such as those on host cores, are
  no part of its search and run beside. Of more than 64 devices it tries a
  series of numbers here, where the tool tries all.

  Args:
    workflow: what is planned.
    profile: its durations.
    cluster: on what.
    budget: not used; the tool's search has a fixed size.
    seed: not used; nothing is drawn.

  Raises:
    InfeasiblePlanError: a stage fits nowhere.
    ProfileError: a stage is profiled on no class of the cluster.

  Source: toolkits/auto_placement of github.com/RLinf/RLinf, of 2025.
  """
  del budget, seed
  options = units.of(workflow, profile, cluster)
  return selection.best(
    (
      TreePlan(
        root=parts.tree(options, draft, cluster.devices), label="rlinf_toolkit"
      )
      for draft in _drafts(options)
    ),
    workflow,
    profile,
    cluster,
    Budget(iterations=1),
  )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Schedule:
  """What the tool knows of some of the stages on some devices.

  Attributes:
    total_s: of one iteration.
    group_s: of one group, of the slowest stage.
    warmup_s: of a pipeline until its last stage works.
    shares: the devices of each stage, as the accelerators' entry of a key.
    mode: whether they share devices; None: a single stage.
  """

  total_s: float
  group_s: float
  warmup_s: float
  shares: tuple[int, ...]
  mode: str | None = None


def _drafts(options: Options) -> Iterator[Draft]:
  """Yields the tool's choices, the best first."""
  tool = _Tool(options)
  everyone = tuple(range(len(options.graph.units)))
  if any(unit.loop for unit in options.graph.units):
    # Nothing is disaggregated: the loop has the devices of all classes.
    together = Part(units=everyone, key=tool.key(tool.full))
    layout = [tool.option(i, together.key, True) for i in everyone]
    yield from _draft((together,), layout)
    return
  beside = tuple(i for i in everyone if i not in tool.order)
  choices = tool.candidates()[::-1]  # of equals it keeps the last
  choices.sort(key=lambda choice: choice.total_s)
  for choice in choices:
    is_shared = choice.mode != "disaggregated"
    found = [
      Part(units=(i,), key=tool.accelerators(share))
      for i, share in zip(tool.order, choice.shares)
    ]
    if is_shared and tool.order:
      found = [Part(units=tool.order, key=tool.accelerators(tool.full))]
    if beside:
      found.append(Part(units=beside, key=tool.key(0)))
    key_of = {i: part.key for part in found for i in part.units}
    layout = [tool.option(i, key_of[i], is_shared) for i in everyone]
    yield from _draft(tuple(found), layout)


def _draft(
  found: tuple[Part, ...], layout: list[Option | None]
) -> Iterator[Draft]:
  chosen = tuple(option for option in layout if option is not None)
  if len(chosen) == len(layout):
    yield Draft(parts=found, chosen=chosen, estimate_ns=0)


class _Tool:
  """The tool's cost model and recursion.

  Attributes:
    order: the units that it places, by index, in topological order.
    full: all accelerators, as their entry of a key.
  """

  def __init__(self, options: Options):
    self._options, self._workflow = options, options.modes.workflow
    graph = options.graph
    everyone = range(len(graph.units))
    alone = {
      index: {
        i: found[0]
        for i in everyone
        if (found := options.of(graph.units[i], self._only(index)))
      }
      for index in range(len(options.pools.pools))
    }
    self._index = max(
      alone,
      key=lambda index: (
        len(alone[index]),
        -sum(option.total_ns for option in alone[index].values()),
      ),
    )
    self._measured = alone[self._index]
    self.order = tuple(self._measured)
    self._pool = options.pools.pools[self._index]
    self.full = self._pool.full
    # Classes on which the same units can run are other accelerators.
    others = options.pools_of_all(self.order) - {self._index}
    self._base = tuple(
      0 if i in others else n for i, n in enumerate(options.pools.full)
    )
    decodes = [s for s in self._workflow.stages if s.kind == "decode"]
    self._group = decodes[0].group if decodes else 1
    first = decodes[0] if decodes else self._workflow.stages[0]
    self._num_groups = first.items // self._group
    self._known: dict[tuple[int, int, int], _Schedule | None] = {}

  def key(self, share: int) -> Key:
    """Returns a key with so many accelerators and all host devices."""
    at = self._index
    return (*self._base[:at], share, *self._base[at + 1 :])

  def accelerators(self, share: int) -> Key:
    """Returns a key with so many accelerators and nothing else."""
    return tuple(
      share if i == self._index else 0 for i in range(len(self._base))
    )

  def candidates(self) -> list[_Schedule]:
    """Returns all that the tool compares for the whole workflow."""
    if len(self.order) < 2:
      return [_Schedule(total_s=0, group_s=0, warmup_s=0, shares=(self.full,))]
    return list(self._merged(0, len(self.order), self.full))

  def option(self, i: int, key: Key, is_shared: bool) -> Option | None:
    """Returns how a unit runs there, in the configuration that was measured."""
    unit = self._options.graph.units[i]
    found = self._options.of(unit, key)
    if unit.loop is not None:
      even = [o for o in found if o.is_shared or len(set(o.lanes)) == 1]
      even = [o for o in even if len(o.lanes) == (1 if o.is_shared else 2)]
      return min(even or found, key=_loop_s, default=None)
    if i in self._measured:
      config = self._measured[i].modes[0].config
      found = tuple(o for o in found if o.modes[0].config == config) or found
    if is_shared or not found:
      return found[0] if found else None
    (mode,) = found[0].modes
    wanted = self._granule(mode)
    smaller = [o for o in found if o.modes[0].granule <= wanted]
    if not smaller:
      return min(found, key=lambda o: o.modes[0].granule)
    return max(smaller, key=lambda o: o.modes[0].granule)

  def _only(self, index: int) -> Key:
    """Returns a key with all devices of one class."""
    full = self._options.pools.full
    return tuple(n if i == index else 0 for i, n in enumerate(full))

  def _granule(self, mode: Mode) -> int:
    stage = self._workflow.stage(mode.stage)
    per_group = max(1, stage.items // self._num_groups)
    replicas = mode.num_devices // mode.config.devices
    return min(stage.items, math.ceil(replicas / per_group) * per_group)

  def _merged(self, low: int, high: int, key: int) -> Iterator[_Schedule]:
    for cut in range(low + 1, high):
      first, second = self._best(low, cut, key), self._best(cut, high, key)
      if first and second and "disaggregated" not in (first.mode, second.mode):
        yield _Schedule(
          total_s=first.total_s + second.total_s,
          group_s=first.group_s,
          warmup_s=first.group_s,
          shares=first.shares + second.shares,
          mode="collocated",
        )
      for own, rest in sorted(self._pool.splits(key)):
        if self._pool.size(rest) < 2:
          continue
        first, second = self._best(low, cut, own), self._best(cut, high, rest)
        if first and second and "collocated" not in (first.mode, second.mode):
          group_s = max(first.group_s, second.group_s)
          warmup_s = first.warmup_s + second.warmup_s
          yield _Schedule(
            total_s=warmup_s + group_s * (self._num_groups - 1),
            group_s=group_s,
            warmup_s=warmup_s,
            shares=first.shares + second.shares,
            mode="disaggregated",
          )

  def _best(self, low: int, high: int, key: int) -> _Schedule | None:
    at = (low, high, key)
    if at not in self._known:
      if high - low == 1:
        self._known[at] = self._single(self.order[low], key)
      else:
        # Of equals the tool keeps the last.
        best: _Schedule | None = None
        for found in self._merged(low, high, key):
          if best is None or found.total_s <= best.total_s:
            best = found
        self._known[at] = best
    return self._known[at]

  def _single(self, i: int, key: int) -> _Schedule | None:
    total_s = self._scaled_s(i, key)
    if total_s is None:
      return None
    group_s = total_s / self._num_groups
    return _Schedule(
      total_s=total_s, group_s=group_s, warmup_s=group_s, shares=(key,)
    )

  def _scaled_s(self, i: int, key: int) -> float | None:
    """Returns the tool's time of a unit; None where it refuses the number."""
    measured = self._measured[i]
    (mode,) = measured.modes
    total_s = measured.total_ns * 1e-9
    if key == self.full:
      return total_s
    stage, size = self._workflow.stage(mode.stage), self._pool.size(key)
    if size % mode.config.devices:
      return None
    scale = self._pool.size(self.full) / size
    replicas = size // mode.config.devices
    if stage.kind == "decode":
      law = self._options.modes.profile.law(
        stage.name, self._options.pools.pools[mode.pool].name, mode.config
      )
      if isinstance(law, DecodeLaw):
        active = law.max_active
        if active >= _TRUSTED_FROM:
          active = math.ceil(active * _TRUSTED_SHARE)
        if replicas * active >= stage.items:
          return total_s
      return total_s * scale
    if stage.items // stage.updates % (replicas * self._group):
      return None
    return total_s * scale / (1 + min(0.9, max(scale / 10, 0.1)))


def _loop_s(option: Option) -> float:
  """Returns the tool's time of one turn of a loop."""
  each = [mode.total_ns / len(option.lanes) for mode in option.modes]
  if option.is_shared:
    return sum(each)
  return max(each) * (len(option.lanes) - 1) + sum(each)
