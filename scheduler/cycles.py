"""The exact period of a flat plan: its maximum cycle ratio, in integers.

A flat plan is an event graph: activities wait for each other along arcs, each
with a lag in iterations. Every circuit of total duration w and total lag l
needs at least w / l per iteration, and run as soon as possible the plan takes
the largest of these ratios (Baccelli, Cohen, Olsder and Quadrat,
"Synchronization and Linearity", 1992, theorems 2.29 and 3.23).

It is found from below. For a trial period, start times are relaxed until
nothing changes, which proves the period, or until the activities that push
each other form a circuit, whose ratio is the next, larger trial. Activities
are visited in an order in which only arcs with a lag point backwards, so that
a sweep settles all that an iteration settles by itself. All numbers are scaled
to integers by the denominator of the trial; nothing is rounded.
"""

from __future__ import annotations

import dataclasses
import fractions
import itertools
import math
import operator
from collections.abc import Sequence

from scheduler import errors, plans

_NEVER = -(1 << 200)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
  """The earliest 1-periodic schedule of a flat plan.

  Attributes:
    period_ns: nanoseconds from one iteration to the next.
    start_ns: when each activity of iteration 0 starts; the first at 0.
    cycle: indices of activities that wait for each other in turn and take the
      whole period; empty where the period is 0.
  """

  period_ns: fractions.Fraction
  start_ns: tuple[fractions.Fraction, ...]
  cycle: tuple[int, ...]


def schedule(
  plan: plans.FlatPlan, period_ns: fractions.Fraction | None = None
) -> Schedule:
  """Returns the earliest 1-periodic schedule of a plan.

  Args:
    plan: the plan.
    period_ns: from one iteration to the next; None: the shortest.

  Raises:
    InfeasiblePlanError: activities wait for each other within one iteration,
      or the period is shorter than the plan allows.
  """
  graph = _graph(plan)
  cycle = max(
    ([slot.activity for slot in order] for order in plan.orders),
    key=lambda order: sum(plan.activities[i].duration_ns for i in order),
    default=[],
  )
  load = sum(plan.activities[i].duration_ns for i in cycle)
  trial = fractions.Fraction(load) if period_ns is None else period_ns
  while True:
    starts, circuits = _relaxed(graph, _gains(graph, trial))
    if not circuits:
      break
    ratio, cycle = _slowest(graph, circuits)
    if period_ns is not None:
      raise errors.InfeasiblePlanError(
        f"a period of {period_ns} ns is too short:"
        f" {_in_words(plan, cycle)}, which takes {ratio} ns"
      )
    trial = ratio
  return Schedule(
    period_ns=trial,
    start_ns=tuple(
      fractions.Fraction(starts[p], trial.denominator) for p in graph.position
    ),
    cycle=tuple(cycle),
  )


def period_ns(plan: plans.FlatPlan) -> fractions.Fraction:
  """Returns the least time from one iteration to the next, exactly.

  Raises:
    InfeasiblePlanError: activities wait for each other within one iteration.
  """
  return schedule(plan).period_ns


def start_times(
  plan: plans.FlatPlan, period_ns: fractions.Fraction | None = None
) -> tuple[fractions.Fraction, ...]:
  """Returns when each activity of iteration 0 starts; see `schedule`."""
  return schedule(plan, period_ns).start_ns


def critical_cycle(plan: plans.FlatPlan) -> tuple[int, ...]:
  """Returns activities whose waiting for each other takes the whole period."""
  return schedule(plan).cycle


def last_ended(
  plan: plans.FlatPlan, orders: Sequence[Sequence[plans.Slot]]
) -> list[list[int]]:
  """Returns what must have ended when each activity starts, by each order.

  Arcs and orders imply it, whatever durations are.

  Args:
    plan: a plan that does not deadlock.
    orders: cyclic orders in which activities follow each other.

  Returns:
    For each order and activity the last slot of the order that has ended when
    iteration 0 of the activity starts, counted from the first slot of period
    0; a large negative number where nothing of the order is waited for.
  """
  graph = _graph(plan)
  arcs = (*plan.arcs, *plans.order_arcs(plan))
  found = []
  for order in orders:
    slots = {slot.activity: slot.shift * len(order) for slot in order}
    for p, slot in enumerate(order):
      slots[slot.activity] += p
    starts = [_NEVER] * graph.size
    for arc in arcs:
      if arc.after == "end" and arc.source in slots:
        t = graph.position[arc.target]
        ended = slots[arc.source] - arc.lag * len(order)
        starts[t] = max(starts[t], ended)
    ends, _ = _relaxed(graph, [-lag * len(order) for lag in graph.lag], starts)
    found.append([ends[p] for p in graph.position])
  return found


