"""Times of moving bytes, worked by hand with links of one byte per second."""

from __future__ import annotations

import random

from scheduler import transfers
from scheduler.clusters import Cluster, DeviceClass, Links, Nodes
from scheduler.devices import Devices
from tests.scheduler import toys
from tests.scheduler.toys import S

D = Devices.parse


def test_a_swap_goes_over_each_devices_own_link():
  cluster = toys.cluster(8, host_bytes_per_s=2.0)
  # 10 bytes per device at 2 B/s, however many devices.
  assert transfers.swap_ns(cluster, D("0"), 10) == 5 * S
  assert transfers.swap_ns(cluster, D("0-7"), 10) == 5 * S


def test_the_devices_of_a_node_share_its_cap():
  cluster = toys.cluster(8, host_bytes_per_s=2.0, host_cap_bytes_per_s=8.0)
  # 8 devices share 8 B/s: 1 B/s each, less than a link's 2 B/s.
  assert transfers.swap_ns(cluster, D("0-1"), 10) == 10 * S


def test_the_node_with_most_devices_decides_a_swap():
  device = DeviceClass(name="d", memory_bytes=1)
  cluster = Cluster(
    classes=(device,),
    nodes=(
      Nodes(device_class="d", num_nodes=2, devices_per_node=2),
      Nodes(device_class="d", num_nodes=1, devices_per_node=4),
    ),
    links=Links(host_bytes_per_s=9.0, host_cap_bytes_per_s=8.0),
  )
  # A node of two devices gives each 4 B/s, the one of four 2 B/s.
  assert transfers.swap_ns(cluster, D("0-3"), 8) == 2 * S
  assert transfers.swap_ns(cluster, D("3-4"), 8) == 4 * S


def test_latency_is_paid_once_and_only_where_bytes_move():
  cluster = toys.cluster(4, latency_s=3.0)
  assert transfers.swap_ns(cluster, D("0"), 1) == 4 * S
  assert transfers.edge_ns(cluster, D("0"), D("1"), 1) == 4 * S
  assert transfers.sync_ns(cluster, D("0"), D("1"), 1) == 4 * S
  assert transfers.swap_ns(cluster, D("0"), 0) == 0
  assert transfers.edge_ns(cluster, D("0"), D("1"), 0) == 0
  assert transfers.edge_ns(cluster, D("0-1"), D("0-1"), 1) == 0
  assert transfers.sync_ns(cluster, D("0"), D("1"), 0) == 0


def test_items_leave_and_arrive_on_as_many_links_as_the_fewer_devices_have():
  cluster = toys.cluster(8)
  # 12 bytes from 2 devices to 3: the two senders take 6 s.
  assert transfers.edge_ns(cluster, D("0-1"), D("2-4"), 12) == 6 * S
  assert transfers.edge_ns(cluster, D("2-4"), D("0-1"), 12) == 6 * S


def test_items_on_devices_of_both_sets_stay():
  cluster = toys.cluster(8)
  # From 4 devices to 2 of them: each keeps 3 of the 6 bytes that it shall have,
  # and 6 of all 12 move, into two devices.
  assert transfers.edge_ns(cluster, D("0-3"), D("0-1"), 12) == 3 * S


def test_items_cross_nodes_on_the_fewer_nodes_links():
  cluster = toys.cluster(8, per_node=2, intra_node_bytes_per_s=100.0)
  # 12 bytes from nodes 0 and 1 to node 2: one node's link takes all.
  assert transfers.edge_ns(cluster, D("0-3"), D("4-5"), 12) == 12 * S
  assert transfers.edge_ns(cluster, D("0-3"), D("4-7"), 12) == 6 * S


def test_a_sync_brings_each_device_the_part_of_its_layout():
  cluster = toys.cluster(8)
  # 12 bytes; four replicas of one device get all, two of two get halves.
  assert transfers.sync_ns(cluster, D("0-3"), D("4-7"), 12) == 12 * S
  assert transfers.sync_ns(cluster, D("0-3"), D("4-7"), 12, shards=2) == 6 * S


def test_a_sync_on_the_sources_own_devices_moves_what_they_lack():
  cluster = toys.cluster(8)
  # Each of 4 devices holds 3 of 12 bytes and wants 6.
  assert transfers.sync_ns(cluster, D("0-3"), D("0-3"), 12, shards=2) == 3 * S
  assert transfers.sync_ns(cluster, D("0-3"), D("0-3"), 12, shards=4) == 0


def test_a_node_receives_each_byte_once():
  cluster = toys.cluster(6, per_node=2, intra_node_bytes_per_s=100.0)
  # Node 2's two replicas want 12 bytes each; 12 enter, the rest is passed on.
  assert transfers.sync_ns(cluster, D("0-1"), D("4-5"), 12) == 12 * S
  # Of a replica that spans nodes 1 and 2 each node wants 6 of 12.
  assert transfers.sync_ns(cluster, D("0-1"), D("2-5"), 12, shards=4) == 6 * S
  # Node 0 holds 6 of the 12 bytes, node 1 the others.
  assert transfers.sync_ns(cluster, D("0-3"), D("0-3"), 12) == 6 * S


def test_a_sync_to_any_node_is_the_slowest_over_all_nodes():
  rng = random.Random(0)
  for _ in range(200):
    size, count = rng.randint(1, 4), rng.randint(1, 6)
    cluster = toys.cluster(
      size * count, per_node=size, intra_node_bytes_per_s=1e9
    )
    shards = rng.choice([1, 2, 3])
    source = Devices.of(rng.sample(range(size * count), rng.randint(1, size)))
    target = Devices.of(rng.sample(range(size * count), rng.randint(1, size)))
    entering = 0.0
    for node in range(count):
      devices = Devices.span(node * size, (node + 1) * size)
      wanted = min(12, 12 / shards * len(target & devices))
      held = 12 / len(source) * len(source & devices)
      entering = max(entering, wanted - held)
    if cluster.num_nodes_of(source | target) == 1:
      entering = 0.0
    got = transfers.sync_ns(cluster, source, target, 12, shards=shards)
    assert abs(got - entering * S) <= 100  # what moves inside takes some
