"""Which of the state's buffers a task may write its results over."""

from __future__ import annotations

import collections
import graphlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from rlinf_jax.runtime import graphs, programs, tasks


def donors(plan: tasks.TaskPlan, graph: graphs.Graph) -> dict[int, set[int]]:
  """Returns, by task, the values of the state that it is the last to read.

  Only of a node that runs as one program, on one set of devices; and only
  values that all their other readers have done with when it starts, that reach
  the caller by no other way, and that are the whole of a node's argument.

  Args:
    plan: with a staleness above 0 other iterations read the state, and nothing
      is found.
    graph: of the flow.
  """
  if graph.workflow.staleness:
    return {}
  program, num_state = graph.traced.program, graph.traced.num_state
  given_out = programs.sources(program, program.outputs)
  kept = given_out | {
    v
    for i, v in enumerate(program.inputs[:num_state])
    if program.outputs.count(program.outputs[i]) > 1
    or jax.dtypes.issubdtype(program.avals[v].dtype, jax.dtypes.prng_key)
  }
  before = _ancestors(plan)
  room = [
    collections.Counter(
      _kind(program.avals[v]) for v in (task.node.outputs if task.node else ())
    )
    for task in plan.tasks
  ]
  found: dict[int, set[int]] = {}
  for i, v in enumerate(program.inputs[:num_state]):
    readers = {
      node.name
      for node in program.nodes
      if v in programs.sources(program, node.inputs)
    }
    touching = set(_touching(plan, graph, i, readers))
    for t in touching:
      if v in kept or not _may_take(plan.tasks[t], graph, v):
        continue
      others = touching - {t}
      kind = _kind(program.avals[v])
      if room[t][kind] and all(_is_done(plan, o, t, before) for o in others):
        room[t][kind] -= 1
        found.setdefault(t, set()).add(v)
  return found


def _kind(aval: Any) -> tuple[Any, ...]:
  """Returns what two arrays share whose buffers can replace each other."""
  return aval.shape, aval.dtype


def _touching(
  plan: tasks.TaskPlan, graph: graphs.Graph, i: int, readers: set[str]
) -> Iterator[int]:
  """Yields the tasks that read a state leaf or bring it elsewhere."""
  for t, task in enumerate(plan.tasks):
    if task.kind in ("compute", "loop"):
      nodes = [task.node]
    else:
      nodes = [plan.tasks[r].node for r in plan.ahead.get(t, ())]
    names = {node.name for node in nodes if node is not None}
    is_moved = task.kind not in ("compute", "loop") and (
      i in graph.weights[task.stage]
    )
    if is_moved or not readers.isdisjoint(names):
      yield t


def _may_take(task: tasks.Task, graph: graphs.Graph, v: int) -> bool:
  """Returns whether a task is all of a node, and reads a value whole."""
  node, program = task.node, graph.traced.program
  if node is None or task.inner is not None or v not in node.inputs:
    return False
  if sum(v in programs.sources(program, [u]) for u in node.inputs) > 1:
    return False  # it is another argument too, or in one
  if task.kind not in ("compute", "loop") or graph.place[task.stage] != "mesh":
    return False
  return isinstance(node, programs.LoopNode) or node.is_barrier


def _is_done(
  plan: tasks.TaskPlan, other: int, t: int, before: Sequence[set[int]]
) -> bool:
  """Returns whether `t` takes nothing from another task.

  It has ended before, or moves, later, what it then does not find.
  """
  is_move = plan.tasks[other].kind not in ("compute", "loop")
  return other in before[t] or (is_move and t in before[other])


def _ancestors(plan: tasks.TaskPlan) -> list[set[int]]:
  """Returns, for each task, those of its iteration that it waits for."""
  direct = [
    {w.source for w in waits if w.lag == 0 and w.after == "end"}
    for waits in plan.waits
  ]
  order = graphlib.TopologicalSorter(dict(enumerate(direct))).static_order()
  found: list[set[int]] = [set() for _ in direct]
  for t in order:
    found[t] = direct[t].union(*(found[s] for s in direct[t]))
  return found
