"""Profiles, measured: how long each stage takes on this machine.

Few points are measured first: all items of a stage and a quarter of them, on
one device, on all, then on powers of two between. Then what a plan made from
them uses and was not measured, as long as there is time. A sample is what an
executor takes for a granule (`timings`), and what handing a task out takes,
which a profile has no other place for.

Beside the stages a profile has three entries that only `predictions` reads:
loops as one program by their names, and `HAND_OFF` and `BETWEEN`.
"""

from __future__ import annotations

import dataclasses
import pathlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rlinf_jax import flow
from rlinf_jax.runtime import (
  executables,
  executor,
  fingerprints,
  graphs,
  machines,
  programs,
  tasks,
  timings,
  tracing,
  transport,
)
from scheduler import clusters, documents, plans, profiles
from scheduler.devices import Devices

# Seconds between the end of a task and the start of the next one.
HAND_OFF = "(hand-off)"
# Seconds in which an iteration is read out and the next one begun.
BETWEEN = "(between iterations)"
FIRST_SHARE = 4  # a granule of this share of a stage's items is measured first
MAX_ROUNDS = 3  # of planning and of measuring what the plan uses
LINK_BYTES = 1 << 24
NUM_EMPTY = 64  # tasks, from which the cost of handing out is taken


@dataclasses.dataclass(frozen=True, kw_only=True, order=True)
class Point:
  """One thing to be timed.

  Attributes:
    stage: of the workflow.
    granule: items at once.
    devices: how many.
  """

  stage: str
  granule: int
  devices: int


def measure(
  graph: graphs.Graph,
  machine: machines.Machine,
  args: Sequence[Any],
  *,
  compiled: executables.Executables,
  plan_fn: Callable[[profiles.Profile], plans.FlatPlan] | None = None,
  budget_s: float = 20.0,
  deadline_s: float = executor.DEFAULT_DEADLINE_S,
  notify: Callable[[str, int, int], None] | None = None,
) -> profiles.Profile:
  """Returns the measured profile of a macro flow.

  Args:
    graph: the macro flow.
    machine: its devices.
    args: leaves of the arguments of one real iteration.
    compiled: where what is compiled on the way is kept.
    plan_fn: plans from a profile; what its plan uses is measured too.
    budget_s: counted from when one iteration has been compiled and run; once
      it is spent, only points without which a stage could not be planned at
      all are still measured.
    deadline_s: how long a call of a stage may take.
    notify: called with (stage, points done, points known of).

  Raises:
    StageError: a stage failed; its cause is what it raised.
    DeadlineError: a stage did not return.
  """
  key = fingerprints.of(graph, machine)
  bench = timings.Bench(graph, machine, args, compiled, deadline_s=deadline_s)
  stop_s = time.monotonic() + budget_s
  found = _Found(graph, machine, bench, compiled, hand_off_s(machine))
  todo, done = list(points(graph, machine)), 0
  for _ in range(1 + MAX_ROUNDS):
    for point in todo:
      if notify is not None:
        notify(point.stage, done, done + len(todo) - todo.index(point))
      if time.monotonic() < stop_s or not found.has(point.stage):
        found.add(point)
        done += 1
    if plan_fn is None or time.monotonic() >= stop_s:
      break
    used = _used(plan_fn(found.profile(key)), graph)
    todo = [point for point in sorted(used) if not found.covers(point)]
    if not todo:
      break
  return found.profile(key)


def read(
  path: str | pathlib.Path | None,
  graph: graphs.Graph,
  machine: machines.Machine,
) -> profiles.Profile | None:
  """Returns the profile in a file, if it is one of this flow and machine.

  Args:
    path: of what `measure` returned, or of nothing yet.
    graph: the macro flow.
    machine: its devices.

  Raises:
    DocumentError: the file is no profile.
  """
  if path is None or not pathlib.Path(path).exists():
    return None
  found = documents.read(profiles.Profile, path)
  key = fingerprints.of(graph, machine)
  return found if found.provenance.endswith(key) else None


def points(graph: graphs.Graph, machine: machines.Machine) -> Iterator[Point]:
  """Yields what to time first.

  All items on one device; then a quarter of them, and all devices; then numbers
  of devices between, without which no planner sees where a stage stops gaining.
  """
  corners, rest = [], []
  for stage in graph.workflow.stages:
    counts = [1]
    if not _is_barrier(graph, stage.name):
      counts = _counts(_available(graph, machine, stage.name))
    sizes = [stage.items]
    if graph.place[stage.name] == "process":
      counts = [1]
    elif machine.cluster.num_devices == 1:
      pass  # there is nothing to be divided for
    elif (part := _part(stage.items, stage.granule_min)) < stage.items:
      sizes.append(part)
    for granule in sizes:
      for devices in counts:
        point = Point(stage=stage.name, granule=granule, devices=devices)
        if granule == stage.items and devices == 1:
          yield point
        elif devices in (counts[0], counts[-1]):
          corners.append(point)
        else:
          rest.append(point)
  yield from sorted(corners, key=lambda p: (p.devices, -p.granule))
  yield from sorted(rest, key=lambda p: (p.devices, -p.granule))


