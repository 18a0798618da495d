"""Profiles, measured: how long each stage takes on this machine.

Stages are timed on the inputs that they really get: one iteration is run
eagerly, and what reaches each stage is kept. A sample is the median of several
completed runs after a first one that compiles.

Of a process stage the whole batch is timed, once: its calls share one
continuous batch, so that a granule's time is taken to be its share of that one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import pathlib
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from typing import Any

import jax
import numpy as np

from rlinf_jax.runtime import (
  executables,
  graphs,
  lanes,
  machines,
  tracing,
  transport,
)
from scheduler import clusters, documents, profiles

MIN_REPEATS = 3
MAX_REPEATS = 15
SAMPLE_S = 0.02  # of running, after which repeating stops
LINK_BYTES = 1 << 24


@dataclasses.dataclass(frozen=True, kw_only=True)
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
  budget_s: float = 60.0,
  path: str | pathlib.Path | None = None,
  notify: Callable[[str, int, int], None] | None = None,
) -> profiles.Profile:
  """Returns the measured profile of a macro flow.

  Args:
    graph: the macro flow.
    machine: its devices.
    args: leaves of the arguments of one real iteration.
    budget_s: once it is spent, only points without which a stage could not be
      planned at all are still measured.
    path: a file that is read where it holds a profile of the same stages,
      shapes, devices and versions, and written otherwise.
    notify: called with (stage, points done, points in all).
  """
  key = fingerprint(graph, machine)
  if path is not None and pathlib.Path(path).exists():
    known = documents.read(profiles.Profile, path)
    if known.provenance.endswith(key):
      return known
  inputs = record(graph, args)
  compiled = executables.Executables(graph.traced.program)
  found = list(points(graph, machine))
  samples: dict[str, list[profiles.Sample]] = {}
  start_s = time.monotonic()
  for i, point in enumerate(found):
    if notify is not None:
      notify(point.stage, i, len(found))
    have = samples.setdefault(point.stage, [])
    if have and time.monotonic() - start_s > budget_s:
      continue
    have.append(_sample(graph, machine, compiled, inputs, point))
  entries = tuple(
    profiles.Entry(
      stage=stage.name,
      device_class=_class_of(graph, machine, stage.name),
      law=profiles.Table(samples=tuple(samples[stage.name]), extrapolate=True),
    )
    for stage in graph.workflow.stages
  )
  profile = profiles.Profile(
    entries=entries, provenance=f"measured by rlinf_jax; {key}"
  )
  if path is not None:
    documents.write(profile, path)
  return profile


def fingerprint(graph: graphs.Graph, machine: machines.Machine) -> str:
  """Returns what a measured profile depends on, as one short word."""
  facts = [
    jax.__version__,
    [str(d.device_kind) for d in machine.devices],
    machine.cluster.num_devices,
    [
      (node.name, [str(program.avals[v]) for v in node.inputs])
      for program, node in tracing.stage_nodes(graph.traced.program)
    ],
    [(s.name, s.items, s.quantum) for s in graph.workflow.stages],
  ]
  text = json.dumps(facts, default=str)
  return hashlib.sha256(text.encode()).hexdigest()[:16]


def points(graph: graphs.Graph, machine: machines.Machine) -> Iterator[Point]:
  """Yields what to time: first all items on one device, then the rest."""
  rest = []
  for stage in graph.workflow.stages:
    is_host = graph.place[stage.name] != "mesh"
    available = len(machine.devices)
    if is_host:
      available = machine.cluster.num_devices - available
    counts = _counts(available) if stage.items > 1 or not is_host else [1]
    sizes = _sizes(stage.items, stage.granule_min)
    if graph.place[stage.name] == "process":
      sizes, counts = [stage.items], [1]
    for granule, devices in itertools.product(sizes, counts):
      point = Point(stage=stage.name, granule=granule, devices=devices)
      if granule == stage.items and devices == 1:
        yield point
      else:
        rest.append(point)
  # The corners of each table come before what lies between them.
  yield from sorted(rest, key=lambda p: (p.devices, -p.granule))


def record(graph: graphs.Graph, args: Sequence[Any]) -> dict[str, list[Any]]:
  """Returns the leaves that reach each stage in one iteration.

  Of a loop that can be divided, those of its first turn.
  """
  inputs: dict[str, list[Any]] = {}

  def stage_fn(node: tracing.StageNode, leaves: list[Any]) -> Any:
    inputs[node.name] = leaves
    return tracing.call_stage(node, leaves)

  def loop_fn(node: tracing.LoopNode, leaves: list[Any]) -> Any:
    inputs[node.name] = leaves
    first = node.num_consts + node.num_carry
    if node.name in graph.divisions:
      turn = [*leaves[:first], *(x[0] for x in leaves[first:])]
      tracing.evaluate(node.body, turn, stage_fn=stage_fn, loop_fn=loop_fn)
    run = jax.jit(lambda *leaves: tracing.call_loop(node, leaves))
    return run(*leaves)

  tracing.evaluate(
    graph.traced.program, args, stage_fn=stage_fn, loop_fn=loop_fn
  )
  return inputs


def links(machine: machines.Machine) -> clusters.Links:
  """Returns the measured bandwidths between host and devices, and between them.

  On several hosts the network is not measured: give `inter_node_bytes_per_s`.
  """
  first = machine.devices[0]
  host = np.ones(LINK_BYTES // 4, np.float32)
  on_first = jax.sharding.SingleDeviceSharding(first)
  to_device_s = _time(lambda: transport.send(host, on_first))
  given = jax.block_until_ready(transport.send(host, on_first))
  pinned = on_first.with_memory_kind("pinned_host")
  to_host_s = _time(lambda: transport.send(given, pinned))
  between = to_device_s
  if len(machine.devices) > 1:
    other = jax.sharding.SingleDeviceSharding(machine.devices[1])
    between = _time(lambda: transport.send(given, other))
  per_device = LINK_BYTES / max(to_device_s, to_host_s)
  return clusters.Links(
    host_bytes_per_s=per_device,
    host_cap_bytes_per_s=per_device * len(machine.devices),
    intra_node_bytes_per_s=LINK_BYTES / between,
  )


def _class_of(
  graph: graphs.Graph, machine: machines.Machine, stage: str
) -> str:
  return machine.mesh_class if graph.place[stage] == "mesh" else machines.HOST


def _counts(available: int) -> list[int]:
  counts = [1]
  while counts[-1] * 2 <= available:
    counts.append(counts[-1] * 2)
  return counts if counts[-1] == available else [*counts, available]


def _sizes(items: int, smallest: int) -> list[int]:
  sizes = [items]
  while sizes[-1] % 2 == 0 and (sizes[-1] // 2) % smallest == 0:
    sizes.append(sizes[-1] // 2)
    if len(sizes) == 5:
      break
  if sizes[-1] != smallest and smallest < sizes[-1]:
    sizes.append(smallest)
  return sizes


def _sample(
  graph: graphs.Graph,
  machine: machines.Machine,
  compiled: executables.Executables,
  inputs: dict[str, list[Any]],
  point: Point,
) -> profiles.Sample:
  run = _runner(graph, machine, compiled, inputs, point)
  start_s = time.perf_counter()
  if graph.place[point.stage] == "process":
    run()  # recording its inputs has run it before
    seconds = time.perf_counter() - start_s
  else:
    seconds = _time(run)
  return profiles.Sample(
    granule=point.granule, devices=point.devices, seconds=seconds
  )


def _runner(
  graph: graphs.Graph,
  machine: machines.Machine,
  compiled: executables.Executables,
  inputs: dict[str, list[Any]],
  point: Point,
) -> Callable[[], Any]:
  node = graph.node_of(point.stage)
  leaves = inputs[point.stage]
  if isinstance(node, tracing.LoopNode):
    if node.name == point.stage:
      place = executables.for_loop(
        executables.place_of(machine.devices[: point.devices]), node
      )
      placed = transport.send(leaves, place.replicated())
      loop = compiled.loop(node, place)
      return lambda: loop(*placed)
    inner = node.body.by_name[point.stage]
    assert isinstance(inner, tracing.StageNode)
    node = inner
  parts = [
    x if axis is None else lanes.part(x, axis, 0, point.granule)
    for x, axis in zip(leaves, node.axes)
  ]
  if graph.place[point.stage] != "mesh":
    return _host_runner(node, parts, point)
  place = executables.place_of(machine.devices[: point.devices])
  if not node.is_barrier:
    place = executables.for_items(place, point.granule, node.spec.quantum)
  placed = [
    transport.send(x, place.sharding(axis, point.granule))
    for x, axis in zip(parts, node.axes)
  ]
  stage = compiled.stage(node, place)
  return lambda: stage(*placed)


def _host_runner(
  node: tracing.StageNode, leaves: Sequence[Any], point: Point
) -> Callable[[], Any]:
  size = -(-point.granule // point.devices)
  on_host = [np.asarray(x) for x in leaves]
  shares = [
    [
      x if axis is None else x[(slice(None),) * axis + (slice(a, a + size),)]
      for x, axis in zip(on_host, node.axes)
    ]
    for a in range(0, point.granule, size)
  ]

  pool = futures.ThreadPoolExecutor(point.devices)

  def run() -> Any:
    list(pool.map(lambda share: node.call.on_host(*share), shares))
    return ()

  return run


def _time(run: Callable[[], Any]) -> float:
  """Returns the median seconds of a run, after one that compiles."""
  jax.block_until_ready(run())
  times: list[float] = []
  while len(times) < MIN_REPEATS or (
    sum(times) < SAMPLE_S and len(times) < MAX_REPEATS
  ):
    start = time.perf_counter()
    jax.block_until_ready(run())
    times.append(time.perf_counter() - start)
  return statistics.median(times)
