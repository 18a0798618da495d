"""What is left to do of a plan when others ran before it."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable

from scheduler.plans import Activity, FlatPlan
from scheduler.workflows import Workflow

Interval = tuple[int, int]

COMPUTES = ("compute", "apply")
_SWAPS = ("swap_in", "swap_out")


class Begun:
  """What has begun so far, of whichever plan, by node."""

  def __init__(self, workflow: Workflow):
    self._turns = {s: x.turns for x in workflow.loops for s in x.stages}
    self._parts: dict[Hashable, list[tuple[Interval, int]]] = {}

  def add(
    self,
    plan: FlatPlan,
    activity: Activity,
    iteration: int,
    items: Interval,
    node: int,
  ) -> None:
    """Notes that a node handles these of an activity's items."""
    key = self._key(plan, activity, iteration)
    self._parts.setdefault(key, []).append((items, node))

  def left(
    self, plan: FlatPlan, activity: Activity, iteration: int
  ) -> list[Interval]:
    """Returns which of an activity's items nothing has begun."""
    parts = self._parts.get(self._key(plan, activity, iteration), [])
    return _without(span(activity), (items for items, _ in parts))

  def nodes(
    self, plan: FlatPlan, activity: Activity, iteration: int
  ) -> tuple[int, ...]:
    """Returns the nodes that handle some of an activity's items."""
    start, stop = span(activity)
    parts = self._parts.get(self._key(plan, activity, iteration), [])
    return tuple(node for (a, b), node in parts if a < stop and b > start)

  def items(self, stage: str, iteration: int) -> tuple[Interval, ...]:
    """Returns the items of a stage that began, in a loop its last turn."""
    turn = self._turns.get(stage, 1) - 1
    parts = self._parts.get(("compute", stage, turn, iteration), [])
    merged: list[Interval] = []
    for start, stop in sorted(items for items, _ in parts):
      if merged and start <= merged[-1][1]:
        merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
      else:
        merged.append((start, stop))
    return tuple(merged)

  def _key(self, plan: FlatPlan, a: Activity, iteration: int) -> Hashable:
    turn = a.index if a.stage in self._turns else 0
    if a.kind == "compute":
      return a.kind, a.stage, turn, iteration
    if a.kind == "apply":
      return a.kind, a.stage, a.index, iteration
    # Moving the same bytes over the same resources.
    index = a.index if a.kind in _SWAPS else turn
    names = tuple(plan.resources[r].name for r in a.resources)
    return a.kind, a.stage, a.target, index, span(a), names, iteration


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Remainder:
  """What is left of a plan.

  Attributes:
    inherited: instances of which nothing is left, and the nodes that do, or
      did, what they would.
    items: of instances of which something is left, but not all.
    shares: of these, how much of the activity is left.
  """

  inherited: dict[int, tuple[int, ...]]
  items: dict[int, Interval]
  shares: dict[int, float]


def remainder(
  plan: FlatPlan, begun: Begun, workflow: Workflow, iterations: int
) -> Remainder:
  """Returns what is left of a plan.

  Computes and updates are left as far as their items are. Bytes are moved when
  something that is left needs them, and they were not moved on the same way:
  state for the computes between its swaps, weights for what waits for them,
  items where the target has not begun all that it makes of them.
  """
  found = Remainder(inherited={}, items={}, shares={})
  n = len(plan.activities)
  for i in range(iterations):
    for k, a in enumerate(plan.activities):
      if a.kind not in COMPUTES:
        continue
      start, stop = span(a)
      left = begun.left(plan, a, i)
      count = sum(y - x for x, y in left)
      if not count:
        found.inherited[i * n + k] = begun.nodes(plan, a, i)
      elif count < stop - start:
        found.items[i * n + k] = (left[0][0], left[-1][1])
        found.shares[i * n + k] = count / (stop - start)
  users = _users(plan, workflow)
  for i in range(iterations):
    for k, a in enumerate(plan.activities):
      if a.kind in COMPUTES:
        continue
      is_used = any(i * n + user not in found.inherited for user in users[k])
      if not is_used or not begun.left(plan, a, i):
        found.inherited[i * n + k] = begun.nodes(plan, a, i)
  return found


def _users(plan: FlatPlan, workflow: Workflow) -> list[list[int]]:
  """Returns for whose sake each activity moves bytes."""
  users: list[list[int]] = [[] for _ in plan.activities]
  for arc in plan.arcs:
    if plan.activities[arc.source].kind == "weight_sync":
      users[arc.source].append(arc.target)
  for order in plan.orders:
    entered: dict[str, list[int]] = {}
    for slot in order:
      a = plan.activities[slot.activity]
      if a.kind == "swap_in":
        # All swaps of one visit share the list of its computes.
        entered[a.stage] = users[slot.activity]
      elif a.kind == "swap_out":
        users[slot.activity] = entered.pop(a.stage, [])
      elif a.kind in COMPUTES and a.stage in entered:
        entered[a.stage].append(slot.activity)
  readers: dict[str, list[int]] = {}
  for k, a in enumerate(plan.activities):
    if a.kind == "compute":
      readers.setdefault(a.stage, []).append(k)
  for k, a in enumerate(plan.activities):
    if a.kind in ("transfer", "reshard"):
      users[k] += [
        reader
        for reader in readers.get(a.target, [])
        if _reads(plan.activities[reader], a, workflow)
      ]
  return users


def _reads(reader: Activity, move: Activity, workflow: Workflow) -> bool:
  """Returns whether an activity reads items that are moved."""
  source, target = workflow.stage(move.stage), workflow.stage(move.target)
  loop = workflow.loop_of(source.name)
  if loop is not None and target.name in loop.stages:
    if reader.index - move.index not in (0, 1):
      return False
  # Item j of the target reads the same fraction of the source's items.
  starts = reader.items[0] * source.items < move.items[1] * target.items
  stops = reader.items[1] * source.items > move.items[0] * target.items
  needs_all = target.needs_all or any(
    (e.source, e.target, e.reads) == (source.name, target.name, "all")
    for e in workflow.edges
  )
  return needs_all or (starts and stops)


def span(activity: Activity) -> Interval:
  """Returns an activity's items; what handles none counts as one."""
  return activity.items if any(activity.items) else (0, 1)


def _without(whole: Interval, parts: Iterable[Interval]) -> list[Interval]:
  start, stop = whole
  left = []
  for a, b in sorted(parts):
    if start < min(a, stop):
      left.append((start, min(a, stop)))
    start = max(start, b)
  if start < stop:
    left.append((start, stop))
  return left
