"""Cases of class S that are small enough to work out, or to try all plans."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

from scheduler.clusters import Cluster, DeviceClass, Links, homogeneous
from scheduler.devices import Devices
from scheduler.profiles import Config, Entry, Profile, Sample, Table
from scheduler.workflows import Edge, Stage, Workflow
from tests.scheduler import toys

Case = tuple[Workflow, Profile, Cluster]


def cluster(*sizes: int, memory: int = 1000) -> Cluster:
  """Returns groups of devices whose links move a byte per second."""
  whole = homogeneous(
    DeviceClass(name="d", memory_bytes=memory),
    sum(sizes),
    host_bytes=1_000_000,
    links=Links(host_bytes_per_s=1.0, host_cap_bytes_per_s=1000.0),
  )
  stops = [sum(sizes[: k + 1]) for k in range(len(sizes))]
  return dataclasses.replace(
    whole,
    groups=tuple(
      Devices.span(stop - size, stop) for size, stop in zip(sizes, stops)
    ),
  )


def stage(name: str, granules: int, state: int = 0, **fields) -> Stage:
  """Returns a stage of granules of one item."""
  return toys.stage(name, granules, granule_max=1, state_bytes=state, **fields)


def times(**seconds: Sequence[float]) -> Profile:
  """Returns seconds of a granule of each stage, on 1, 2, ... devices."""
  return Profile(
    entries=tuple(
      Entry(stage=name, device_class="d", law=table(*own))
      for name, own in seconds.items()
    )
  )


def table(*seconds: float, num_bytes: int = 0) -> Table:
  return Table(
    samples=tuple(
      Sample(granule=1, devices=n + 1, seconds=s, num_bytes=num_bytes)
      for n, s in enumerate(seconds)
    )
  )


def tiny(seed: int) -> Case:
  """Returns a case of 2 or 3 stages on 1 or 2 groups, often with swaps."""
  rng = random.Random(seed)
  num_stages, sizes = rng.choice([2, 3]), rng.choice([(1,), (1, 1), (1, 2)])
  granules = rng.choice([2, 3] if num_stages == 3 else [2, 3, 4])
  names = [f"s{i}" for i in range(num_stages)]
  state = rng.choice([0, 500])
  entries = []
  for name in names:
    seconds = rng.randint(1, 20)
    for config in (Config(), Config(tp=2))[: rng.choice([1, 1, 2])]:
      own = [
        max(1, round(seconds * config.tp**0.2 / n**0.7))
        for n in range(1, sum(sizes) + 1)
      ]
      law = table(*own, num_bytes=rng.choice([0, 100]))
      entries.append(
        Entry(stage=name, device_class="d", config=config, law=law)
      )
  return (
    Workflow(
      name="tiny",
      stages=tuple(
        stage(
          name,
          granules,
          state and rng.randint(3, state // 10),
          kind=rng.choice(["infer", "train"]),
        )
        for name in names
      ),
      edges=tuple(
        Edge(source=source, target=target)
        for source, target in zip(names, names[1:])
      ),
    ),
    Profile(entries=tuple(entries)),
    cluster(*sizes, memory=160 if state else 1000),
  )
