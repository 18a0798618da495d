"""Clusters: device classes, nodes, and the links between them."""

from __future__ import annotations

import dataclasses

from scheduler import errors
from scheduler.devices import Devices

# Slower rates are mistakes, and too slow ones divide by zero.
_LEAST_RATE = 1e-9


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DeviceClass:
  """A kind of device.

  A pool of CPU cores is a device class too: one device is what one simulator
  or tool process gets, its memory a share of the host's.

  Attributes:
    name: such as "h100".
    memory_bytes: memory of one device.
    flops_per_s: dense operations in the training precision.
    memory_bytes_per_s: bandwidth of the device's own memory.
  """

  name: str
  memory_bytes: int
  flops_per_s: float = 0.0
  memory_bytes_per_s: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Nodes:
  """Equal nodes.

  Attributes:
    device_class: the class's name.
    num_nodes: how many nodes.
    devices_per_node: devices in each.
    host_bytes: host memory of one node that swapped state may take.
    num_cores: CPU cores of one node.
  """

  device_class: str
  num_nodes: int
  devices_per_node: int
  host_bytes: int = 0
  num_cores: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Links:
  """Bandwidths, in bytes per second and direction; latency in seconds.

  Attributes:
    host_bytes_per_s: between one device and its host's memory.
    host_cap_bytes_per_s: all devices of one node together with the host.
    intra_node_bytes_per_s: of one device to others of its node.
    inter_node_bytes_per_s: of one node to the other nodes.
    latency_s: of any one transfer.
    to_device_bytes_per_s: from a host's memory to one device, where that was
      measured; planners take `host_bytes_per_s` for both directions.
    to_host_bytes_per_s: the other way.
  """

  host_bytes_per_s: float = 55e9
  host_cap_bytes_per_s: float = 220e9
  intra_node_bytes_per_s: float = 450e9
  inter_node_bytes_per_s: float = 400e9
  latency_s: float = 0.0
  to_device_bytes_per_s: float = 0.0
  to_host_bytes_per_s: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
  """Devices numbered from 0, node after node.

  Attributes:
    classes: the device classes.
    nodes: kinds of nodes, in the order of their devices.
    links: see `Links`.
    groups: where not empty, disjoint sets of devices that a plan may use only
      whole (class S of `scheduler.exact` is defined over such groups).
  """

  classes: tuple[DeviceClass, ...]
  nodes: tuple[Nodes, ...]
  links: Links = Links()
  groups: tuple[Devices, ...] = ()

  def __post_init__(self) -> None:
    names = [c.name for c in self.classes]
    if len(set(names)) != len(names):
      raise errors.ClusterError(f"device classes {names} share a name")
    for c in self.classes:
      rates = (c.flops_per_s, c.memory_bytes_per_s)
      if c.memory_bytes <= 0 or any(r and r < _LEAST_RATE for r in rates):
        raise errors.ClusterError(
          f"device class {c.name!r} needs positive memory_bytes, and rates of"
          f" at least {_LEAST_RATE}, or 0 where they are not known; got {c}"
        )
    for n in self.nodes:
      if n.device_class not in names:
        raise errors.ClusterError(
          f"nodes have devices of class {n.device_class!r}; known: {names}"
        )
      if min(n.num_nodes, n.devices_per_node) < 1:
        raise errors.ClusterError(
          f"{n.num_nodes} nodes of {n.devices_per_node} devices; both must be"
          " at least 1"
        )
      if min(n.host_bytes, n.num_cores) < 0:
        raise errors.ClusterError("host_bytes and num_cores cannot be negative")
    if not self.nodes:
      raise errors.ClusterError("the cluster has no nodes")
    rates = dataclasses.astuple(self.links)
    if min(rates[:4]) < _LEAST_RATE or self.links.latency_s < 0:
      raise errors.ClusterError(
        f"bandwidths must be at least {_LEAST_RATE} and latency not negative:"
        f" {self.links}"
      )
    seen = Devices()
    for group in self.groups:
      if not group.spans or not group.isdisjoint(seen):
        raise errors.ClusterError(
          f"group '{group}' is empty or shares devices with another"
        )
      seen = seen | group
    if not seen.issubset(self.devices):
      raise errors.ClusterError(
        f"groups name devices {seen - self.devices}, which do not exist"
      )

  @property
  def num_devices(self) -> int:
    return sum(n.num_nodes * n.devices_per_node for n in self.nodes)

  @property
  def devices(self) -> Devices:
    """All devices."""
    return Devices.span(0, self.num_devices)

  def device_class(self, name: str) -> DeviceClass:
    """Returns the class of this name.

    Raises:
      ClusterError: there is none.
    """
    for c in self.classes:
      if c.name == name:
        return c
    known = [c.name for c in self.classes]
    raise errors.ClusterError(f"no device class {name!r}; known: {known}")

  def of_class(self, name: str) -> Devices:
    """Returns the devices of one class."""
    found, start = Devices(), 0
    for n in self.nodes:
      stop = start + n.num_nodes * n.devices_per_node
      if n.device_class == name:
        found = found | Devices.span(start, stop)
      start = stop
    return found

  def class_of(self, devices: Devices) -> DeviceClass:
    """Returns the one class that all of `devices` are of.

    Raises:
      ClusterError: they are of several, of none, or do not exist.
    """
    for c in self.classes:
      if devices.spans and devices.issubset(self.of_class(c.name)):
        return c
    raise errors.ClusterError(
      f"devices '{devices}' are not all of one class of this cluster"
    )

  def num_nodes_of(self, devices: Devices) -> int:
    """Returns how many nodes have at least one of `devices`."""
    count, start = 0, 0
    for n in self.nodes:
      stop = start + n.num_nodes * n.devices_per_node
      counted = -1
      for a, b in (devices & Devices.span(start, stop)).spans:
        first = max(counted + 1, (a - start) // n.devices_per_node)
        counted = (b - 1 - start) // n.devices_per_node
        count += counted + 1 - first
      start = stop
    return count


def homogeneous(
  device_class: DeviceClass,
  num_devices: int,
  *,
  devices_per_node: int = 8,
  host_bytes: int = 1 << 41,
  num_cores: int = 96,
  links: Links = Links(),
) -> Cluster:
  """Returns a cluster of one device class; its last node may be smaller.

  Raises:
    ClusterError: `num_devices` or `devices_per_node` is not positive.
  """
  if min(num_devices, devices_per_node) < 1:
    raise errors.ClusterError(
      f"a cluster of {num_devices} devices, {devices_per_node} per node; both"
      " must be at least 1"
    )
  full, rest = divmod(num_devices, devices_per_node)
  nodes = tuple(
    Nodes(
      device_class=device_class.name,
      num_nodes=count,
      devices_per_node=size,
      host_bytes=host_bytes,
      num_cores=num_cores,
    )
    for count, size in ((full, devices_per_node), (1, rest))
    if count and size
  )
  return Cluster(classes=(device_class,), nodes=nodes, links=links)