def hand_off_s(machine: machines.Machine) -> float:
  """Returns the median seconds between one task's end and the next one's start.

  Of tasks that compute next to nothing, on the first two devices in turn.
  """

  @flow.stage(items={0: 0})
  def empty(x_b: Any) -> Any:
    return x_b + 1

  x = jnp.zeros(NUM_EMPTY, jnp.int32)
  traced = tracing.trace(lambda x: empty(x), x)
  graph = graphs.describe(traced, name="empty")
  count = min(2, len(machine.devices))
  flat = plans.FlatPlan(
    resources=tuple(
      plans.Resource(name=str(i), devices=Devices.of([i])) for i in range(count)
    ),
    activities=tuple(
      plans.Activity(
        kind="compute",
        stage="empty",
        resources=(i % count,),
        duration_ns=0,
        items=(i, i + 1),
        index=i,
      )
      for i in range(NUM_EMPTY)
    ),
    arcs=tuple(plans.Arc(source=i, target=i + 1) for i in range(NUM_EMPTY - 1)),
    orders=tuple(
      tuple(plans.Slot(activity=i) for i in range(first, NUM_EMPTY, count))
      for first in range(count)
    ),
  )
  runner = executor.Executor(
    graph,
    tasks.make(flat, graph),
    machine,
    compiled=executables.Executables(traced.program),
  )
  for _ in runner.iterate([x], iter([()] * 3)):
    pass
  events = [e for e in runner.timeline.events if e.iteration]
  gaps = [
    b.start_ns - a.stop_ns
    for a, b in zip(events, events[1:])
    if a.iteration == b.iteration
  ]
  return max(0.0, float(np.median(gaps)) * 1e-9)


