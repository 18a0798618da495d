"""Small random workflows, with trees that fit them."""

from __future__ import annotations

import dataclasses
import random
from typing import NamedTuple

from scheduler.clusters import Cluster
from scheduler.devices import Devices
from scheduler.plans import Lanes, Node, Run, Spatial, Temporal, TreePlan
from scheduler.profiles import ComputeLaw, Config, Entry, Profile
from scheduler.workflows import (
  Edge,
  Loop,
  Stage,
  TraceLengths,
  WeightSync,
  Workflow,
)
from tests.scheduler import toys


class Problem(NamedTuple):
  """What an evaluator takes."""

  plan: TreePlan
  workflow: Workflow
  profile: Profile
  cluster: Cluster


def problem(
  rng: random.Random, *, num_devices: int = 6, has_channels: bool = False
) -> Problem:
  """Returns a random workflow, and a tree that fits it.

  Args:
    rng: of all choices.
    num_devices: of one class, on nodes of four.
    has_channels: bound some; a plan may deadlock then.
  """
  workflow = random_workflow(rng)
  grower = _Grower(rng, workflow, has_channels)
  root = grower.grow(_parts(workflow), Devices.span(0, num_devices), None)
  copies = [s.target for s in workflow.syncs if rng.random() < 0.5]
  return Problem(
    plan=TreePlan(root=root, copies=tuple(dict.fromkeys(copies))),
    workflow=workflow,
    profile=_profile(rng, workflow),
    cluster=toys.cluster(
      num_devices, per_node=4, memory=10**9, latency_s=rng.choice([0.0, 0.5])
    ),
  )


def random_workflow(rng: random.Random) -> Workflow:
  """Returns one to four stages, which may have a loop among them."""
  count = rng.randint(1, 4)
  looped = rng.choice([None, None, rng.randrange(count)])
  stages: list[Stage] = []
  edges: list[Edge] = []
  loops: tuple[Loop, ...] = ()
  parts: list[tuple[str, str]] = []  # where items enter, and where they leave
  for i in range(count):
    if i == looped:
      items = rng.choice([2, 4])
      for name in ("sim", "act"):
        stages.append(Stage(name=name, kind="simulate", items=items))
      back = Edge(source="act", target="sim", item_bytes=rng.choice([0, 1]))
      edges += [Edge(source="sim", target="act"), back]
      turns = rng.randint(1, 3)
      loops = (Loop(name="loop", stages=("sim", "act"), turns=turns),)
      parts.append(("sim", "act"))
    else:
      stages.append(_stage(rng, f"s{i}"))
      parts.append((f"s{i}", f"s{i}"))
    if i:
      for j in rng.sample(range(i), rng.randint(1, min(i, 2))):
        edges.append(
          Edge(
            source=parts[j][1],
            target=parts[i][0],
            item_bytes=rng.choice([0, 0, 1]),
            reads=rng.choice(["items", "items", "items", "all"]),
          )
        )
  syncs = []
  if count > 1 and rng.random() < 0.7:
    syncs.append(
      WeightSync(
        source=parts[-1][1],
        target=parts[0][0],
        num_bytes=rng.choice([0, 6]),
      )
    )
  return Workflow(
    name="random",
    stages=tuple(stages),
    edges=tuple(edges),
    loops=loops,
    syncs=tuple(syncs),
    staleness=rng.choice([0, 0, 1, 2]),
  )


def _stage(rng: random.Random, name: str) -> Stage:
  kind = rng.choice(["infer", "train", "decode"])
  quantum = rng.choice([1, 1, 2])
  group = rng.choice([1, 1, 2])
  updates = rng.choice([1, 2]) if kind == "train" else 1
  items = quantum * group * updates * rng.randint(1, 3)
  lengths = None
  if kind == "decode":
    tokens = tuple(rng.randint(1, 9) for _ in range(items))
    lengths = TraceLengths(tokens=tokens)
  return Stage(
    name=name,
    kind=kind,
    items=items,
    quantum=quantum,
    group=group,
    updates=updates,
    needs_all=rng.random() < 0.15,
    state_bytes=rng.choice([0, 4]),
    item_bytes=rng.choice([0, 1]),
    lengths=lengths,
  )


def _parts(workflow: Workflow) -> list[Stage | Loop]:
  """Returns the stages in the workflow's order, a loop as one."""
  parts: list[Stage | Loop] = []
  for stage in workflow.stages:
    loop = workflow.loop_of(stage.name)
    if loop is None:
      parts.append(stage)
    elif loop not in parts:
      parts.append(loop)
  return parts


