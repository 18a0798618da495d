"""Whether the loops of a tree fit its workflow."""

from __future__ import annotations

from collections.abc import Iterator

from scheduler import errors, plans
from scheduler.lowering import limits
from scheduler.plans import Lanes, Node, Run, Spatial, Temporal
from scheduler.prices import Prices
from scheduler.workflows import Loop


def check(root: Node, costs: Prices) -> None:
  """Raises InfeasiblePlanError unless each loop of a tree fits its workflow."""
  known = {loop.name: loop for loop in costs.workflow.loops}
  inside: set[str] = set()
  for lanes, turn in _lanes(root, None):
    loop = known.get(lanes.loop)
    if loop is None:
      raise errors.InfeasiblePlanError(
        f"the tree has Lanes of {lanes.loop!r}, which is no loop of workflow"
        f" {costs.workflow.name!r}; it has {sorted(known)}"
      )
    if turn is not None:
      raise errors.InfeasiblePlanError(
        f"loop {loop.name!r} takes turns of {turn} items with other stages;"
        " its lanes cannot be cut, so that its Temporal needs turn=None"
      )
    _check_lanes(lanes, loop, costs)
    inside |= set(loop.stages)
  for loop in costs.workflow.loops:
    for name in loop.stages:
      if name not in inside:
        raise errors.InfeasiblePlanError(
          f"stage {name!r} belongs to loop {loop.name!r}; run it inside Lanes"
          " of that loop"
        )


def _lanes(node: Node, turn: int | None) -> Iterator[tuple[Lanes, int | None]]:
  """Yields each Lanes of a tree, and the turn of a Temporal around it."""
  if isinstance(node, Lanes):
    yield node, turn
  elif not isinstance(node, Run):
    inner = node.turn if isinstance(node, Temporal) else None
    for child in node.children:
      yield from _lanes(child, turn if inner is None else inner)


def _check_lanes(lanes: Lanes, loop: Loop, costs: Prices) -> None:
  body = list(plans.runs(lanes.body))
  names = [run.stage for run in body]
  if sorted(names) != sorted(loop.stages):
    raise errors.InfeasiblePlanError(
      f"the body of loop {loop.name!r} runs {names}; each of"
      f" {list(loop.stages)} has to run there once"
    )
  for run in body:
    if run.share is not None:
      raise errors.InfeasiblePlanError(
        f"stage {run.stage!r} has the share {run.share} inside loop"
        f" {loop.name!r}, where lanes divide the items; leave it None"
      )
  if bad := [n for n in _bodies(lanes.body) if _is_cut(n)]:
    raise errors.InfeasiblePlanError(
      f"the body of loop {loop.name!r} has {bad[0]}; there lanes are what is"
      " in flight, so that turn and capacity have to be None"
    )
  items = costs.stages[names[0]].items
  if sum(lanes.lanes) != items:
    raise errors.InfeasiblePlanError(
      f"the lanes of loop {loop.name!r} add up to {sum(lanes.lanes)} items; its"
      f" stages have {items}"
    )
  for name in names:
    stage = costs.stages[name]
    for size in lanes.lanes[:-1]:
      stage.check_granule(size)
    if lanes.lanes[-1] > stage.largest_granule:
      stage.check_granule(lanes.lanes[-1])
  count = len(names) * loop.turns * len(lanes.lanes)
  if count > limits.MAX_ACTIVITIES:
    raise limits.too_many(count)


def _bodies(node: Node) -> Iterator[Node]:
  yield node
  if isinstance(node, Lanes):
    yield from _bodies(node.body)
  elif not isinstance(node, Run):
    for child in node.children:
      yield from _bodies(child)


def _is_cut(node: Node) -> bool:
  return (
    isinstance(node, Lanes)
    or (isinstance(node, Temporal) and node.turn is not None)
    or (isinstance(node, Spatial) and node.capacity is not None)
  )