def cyclicity(plan: plans.FlatPlan) -> int:
  """Returns after how many iterations the plan, run at once, repeats itself.

  Run as soon as possible, every activity that a critical circuit reaches
  starts, after a transient, exactly c periods later c iterations later. c is
  the least common multiple, over the strongly connected components of the
  critical circuits, of the greatest common divisor of their circuits' lags
  (theorem 3.112 of the book above).

  Raises:
    InfeasiblePlanError: activities wait for each other within one iteration.
  """
  graph = _graph(plan)
  found = schedule(plan)
  gains = _gains(graph, found.period_ns)
  scale = found.period_ns.denominator
  starts = [0] * graph.size
  for p, start in zip(graph.position, found.start_ns):
    starts[p] = int(start * scale)
  tight: list[list[int]] = [[] for _ in range(graph.size)]
  for k, gain in enumerate(gains):
    if starts[graph.source[k]] + gain == starts[graph.target[k]]:
      tight[graph.source[k]].append(k)
  component = _components(graph, tight)
  return math.lcm(*_gcds(graph, tight, component))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Graph:
  """Arcs between positions; without a lag they ascend, up to `shift`.

  Attributes:
    position: of each activity.
    activity: at each position.
    first: arcs first[p], ..., first[p + 1] - 1 leave position p.
    source: of each arc, a position.
    target: of each arc, a position.
    weight: nanoseconds from the source's start that the target waits.
    lag: iterations.
  """

  position: list[int]
  activity: list[int]
  first: list[int]
  source: list[int]
  target: list[int]
  weight: list[int]
  lag: list[int]

  @property
  def size(self) -> int:
    return len(self.position)


def _graph(plan: plans.FlatPlan) -> _Graph:
  """Returns the plan's graph in an order in which one sweep goes far."""
  size = len(plan.activities)
  durations = [a.duration_ns for a in plan.activities]
  arcs = sorted(
    (*plan.arcs, *plans.order_arcs(plan)), key=operator.attrgetter("source")
  )
  counts = [0] * (size + 1)
  for arc in arcs:
    counts[arc.source + 1] += 1
  graph = _Graph(
    position=list(range(size)),
    activity=list(range(size)),
    first=list(itertools.accumulate(counts)),
    source=[arc.source for arc in arcs],
    target=[arc.target for arc in arcs],
    weight=[durations[a.source] if a.after == "end" else 0 for a in arcs],
    lag=[arc.lag for arc in arcs],
  )
  # Lags may be negative where an order mixes iterations. Counting each
  # activity's iterations from another one, `shift`, leaves none negative.
  shift, circuits = _relaxed(graph, [-lag for lag in graph.lag])
  order: list[int] = []
  if not circuits:
    order, circuits = _topological(graph, shift)
  if circuits:
    blocked = [graph.source[k] for k in circuits[0]]
    raise errors.InfeasiblePlanError(
      f"the plan deadlocks: within one iteration {_in_words(plan, blocked)};"
      " change the order of a resource or the lag of an arc"
    )
  return _ordered(graph, order)


def _topological(
  graph: _Graph, shift: list[int]
) -> tuple[list[int], list[list[int]]]:
  """Returns positions, each after those it waits for at once.

  Second, the circuits of such waiting, each as its arcs, if there are any.
  """
  first, target = graph.first, graph.target
  is_at_once = [
    shift[t] + lag == shift[s]
    for s, t, lag in zip(graph.source, target, graph.lag)
  ]
  waits = [0] * graph.size
  for t in itertools.compress(target, is_at_once):
    waits[t] += 1
  order = [p for p in range(graph.size) if not waits[p]]
  for p in order:  # which grows
    for k in range(first[p], first[p + 1]):
      if is_at_once[k]:
        waits[target[k]] -= 1
        if not waits[target[k]]:
          order.append(target[k])
  parent = [-1] * graph.size
  for k, s in enumerate(graph.source):
    if waits[s] and is_at_once[k]:
      parent[target[k]] = k
  return order, _circuits(graph, parent)


def _ordered(graph: _Graph, order: list[int]) -> _Graph:
  """Returns the graph with its positions in another order."""
  position = [0] * graph.size
  for p, old in enumerate(order):
    position[old] = p
  sizes = [graph.first[old + 1] - graph.first[old] for old in order]
  arcs = [
    k for old in order for k in range(graph.first[old], graph.first[old + 1])
  ]
  return _Graph(
    position=position,
    activity=order,
    first=[0, *itertools.accumulate(sizes)],
    source=[position[graph.source[k]] for k in arcs],
    target=[position[graph.target[k]] for k in arcs],
    weight=[graph.weight[k] for k in arcs],
    lag=[graph.lag[k] for k in arcs],
  )


