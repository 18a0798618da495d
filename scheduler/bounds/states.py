"""How much state must leave devices and return in every iteration.

A stage of which one replica stays on its devices is never swapped. Those that
stay fit into all memory together; every other one is brought in and taken out.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from scheduler.bounds.work import Layout
from scheduler.clusters import Cluster

_MAX_STAGES = 16


def swap_work(layouts: Sequence[tuple[Layout, ...]], cluster: Cluster) -> float:
  """Returns the least device-seconds of swaps in an iteration."""
  sizes = [own[0].stage.state_bytes for own in layouts]
  memory = sum(
    device.memory_bytes * len(cluster.of_class(device.name))
    for device in cluster.classes
  )
  excess = sum(sizes) - memory
  if excess <= 0:
    return 0.0
  if len(sizes) <= _MAX_STAGES:
    excess = sum(sizes) - max(
      sum(kept)
      for k in range(len(sizes))
      for kept in itertools.combinations(sizes, k)
      if sum(kept) <= memory
    )
  return 2 * excess * _least_s_per_byte(cluster)


def _least_s_per_byte(cluster: Cluster) -> float:
  """Returns the seconds per byte of the fastest link; see `transfers`."""
  links = cluster.links
  shares = [
    links.host_cap_bytes_per_s / n.devices_per_node for n in cluster.nodes
  ]
  return 1 / min(links.host_bytes_per_s, max(shares))
