"""The frozen suite on which planners are measured against proven optima.

A full factorial, one instance for each choice: 4, 5 or 6 stages; 3 or 4 groups;
8, 16 or 32 granules; a chain or parallel branches; memory that holds all states
or not; equal or unequal groups. None is left out, whatever becomes of it.

The numbers are drawn, not measured: an iteration is 5 to 80 s of work of each
stage on one device, whose speed grows as the number of devices to a power of
0.6 to 0.95; each granule adds a few milliseconds. States are a few GB, or 20 to
64 GB on devices of 80 GB; with tensor parallelism 2 a stage needs half of that
and takes 3 to 20 % longer. Times are whole milliseconds.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
import typing
from collections.abc import Iterator, Sequence
from typing import Literal

from scheduler import clusters
from scheduler.clusters import Cluster, DeviceClass, Links
from scheduler.devices import Devices
from scheduler.profiles import Config, Entry, Profile, Sample, Table
from scheduler.workflows import Edge, Kind, Stage, Workflow

Draw = Literal["development", "test"]
Shape = Literal["chain", "branches"]
Memory = Literal["loose", "tight"]
Groups = Literal["equal", "unequal"]

SEEDS: dict[Draw, int] = {"development": 2026_11, "test": 2026_12}
GB = 10**9
DEVICE = DeviceClass(name="device", memory_bytes=80 * GB)
LINKS = Links(host_bytes_per_s=25e9, host_cap_bytes_per_s=200e9)
_TP1, _TP2 = Config(), Config(tp=2)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Instance:
  """A case of class S, and its place in the factorial."""

  name: str
  num_stages: int
  num_groups: int
  num_granules: int
  shape: Shape
  memory: Memory
  groups: Groups
  workflow: Workflow
  profile: Profile
  cluster: Cluster


def draw(name: Draw) -> tuple[Instance, ...]:
  """Returns all 144 instances of a draw, in a fixed order.

  Args:
    name: "development" to tune on, or "test" to report on.

  Raises:
    ValueError: there is no such draw.
  """
  if name not in SEEDS:
    raise ValueError(f"no draw {name!r}; there are {sorted(SEEDS)}")
  counts = itertools.product((4, 5, 6), (3, 4), (8, 16, 32))
  return tuple(
    _instance(name, *numbers, shape, memory, groups)
    for numbers in counts
    for shape in typing.get_args(Shape)
    for memory in typing.get_args(Memory)
    for groups in typing.get_args(Groups)
  )


def _instance(
  draw_name: Draw,
  num_stages: int,
  num_groups: int,
  num_granules: int,
  shape: Shape,
  memory: Memory,
  groups: Groups,
) -> Instance:
  name = (
    f"v{num_stages}-g{num_groups}-m{num_granules}-{shape}-{memory}-{groups}"
  )
  rng = random.Random(f"{SEEDS[draw_name]} {name}")
  sizes = _sizes(num_groups, groups, rng)
  names = [f"s{i}" for i in range(num_stages)]
  edges = (
    list(itertools.pairwise(names))
    if shape == "chain"
    else _branches(names, rng)
  )
  stages: list[Stage] = []
  entries: list[Entry] = []
  for i, stage in enumerate(names):
    kind: Kind = "infer"
    if i in (0, num_stages - 1):
      kind = "train" if i else "simulate"
    state = rng.randint(20, 64) if memory == "tight" else rng.randint(2, 10)
    stages.append(
      Stage(
        name=stage,
        kind=kind,
        items=num_granules,
        granule_max=1,
        state_bytes=state * GB,
      )
    )
    entries += _entries(stage, num_granules, sizes, rng)
  return Instance(
    name=name,
    num_stages=num_stages,
    num_groups=num_groups,
    num_granules=num_granules,
    shape=shape,
    memory=memory,
    groups=groups,
    workflow=Workflow(
      name=name,
      stages=tuple(stages),
      edges=tuple(Edge(source=s, target=t) for s, t in edges),
    ),
    profile=Profile(
      entries=tuple(entries), provenance=f"drawn, {draw_name} draw"
    ),
    cluster=cluster(sizes),
  )


def cluster(sizes: Sequence[int]) -> Cluster:
  """Returns a cluster of the suite's devices, in groups of these sizes."""
  whole = clusters.homogeneous(
    DEVICE, sum(sizes), host_bytes=1 << 43, links=LINKS
  )
  stops = list(itertools.accumulate(sizes))
  return dataclasses.replace(
    whole,
    groups=tuple(
      Devices.span(stop - size, stop) for size, stop in zip(sizes, stops)
    ),
  )


def _sizes(
  num_groups: int, groups: Groups, rng: random.Random
) -> tuple[int, ...]:
  if groups == "equal":
    return (rng.choice((2, 4, 8)),) * num_groups
  while True:
    sizes = tuple(sorted(rng.choice((2, 4, 8)) for _ in range(num_groups)))
    if len(set(sizes)) > 1:
      return sizes


def _entries(
  stage: str, num_granules: int, sizes: tuple[int, ...], rng: random.Random
) -> Iterator[Entry]:
  """Yields the profile of a stage on every union of groups."""
  work_s = math.exp(rng.uniform(math.log(5), math.log(80)))
  power, penalty = rng.uniform(0.6, 0.95), rng.uniform(1.03, 1.2)
  overhead_s, transient = rng.uniform(0.001, 0.01), rng.randint(1, 6) * GB
  counts = sorted(
    {
      sum(chosen)
      for k in range(1, len(sizes) + 1)
      for chosen in itertools.combinations(sizes, k)
    }
  )
  for config, factor in ((_TP1, 1.0), (_TP2, penalty)):
    samples = []
    for n in counts:
      seconds = overhead_s + factor * work_s / num_granules * n**-power
      samples.append(
        Sample(
          granule=1,
          devices=n,
          seconds=math.ceil(seconds * 1000) / 1000,
          num_bytes=transient // config.tp,
        )
      )
    yield Entry(
      stage=stage,
      device_class=DEVICE.name,
      config=config,
      law=Table(samples=tuple(samples)),
    )


def _branches(
  names: Sequence[str], rng: random.Random
) -> list[tuple[str, str]]:
  """Returns a series-parallel graph with parallel branches somewhere."""
  first, *inner, last = names
  while True:
    starts, ends, edges = _compose(inner, rng)
    if len(edges) < len(inner) - 1:
      break
  edges += [(first, s) for s in starts] + [(e, last) for e in ends]
  return sorted(edges)


def _compose(
  names: Sequence[str], rng: random.Random
) -> tuple[list[str], list[str], list[tuple[str, str]]]:
  """Returns first stages, last stages and edges of a random composition.

  Two parallel parts are followed by one stage at most, or by the sink, so that
  edges never run from many to many and the graph stays series-parallel.
  """
  if len(names) == 1:
    return [names[0]], [names[0]], []
  cut = rng.randint(1, len(names) - 1)
  starts, ends, edges = _compose(names[:cut], rng)
  starts2, ends2, edges2 = _compose(names[cut:], rng)
  if rng.random() < 0.5 or (len(ends) > 1 and len(starts2) > 1):
    return starts + starts2, ends + ends2, edges + edges2
  joins = [(e, s) for e in ends for s in starts2]
  return starts, ends2, edges + edges2 + joins