class _Grower:
  """Grows trees over stages that stand in an order of the data."""

  def __init__(
    self, rng: random.Random, workflow: Workflow, has_channels: bool
  ):
    self._rng, self._workflow = rng, workflow
    self._has_channels = has_channels

  def grow(
    self, parts: list[Stage | Loop], devices: Devices, turn: int | None
  ) -> Node:
    rng = self._rng
    if len(parts) == 1:
      (part,) = parts
      if isinstance(part, Loop):
        return self._lanes(part, devices)
      return self._stage(part, devices, is_whole=turn is not None)
    cut = rng.randint(1, len(parts) - 1)
    if len(devices) > 1 and rng.random() < 0.5:
      left, right = self._divide(devices)
      capacity = None
      if self._has_channels and rng.random() < 0.5:
        capacity = rng.randint(1, 8)
      children = (
        self.grow(parts[:cut], left, turn), self.grow(parts[cut:], right, turn)
      )  # fmt: skip
      return Spatial(children=children, capacity=capacity)
    if all(isinstance(part, Stage) for part in parts) and rng.random() < 0.4:
      turn = rng.randint(1, 6)
      children = tuple(self.grow([part], devices, turn) for part in parts)
      return Temporal(children=children, turn=turn)
    children = (
      self.grow(parts[:cut], devices, turn),
      self.grow(parts[cut:], devices, turn),
    )
    return Temporal(children=children)

  def _divide(self, devices: Devices) -> tuple[Devices, Devices]:
    left = devices.first(self._rng.randint(1, len(devices) - 1))
    return left, devices - left

  def _stage(self, stage: Stage, devices: Devices, *, is_whole: bool) -> Node:
    rng, items = self._rng, stage.items
    if is_whole or len(devices) == 1 or rng.random() < 0.6:
      return self._run(stage, devices)
    size = items // stage.updates
    borders = [
      i for i in range(1, items) if i % size % stage.quantum == 0
    ]  # fmt: skip
    if not borders:
      return self._run(stage, devices)
    cut = rng.choice(borders)
    left, right = self._divide(devices)
    if stage.kind == "decode" and rng.random() < 0.5:
      # A tail that goes on with fewer devices.
      config = Config()
      return Temporal(
        children=(
          self._run(stage, devices, config, (0, cut), (0, items)),
          self._run(stage, left, config, (cut, items), (0, items)),
        )
      )
    return Spatial(
      children=(
        self._run(stage, left, None, (0, cut)),
        self._run(stage, right, None, (cut, items)),
      )
    )

  def _run(
    self,
    stage: Stage,
    devices: Devices,
    config: Config | None = None,
    share: tuple[int, int] | None = None,
    cohort: tuple[int, int] | None = None,
  ) -> Run:
    rng = self._rng
    if config is None:
      config = Config(tp=rng.choice([1, 2])) if len(devices) % 2 == 0 else None
    granule = stage.quantum * rng.randint(1, stage.items // stage.quantum)
    return Run(
      stage=stage.name,
      devices=devices,
      granule=granule,
      config=config or Config(),
      share=share,
      cohort=cohort,
      is_resident=rng.random() < 0.6,
    )

  def _lanes(self, loop: Loop, devices: Devices) -> Node:
    rng = self._rng
    first, second = (self._workflow.stage(name) for name in loop.stages)
    cut = rng.randint(0, first.items - 1)
    lanes = (cut, first.items - cut) if cut else (first.items,)
    body: Node
    if len(devices) > 1 and rng.random() < 0.6:
      left, right = self._divide(devices)
      body = Spatial(
        children=(self._run(first, left), self._run(second, right))
      )
    else:
      children = (self._run(first, devices), self._run(second, devices))
      body = Temporal(children=children)
    return Lanes(loop=loop.name, body=body, lanes=lanes)


def _profile(rng: random.Random, workflow: Workflow) -> Profile:
  entries = []
  for stage in workflow.stages:
    for config in (Config(), Config(tp=2)):
      law = toys.TOKEN
      if stage.kind != "decode":
        law = ComputeLaw(
          flop_per_item=rng.randint(1, 5),
          efficiency=1,
          overhead_s=rng.choice([0, 1]),
          bytes_per_item=rng.choice([0, 1]),
        )
      entries.append(
        Entry(stage=stage.name, device_class="d", law=law, config=config)
      )
  return Profile(entries=tuple(entries))


def renamed(made: Problem, rng: random.Random) -> Problem:
  """Returns the same problem with other names, indices and listings."""
  workflow, plan = made.workflow, made.plan
  letters = rng.sample("abcdefghij", len(workflow.stages))
  name = {s.name: c for s, c in zip(workflow.stages, letters)}
  order = list(range(4)) + list(range(4, made.cluster.num_devices))
  head, tail = order[:4], order[4:]
  rng.shuffle(head)
  rng.shuffle(tail)
  place = dict(enumerate(head + tail))

  def run(r: Run) -> Run:
    devices = Devices.of(place[i] for i in r.devices)
    return dataclasses.replace(r, stage=name[r.stage], devices=devices)

  def node(n: Node) -> Node:
    if isinstance(n, Run):
      return run(n)
    if isinstance(n, Lanes):
      return dataclasses.replace(n, body=node(n.body))
    return dataclasses.replace(n, children=tuple(map(node, n.children)))

  def ends(x):
    return dataclasses.replace(x, source=name[x.source], target=name[x.target])

  stages = [dataclasses.replace(s, name=name[s.name]) for s in workflow.stages]
  edges = [ends(edge) for edge in workflow.edges]
  entries = [
    dataclasses.replace(e, stage=name[e.stage]) for e in made.profile.entries
  ]
  for listed in (stages, edges, entries):
    rng.shuffle(listed)
  return Problem(
    plan=TreePlan(
      root=node(plan.root), copies=tuple(name[c] for c in plan.copies)
    ),
    workflow=dataclasses.replace(
      workflow,
      stages=tuple(stages),
      edges=tuple(edges),
      syncs=tuple(ends(sync) for sync in workflow.syncs),
      loops=tuple(
        dataclasses.replace(x, stages=tuple(name[s] for s in x.stages))
        for x in workflow.loops
      ),
    ),
    profile=Profile(entries=tuple(entries)),
    cluster=made.cluster,
  )
