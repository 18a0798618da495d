"""Plans made of parts: disjoint shares, on each of which stages take turns.

Collocated plans have one part, disaggregated ones two, hybrid ones any number.
They are compared by an estimate, of which the best are evaluated exactly.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Iterable, Iterator, Sequence

from scheduler import plans
from scheduler.clusters import Cluster
from scheduler.devices import Devices
from scheduler.planners import residency, selection
from scheduler.planners.modes import Emits
from scheduler.planners.pools import Key
from scheduler.planners.protocol import Budget
from scheduler.planners.residency import Tenant
from scheduler.planners.units import Option, Options
from scheduler.plans import Node, Spatial, Temporal, TreePlan

_STREAMS = (1, 2, 4, 8, 16, 32)
_MAX_SWEEPS = 3
# Drafts of which every unit's options are tried one by one.
_MAX_IMPROVED = 8


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Part:
  """Units that share devices.

  Attributes:
    units: their indices, ascending: the order of their turns.
    key: the share of the cluster.
  """

  units: tuple[int, ...]
  key: Key


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Draft:
  """A plan before devices are chosen.

  Attributes:
    parts: disjoint.
    chosen: the option of each unit, by the unit's index.
    estimate_ns: of one iteration.
  """

  parts: tuple[Part, ...]
  chosen: tuple[Option, ...]
  estimate_ns: int


def drafts(options: Options, parts: tuple[Part, ...]) -> Iterator[Draft]:
  """Yields drafts in which all units have about the same number of granules.

  Where states have to be swapped, also with configurations that are best then.
  None where a unit fits nowhere on its part, or the parts' states do not.
  """
  key_of = {i: part.key for part in parts for i in part.units}
  known: set[tuple[int, ...]] = set()
  for stream in _STREAMS:
    for swaps in (0, 2):
      found = [
        options.of_stream(unit, key_of[i], stream, swaps=swaps)
        for i, unit in enumerate(options.graph.units)
      ]
      chosen = tuple(option for option in found if option is not None)
      if len(chosen) < len(found):
        return
      layout = tuple(map(id, chosen))
      if layout in known:
        continue
      known.add(layout)
      leaving = _leaving(options, parts, chosen)
      if leaving is not None:
        estimate = _length_ns(options, parts, chosen, leaving)
        yield Draft(parts=parts, chosen=chosen, estimate_ns=estimate)
        if not leaving:
          break


def improved(options: Options, start: Draft) -> Draft:
  """Returns a draft in which (almost) no single unit has a better option."""
  graph, best = options.graph, start
  key_of = {i: part.key for part in start.parts for i in part.units}
  for _ in range(_MAX_SWEEPS):
    before = best.estimate_ns
    for i, unit in enumerate(graph.units):
      for option in options.of(unit, key_of[i]):
        chosen = (*best.chosen[:i], option, *best.chosen[i + 1 :])
        estimate = estimate_ns(options, start.parts, chosen)
        if estimate is not None and estimate < best.estimate_ns:
          best = Draft(parts=start.parts, chosen=chosen, estimate_ns=estimate)
    if best.estimate_ns == before:
      break
  return best


def estimate_ns(
  options: Options, parts: tuple[Part, ...], chosen: tuple[Option, ...]
) -> int | None:
  """Returns about how long an iteration takes; None: memory does not suffice.

  Each unit begins when its devices are free and what its first granule reads
  is there; from any share of the items that arrives later, what is left of its
  work follows. Transfers are left out.
  """
  leaving = _leaving(options, parts, chosen)
  if leaving is None:
    return None
  return _length_ns(options, parts, chosen, leaving)


def _length_ns(
  options: Options,
  parts: tuple[Part, ...],
  chosen: tuple[Option, ...],
  leaving: frozenset[int],
) -> int:
  graph, workflow = options.graph, options.modes.workflow
  place: dict[int, list[tuple[int, int]]] = {}
  for p, part in enumerate(parts):
    for i in part.units:
      place[i] = [(p, pool) for pool in {m.pool for m in chosen[i].modes}]
  swaps = [
    option.swap_ns if i in leaving else 0 for i, option in enumerate(chosen)
  ]
  free: dict[tuple[int, int], int] = {}
  busy: dict[tuple[int, int], int] = {}
  emitted: list[Emits] = []
  for i, option in enumerate(chosen):
    begin = max((free.get(where, 0) for where in place[i]), default=0)
    begin += swaps[i]
    sources = [emitted[s] for s in options.sources[i]]
    for s, source in zip(options.sources[i], sources):
      head = 1.0 if (s, i) in graph.waits else option.emits[0][0]
      begin = max(begin, _ready(source, head))
    emits = after(begin, option.emits, option.last_ns, sources)
    emitted.append(emits)
    for where in place[i]:
      free[where] = emits[-1][1] + swaps[i]
      busy[where] = busy.get(where, 0) + option.total_ns + 2 * swaps[i]
  alive = 1 + workflow.staleness
  return max(*busy.values(), -(-max(free.values()) // alive))


def after(
  begin: int, emits: Emits, last_ns: int, sources: Sequence[Emits]
) -> Emits:
  """Returns when a stage's items are done.

  Args:
    begin: when it starts.
    emits: of the stage, with all that it reads at hand.
    last_ns: of its last granule.
    sources: when what it reads is there.
  """
  late = [s for s in sources if s[-1][1] > begin]
  if not late:
    return tuple((x, begin + ns) for x, ns in emits)
  total_ns = emits[-1][1]
  found = []
  for x, ns in emits:
    at = begin + ns
    for source in late:
      for y, ready in source:
        if y > x:
          break
        at = max(at, ready + min(total_ns, round((x - y) * total_ns) + last_ns))
    found.append((x, at))
  return tuple(found)


def plan(
  options: Options,
  drafts: Iterable[Draft],
  cluster: Cluster,
  budget: Budget,
  label: str,
) -> TreePlan:
  """Returns the best of the drafts: estimated, improved, evaluated exactly.

  Raises:
    InfeasiblePlanError: none of them can run.
  """
  ranked = _spread(drafts)[: budget.iterations]
  better = [improved(options, d) for d in ranked[:_MAX_IMPROVED]]
  ranked = _spread([*better, *ranked])
  modes = options.modes
  return selection.best(
    (
      TreePlan(root=tree(options, d, cluster.devices), label=label)
      for d in dict.fromkeys(ranked)
    ),
    modes.workflow,
    modes.profile,
    cluster,
    budget,
  )


def _spread(drafts: Iterable[Draft]) -> list[Draft]:
  """Returns drafts by estimate, but the best of each partition first.

  The estimate errs for all divisions of one partition in much the same way.
  """
  seen: collections.Counter[tuple[tuple[int, ...], ...]] = collections.Counter()
  ranked: list[tuple[int, int, int, Draft]] = []
  for draft in sorted(drafts, key=lambda d: d.estimate_ns):
    partition = tuple(part.units for part in draft.parts)
    ranked.append((seen[partition], draft.estimate_ns, len(ranked), draft))
    seen[partition] += 1
  return [draft for *_, draft in sorted(ranked, key=lambda entry: entry[:3])]


def _ready(emits: Emits, share: float) -> int:
  """Returns when a share of the items is there, interpolated."""
  before, begin = emits[0]
  for x, ns in emits:
    if x >= share:
      if x == before:
        return ns
      return begin + round((share - before) / (x - before) * (ns - begin))
    before, begin = x, ns
  return begin


def tree(options: Options, best: Draft, within: Devices) -> Node:
  """Returns a draft as a tree on these devices."""
  nodes: list[Node] = []
  left = within
  for part in best.parts:
    devices = options.pools.choose(part.key, left)
    left = left - devices
    nodes += _on_part(options, part, best.chosen, devices)
  return nodes[0] if len(nodes) == 1 else Spatial(children=tuple(nodes))


def _on_part(
  options: Options,
  part: Part,
  chosen: tuple[Option, ...],
  devices: Devices,
) -> Iterator[Node]:
  """Yields sets of units that share devices, as one node each."""
  sets: list[tuple[Devices, dict[int, Node]]] = []
  for i in part.units:
    nodes = {i: options.node(chosen[i], devices)}
    used = _used(nodes[i])
    for other, earlier in sets:
      if not other.isdisjoint(used):
        used, nodes = used | other, {**earlier, **nodes}
    sets = [entry for entry in sets if entry[0].isdisjoint(used)]
    sets.append((used, nodes))
  for _, nodes in sets:
    children = tuple(nodes[i] for i in sorted(nodes))
    yield children[0] if len(children) == 1 else Temporal(children=children)


def _used(node: Node) -> Devices:
  return functools.reduce(Devices.__or__, (r.devices for r in plans.runs(node)))


def _leaving(
  options: Options, parts: tuple[Part, ...], chosen: tuple[Option, ...]
) -> frozenset[int] | None:
  """Returns which units are swapped; None: they do not fit."""
  everyone: frozenset[int] = frozenset()
  for part in parts:
    found = _leaving_part(options, part, chosen)
    if found is None:
      return None
    everyone |= found
  return everyone


def _leaving_part(
  options: Options, part: Part, chosen: tuple[Option, ...]
) -> frozenset[int] | None:
  # The stages of a loop side by side divide what others have whole.
  sides = {
    pool: max(1, *(_beside(chosen[i], pool) for i in part.units))
    for pool in sorted({m.pool for i in part.units for m in chosen[i].modes})
  }
  places = [(pool, side) for pool in sides for side in range(sides[pool])]
  owners: list[int] = []
  tenants: list[Tenant] = []
  for i in part.units:
    sides_taken: dict[int, int] = {}
    for mode in chosen[i].modes:
      side = sides_taken.get(mode.pool, 0)
      sides_taken[mode.pool] = side + 1
      is_alone = _beside(chosen[i], mode.pool) < 2
      owners.append(i)
      tenants.append(
        Tenant(
          mode.state_bytes,
          mode.transient_bytes,
          mode.swap_ns * chosen[i].visits,
          tuple(
            n
            for n, place in enumerate(places)
            if place[0] == mode.pool and (is_alone or place[1] == side)
          ),
        )
      )
  memory = tuple(
    options.modes.device_class(pool).memory_bytes for pool, _ in places
  )
  found = residency.swapped(tuple(tenants), memory)
  return None if found is None else frozenset(owners[j] for j in found)


def _beside(option: Option, pool: int) -> int:
  """Returns on how many disjoint sets of a class's devices a unit is."""
  if option.is_shared:
    return 1
  return sum(mode.pool == pool for mode in option.modes)
