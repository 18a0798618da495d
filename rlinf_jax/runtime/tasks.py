"""A flat plan as tasks: what to run, on what, after what."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence, Set

from rlinf_jax.runtime import graphs, programs
from scheduler import plans
from scheduler.devices import Devices

Key = tuple[int, int]  # iteration, task


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Task:
  """One or more activities of a flat plan that run as one program.

  Compared by identity, so that what follows from one is found quickly.

  Attributes:
    kind: of its activities; "loop" for a whole loop fused.
    stage: the workflow stage; of a loop the first.
    node: the program's node; None where nothing is computed.
    inner: in a loop that is not fused, the stage of the body.
    items: half-open interval of items.
    turn: of a loop.
    devices: cluster numbers.
    resources: indices in the flat plan.
    activities: indices in the flat plan.
    is_call: whether it is a call of a process stage, which takes no slot: it
      begins when it can, beside whatever else runs.
    is_shared: whether any of the sets of devices that its stage is on may take
      it, whichever is free first.
  """

  kind: str
  stage: str
  node: programs.Node | None
  inner: programs.StageNode | None
  items: tuple[int, int]
  turn: int
  devices: Devices
  resources: tuple[int, ...]
  activities: tuple[int, ...]
  is_call: bool = False
  is_shared: bool = False

  @property
  def name(self) -> str:
    """For messages."""
    if self.kind not in ("compute", "loop"):
      return f"{self.kind} of {self.stage}"
    turn = "" if self.inner is None else f" turn {self.turn}"
    return f"{self.stage}[{self.items[0]}:{self.items[1]}]{turn}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wait:
  """A task waits for another one, `lag` iterations ago, to end or to start."""

  source: int
  lag: int
  after: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskPlan:
  """Tasks, and what each waits for.

  Attributes:
    tasks: of one iteration.
    waits: for each task.
    ahead: for each task that moves items, weights or state, the tasks that can
      read them where they are once it has ended.
    plan: the flat plan they were made from.
  """

  tasks: tuple[Task, ...]
  waits: tuple[tuple[Wait, ...], ...]
  ahead: dict[int, tuple[int, ...]]
  plan: plans.FlatPlan


def make(plan: plans.FlatPlan, graph: graphs.Graph) -> TaskPlan:
  """Returns the tasks of a flat plan.

  A loop whose stages all run on the same devices in one lane, with no swap in
  between, becomes one task: one `scan`. Of the calls of a process stage each
  waits for the one before it to begin, the first for the last of the iteration
  before to end; what else the order of their slots says is left out. Of a stage
  that several sets of devices share, and have to themselves, granules wait for
  what the first on any of them waits for, not for each other.
  """
  fused = _fused_loops(plan, graph)
  task_of: dict[int, int] = {}
  tasks: list[Task] = []
  by_loop: dict[str, int] = {}
  for i, activity in enumerate(plan.activities):
    node = _node(graph, activity.stage)
    loop = graph.workflow.loop_of(activity.stage)
    if activity.kind == "compute" and loop and loop.name in fused:
      if loop.name not in by_loop:
        by_loop[loop.name] = len(tasks)
        tasks.append(_task(plan, [i], node, kind="loop"))
      task_of[i] = by_loop[loop.name]
      merged = tasks[task_of[i]]
      tasks[task_of[i]] = dataclasses.replace(
        merged, activities=tuple(dict.fromkeys((*merged.activities, i)))
      )
      continue
    task_of[i] = len(tasks)
    inner: programs.StageNode | None = None
    if isinstance(node, programs.LoopNode) and loop is not None:
      found = node.body.by_name[activity.stage]
      assert isinstance(found, programs.StageNode)
      inner = found
    made = _task(plan, [i], node, kind=activity.kind, inner=inner)
    is_call = made.kind == "compute" and graph.place[made.stage] == "process"
    tasks.append(dataclasses.replace(made, is_call=is_call and inner is None))
  shared = _shared(plan, tasks)
  for t in {t for of_stage in shared for t in of_stage}:
    tasks[t] = dataclasses.replace(tasks[t], is_shared=True)
  waits: list[dict[Wait, None]] = [{} for _ in tasks]
  calls = {i for i, t in task_of.items() if tasks[t].is_call}
  for arc in (*plan.arcs, *_order_arcs(plan, calls)):
    source, target = task_of[arc.source], task_of[arc.target]
    if source == target and arc.lag <= 0:
      continue
    if tasks[source].is_shared and tasks[source].stage == tasks[target].stage:
      continue
    wait = Wait(source=source, lag=arc.lag, after=arc.after)
    waits[target][wait] = None
  for of_stage in shared:
    _join_waits(tasks, waits, of_stage)
  return TaskPlan(
    tasks=tuple(tasks),
    waits=tuple(tuple(w) for w in waits),
    ahead=_ahead(plan, tasks),
    plan=plan,
  )


def _ahead(
  plan: plans.FlatPlan, tasks: Sequence[Task]
) -> dict[int, tuple[int, ...]]:
  readers: dict[str, list[int]] = {}
  for t, task in enumerate(tasks):
    if task.kind in ("compute", "loop"):
      for name in {plan.activities[a].stage for a in task.activities}:
        readers.setdefault(name, []).append(t)
  found = {}
  for t, task in enumerate(tasks):
    target = plan.activities[task.activities[0]].target
    if task.kind == "swap_in":
      of_stage = readers.get(task.stage, ())
      here = [r for r in of_stage if tasks[r].devices == task.devices]
      found[t] = tuple(here[:1])
    elif task.kind == "weight_sync":
      by_devices = {tasks[r].devices: r for r in readers.get(target, ())}
      found[t] = tuple(by_devices.values())
    elif task.kind == "transfer":
      start, stop = task.items
      found[t] = tuple(
        r
        for r in readers.get(target, ())
        if tasks[r].kind == "compute"
        and not (tasks[r].inner or tasks[r].is_shared)
        and (start < tasks[r].items[1] <= stop or len(readers[target]) == 1)
      )
  return found


def _shared(
  plan: plans.FlatPlan, tasks: Sequence[Task]
) -> list[tuple[int, ...]]:
  """Returns the granules of each stage that sets of devices can share."""
  alone = {
    r
    for r, order in enumerate(plan.orders)
    if len({plan.activities[s.activity].stage for s in order}) == 1
    and all(plan.activities[s.activity].kind == "compute" for s in order)
  }
  of_stage: dict[str, list[int]] = {}
  for t, task in enumerate(tasks):
    is_divided = isinstance(task.node, programs.StageNode) and not (
      task.node.is_barrier or task.is_call
    )
    if task.kind == "compute" and is_divided:
      of_stage.setdefault(task.stage, []).append(t)
  return [
    tuple(sorted(found, key=lambda t: tasks[t].items))
    for found in of_stage.values()
    if len({tasks[t].resources for t in found}) > 1
    and all(alone.issuperset(tasks[t].resources) for t in found)
  ]


def _join_waits(
  tasks: Sequence[Task], waits: list[dict[Wait, None]], shared: Sequence[int]
) -> None:
  """Lets all granules of a stage wait for what not only one of them needs."""
  common = {
    wait: None
    for t in shared
    for wait in waits[t]
    if wait.lag or tasks[wait.source].kind in ("weight_sync", "swap_in")
  }
  common[Wait(source=shared[-1], lag=1, after="end")] = None
  for t in shared:
    waits[t] |= common


def _order_arcs(plan: plans.FlatPlan, calls: Set[int]) -> Iterator[plans.Arc]:
  """Yields what the orders stand for, where calls take no slots."""
  for order in plan.orders:
    yield from plans.cycle_arcs([s for s in order if s.activity not in calls])
    own: dict[str, list[plans.Slot]] = {}
    for slot in order:
      if slot.activity in calls:
        own.setdefault(plan.activities[slot.activity].stage, []).append(slot)
    for slots in own.values():
      for arc in plans.cycle_arcs(slots):
        is_first = arc.target == slots[0].activity
        yield arc if is_first else dataclasses.replace(arc, after="start")


def _task(
  plan: plans.FlatPlan,
  activities: Sequence[int],
  node: programs.Node | None,
  *,
  kind: str,
  inner: programs.StageNode | None = None,
) -> Task:
  first = plan.activities[activities[0]]
  devices = Devices()
  for r in first.resources:
    devices = devices | plan.resources[r].devices
  return Task(
    kind=kind,
    stage=first.stage,
    node=node,
    inner=inner,
    items=first.items,
    turn=first.index,
    devices=devices,
    resources=first.resources,
    activities=tuple(activities),
  )


def _node(graph: graphs.Graph, stage: str) -> programs.Node | None:
  try:
    return graph.node_of(stage)
  except KeyError:
    return None


def _fused_loops(plan: plans.FlatPlan, graph: graphs.Graph) -> set[str]:
  fused = set()
  for loop in graph.workflow.loops:
    if any(graph.place[name] != "mesh" for name in loop.stages):
      continue
    members = [
      i
      for i, a in enumerate(plan.activities)
      if a.stage in loop.stages and a.kind == "compute"
    ]
    whole = (0, graph.workflow.stage(loop.stages[0]).items)
    resources = {plan.activities[i].resources for i in members}
    items = {plan.activities[i].items for i in members}
    if len(resources) != 1 or items != {whole}:
      continue
    if all(
      _is_stretch(plan.orders[r], members) for r in resources.copy().pop()
    ):
      fused.add(loop.name)
  return fused


def _is_stretch(order: Sequence[plans.Slot], members: Sequence[int]) -> bool:
  """Returns whether members stand in an order without anything in between."""
  wanted = set(members)
  at = [k for k, slot in enumerate(order) if slot.activity in wanted]
  if len(at) != len(wanted):
    return False
  gaps = sum(
    1 for a, b in zip(at, at[1:] + at[:1]) if (b - a) % len(order) != 1
  )
  return len(order) == len(at) or gaps <= 1
