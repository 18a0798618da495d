"""The devices of this process, as a cluster that planners see."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import psutil

from scheduler import clusters
from scheduler.devices import Devices

HOST = "host"
DEFAULT_MEMORY_BYTES = 1 << 34
DEFAULT_LINKS = clusters.Links()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machine:
  """JAX devices and host slots, numbered as the cluster's devices are.

  Attributes:
    cluster: for planners.
    devices: the JAX device of each of the first numbers; the numbers after them
      are host slots, each for one host stage at a time.
  """

  cluster: clusters.Cluster
  devices: tuple[jax.Device, ...]

  @property
  def mesh_class(self) -> str:
    return self.cluster.classes[0].name

  def jax_devices(self, devices: Devices) -> tuple[jax.Device, ...]:
    """Returns the JAX devices of a set of numbers.

    Raises:
      ValueError: one of them is a host slot, or does not exist.
    """
    if any(i >= len(self.devices) for i in devices):
      raise ValueError(
        f"devices '{devices}' are not all JAX devices; those are 0 to"
        f" {len(self.devices) - 1}"
      )
    return tuple(self.devices[i] for i in devices)


def of_process(
  num_devices: int | None = None,
  *,
  num_host_slots: int = 0,
  memory_bytes: int | None = None,
  links: clusters.Links = DEFAULT_LINKS,
) -> Machine:
  """Returns the devices of this process.

  Args:
    num_devices: how many of `jax.devices()`; all by default.
    num_host_slots: host stages that may run at once.
    memory_bytes: of each device; by default what the device says, or 16 GiB
      where it says nothing. Less emulates a smaller device.
    links: bandwidths; those by default are measured with a flow's stages.

  Raises:
    ValueError: there are not so many devices.
  """
  found = jax.devices()
  num = len(found) if num_devices is None else num_devices
  if not 1 <= num <= len(found):
    raise ValueError(
      f"num_devices is {num}, but {len(found)} {found[0].platform} devices are"
      " visible; ask for 1 to that many"
    )
  return of_devices(
    found[:num],
    num_host_slots=num_host_slots,
    memory_bytes=memory_bytes,
    links=links,
  )


def with_host_slots(machine: Machine, num_host_slots: int) -> Machine:
  """Returns a machine with host slots; as it is if it has some already."""
  if machine.cluster.num_devices > len(machine.devices) or not num_host_slots:
    return machine
  return of_devices(
    machine.devices,
    num_host_slots=num_host_slots,
    memory_bytes=machine.cluster.classes[0].memory_bytes,
    links=machine.cluster.links,
  )


def with_links(machine: Machine, links: clusters.Links) -> Machine:
  """Returns a machine with other links."""
  cluster = dataclasses.replace(machine.cluster, links=links)
  return dataclasses.replace(machine, cluster=cluster)


def of_one_device(machine: Machine) -> tuple[clusters.Cluster, ...]:
  """Returns the cluster of a machine's first device, if it is a part of it.

  None where there are host slots, whose numbers would be others.
  """
  cluster = machine.cluster
  if len(machine.devices) == 1 or len(cluster.nodes) > 1:
    return ()
  (nodes,) = cluster.nodes
  single = dataclasses.replace(nodes, devices_per_node=1)
  return (dataclasses.replace(cluster, nodes=(single,)),)


def of_devices(
  devices: Sequence[jax.Device],
  *,
  num_host_slots: int = 0,
  memory_bytes: int | None = None,
  links: clusters.Links = DEFAULT_LINKS,
) -> Machine:
  """Returns given devices as a machine; see `of_process`."""
  kind = devices[0].device_kind.lower().replace(" ", "_")
  stats = devices[0].memory_stats() or {}
  limit = memory_bytes or stats.get("bytes_limit", DEFAULT_MEMORY_BYTES)
  host_bytes = psutil.virtual_memory().total
  cores = psutil.cpu_count() or 1
  classes = [clusters.DeviceClass(name=kind, memory_bytes=int(limit))]
  nodes = [
    clusters.Nodes(
      device_class=kind,
      num_nodes=1,
      devices_per_node=len(devices),
      host_bytes=host_bytes,
      num_cores=cores,
    )
  ]
  if num_host_slots:
    classes.append(clusters.DeviceClass(name=HOST, memory_bytes=host_bytes))
    nodes.append(
      clusters.Nodes(
        device_class=HOST,
        num_nodes=1,
        devices_per_node=num_host_slots,
        host_bytes=host_bytes,
        num_cores=cores,
      )
    )
  cluster = clusters.Cluster(
    classes=tuple(classes), nodes=tuple(nodes), links=links
  )
  return Machine(cluster=cluster, devices=tuple(devices))