def links(machine: machines.Machine) -> clusters.Links:
  """Returns the measured links between host and devices, and between devices.

  To two digits, so that plans do not change with the noise. On several hosts
  the network is not measured: give `inter_node_bytes_per_s`.
  """
  first = machine.devices[0]
  host = np.ones(LINK_BYTES // 4, np.float32)
  on_first = jax.sharding.SingleDeviceSharding(first)
  to_device_s = _seconds(lambda: transport.send(host, on_first))
  given = jax.block_until_ready(transport.send(host, on_first))
  pinned = on_first.with_memory_kind("pinned_host")
  to_host_s = _seconds(lambda: transport.send(given, pinned))
  between_s, latency_s = to_device_s, 0.0
  if len(machine.devices) > 1:
    other = jax.sharding.SingleDeviceSharding(machine.devices[1])
    between_s = _seconds(lambda: transport.send(given, other))
    word = transport.send(host[:1], on_first)
    latency_s = _seconds(lambda: transport.send(word, other))
  per_device = LINK_BYTES / max(to_device_s, to_host_s)
  return clusters.Links(
    to_device_bytes_per_s=_to_two_digits(LINK_BYTES / to_device_s),
    to_host_bytes_per_s=_to_two_digits(LINK_BYTES / to_host_s),
    host_bytes_per_s=_to_two_digits(per_device),
    host_cap_bytes_per_s=_to_two_digits(per_device * len(machine.devices)),
    intra_node_bytes_per_s=_to_two_digits(LINK_BYTES / between_s),
    latency_s=_to_two_digits(latency_s),
  )


class _Found:
  """Samples found so far."""

  def __init__(
    self,
    graph: graphs.Graph,
    machine: machines.Machine,
    bench: timings.Bench,
    compiled: executables.Executables,
    hand_off: float,
  ) -> None:
    self._graph, self._machine, self._bench = graph, machine, bench
    self._compiled = compiled
    self._hand_off_s = hand_off
    self._between_s = bench.between_iterations()
    self._timings: dict[Point, timings.Timing] = {}
    self._fused: dict[tuple[str, int], timings.Timing] = {}

  def has(self, stage: str) -> bool:
    """Returns whether a stage can be planned."""
    return any(point.stage == stage for point in self._timings)

  def covers(self, point: Point) -> bool:
    """Returns whether what a point takes is known.

    On a mesh it is between two points that were measured. On host slots it has
    to be measured itself: they divide a granule into whole items, so that its
    time grows in steps.
    """
    sizes = [
      known.granule
      for known in self._timings
      if (known.stage, known.devices) == (point.stage, point.devices)
    ]
    if self._graph.place[point.stage] == "process":
      return True
    if self._graph.place[point.stage] == "host":
      return point.granule in sizes
    return bool(sizes) and min(sizes) <= point.granule <= max(sizes)

  def add(self, point: Point) -> None:
    """Measures a point; of a loop all of its stages together."""
    if point in self._timings:
      return
    node = self._graph.node_of(point.stage)
    if not isinstance(node, programs.LoopNode) or node.name == point.stage:
      self._timings[point] = self._bench.stage(
        point.stage, point.granule, point.devices
      )
      return
    loop = node.name, point.devices
    if self._is_fusible(node) and loop not in self._fused:
      self._fused[loop] = self._bench.fused(node, point.devices)
    of_lane = self._bench.lane(node, point.granule, point.devices)
    for stage, timing in of_lane.items():
      devices = min(
        point.devices, _available(self._graph, self._machine, stage)
      )
      self._timings[
        Point(stage=stage, granule=point.granule, devices=devices)
      ] = timing

  def profile(self, key: str) -> profiles.Profile:
    """Returns what was found, with a fingerprint."""
    entries = []
    for stage in self._graph.workflow.stages:
      samples = [
        _sample(timing, point.granule, point.devices, self._hand_off_s)
        for point, timing in sorted(self._timings.items(), key=lambda x: x[0])
        if point.stage == stage.name
      ]
      entries.append(self._entry(stage.name, samples))
    for name in dict.fromkeys(name for name, _ in self._fused):
      samples = [
        _sample(timing, 1, devices, self._hand_off_s)
        for (loop, devices), timing in sorted(
          self._fused.items(), key=lambda x: x[0]
        )
        if loop == name
      ]
      entries.append(self._entry(name, samples))
    for name, seconds in (
      (HAND_OFF, self._hand_off_s),
      (BETWEEN, self._between_s),
    ):
      sample = profiles.Sample(granule=1, devices=1, seconds=seconds)
      entries.append(self._entry(name, [sample]))
    return profiles.Profile(
      entries=tuple(entries),
      provenance=f"measured by rlinf_jax;{self._remarks()} {key}",
      links=self._machine.cluster.links,
    )

  def _entry(
    self, name: str, samples: Sequence[profiles.Sample]
  ) -> profiles.Entry:
    is_mesh = self._graph.place.get(name, "mesh") == "mesh"
    made = [c.seconds for c in self._compiled.compilations if c.stage == name]
    return profiles.Entry(
      stage=name,
      device_class=self._machine.mesh_class if is_mesh else machines.HOST,
      law=profiles.Table(samples=tuple(samples), extrapolate=True),
      compile_s=round(sum(made), 3),
    )

  def _is_fusible(self, node: programs.LoopNode) -> bool:
    return all(
      self._graph.place[inner.name] == "mesh" for inner in node.body.nodes
    )

  def _remarks(self) -> str:
    compile_s = sum(c.seconds for c in self._compiled.compilations)
    unsteady = [
      f"{p.stage} ({p.granule} on {p.devices})"
      for p, t in sorted(self._timings.items(), key=lambda x: x[0])
      if t.num_outliers
    ]
    found = f" compiling took {compile_s:.1f} s;"
    if unsteady:
      found += f" outliers in {', '.join(unsteady)};"
    return found


def _sample(
  timing: timings.Timing, granule: int, devices: int, hand_off: float
) -> profiles.Sample:
  return profiles.Sample(
    granule=granule,
    devices=devices,
    seconds=timing.seconds + hand_off,
    num_bytes=timing.num_bytes,
    cores=round(timing.cores, 3),
  )


def _used(flat: plans.FlatPlan, graph: graphs.Graph) -> set[Point]:
  """Returns the points that a plan's predicted time depends on."""
  used = set()
  for activity in flat.activities:
    if activity.kind != "compute" or activity.stage not in graph.place:
      continue
    devices = sum(len(flat.resources[r].devices) for r in activity.resources)
    granule = activity.items[1] - activity.items[0]
    used.add(Point(stage=activity.stage, granule=granule, devices=devices))
  return used


def _available(
  graph: graphs.Graph, machine: machines.Machine, stage: str
) -> int:
  available = len(machine.devices)
  if graph.place[stage] != "mesh":
    available = machine.cluster.num_devices - available
  return available


def _counts(available: int) -> list[int]:
  """Returns the powers of two up to a number, and the number."""
  powers = [1 << i for i in range(available.bit_length())]
  return powers if powers[-1] == available else [*powers, available]


def _is_barrier(graph: graphs.Graph, stage: str) -> bool:
  node = graph.node_of(stage)
  return isinstance(node, programs.StageNode) and node.is_barrier


def _part(items: int, smallest: int) -> int:
  """Returns about a quarter of the items, in whole smallest granules."""
  for granule in range(items // FIRST_SHARE, smallest, -1):
    if items % granule == 0 and granule % smallest == 0:
      return granule
  return min(items, smallest)


def _to_two_digits(x: float) -> float:
  return float(f"{x:.1e}")


def _seconds(run: Callable[[], Any]) -> float:
  """Returns the median seconds of a run, after one that compiles."""
  seconds = []
  for _ in range(1 + timings.MIN_REPEATS):
    start = time.perf_counter()
    jax.block_until_ready(run())
    seconds.append(time.perf_counter() - start)
  return float(np.median(seconds[1:]))
