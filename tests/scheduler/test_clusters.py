"""Clusters by hand: who is of what class, on what node, and what is refused."""

from __future__ import annotations

import dataclasses

import hypothesis
import pytest
from hypothesis import strategies as st

from scheduler import errors
from scheduler.clusters import Cluster, DeviceClass, Links, Nodes, homogeneous
from scheduler.devices import Devices

FAST = DeviceClass(name="fast", memory_bytes=80, flops_per_s=2.0)
SLOW = DeviceClass(name="slow", memory_bytes=40, flops_per_s=1.0)

# Devices 0-3 and 4-7 are fast, on nodes of 4; 8-9, 10-11 and 12-13 slow.
MIXED = Cluster(
  classes=(FAST, SLOW),
  nodes=(
    Nodes(device_class="fast", num_nodes=2, devices_per_node=4),
    Nodes(device_class="slow", num_nodes=3, devices_per_node=2),
  ),
)


def test_devices_are_numbered_node_after_node():
  assert MIXED.num_devices == 14
  assert MIXED.of_class("fast") == Devices.span(0, 8)
  assert MIXED.of_class("slow") == Devices.span(8, 14)
  assert MIXED.class_of(Devices.parse("8,13")) == SLOW


@pytest.mark.parametrize("text", ["7-8", "14", ""])
def test_a_set_of_several_classes_or_of_none_has_no_class(text):
  with pytest.raises(errors.ClusterError, match="not all of one class"):
    MIXED.class_of(Devices.parse(text))


@pytest.mark.parametrize(
  ("text", "nodes"),
  [("0", 1), ("0-3", 1), ("3-4", 2), ("0,2,3", 1), ("7-8", 2), ("0-13", 5)],
)
def test_nodes_are_counted(text, nodes):
  assert MIXED.num_nodes_of(Devices.parse(text)) == nodes


@hypothesis.given(st.sets(st.integers(0, 13)))
def test_nodes_are_counted_as_one_by_one(chosen):
  node_of = [0] * 4 + [1] * 4 + [2] * 2 + [3] * 2 + [4] * 2
  expected = len({node_of[i] for i in chosen})
  assert MIXED.num_nodes_of(Devices.of(chosen)) == expected


def test_nodes_of_a_huge_cluster_are_counted_at_once():
  huge = homogeneous(FAST, 1 << 30)
  assert huge.num_nodes_of(huge.devices) == (1 << 30) // 8


def test_the_last_node_of_a_homogeneous_cluster_may_be_smaller():
  cluster = homogeneous(FAST, 11)
  sizes = [(n.num_nodes, n.devices_per_node) for n in cluster.nodes]
  assert sizes == [(1, 8), (1, 3)]
  assert [n.num_nodes for n in homogeneous(FAST, 3).nodes] == [1]


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    (dict(classes=(FAST, FAST)), "share a name"),
    (dict(nodes=()), "has no nodes"),
    (
      dict(classes=(FAST,)),
      "nodes have devices of class 'slow'; known: \\['fast'\\]",
    ),
    (
      dict(classes=(FAST, dataclasses.replace(SLOW, memory_bytes=0))),
      "device class 'slow' needs positive memory_bytes",
    ),
    (
      dict(classes=(FAST, dataclasses.replace(SLOW, flops_per_s=-1.0))),
      "device class 'slow' needs",
    ),
    (
      dict(
        nodes=(Nodes(device_class="fast", num_nodes=0, devices_per_node=1),)
      ),
      "0 nodes of 1 devices",
    ),
    (dict(links=Links(host_bytes_per_s=0.0)), "bandwidths must be at least"),
    (dict(links=Links(latency_s=-1.0)), "latency not negative"),
    (
      dict(groups=(Devices.span(0, 2), Devices.span(1, 3))),
      "group '1-2' is empty or shares devices",
    ),
    (dict(groups=(Devices.span(12, 16),)), "devices 14-15, which do not exist"),
  ],
)
def test_a_cluster_that_contradicts_itself_is_refused(fields, message):
  with pytest.raises(errors.ClusterError, match=message):
    dataclasses.replace(MIXED, **fields)


def test_a_cluster_needs_devices():
  with pytest.raises(errors.ClusterError, match="a cluster of 0 devices"):
    homogeneous(FAST, 0)
