"""A clock: nodes that wait for each other, some of which share links."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence

from scheduler.simulation import fairness
from scheduler.simulation.stretches import NEVER_NS

_MAX_REMEMBERED = 1 << 14


class Clock:
  """Runs nodes, each as soon as all that it waits for has happened.

  A node takes its nanoseconds. Where it is a flow that is how long it takes
  when nothing else moves; it takes longer when the links that it crosses are
  shared, max-min fairly.

  Attributes:
    now_ns: the instant.
    flows: kinds of flows; more may be appended.
    lengths_ns: of each node, read when it starts.
    starts_ns: of each node; NEVER_NS until it starts.
    stops_ns: of each node; NEVER_NS until it stops.
  """

  def __init__(self) -> None:
    self.now_ns = 0
    self.lengths_ns: list[int] = []
    self.starts_ns: list[int] = []
    self.stops_ns: list[int] = []
    self.flows: list[fairness.Flow] = []
    self._flow_of: list[int | None] = []
    self._waits: list[int] = []
    self._after_stop: list[list[int]] = []
    self._after_start: list[list[int]] = []
    self._new: list[int] = []  # nodes that may not wait for anything
    self._running: list[tuple[int, int, int]] = []  # (stop, number, node)
    self._num_started = 0
    self._has_stopped = False  # a flow, since links were shared
    self._moving: dict[int, _Motion] = {}  # by node
    self._speeds: dict[tuple[int, ...], dict[int, float]] = {}

  def add(self, length_ns: int, flow: int | None = None) -> int:
    """Returns a new node, which starts when nothing is left that it waits for.

    Args:
      length_ns: from its start to its stop, if nothing else moves.
      flow: index of the flow that it is, if it is one.
    """
    node = len(self._waits)
    self.starts_ns.append(NEVER_NS)
    self.stops_ns.append(NEVER_NS)
    self.lengths_ns.append(length_ns)
    self._flow_of.append(flow)
    self._waits.append(0)
    self._after_stop.append([])
    self._after_start.append([])
    self._new.append(node)
    return node

  def wait(self, node: int, source: int, after: str = "end") -> None:
    """Makes a node that has not started wait for another's end or start."""
    happened = self.stops_ns if after == "end" else self.starts_ns
    if happened[source] == NEVER_NS:
      following = self._after_stop if after == "end" else self._after_start
      following[source].append(node)
      self._waits[node] += 1

  def cancel(self, node: int) -> None:
    """Makes a node that has not started never start."""
    self._waits[node] = NEVER_NS

  def run(
    self,
    observe_fn: Callable[[Sequence[int]], None] | None = None,
    alarms_ns: Sequence[int] = (),
  ) -> None:
    """Runs until nothing can happen any more.

    Args:
      observe_fn: called at each instant at which nodes stop, with these nodes,
        and at each alarm, before anything starts. It may add and cancel nodes.
      alarms_ns: instants, ascending.
    """
    alarms = list(reversed(alarms_ns))
    if observe_fn is not None and alarms and alarms[-1] <= self.now_ns:
      alarms.pop()
      observe_fn([])
    while True:
      self._start()
      at = self._running[0][0] if self._running else NEVER_NS
      for motion in self._moving.values():
        at = min(at, motion.stop_ns)
      is_alarm = bool(alarms) and alarms[-1] <= at
      if is_alarm:
        at = alarms.pop()
      elif at == NEVER_NS:
        return
      self.now_ns = at
      stopped = self._stop()
      if observe_fn is not None and (stopped or is_alarm):
        observe_fn(stopped)

  def _start(self) -> None:
    """Starts what waits for nothing, and shares the links anew."""
    ready, self._new = self._new, []
    has_changed = False
    for node in ready:  # grows while it is read
      if self._waits[node] or self.starts_ns[node] != NEVER_NS:
        continue
      self.starts_ns[node] = self.now_ns
      length_ns, flow = self.lengths_ns[node], self._flow_of[node]
      if flow is None:
        self._num_started += 1
        entry = (self.now_ns + length_ns, self._num_started, node)
        heapq.heappush(self._running, entry)
      else:
        self._moving[node] = _Motion(flow, length_ns, self.now_ns)
        has_changed = True
      for target in self._after_start[node]:
        self._waits[target] -= 1
        if not self._waits[target]:
          ready.append(target)
    if has_changed or self._has_stopped:
      self._share()

  def _stop(self) -> list[int]:
    """Stops what stops now, and returns it."""
    stopped = []
    while self._running and self._running[0][0] == self.now_ns:
      stopped.append(heapq.heappop(self._running)[2])
    arrived = [n for n, m in self._moving.items() if m.stop_ns == self.now_ns]
    for node in arrived:
      del self._moving[node]
    self._has_stopped = bool(arrived)
    stopped += arrived
    for node in stopped:
      self.stops_ns[node] = self.now_ns
      for target in self._after_stop[node]:
        self._waits[target] -= 1
        if not self._waits[target]:
          self._new.append(target)
    return stopped

  def _share(self) -> None:
    """Divides the links among what moves from now on."""
    now_ns, moving = self.now_ns, self._moving.values()
    key = tuple(sorted(motion.flow for motion in moving))
    speeds = self._speeds.get(key)
    if speeds is None:
      if len(self._speeds) >= _MAX_REMEMBERED:
        self._speeds.clear()
      flows = [self.flows[f] for f in key]
      rates = fairness.max_min_rates(flows)
      speeds = {f: r / flow.cap for f, r, flow in zip(key, rates, flows)}
      self._speeds[key] = speeds
    for motion in moving:
      speed = speeds[motion.flow]
      if speed != motion.speed:
        motion.left_ns -= motion.speed * (now_ns - motion.since_ns)
        motion.speed, motion.since_ns = speed, now_ns
        # Rounded up, but not for an error in the last place.
        left_ns = math.ceil(round(motion.left_ns / speed, 3))
        motion.stop_ns = now_ns + max(0, left_ns)


class _Motion:
  """A flow under way: what is left of it, in nanoseconds at full speed."""

  __slots__ = ("flow", "left_ns", "since_ns", "speed", "stop_ns")

  def __init__(self, flow: int, length_ns: int, now_ns: int):
    self.flow = flow
    self.left_ns: float = length_ns
    self.since_ns = now_ns
    self.speed = 0.0
    self.stop_ns = NEVER_NS