def _gains(graph: _Graph, period: fractions.Fraction) -> list[int]:
  """Returns how much later than its source each arc's target starts, scaled.

  The unit is a nanosecond divided by the period's denominator.
  """
  p, q = period.numerator, period.denominator
  return [q * w - p * lag for w, lag in zip(graph.weight, graph.lag)]


def _relaxed(
  graph: _Graph, gains: list[int], starts: Sequence[int] = ()
) -> tuple[list[int], list[list[int]]]:
  """Returns the earliest starts from `starts` on (0) that obey every arc.

  Second, circuits of positive gain, each as its arcs; the starts mean nothing
  if there are any.
  """
  first, target = graph.first, graph.target
  starts = list(starts) or [0] * graph.size
  parent = [-1] * graph.size
  is_dirty = bytearray(b"\1") * graph.size
  while (p := is_dirty.find(1)) >= 0:
    while p >= 0:
      is_dirty[p] = 0
      start = starts[p]
      for k in range(first[p], first[p + 1]):
        t = target[k]
        if start + gains[k] > starts[t]:
          starts[t] = start + gains[k]
          parent[t] = k
          is_dirty[t] = 1
      p = is_dirty.find(1, p + 1)
    # A walk that gains by returning to an activity shows as a circuit of
    # parents; arcs on it can only have gained since they were set.
    if circuits := _circuits(graph, parent):
      return starts, circuits
  return starts, []


def _circuits(graph: _Graph, parent: list[int]) -> list[list[int]]:
  """Returns the circuits of arcs when each position has at most one parent."""
  circuits = []
  seen_from = [-1] * graph.size
  for begin in range(graph.size):
    p = begin
    while seen_from[p] < 0 and parent[p] >= 0:
      seen_from[p] = begin
      p = graph.source[parent[p]]
    if seen_from[p] == begin and parent[p] >= 0:
      arcs = [parent[p]]
      while graph.source[arcs[-1]] != p:
        arcs.append(parent[graph.source[arcs[-1]]])
      circuits.append(arcs[::-1])
  return circuits


def _slowest(
  graph: _Graph, circuits: list[list[int]]
) -> tuple[fractions.Fraction, list[int]]:
  """Returns the largest ratio of the circuits, and its activities."""
  ratios = [
    fractions.Fraction(
      sum(graph.weight[k] for k in arcs), sum(graph.lag[k] for k in arcs)
    )
    for arcs in circuits
  ]
  worst = max(range(len(ratios)), key=ratios.__getitem__)
  cycle = [graph.activity[graph.source[k]] for k in circuits[worst]]
  return ratios[worst], cycle


def _in_words(plan: plans.FlatPlan, cycle: list[int]) -> str:
  """Returns who waits for whom around a cycle."""
  words = [str(plan.activities[i]) for i in cycle]
  if len(words) == 1:
    return f"{words[0]} waits for itself"
  if len(words) > 6:
    words[3:-2] = [f"... ({len(words) - 5} more)"]
  # An arc's target waits for its source: against the order of the circuit.
  return " waits for ".join([*words[::-1], words[-1]])


def _components(graph: _Graph, leaving: list[list[int]]) -> list[int]:
  """Returns for each position its strongly connected component's root.

  Tarjan's algorithm, without recursion: plans are longer than its limit.
  """
  index, low = [-1] * graph.size, [0] * graph.size
  root = [-1] * graph.size
  stack: list[int] = []
  count = 0
  for begin in range(graph.size):
    if index[begin] >= 0:
      continue
    path = [(begin, iter(leaving[begin]))]
    index[begin] = low[begin] = count
    count += 1
    stack.append(begin)
    while path:
      p, arcs = path[-1]
      for k in arcs:
        t = graph.target[k]
        if index[t] < 0:
          index[t] = low[t] = count
          count += 1
          stack.append(t)
          path.append((t, iter(leaving[t])))
          break
        if root[t] < 0:
          low[p] = min(low[p], index[t])
      else:
        path.pop()
        if path:
          low[path[-1][0]] = min(low[path[-1][0]], low[p])
        if low[p] == index[p]:
          while root[p] < 0:
            root[stack.pop()] = p
  return root


def _gcds(
  graph: _Graph, leaving: list[list[int]], component: list[int]
) -> list[int]:
  """Returns the gcd of circuits' lags in each component that has circuits.

  Along any walk from a component's root lags add up to the same distance,
  modulo that gcd.
  """
  found = []
  for root in sorted(set(component)):
    distance = {root: 0}
    pending, gcd, has_circuit = [root], 0, False
    while pending:
      p = pending.pop()
      for k in leaving[p]:
        t = graph.target[k]
        if component[t] != root:
          continue
        has_circuit = True
        if t not in distance:
          distance[t] = distance[p] + graph.lag[k]
          pending.append(t)
        gcd = math.gcd(gcd, distance[p] + graph.lag[k] - distance[t])
    if has_circuit:
      found.append(gcd)
  return found
