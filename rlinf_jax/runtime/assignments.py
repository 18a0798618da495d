"""Which items and devices each task has, as an iteration goes on.

A plan says it of every task. At run time four things change it: granules are
renamed as they come (`streams`), those of a stage that several sets of devices
share are taken by whichever is free, a stage is scaled by hand, and devices
that have nothing left to do are given away (`elasticity`).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection

from rlinf_jax.runtime import (
  elasticity,
  graphs,
  machines,
  programs,
  streams,
  tasks,
)
from scheduler.devices import Devices


class Assignments:
  """Items and devices of tasks, in the iterations that are under way.

  Calls are not guarded against each other, but for `scale`.

  Args:
    plan: what runs when and where.
    graph: the macro flow.
    machine: on what.
    seconds_fn: predicts a granule; None: devices are not given away.
  """

  def __init__(
    self,
    plan: tasks.TaskPlan,
    graph: graphs.Graph,
    machine: machines.Machine,
    seconds_fn: elasticity.SecondsFn | None,
  ) -> None:
    self._plan, self._machine, self._seconds_fn = plan, machine, seconds_fn
    self._place = graph.place
    self._streams = streams.of_plan(plan, graph)
    self._call_of: dict[int, int] = {}
    self._reader_of: dict[int, int] = {}
    for k, stream in enumerate(self._streams):
      self._call_of |= {t: k for span in stream.spans for t in span}
      self._reader_of |= dict.fromkeys(stream.span_of, k)
    self._stages_of = [
      {plan.plan.activities[a].stage for a in task.activities}
      if task.kind in ("compute", "loop")
      else set()
      for task in plan.tasks
    ]
    self._used = Devices()
    for resource in plan.plan.resources:
      self._used = self._used | resource.devices
    self._scaled: dict[str, Devices] = {}
    self._arrivals: dict[int, list[streams.Arrivals]] = {}
    self._grown: dict[tuple[int, str], Devices] = {}
    self._taken: dict[tasks.Key, Devices] = {}
    # Asked for by every task of every iteration.
    self.resources = functools.lru_cache(maxsize=4096)(self._resources)

  def clear(self) -> None:
    """Forgets all iterations."""
    self._arrivals, self._grown, self._taken = {}, {}, {}

  def begin(self, iteration: int) -> None:
    """Notes that an iteration begins."""
    self._arrivals[iteration] = [streams.Arrivals(s) for s in self._streams]

  def retire(self, iteration: int) -> None:
    """Forgets an iteration that has ended."""
    self._arrivals.pop(iteration)
    self._grown = {k: v for k, v in self._grown.items() if k[0] != iteration}
    self._taken = {k: v for k, v in self._taken.items() if k[0] != iteration}

  def take(self, key: tasks.Key, devices: Devices) -> None:
    """Notes that a set of devices takes a shared task."""
    self._taken[key] = devices

  def finish(self, key: tasks.Key) -> tuple[int, ...]:
    """Notes that a task is done; returns the tasks that have ended by it."""
    iteration, t = key
    if t not in self._call_of:
      return (t,)
    return self._arrivals[iteration][self._call_of[t]].finish(t)

  def is_known(self, key: tasks.Key) -> bool:
    """Returns whether it is known which items a task handles."""
    iteration, t = key
    if t not in self._reader_of:
      return True
    return self._arrivals[iteration][self._reader_of[t]].has_come(t)

  def task(self, key: tasks.Key) -> tasks.Task:
    """Returns a task with its items in this iteration, and its devices now."""
    iteration, t = key
    task = self._plan.tasks[t]
    items, devices = task.items, self._taken.get(key, task.devices)
    if t in self._reader_of and self.is_known(key):
      items = self._arrivals[iteration][self._reader_of[t]].items(t, items)
    for name in self._stages_of[t]:
      devices = self._scaled.get(name, devices)
      devices = self._grown.get((iteration, name), devices)
    if (items, devices) == (task.items, task.devices):
      return task
    return dataclasses.replace(task, items=items, devices=devices)

  def _resources(self, task: tasks.Task) -> tuple[str, ...]:
    """Returns what a task occupies; devices of no resource by their numbers."""
    known = self._plan.plan.resources
    found = [known[r] for r in task.resources if known[r].kind == "link"]
    rest = task.devices
    for resource in known:
      if not resource.devices.isdisjoint(rest):
        found.append(resource)
        rest = rest - resource.devices
    names = tuple(resource.name for resource in found)
    return (*names, str(rest)) if rest.spans else names

  def scale(self, stage: str, devices: Devices | None) -> None:
    """See `Executor.scale`."""
    place = self._place.get(stage)
    if place is None or place == "process":
      raise ValueError(
        f"stage '{stage}' cannot be scaled: it is"
        f" {'served by other processes' if place else 'not in the flow'};"
        f" stages are {sorted(self._place)}"
      )
    if devices is None:
      self._scaled.pop(stage, None)
      return
    num_mesh = len(self._machine.devices)
    known = Devices.span(0, num_mesh)
    if place != "mesh":
      known = self._machine.cluster.devices - known
    if not devices.spans or not devices.issubset(known):
      raise ValueError(
        f"stage '{stage}' runs on {place} devices, '{known}'; given were"
        f" '{devices}'"
      )
    self._scaled[stage] = devices

  def grow(
    self,
    iteration: int,
    ended: Collection[tasks.Key],
    started: Collection[tasks.Key],
  ) -> None:
    """Gives devices that an iteration no longer needs to a stage with more."""
    if self._seconds_fn is None:
      return
    busy, left = Devices(), []
    for t in range(len(self._plan.tasks)):
      if (iteration, t) in ended:
        continue
      task = self.task((iteration, t))
      busy = busy | task.devices
      if (iteration, t) not in started and _is_divided(task):
        left.append(task)
    cluster = self._machine.cluster
    for device_class in cluster.classes:
      of_class = cluster.of_class(device_class.name)
      found = elasticity.grown(
        [task for task in left if task.devices.issubset(of_class)],
        (self._used & of_class) - busy,
        self._seconds_fn,
      )
      if found is not None:
        self._grown[iteration, found[0]] = found[1]


def _is_divided(task: tasks.Task) -> bool:
  return (
    isinstance(task.node, programs.StageNode)
    and task.kind == "compute"
    and not (task.is_call or task.node.is_barrier)
  )
