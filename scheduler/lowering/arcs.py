"""What waits for what: items, updates, weights, channels and iterations."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Iterator
from typing import Literal

from scheduler import errors
from scheduler.lowering import tracks
from scheduler.lowering.emission import Emission
from scheduler.lowering.tracks import Layout, Track
from scheduler.plans import Arc, TreePlan
from scheduler.prices import Prices
from scheduler.workflows import Edge

# As an Arc: source, target, lag, and what of the source is waited for.
Wait = tuple[int, int, int, Literal["end", "start"]]


def connect(
  plan: TreePlan, layout: Layout, emission: Emission, costs: Prices
) -> tuple[Arc, ...]:
  """Returns the arcs of a flat plan, each once."""
  found = [
    *((made, move, 0, "end") for (made, _), move in emission.moves.items()),
    *_items(layout, emission, costs),
    *_turns(layout, emission, costs),
    *_cohorts(layout),
    *_updates(layout),
    *_weights(plan, layout, costs),
    *_channels(plan, layout, costs),
  ]
  found += _iterations(found, emission, costs)
  return tuple(
    Arc(source=source, target=target, lag=lag, after=after)
    for source, target, lag, after in dict.fromkeys(found)
  )


def _items(layout: Layout, emission: Emission, costs: Prices) -> Iterator[Wait]:
  """A granule waits for all items up to the last that it reads."""
  for edge in costs.workflow.edges:
    loop = costs.workflow.loop_of(edge.source)
    if loop is not None and edge.target in loop.stages:
      continue
    source = costs.stages[edge.source]
    for reader in layout.of_stage[edge.target]:
      needs = tracks.awaited(edge, source, reader)
      for writer in layout.of_stage[edge.source]:
        moves = [emission.moves.get((i, id(reader))) for i in writer.last]
        latest: list[int | None] = []
        for move in moves:
          latest.append(latest[-1] if move is None and latest else move)
        for need, first in zip(needs, reader.first):
          k = bisect.bisect_left(writer.starts, need) - 1
          if k < 0:
            continue
          if moves[k] is None:
            yield writer.last[k], first, 0, "end"
          if (move := latest[k]) is not None:
            yield move, first, 0, "end"


def _turns(layout: Layout, emission: Emission, costs: Prices) -> Iterator[Wait]:
  """In a loop each lane goes from stage to stage and from turn to turn."""
  for edge in costs.workflow.edges:
    loop = costs.workflow.loop_of(edge.source)
    if loop is None or edge.target not in loop.stages:
      continue
    (writer,) = layout.of_stage[edge.source]
    (reader,) = layout.of_stage[edge.target]
    later = int(costs.workflow.is_back_edge(edge))
    pairs = []
    for j, lane in enumerate(zip(reader.starts, reader.stops)):
      low, high = tracks.needed(edge, writer.stage, reader.stage, lane)
      if reader.stage.needs_all:
        low, high = 0, writer.stage.items
      for i, (start, stop) in enumerate(zip(writer.starts, writer.stops)):
        if start < high and low < stop:
          pairs.append((i, j))
    for made, read in zip(writer.turns, reader.turns[later:]):
      moved = [emission.moves.get((i, id(reader)), i) for i in made]
      for i, j in pairs:
        yield moved[i], read[j], 0, "end"


def _cohorts(layout: Layout) -> Iterator[Wait]:
  """A Run that goes on with a cohort waits for the one that left it."""
  for own in layout.of_stage.values():
    for before, after in itertools.pairwise(own):
      if before.run.cohort is not None:
        if before.run.cohort == after.run.cohort:
          yield before.last[-1], after.first[0], 0, "end"


def _updates(layout: Layout) -> Iterator[Wait]:
  """An apply waits for its update's granules, and the next ones for it."""
  for own in layout.of_stage.values():
    applies = _applies(own)
    stage = own[0].stage
    for track in own if applies else ():
      yield applies[-1], track.first[0], 1, "end"
    size = stage.items // stage.updates
    for update, apply in enumerate(applies):
      border = (update + 1) * size
      if update:
        yield applies[update - 1], apply, 0, "end"
      for track in own:
        k = bisect.bisect_left(track.starts, border)
        if k and track.starts[k - 1] >= border - size:
          yield track.last[k - 1], apply, 0, "end"
        if k < len(track.starts) and track.starts[k] < border + size:
          yield apply, track.first[k], 0, "end"


