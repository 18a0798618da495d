"""Small random plans and problems, from a seed or drawn by hypothesis.

Every maker takes a `random.Random`, so that a test can draw by seed; the
strategies hand it one that hypothesis drives, and shrinks.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import TypeVar

from hypothesis import strategies as st

from scheduler import workflows
from scheduler.clusters import Cluster
from scheduler.devices import Devices
from scheduler.plans import (
  Activity,
  Arc,
  FlatPlan,
  Lanes,
  Node,
  Resource,
  Run,
  Slot,
  Spatial,
  Temporal,
  TreePlan,
)
from scheduler.profiles import (
  ComputeLaw,
  Config,
  DecodeLaw,
  Entry,
  Law,
  Profile,
)
from scheduler.workflows import (
  Edge,
  Loop,
  Stage,
  TraceLengths,
  WeightSync,
  Workflow,
)
from tests.scheduler import toys

T = TypeVar("T")


def drawn(make_fn: Callable[[random.Random], T]) -> st.SearchStrategy[T]:
  """Returns the strategy of all that a maker makes."""
  return st.randoms(use_true_random=False).map(make_fn)


def flat_plan(
  rng: random.Random,
  *,
  max_activities: int = 8,
  max_resources: int = 3,
  max_shift: int = 2,
) -> FlatPlan:
  """Returns a flat plan that does not deadlock, of no workflow.

  Without shifts activities stand in the order of their indices on every
  resource, and arcs of lag 0 ascend. Then each activity's iterations are
  counted from another one, which makes some lags negative.
  """
  n = rng.randint(1, max_activities)
  num_resources = rng.randint(1, max_resources)
  shifts = [rng.randint(0, max_shift) for _ in range(n)]
  activities = []
  orders: list[list[Slot]] = [[] for _ in range(num_resources)]
  for i in range(n):
    occupied = rng.sample(
      range(num_resources), min(num_resources, rng.choice([1, 1, 1, 2]))
    )
    for resource in occupied:
      orders[resource].append(Slot(activity=i, shift=shifts[i]))
    activities.append(
      Activity(
        kind="compute",
        stage=f"s{i}",
        resources=tuple(sorted(occupied)),
        duration_ns=rng.randint(0, 9),
        items=(i, i + 1),
      )
    )
  arcs = []
  for _ in range(rng.randint(0, n)):
    source, target = rng.randrange(n), rng.randrange(n)
    lag = rng.randint(int(target <= source), 2)
    arcs.append(
      Arc(
        source=source,
        target=target,
        lag=lag + shifts[source] - shifts[target],
        after=rng.choice(["end", "end", "start"]),
      )
    )
  return FlatPlan(
    resources=tuple(Resource(name=f"r{i}") for i in range(num_resources)),
    activities=tuple(activities),
    arcs=tuple(arcs),
    orders=tuple(map(tuple, orders)),
  )


flat_plans = drawn(flat_plan)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem:
  """What a planner is given."""

  workflow: Workflow
  profile: Profile
  cluster: Cluster


def problem(rng: random.Random) -> Problem:
  """Returns a small problem, with or without loops, groups, updates, syncs."""
  items = rng.choice([4, 6, 8, 12])
  names = [f"s{i}" for i in range(rng.randint(1, 4))]
  loops: tuple[Loop, ...] = ()
  if len(names) > 2 and rng.random() < 0.3:
    first = rng.randrange(len(names) - 2)
    looped = (names[first], names[first + 1])
    loops = (Loop(name="loop", stages=looped, turns=rng.randint(1, 3)),)
  in_loop = {name for loop in loops for name in loop.stages}
  stages = tuple(
    _stage(rng, name, items, name in in_loop, is_last=name == names[-1])
    for name in names
  )
  edges = [
    _edge(rng, names[rng.randrange(i) if rng.random() < 0.3 else i - 1], name)
    for i, name in enumerate(names)
    if i
  ]
  for loop in loops:
    if not any((e.source, e.target) == loop.stages for e in edges):
      edges.append(_edge(rng, *loop.stages))
    edges.append(_edge(rng, *reversed(loop.stages)))
  syncs = ()
  if len(names) > 1 and rng.random() < 0.7:
    syncs = (
      WeightSync(
        source=names[-1], target=names[0], num_bytes=rng.choice([0, 6])
      ),
    )
  return Problem(
    workflow=Workflow(
      name="random",
      stages=stages,
      edges=tuple(edges),
      loops=loops,
      syncs=syncs,
      staleness=rng.choice([0, 0, 1, 2]),
    ),
    profile=Profile(
      entries=tuple(entry for stage in stages for entry in _entries(rng, stage))
    ),
    cluster=toys.cluster(
      rng.randint(1, 6), per_node=rng.choice([2, 4]), memory=1_000_000
    ),
  )


def _stage(
  rng: random.Random, name: str, items: int, in_loop: bool, *, is_last: bool
) -> Stage:
  if not in_loop:
    items = rng.choice([items, items, items // 2, 2 * items])
  kinds = ["train"] if is_last and not in_loop else ["decode", "infer"]
  kind = rng.choice(kinds)
  halves = 2 if items % 2 == 0 else 1
  return Stage(
    name=name,
    kind=kind,
    items=items,
    granule_min=rng.choice([1, 1, 2]),
    granule_max=rng.choice([None, None, max(2, items // 2)]),
    quantum=rng.choice([1, 1, 1, halves]),
    group=rng.choice([1, halves]) if kind == "decode" else 1,
    updates=rng.choice([1, halves]) if kind == "train" else 1,
    needs_all=rng.random() < 0.2,
    state_bytes=rng.choice([0, 4]),
    item_bytes=rng.choice([0, 1]),
    lengths=TraceLengths(
      tokens=tuple(rng.randint(1, 4) for _ in range(rng.randint(1, 4)))
    ),
  )


def _edge(rng: random.Random, source: str, target: str) -> Edge:
  return Edge(
    source=source,
    target=target,
    item_bytes=rng.choice([0, 2]),
    reads=rng.choice(["items", "items", "items", "all"]),
  )


def _entries(rng: random.Random, stage: Stage) -> list[Entry]:
  """Returns laws of replicas of one device, and perhaps of two."""
  law: Law = toys.per_item(rng.randint(0, 3), num_bytes=rng.choice([0, 1]))
  if stage.kind == "decode" and rng.random() < 0.7:
    law = DecodeLaw(
      t0_s=rng.randint(0, 1),
      weight_bytes=1,
      kv_bytes_per_token=rng.choice([0, 1]),
      num_params=0,
      max_active=rng.choice([2, 256]),
    )
  laws = {Config(): law}
  if rng.random() < 0.3:
    laws[Config(tp=2)] = ComputeLaw(
      flop_per_item=rng.randint(0, 3), efficiency=1.0
    )
  return [
    Entry(stage=stage.name, device_class="d", law=law, config=config)
    for config, law in laws.items()
  ]


def tree(rng: random.Random, given: Problem) -> TreePlan:
  """Returns a tree for a problem; lowering may still refuse it."""
  workflow, units = given.workflow, []
  for name in workflows.topological_order(workflow):
    loop = workflow.loop_of(name)
    if loop is None:
      units.append(name)
    elif loop.name not in units:
      units.append(loop.name)
  return TreePlan(
    root=_node(rng, given, units, given.cluster.devices),
    copies=tuple(sync.target for sync in workflow.syncs if rng.random() < 0.3),
  )


def _node(
  rng: random.Random, given: Problem, units: list[str], devices: Devices
) -> Node:
  if len(units) == 1:
    return _unit(rng, given, units[0], devices)
  cut = rng.randrange(1, len(units))
  parts = [units[:cut], units[cut:]]
  if len(devices) > 1 and rng.random() < 0.5:
    first = devices.first(rng.randrange(1, len(devices)))
    return Spatial(
      children=(
        _node(rng, given, parts[0], first),
        _node(rng, given, parts[1], devices - first),
      ),
      capacity=rng.choice([None, None, 4, 8]),
    )
  smaller = devices.first(rng.randint(1, len(devices)))
  return Temporal(
    children=(
      _node(rng, given, parts[0], devices),
      _node(rng, given, parts[1], rng.choice([devices, smaller])),
    ),
    turn=rng.choice([None, None, 2, 3]),
  )


def _unit(
  rng: random.Random, given: Problem, unit: str, devices: Devices
) -> Node:
  workflow = given.workflow
  for loop in workflow.loops:
    if loop.name == unit:
      return _lanes(rng, given, loop, devices)
  stage = workflow.stage(unit)
  whole = (0, stage.items)
  if rng.random() < 0.7 or stage.items < 4:
    return _run(rng, given, stage, devices, None)
  cut = rng.randrange(2, stage.items, 2)
  shares = ((0, cut), (cut, stage.items))
  if len(devices) > 1 and rng.random() < 0.5:
    first = devices.first(rng.randrange(1, len(devices)))
    return Spatial(
      children=(
        _run(rng, given, stage, first, shares[0]),
        _run(rng, given, stage, devices - first, shares[1]),
      )
    )
  cohort = whole if stage.kind == "decode" and rng.random() < 0.7 else None
  smaller = devices.first(rng.randint(1, len(devices)))
  return Temporal(
    children=(
      _run(rng, given, stage, devices, shares[0], cohort),
      _run(rng, given, stage, smaller, shares[1], cohort),
    )
  )


def _lanes(
  rng: random.Random, given: Problem, loop: Loop, devices: Devices
) -> Lanes:
  items = given.workflow.stage(loop.stages[0]).items
  cut = rng.randrange(0, items, 2)
  places = [devices, devices]
  if len(devices) > 1 and rng.random() < 0.5:
    places[0] = devices.first(rng.randrange(1, len(devices)))
    places[1] = devices - places[0]
  body = tuple(
    _run(rng, given, given.workflow.stage(name), place, None)
    for name, place in zip(loop.stages, places)
  )
  together = places[0] == places[1]
  return Lanes(
    loop=loop.name,
    body=Temporal(children=body) if together else Spatial(children=body),
    lanes=tuple(size for size in (cut, items - cut) if size),
  )


def _run(
  rng: random.Random,
  given: Problem,
  stage: Stage,
  devices: Devices,
  share: tuple[int, int] | None,
  cohort: tuple[int, int] | None = None,
) -> Run:
  configs = [
    config
    for config in given.profile.configs(stage.name, "d")
    if len(devices) % config.devices == 0
  ]
  allowed = [
    granule
    for granule in range(stage.granule_min, stage.largest_granule + 1)
    if granule % stage.quantum == 0 or granule == stage.items
  ]
  return Run(
    stage=stage.name,
    devices=devices,
    granule=rng.choice(allowed),
    config=rng.choice(configs),
    share=share,
    cohort=cohort,
    is_resident=rng.random() < 0.6,
  )


problems = drawn(problem)
