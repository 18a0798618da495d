"""Channels that are full by weight, such as tokens, rather than by items.

A channel leads from the stage that makes an array of weights to a stage on
other devices that declares it (`flow.stage(weight=)`). While what was made and
not yet taken weighs more than the budget, the writer's next granule is held
back, as long as a reader goes on without it. So a granule heavier than the
budget passes, and so does what a reader needs more of.

It is held back before it is given to its devices' thread. On that thread two
writers could wait for each other's readers.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence

from rlinf_jax.runtime import graphs, iterations, programs, readiness, tasks


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Channel:
  """What leads from one stage to another.

  Attributes:
    value: the array of weights, by its number in the program.
    axis: of its items.
    writers: tasks of the stage that makes it.
    readers: tasks of the stage that takes items by it.
  """

  value: int
  axis: int
  writers: tuple[int, ...]
  readers: tuple[int, ...]


class Channels:
  """Holds back writers whose channels are full.

  Args:
    plan: what runs when and where.
    graph: the macro flow.
    budget: weight that a channel holds; None: there are no such channels.

  Attributes:
    held: the tasks that are held back.
  """

  def __init__(
    self, plan: tasks.TaskPlan, graph: graphs.Graph, budget: float | None
  ) -> None:
    self._budget = budget or 0.0
    self._channels = [] if budget is None else _channels(plan, graph)
    self._waiting: list[dict[int, float]] = [{} for _ in self._channels]
    self._lock = threading.Lock()
    self.held: list[tasks.Key] = []

  def made(
    self, key: tasks.Key, task: tasks.Task, values: iterations.Iteration
  ) -> None:
    """Notes that a task has ended, and what it has made."""
    self._add(key, task, values, made=True)

  def taken(
    self, key: tasks.Key, task: tasks.Task, values: iterations.Iteration
  ) -> None:
    """Notes that a task starts, and what it takes."""
    self._add(key, task, values, made=False)

  def admit(
    self, keys: Sequence[tasks.Key], ready: readiness.Readiness
  ) -> list[tasks.Key]:
    """Returns the tasks that can be handed out, those held back before too.

    Args:
      keys: tasks that wait for nothing else.
      ready: what waits for what.
    """
    if not self._channels:
      return list(keys)
    with self._lock:
      asked, self.held = [*self.held, *keys], []
      for key in asked:
        if self._is_full(key, ready):
          self.held.append(key)
      return [key for key in asked if key not in self.held]

  def retire(self, iteration: int) -> None:
    """Forgets an iteration."""
    for waiting in self._waiting:
      waiting.pop(iteration, None)

  def _add(
    self,
    key: tasks.Key,
    task: tasks.Task,
    values: iterations.Iteration,
    *,
    made: bool,
  ) -> None:
    iteration, t = key
    for channel, waiting in zip(self._channels, self._waiting):
      if t in (channel.writers if made else channel.readers):
        weight = values.weigh(channel.value, channel.axis, task.items)
        with self._lock:
          before = waiting.get(iteration, 0.0)
          waiting[iteration] = before + (weight if made else -weight)

  def _is_full(self, writer: tasks.Key, ready: readiness.Readiness) -> bool:
    held = {*self.held, writer}
    return any(
      writer[1] in channel.writers
      and sum(waiting.values()) > self._budget
      and any(
        ready.goes_on_without((i, reader), held)
        for i in waiting
        for reader in channel.readers
      )
      for channel, waiting in zip(self._channels, self._waiting)
    )


def _channels(plan: tasks.TaskPlan, graph: graphs.Graph) -> list[Channel]:
  program, found = graph.traced.program, []
  for node in program.nodes:
    if not isinstance(node, programs.StageNode) or node.spec.weight is None:
      continue
    value, _ = programs.weight_of(node)
    if value not in program.maker:
      continue  # it is given to the flow, or glue makes it of what comes whole
    writer = program.nodes[program.maker[value]]
    axis = graphs.out_axis(writer, value, graph.divisions)
    channel = Channel(
      value=value,
      axis=axis or 0,
      writers=_tasks_of(plan, writer),
      readers=_tasks_of(plan, node),
    )
    are_apart = all(
      plan.tasks[w].devices.isdisjoint(plan.tasks[r].devices)
      for w in channel.writers
      for r in channel.readers
    )
    if axis is not None and are_apart:
      found.append(channel)
  return found


def _tasks_of(plan: tasks.TaskPlan, node: programs.Node) -> tuple[int, ...]:
  return tuple(
    t
    for t, task in enumerate(plan.tasks)
    if task.kind == "compute" and task.node is node and task.inner is None
  )
