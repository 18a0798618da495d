"""Event graphs: an activity starts at the latest instant that it waits for.

No choice is left to the simulator there, so it needs no clock: each instance
(an activity of one iteration) is visited once, when all that it waits for were.
Instance a of iteration i has the number i * len(plan.activities) + a; an arc
then is one difference of numbers, the same in every iteration.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from scheduler import errors, plans
from scheduler.simulation.stretches import NEVER_NS


def instants_ns(
  plan: plans.FlatPlan, durations_ns: Sequence[int], iterations: int
) -> tuple[list[int], list[int]]:
  """Returns when each instance starts and stops, as soon as it can.

  Args:
    plan: what waits for what.
    durations_ns: of each instance.
    iterations: what lies before the first or after the last does not exist,
      and nothing waits for it.

  Raises:
    InfeasiblePlanError: activities wait for each other in a circle, which is
      named.
  """
  n = len(plan.activities)
  total = n * iterations
  arcs = [
    arc
    for arc in (*plan.arcs, *plans.order_arcs(plan))
    if abs(arc.lag) < iterations
  ]
  ahead = max((arc.lag for arc in arcs), default=0)
  behind = max((-arc.lag for arc in arcs), default=0)
  # Instances beyond the last iteration, and (by negative numbers, at the end
  # of the list) those before the first: written to, but never ready.
  margin = (max(ahead, 0) + max(behind, 0)) * n

  waits = [0] * n
  of_ends: list[list[int]] = [[] for _ in range(n)]
  of_starts: list[list[int]] = [[] for _ in range(n)]
  for arc in arcs:
    waits[arc.target] += 1
    following = of_ends if arc.after == "end" else of_starts
    step = arc.target - arc.source + arc.lag * n
    following[arc.source].append(step)
  pending = waits * iterations + [NEVER_NS] * margin
  for arc in arcs:
    first, stop = (0, arc.lag) if arc.lag > 0 else (arc.lag, 0)
    for i in range(first, stop):
      pending[i % iterations * n + arc.target] -= 1
  ends, begins = of_ends * iterations, of_starts * iterations
  for source, target in _bridges(plan, iterations):
    ends[source] = [*ends[source], target - source]
    pending[target] += 1

  starts, stops = [0] * (total + margin), [0] * total
  ready = [k for k in range(total) if not pending[k]]
  append = ready.append
  for k in ready:  # grows while it is read
    start = starts[k]
    stop = stops[k] = start + durations_ns[k]
    for step in ends[k]:
      target = k + step
      if starts[target] < stop:
        starts[target] = stop
      left = pending[target] - 1
      pending[target] = left
      if not left:
        append(target)
    for step in begins[k]:
      target = k + step
      if starts[target] < start:
        starts[target] = start
      left = pending[target] - 1
      pending[target] = left
      if not left:
        append(target)
  if len(ready) < total:
    stuck = [k for k in range(total) if pending[k] > 0]
    raise errors.InfeasiblePlanError(_circle(plan, stuck, ends, begins))
  del starts[total:]
  return starts, stops


def turns(
  order: Sequence[plans.Slot], n: int, iterations: int
) -> Iterator[tuple[int, bool]]:
  """Yields the instances of a resource in their order.

  Args:
    order: the resource's slots.
    n: number of the plan's activities.
    iterations: how many there are.

  Yields:
    The instance, and whether the order's arcs say what it follows: where slots
    have different shifts, the one before it may stand for an iteration that
    does not exist.
  """
  shifts = {slot.shift for slot in order}
  periods = {p for shift in shifts for p in range(shift, shift + iterations)}
  for period in sorted(periods):
    for place, slot in enumerate(order):
      i = period - slot.shift
      if 0 <= i < iterations:
        before = period - int(place == 0) - order[place - 1].shift
        yield i * n + slot.activity, 0 <= before < iterations


def _bridges(
  plan: plans.FlatPlan, iterations: int
) -> Iterator[tuple[int, int]]:
  """Yields what follows what on a resource, where no arc says it."""
  for order in plan.orders:
    if len({slot.shift for slot in order}) < 2:
      continue
    last = -1
    for instance, is_known in turns(order, len(plan.activities), iterations):
      if last >= 0 and not is_known:
        yield last, instance
      last = instance


def _circle(
  plan: plans.FlatPlan,
  stuck: Sequence[int],
  ends: Sequence[Sequence[int]],
  begins: Sequence[Sequence[int]],
) -> str:
  """Returns a message that names instances which wait for each other."""
  n = len(plan.activities)
  waits_for: dict[int, int] = {}
  unmet = set(stuck)
  for k in stuck:
    for step in (*ends[k], *begins[k]):
      if k + step in unmet:
        waits_for[k + step] = k
  path = [stuck[0]]
  while path[-1] in waits_for and waits_for[path[-1]] not in path:
    path.append(waits_for[path[-1]])
  if path[-1] in waits_for:
    path = path[path.index(waits_for[path[-1]]) :]
  names = []
  for k in reversed(path):
    iteration, a = divmod(k, n)
    names.append(f"{plan.activities[a]} of iteration {iteration}")
  return (
    f"plan {plan.label!r} stops: {' -> '.join(names[:8])} wait for each other"
    " in a circle; change an order or a lag"
  )
