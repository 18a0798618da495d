"""Random workflows: series-parallel and layered graphs of 3 to 8 stages."""

from __future__ import annotations

import random

from scheduler import clusters, profiles, workflows
from scheduler.workloads import problems, variations

_ITEMS = 256
_MAX_STATE_BYTES = 40 << 30
_NOMINAL = variations.Variation()


def series_parallel(
  cluster: clusters.Cluster, *, variation: variations.Variation = _NOMINAL
) -> problems.Problem:
  """Returns a random series-parallel graph with one source and one sink."""
  rng = random.Random(f"series-parallel {variation.seed}")
  num_stages = rng.randint(3, 8)
  edges = series_parallel_edges(rng, num_stages)
  return _problem("series_parallel", cluster, rng, num_stages, edges)


def layered(
  cluster: clusters.Cluster, *, variation: variations.Variation = _NOMINAL
) -> problems.Problem:
  """Returns a random layered graph; layers hold one to three stages."""
  rng = random.Random(f"layered {variation.seed}")
  num_stages = rng.randint(3, 8)
  layers: list[list[int]] = []
  while (used := sum(map(len, layers))) < num_stages:
    size = min(rng.randint(1, 3), num_stages - used)
    layers.append(list(range(used, used + size)))
  edges = set()
  for above, below in zip(layers, layers[1:]):
    for target in below:
      sources = rng.sample(above, rng.randint(1, len(above)))
      edges |= {(source, target) for source in sources}
    for source in above:
      if not any((source, target) in edges for target in below):
        edges.add((source, rng.choice(below)))
  return _problem("layered", cluster, rng, num_stages, sorted(edges))


def series_parallel_edges(
  rng: random.Random, num_stages: int
) -> list[tuple[int, int]]:
  """Returns edges of a series-parallel graph of stages 0 to num_stages - 1.

  0 is its one source, num_stages - 1 its one sink. It grows from the single
  edge between them: a new stage is put onto an edge, or beside it.

  Args:
    rng: drawn from.
    num_stages: at least two.
  """
  edges, sink = [(0, num_stages - 1)], num_stages - 1
  for stage in range(1, sink):
    source, target = edges[rng.randrange(len(edges))]
    is_beside = rng.random() < 0.5 and (source, target) != (0, sink)
    if not is_beside:
      edges.remove((source, target))
    edges += [(source, stage), (stage, target)]
  return sorted(edges)


def _problem(
  name: str,
  cluster: clusters.Cluster,
  rng: random.Random,
  num_stages: int,
  edges: list[tuple[int, int]],
) -> problems.Problem:
  stages: list[workflows.Stage] = []
  entries: list[profiles.Entry] = []
  sinks = set(range(num_stages)) - {source for source, _ in edges}
  for i in range(num_stages):
    is_train = i in sinks and rng.random() < 0.5
    stage = workflows.Stage(
      name=f"s{i}",
      kind="train" if is_train else "infer",
      items=_ITEMS,
      quantum=4,
      granule_min=4,
      updates=rng.choice((1, 2, 4)) if is_train else 1,
      needs_all=rng.random() < 0.15,
      state_bytes=rng.randrange(1 << 30, _MAX_STATE_BYTES),
      item_bytes=rng.randrange(1 << 16, 1 << 24),
    )
    law_fn = _compute_law if rng.random() < 0.5 else _measured_law
    law = law_fn(rng)
    stages.append(stage)
    entries += [
      profiles.Entry(stage=stage.name, device_class=device.name, law=law)
      for device in cluster.classes
    ]
  workflow = workflows.Workflow(
    name=name,
    stages=tuple(stages),
    edges=tuple(
      workflows.Edge(
        source=f"s{a}", target=f"s{b}", item_bytes=rng.randrange(1 << 22)
      )
      for a, b in edges
    ),
    syncs=tuple(
      workflows.WeightSync(
        source=stage.name, target="s0", num_bytes=stages[0].state_bytes
      )
      for stage in stages
      if stage.kind == "train"
    ),
  )
  return problems.problem(workflow, entries, cluster)


def _compute_law(rng: random.Random) -> profiles.Law:
  return profiles.ComputeLaw(
    flop_per_item=float(round(10 ** rng.uniform(13, 15.5), -12)),
    efficiency=round(rng.uniform(0.2, 0.6), 2),
    overhead_s=round(rng.uniform(0.0, 0.2), 3),
    bytes_per_item=float(rng.randrange(1 << 20, 1 << 27)),
    max_active=8,
  )


def _measured_law(rng: random.Random) -> profiles.Law:
  """Returns a table: an overhead, work that divides, and imperfect scaling."""
  item_s = 10 ** rng.uniform(-2, 0)
  overhead_s, exponent = rng.uniform(0.0, 0.5), rng.uniform(0.6, 1.0)
  samples = tuple(
    profiles.Sample(
      granule=granule,
      devices=devices,
      seconds=round(overhead_s + granule * item_s / devices**exponent, 6),
      num_bytes=granule * (1 << 24) // devices,
    )
    for devices in (1, 8, 64, 512, 4096, 16_384)
    for granule in (4, 32, _ITEMS)
  )
  return profiles.Table(samples=samples)
