"""How long one iteration takes at least from its first start to its last end.

With staleness s at most 1 + s iterations are alive, so that 1 + s periods are
no shorter. Stages overlap as far as granules allow: a stage ends no sooner than
its shortest granule after what it reads has ended, and no sooner than all its
items take on all devices after what it reads has begun to arrive.
"""

from __future__ import annotations

import graphlib
from collections.abc import Mapping

from scheduler.workflows import Workflow

Node = tuple[str, int]  # a stage, and the turn of its loop


def latency_s(
  workflow: Workflow,
  granule_s: Mapping[str, float],
  whole_s: Mapping[str, float],
) -> float:
  """Returns the least latency of an iteration.

  Args:
    workflow: the workflow.
    granule_s: of each stage, the shortest granule.
    whole_s: of each stage, all items; of a loop's, in one turn.
  """
  waits = _waits(workflow)
  try:
    order = tuple(
      graphlib.TopologicalSorter(
        {node: {source for source, _ in own} for node, own in waits.items()}
      ).static_order()
    )
  except graphlib.CycleError:
    return 0.0  # loops wait for each other's ends: no plan has any latency
  begins: dict[Node, float] = {}
  ends: dict[Node, float] = {}
  for node in order:
    stage, turn = node
    begin = end = 0.0
    for source, is_whole in waits[node]:
      first = begins[source] + granule_s[source[0]]
      begin = max(begin, ends[source] if is_whole else first)
      end = max(end, ends[source] + granule_s[stage])
    first_turn = begins[stage, 0] if turn else begin
    begins[node] = begin
    ends[node] = max(
      end, begin + granule_s[stage], first_turn + (turn + 1) * whole_s[stage]
    )
  return max(ends.values())


def _waits(workflow: Workflow) -> dict[Node, list[tuple[Node, bool]]]:
  """Returns what each stage reads, and whether it needs all of that first."""
  waits: dict[Node, list[tuple[Node, bool]]] = {}
  for stage in workflow.stages:
    loop = workflow.loop_of(stage.name)
    for turn in range(loop.turns if loop else 1):
      own = [((stage.name, turn - 1), False)] if turn else []
      waits[stage.name, turn] = own
  for edge in workflow.edges:
    target = workflow.stage(edge.target)
    loop = workflow.loop_of(edge.source)
    is_whole = edge.reads == "all" or target.needs_all
    if loop is None or edge.target not in loop.stages:
      last = loop.turns - 1 if loop else 0
      waits[edge.target, 0].append(((edge.source, last), is_whole))
      continue
    later = int(workflow.is_back_edge(edge))
    for turn in range(loop.turns - later):
      waits[edge.target, turn + later].append(
        ((edge.source, turn), edge.reads == "all")
      )
  return waits
