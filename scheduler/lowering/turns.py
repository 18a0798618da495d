"""The items that each stage handles in each turn of a Temporal."""

from __future__ import annotations

from collections.abc import Iterator

from scheduler import plans
from scheduler.plans import Run, Temporal
from scheduler.prices import Interval, Prices

# For each stage the items of a turn; None: all.
Window = dict[str, Interval]


def windows(
  node: Temporal, turn: int, outer: Window | None, costs: Prices
) -> Iterator[Window]:
  """Yields what each stage under a Temporal does in one turn after another.

  A turn is of `turn` items of the first stage; stages that read nothing from
  others under the node do the same fraction of theirs, and those that do go as
  far as what they read allows. Turns cut no granules: what does not fill one
  is left to the next turn.
  """
  placed: dict[str, list[Run]] = {}
  for run in plans.runs(node):
    placed.setdefault(run.stage, []).append(run)
  first = next(iter(placed))
  bounds = {
    name: outer[name] if outer else (0, costs.stages[name].items)
    for name in costs.order
    if name in placed
  }
  reached = {name: start for name, (start, _) in bounds.items()}
  at, end = bounds[first]
  while True:
    at, window = min(at + turn, end), {}
    fraction = (at, costs.stages[first].items)
    for name, (_, stop) in bounds.items():
      if at < end:
        possible = _possible(name, reached, placed[name][0], fraction, costs)
        whole = _whole_granules(min(possible, stop), placed[name], costs)
        stop = max(reached[name], whole)
      window[name] = (reached[name], stop)
      reached[name] = stop
    yield window
    if at == end:
      return


def _possible(
  name: str,
  reached: dict[str, int],
  run: Run,
  part: Interval,
  costs: Prices,
) -> int:
  """Returns how many items a stage can have done, by what it reads."""
  stage, limits = costs.stages[name], []
  for edge in costs.edges_into[name]:
    if edge.source not in reached or costs.workflow.is_back_edge(edge):
      continue
    source = costs.stages[edge.source]
    ready = reached[edge.source]
    if ready < source.items:
      reads_all = stage.needs_all or edge.reads == "all"
      is_all = reads_all or costs.cohort(run) is not None
      ready = 0 if is_all else ready // source.group * source.group
    limits.append(ready * stage.items // source.items)
  if limits:
    return min(limits)
  return -(-part[0] * stage.items // part[1])


def _whole_granules(stop: int, own: list[Run], costs: Prices) -> int:
  """Returns the last end of a granule at or before an item."""
  stage = costs.stages[own[0].stage]
  size = stage.items // stage.updates
  for run in own:
    start, share_stop = costs.share(run)
    if start < stop < share_stop:
      start = max(start, stop // size * size)
      return stop - (stop - start) % run.granule
  return stop
