"""Workflows as pictures, in the text that Mermaid draws."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from scheduler import workflows
from scheduler.reports import formatting
from scheduler.workflows import Edge, Stage, Workflow


def to_mermaid(
  workflow: Workflow, *, places: Mapping[str, str] | None = None
) -> str:
  """Returns a workflow as a Mermaid flowchart.

  Stages are boxes and loops frames around them. Arrows are what passes within
  an iteration, with its bytes; dotted ones reach the next turn of a loop or the
  next iteration. Thick ones are the same in every iteration.

  Args:
    workflow: what is drawn.
    places: by stage, where it can run ("mesh", "host"); its kind by default.
  """
  return "\n".join(_lines(workflow, places or {}))


def _lines(workflow: Workflow, places: Mapping[str, str]) -> Iterator[str]:
  order = workflows.topological_order(workflow)
  ids = {name: f"s{i}" for i, name in enumerate(order)}

  def box(name: str) -> str:
    stage = workflow.stage(name)
    return f"{ids[name]}[{_box(stage, places.get(name, stage.kind))}]"

  yield "flowchart TD"
  for i, loop in enumerate(workflow.loops):
    turns = formatting.counted(loop.turns, "turn")
    yield f"  subgraph loop{i}[{_quoted(f'loop {loop.name}', turns)}]"
    yield from (f"    {box(name)}" for name in loop.stages)
    yield "  end"
  for name in order:
    if workflow.loop_of(name) is None:
      yield f"  {box(name)}"
  for edge in workflow.edges:
    arrow = "-->"
    if workflow.is_back_edge(edge):
      arrow = "-.->"
    elif edge.is_invariant:
      arrow = "==>"
    label = _carried(edge.name, _num_bytes(workflow, edge))
    yield f"  {ids[edge.source]} {arrow}|{label}| {ids[edge.target]}"
  for sync in workflow.syncs:
    later = formatting.counted(workflow.lag(sync), "iteration")
    label = _carried(sync.name or "weights", sync.num_bytes, f"{later} later")
    yield f"  {ids[sync.source]} -.->|{label}| {ids[sync.target]}"
  for i, c in enumerate(workflow.constants):
    yield f"  c{i}([{_carried(c.name, c.num_bytes)}]) ==> {ids[c.target]}"


def _box(stage: Stage, place: str) -> str:
  items = "barrier"
  if stage.items > 1:
    items = formatting.counted(stage.items, "item")
  return _quoted(stage.name, f"{place}, {items}")


def _num_bytes(workflow: Workflow, edge: Edge) -> int:
  """Returns the bytes of all items, of one turn in a loop."""
  return edge.item_bytes * workflow.stage(edge.source).items


def _carried(name: str, num_bytes: int, *more: str) -> str:
  size = [formatting.num_bytes(num_bytes)] if num_bytes else []
  return _quoted(*[line for line in (name, *size, *more) if line] or ["items"])


def _quoted(*lines: str) -> str:
  text = "<br/>".join(line.replace('"', "#quot;") for line in lines)
  return f'"{text}"'
