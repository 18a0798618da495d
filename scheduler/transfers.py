"""Times of moving bytes between devices and hosts.

Every time is that of one transfer by itself and does not depend on what else
moves, so that plans stay event graphs; the simulator shares links instead.
Bytes cross a link at its bandwidth, and each transfer pays the latency once.
"""

from __future__ import annotations

from collections.abc import Iterator

from scheduler import durations
from scheduler.clusters import Cluster
from scheduler.devices import Devices


def swap_ns(cluster: Cluster, devices: Devices, bytes_per_device: int) -> int:
  """Returns the time in which state leaves devices for the host, or returns.

  Each device has its own link to the host; those of a node share the node's
  cap. All devices of the node are taken to move at once, so that the parts of
  a stage that are swapped side by side do not exceed the cap together.

  Args:
    cluster: with its links.
    devices: on which the state lies.
    bytes_per_device: of state on each of them.
  """
  if bytes_per_device == 0:
    return 0
  links, rate, start = cluster.links, cluster.links.host_bytes_per_s, 0
  for kind in cluster.nodes:
    stop = start + kind.num_nodes * kind.devices_per_node
    if not devices.isdisjoint(Devices.span(start, stop)):
      rate = min(rate, links.host_cap_bytes_per_s / kind.devices_per_node)
    start = stop
  return durations.to_ns(links.latency_s + bytes_per_device / rate)


def edge_ns(
  cluster: Cluster, source: Devices, target: Devices, num_bytes: int
) -> int:
  """Returns the time in which items reach the devices that read them.

  Items lie evenly on the source's devices and shall lie evenly on the
  target's; on devices of both, the smaller share stays where it is.

  Args:
    cluster: with its links.
    source: devices on which the items were made.
    target: devices that read them.
    num_bytes: of all the items together.
  """
  if num_bytes == 0 or source == target:
    return 0
  links = cluster.links
  smaller, larger = sorted((len(source), len(target)))
  moved = num_bytes * (larger - len(source & target)) / larger
  seconds = moved / (links.intra_node_bytes_per_s * smaller)
  if cluster.num_nodes_of(source | target) > 1:
    nodes = min(cluster.num_nodes_of(source), cluster.num_nodes_of(target))
    seconds = max(seconds, moved / (links.inter_node_bytes_per_s * nodes))
  return durations.to_ns(links.latency_s + seconds)


def sync_ns(
  cluster: Cluster,
  source: Devices,
  target: Devices,
  num_bytes: int,
  *,
  shards: int = 1,
) -> int:
  """Returns the time in which every replica receives new weights.

  The source holds one copy, spread evenly over its devices. Each device of the
  target receives what its replica's layout gives it, less what it holds as one
  of the source's; receivers pass on what they got, so that a node receives
  each byte once, however many replicas it has.

  Args:
    cluster: with its links.
    source: devices that hold the new weights.
    target: devices of all replicas.
    num_bytes: of one copy of the weights.
    shards: devices of one replica, over which a copy is divided.
  """
  # In units of num_bytes / (devices of the source * shards), all are whole.
  held, full = shards, len(source)
  received = full - held if target.issubset(source) else full
  entering = 0
  if cluster.num_nodes_of(source | target) > 1:
    for node in _unlike_nodes(cluster, source, target):
      wanted = min(full * shards, full * len(target & node))
      entering = max(entering, wanted - held * len(source & node))
  if num_bytes == 0 or max(received, entering) <= 0:
    return 0
  unit, links = num_bytes / (full * shards), cluster.links
  seconds = max(
    received * unit / links.intra_node_bytes_per_s,
    entering * unit / links.inter_node_bytes_per_s,
  )
  return durations.to_ns(links.latency_s + seconds)


def _unlike_nodes(
  cluster: Cluster, source: Devices, target: Devices
) -> Iterator[Devices]:
  """Yields nodes such that every other has as many devices of each set.

  Between two ends of spans all nodes are alike; of thousands a few remain.
  """
  ends = [x for span in source.spans + target.spans for x in span]
  start = 0
  for kind in cluster.nodes:
    size = kind.devices_per_node
    stop = start + kind.num_nodes * size
    near = {(min(max(x, start), stop - 1) - start) // size for x in ends}
    for node in sorted({n + i for n in near for i in (-1, 0, 1)}):
      if 0 <= node < kind.num_nodes:
        yield Devices.span(start + node * size, start + (node + 1) * size)
    start = stop
