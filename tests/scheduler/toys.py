"""Workflows, profiles and clusters small enough to work out by hand."""

from __future__ import annotations

from scheduler.clusters import Cluster, DeviceClass, Links, homogeneous
from scheduler.devices import Devices
from scheduler.plans import FlatPlan, Run
from scheduler.profiles import (
  Config,
  DecodeLaw,
  Entry,
  Law,
  Profile,
  ReplicaTable,
  Sample,
)
from scheduler.workflows import Edge, Loop, Stage, WeightSync, Workflow

S = 1_000_000_000  # nanoseconds

# One token takes one second, whoever decodes with it.
TOKEN = DecodeLaw(t0_s=1, weight_bytes=0, kv_bytes_per_token=0, num_params=0)


def per_item(seconds: float, num_bytes: int = 0) -> ReplicaTable:
  """Returns a law by which each device handles an item in `seconds`."""
  return ReplicaTable(
    samples=(
      Sample(granule=1, devices=1, seconds=seconds, num_bytes=num_bytes),
      Sample(
        granule=1000,
        devices=1,
        seconds=1000 * seconds,
        num_bytes=1000 * num_bytes,
      ),
    )
  )


def workflow(
  *stages: Stage,
  edges: tuple[tuple[str, str] | Edge, ...] | None = None,
  syncs: tuple[tuple[str, str] | WeightSync, ...] = (),
  loops: tuple[Loop, ...] = (),
  staleness: int = 0,
) -> Workflow:
  """Returns a workflow; a chain of its stages where no edges are given."""
  if edges is None:
    names = [stage.name for stage in stages]
    edges = tuple(zip(names, names[1:]))
  return Workflow(
    name="toy",
    stages=stages,
    edges=tuple(
      e if isinstance(e, Edge) else Edge(source=e[0], target=e[1])
      for e in edges
    ),
    syncs=tuple(
      s if isinstance(s, WeightSync) else WeightSync(source=s[0], target=s[1])
      for s in syncs
    ),
    loops=loops,
    staleness=staleness,
  )


def stage(name: str, items: int, kind: str = "infer", **fields) -> Stage:
  return Stage(name=name, kind=kind, items=items, **fields)


def profile(
  *, tp2: dict[str, Law] | None = None, **laws: float | Law
) -> Profile:
  """Returns a profile; a number is seconds per item and device.

  Args:
    tp2: laws of replicas of two devices.
    **laws: of replicas of one device.
  """
  single = {
    name: per_item(law) if isinstance(law, (int, float)) else law
    for name, law in laws.items()
  }
  return Profile(
    entries=tuple(
      Entry(stage=name, device_class="d", law=law, config=Config(tp=tp))
      for tp, group in ((1, single), (2, tp2 or {}))
      for name, law in group.items()
    )
  )


def cluster(
  num_devices: int, *, per_node: int = 8, memory: int = 1000, **links: float
) -> Cluster:
  """Returns devices of class "d" with links of one byte per second."""
  slow = {
    "host_bytes_per_s": 1.0,
    "host_cap_bytes_per_s": 1000.0,
    "intra_node_bytes_per_s": 1.0,
    "inter_node_bytes_per_s": 1.0,
  }
  return homogeneous(
    DeviceClass(
      name="d", memory_bytes=memory, flops_per_s=1.0, memory_bytes_per_s=1.0
    ),
    num_devices,
    devices_per_node=per_node,
    host_bytes=1_000_000,
    links=Links(**{**slow, **links}),
  )


def run(name: str, devices: str, granule: int, **fields) -> Run:
  return Run(
    stage=name, devices=Devices.parse(devices), granule=granule, **fields
  )


def orders(flat: FlatPlan) -> dict[str, list[str]]:
  """Returns what each resource does, in words, with shifts where not 0."""
  return {
    resource.name: [
      f"{flat.activities[slot.activity]}"
      + (f" -{slot.shift}" if slot.shift else "")
      for slot in order
    ]
    for resource, order in zip(flat.resources, flat.orders)
  }


def arcs(flat: FlatPlan) -> set[tuple[str, str, int, str]]:
  """Returns the arcs, with their activities in words."""
  return {
    (
      str(flat.activities[arc.source]),
      str(flat.activities[arc.target]),
      arc.lag,
      arc.after,
    )
    for arc in flat.arcs
  }
