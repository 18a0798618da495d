"""What takes device memory, and from when to when."""

from __future__ import annotations

import bisect
from collections.abc import Iterator

from scheduler.lowering import tracks
from scheduler.lowering.tracks import Layout, Track
from scheduler.plans import Holding, TreePlan
from scheduler.prices import Prices


def charge(
  plan: TreePlan, layout: Layout, costs: Prices
) -> tuple[Holding, ...]:
  """Returns the memory that a plan takes.

  State lies on devices always, or from the start of its swap_in to the end of
  its swap_out: a swap holds both copies while it runs. A granule's transient
  bytes are taken for the whole stretch in which its stage has the devices, a
  decode's for all that its cohort has left. Items that wait to be read lie
  where they are read, from the first that is made to the last that is used,
  in a buffer of the channel's capacity or of all of them.
  """
  return (
    *_states(layout, costs),
    *_copies(plan, layout, costs),
    *_transients(layout, costs),
    *_buffers(plan, layout, costs),
  )


def _states(layout: Layout, costs: Prices) -> Iterator[Holding]:
  resident: dict[tuple[str, int], int] = {}
  for track in layout.tracks:
    num_bytes = costs.state_bytes(track.run)
    name = track.stage.name
    for resource in track.resources:
      if track.run.is_resident and num_bytes:
        key = (name, resource)
        resident[key] = max(resident.get(key, 0), num_bytes)
    for resource, begin, end in track.swaps:
      yield Holding(
        resource=resource,
        bytes_per_device=num_bytes,
        what=f"state of {name}",
        begin=begin,
        end=end,
      )
  for (name, resource), num_bytes in resident.items():
    yield Holding(
      resource=resource, bytes_per_device=num_bytes, what=f"state of {name}"
    )


def _copies(plan: TreePlan, layout: Layout, costs: Prices) -> Iterator[Holding]:
  for sync in costs.workflow.syncs:
    copied: dict[int, int] = {}
    if sync.target in plan.copies and sync.num_bytes:
      for track in layout.of_stage[sync.target]:
        num_bytes = -(-sync.num_bytes // track.run.config.devices)
        for resource in track.resources:
          copied[resource] = max(copied.get(resource, 0), num_bytes)
    for resource, num_bytes in copied.items():
      yield Holding(
        resource=resource,
        bytes_per_device=num_bytes,
        what=f"second copy of the weights of {sync.target}",
      )


def _transients(layout: Layout, costs: Prices) -> Iterator[Holding]:
  for track in layout.tracks:
    visits = track.visits
    if track.cohort is not None:
      left = track.cohort[1] - track.share[0]
      visits = [(track.first[0], track.last[-1], left)]
    for begin, end, items in visits:
      if num_bytes := costs.transient_bytes(track.run, items):
        for resource in track.resources:
          yield Holding(
            resource=resource,
            bytes_per_device=num_bytes,
            what=f"granule of {track.stage.name}",
            begin=begin,
            end=end,
          )


def _buffers(
  plan: TreePlan, layout: Layout, costs: Prices
) -> Iterator[Holding]:
  capacities = tracks.capacities(plan.root, layout)
  for edge in costs.workflow.edges:
    loop = costs.workflow.loop_of(edge.source)
    is_back = costs.workflow.is_back_edge(edge)
    if edge.item_bytes == 0 or (is_back and loop and loop.turns == 1):
      continue
    for writer in layout.of_stage[edge.source]:
      for reader in layout.of_stage[edge.target]:
        span = tracks.received(edge, writer.stage, reader)
        start = max(span[0], writer.share[0])
        items = min(span[1], writer.share[1]) - start
        if items <= 0:
          continue
        begin = _emits(writer, start)
        capacity = capacities.get((id(writer), id(reader)), items)
        num_bytes = min(capacity, items) * edge.item_bytes
        for resource in reader.resources:
          yield Holding(
            resource=resource,
            bytes_per_device=-(-num_bytes // len(reader.run.devices)),
            what=f"items from {edge.source} to {edge.target}",
            begin=begin,
            end=reader.last[-1],
          )


def _emits(track: Track, item: int) -> int:
  """Returns the activity that emits an item, in a loop in its first turn."""
  k = bisect.bisect_right(track.starts, item) - 1
  return track.first[k]
