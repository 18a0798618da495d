"""Device classes, and the clusters that workloads run on."""

from __future__ import annotations

import dataclasses

from scheduler import clusters

# H100 and H200 from CALIBRATION.md; the others from the vendor's data sheets,
# dense bf16. An H800 is an H100 with slower links between devices.
H100 = clusters.DeviceClass(
  name="h100",
  memory_bytes=80_000_000_000,
  flops_per_s=989e12,
  memory_bytes_per_s=3.35e12,
)
H200 = clusters.DeviceClass(
  name="h200",
  memory_bytes=141_000_000_000,
  flops_per_s=989e12,
  memory_bytes_per_s=4.8e12,
)
H800 = dataclasses.replace(H100, name="h800")
H20 = clusters.DeviceClass(
  name="h20",
  memory_bytes=96_000_000_000,
  flops_per_s=148e12,
  memory_bytes_per_s=4.0e12,
)
RTX_4090D = clusters.DeviceClass(
  name="rtx4090d",
  memory_bytes=24 << 30,
  flops_per_s=147e12,
  memory_bytes_per_s=1.008e12,
)
# One device stands for an eighth of a host: its cores run simulators or tools.
CPU = clusters.DeviceClass(name="cpu", memory_bytes=128 << 30)

NVLINK = clusters.Links()
# NVLink of an H800: 200 GB/s per direction.
NVLINK_H800 = clusters.Links(intra_node_bytes_per_s=200e9)
# CALIBRATION.md: a 30B model's weights arrive over CX-7 at 8.25 GB/s.
CX7 = clusters.Links(inter_node_bytes_per_s=8.25e9)
# GeForce boards have no NVLink: PCIe 4 x16, and one 100G NIC per node.
PCIE4 = clusters.Links(
  host_bytes_per_s=25e9,
  host_cap_bytes_per_s=100e9,
  intra_node_bytes_per_s=20e9,
  inter_node_bytes_per_s=12.5e9,
)

_DEVICES_PER_NODE = 8
_HOST_BYTES = 2 << 40
_NUM_CORES = 96


def cluster(
  *parts: tuple[clusters.DeviceClass, int], links: clusters.Links = NVLINK
) -> clusters.Cluster:
  """Returns a cluster of several classes, in nodes of eight.

  Args:
    *parts: device class and number of devices; the last node of each may be
      smaller.
    links: between them.

  Raises:
    ClusterError: a number of devices is not positive, or no part is given.
  """
  single = [
    clusters.homogeneous(
      device_class,
      num_devices,
      devices_per_node=_DEVICES_PER_NODE,
      host_bytes=_HOST_BYTES,
      num_cores=_NUM_CORES,
    )
    for device_class, num_devices in parts
  ]
  return clusters.Cluster(
    classes=tuple(device_class for device_class, _ in parts),
    nodes=tuple(nodes for part in single for nodes in part.nodes),
    links=links,
  )


def num_accelerators(cluster: clusters.Cluster) -> int:
  """Returns the number of devices that compute, host cores left out."""
  return sum(
    len(cluster.of_class(device.name))
    for device in cluster.classes
    if device.flops_per_s
  )


def h100(num_devices: int) -> clusters.Cluster:
  """Returns a cluster of H100."""
  return cluster((H100, num_devices))


def h200(num_devices: int) -> clusters.Cluster:
  """Returns a cluster of H200."""
  return cluster((H200, num_devices))


def h800(num_devices: int) -> clusters.Cluster:
  """Returns a cluster of H800."""
  return cluster((H800, num_devices), links=NVLINK_H800)


def h20(num_devices: int) -> clusters.Cluster:
  """Returns a cluster of H20."""
  return cluster((H20, num_devices))


def h20_and_h800(num_devices: int) -> clusters.Cluster:
  """Returns half H20, half H800; an odd one out is an H20."""
  half = num_devices // 2
  return cluster((H20, num_devices - half), (H800, half), links=NVLINK_H800)


def h100_over_cx7(num_devices: int) -> clusters.Cluster:
  """Returns a cluster of H100 whose nodes are joined by one CX-7 each."""
  return cluster((H100, num_devices), links=CX7)


def h100_and_cpu(num_devices: int) -> clusters.Cluster:
  """Returns H100, and for each of them an eighth of a host."""
  return cluster((H100, num_devices), (CPU, num_devices))


def rtx_4090d(num_devices: int) -> clusters.Cluster:
  """Returns a cluster of RTX 4090 D, which can render."""
  return cluster((RTX_4090D, num_devices), links=PCIE4)