def _applies(own: Iterable[Track]) -> list[int]:
  found = {u: i for track in own for u, i in track.applies.items()}
  return [found[update] for update in sorted(found)]


def _weights(plan: TreePlan, layout: Layout, costs: Prices) -> Iterator[Wait]:
  """A target's first granules wait for the weights that they read."""
  for sync in costs.workflow.syncs:
    lag = costs.workflow.lag(sync)
    writers = layout.of_stage[sync.source]
    ends = _applies(writers)[-1:] or [track.last[-1] for track in writers]
    readers = layout.of_stage[sync.target]
    for reader in readers:
      own = reader.syncs.get(sync.source)
      for end in ends:
        yield end, reader.first[0] if own is None else own, lag, "end"
      for other in readers:
        made = other.syncs.get(sync.source)
        if made is None or other.run.devices.isdisjoint(reader.run.devices):
          continue
        yield made, reader.first[0], 0, "end"
        if sync.target in plan.copies:
          # Of two copies the older one is overwritten when it has been read.
          yield reader.last[-1], made, 2, "end"


def _channels(plan: TreePlan, layout: Layout, costs: Prices) -> Iterator[Wait]:
  """Where a channel is full its writer waits until the reader takes items."""
  capacities = tracks.capacities(plan.root, layout)
  if not capacities:
    return
  for edge in costs.workflow.forward_edges:
    for writer in layout.of_stage[edge.source]:
      for reader in layout.of_stage[edge.target]:
        capacity = capacities.get((id(writer), id(reader)))
        if capacity is not None:
          staleness = costs.workflow.staleness
          yield from _channel(edge, writer, reader, capacity, staleness)


def _channel(
  edge: Edge, writer: Track, reader: Track, capacity: int, staleness: int
) -> Iterator[Wait]:
  source, target = writer.stage, reader.stage
  low, high = tracks.received(edge, source, reader)
  low, high = max(low, writer.share[0]), min(high, writer.share[1])
  if low >= high:
    return
  total = high - low
  # How many items each of the reader's granules needs to start, and how many
  # it has taken then.
  needs = [
    min(max(need, low), high) - low
    for need in tracks.awaited(edge, source, reader)
  ]
  taken = []
  for stop in reader.stops:
    if reader.cohort is not None or stop == reader.share[1]:
      taken.append(total)
    else:
      done = 0 if edge.reads == "all" else stop * source.items // target.items
      taken.append(min(max(done, low), high) - low)
  for start, stop, made in zip(writer.starts, writer.stops, writer.first):
    start, stop = max(start, low) - low, min(stop, high) - low
    if start >= stop:
      continue
    lag, goal = 0, stop - capacity
    while goal <= 0 and lag <= staleness:
      lag, goal = lag + 1, goal + total
    if lag > staleness:
      continue
    k = bisect.bisect_left(taken, goal)
    if lag == 0 and needs[k] > start:
      raise errors.InfeasiblePlanError(
        f"a channel from {source.name!r} to {target.name!r} that"
        f" holds {capacity} items deadlocks: granules of"
        f" {writer.run.granule} fill it before {target.name!r} has the"
        f" {needs[k]} items it needs to take some; raise capacity, or use"
        " smaller granules"
      )
    yield reader.first[k], made, lag, "start"


def _iterations(
  found: list[Wait], emission: Emission, costs: Prices
) -> Iterator[Wait]:
  """At most 1 + s iterations are alive: the first of one wait for the last."""
  size = len(emission.activities)
  is_first, is_last = [True] * size, [True] * size
  for source, target, lag, after in found:
    if lag == 0 and after == "end":
      is_last[source] = is_first[target] = False
  for order in emission.orders:
    for source, target in itertools.pairwise(order):
      if emission.shift(source) == emission.shift(target):
        is_last[source] = is_first[target] = False
  firsts = [i for i in range(size) if is_first[i]]
  for last in range(size):
    if is_last[last]:
      for first in firsts:
        yield last, first, 1 + costs.workflow.staleness, "end"
