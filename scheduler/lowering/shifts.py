"""How many iterations later a stage runs than others on its devices."""

from __future__ import annotations

from scheduler import plans
from scheduler.plans import Node, Spatial
from scheduler.prices import Prices


def pipeline_shifts(root: Node, costs: Prices) -> dict[str, int]:
  """Returns by how many periods each stage is behind; stages at 0 are left out.

  A stage that a chain reaches on devices which the chain used before, and left
  since, would keep them idle while it is elsewhere. It is put one iteration
  behind, as far as the staleness allows; what reads from it is no less behind.
  The stages of a loop are taken as one, and so is what leads from a stage that
  reads fresh state to the one that updates it: its iterations do not overlap.
  """
  limit = costs.workflow.staleness
  if not isinstance(root, Spatial) or limit == 0:
    return {}
  of = _parts(costs)
  places: dict[str, set[int]] = {part: set() for part in of.values()}
  for i, child in enumerate(root.children):
    for run in plans.runs(child):
      places[of[run.stage]].add(i)
  after: dict[str, set[str]] = {part: set() for part in places}
  for name in costs.order:
    for edge in costs.edges_into[name]:
      if (source := of[edge.source]) != of[name]:
        after[of[name]] |= {source} | after[source]
  shifts = dict.fromkeys(places, 0)
  for _ in range(limit * len(places)):
    before = dict(shifts)
    for part, earlier in after.items():
      for first in earlier:
        behind = _is_return(first, part, places, after)
        reached = min(limit, shifts[first] + int(behind))
        shifts[part] = max(shifts[part], reached)
    if shifts == before:
      break
  return {name: shifts[of[name]] for name in of if shifts[of[name]]}


def _parts(costs: Prices) -> dict[str, str]:
  """Returns for each stage the first of those that are behind as it is."""
  workflow = costs.workflow
  of = {name: name for name in costs.order}

  def join(names: set[str]) -> None:
    together = {of[name] for name in names}
    first = next(name for name in costs.order if of[name] in together)
    for name, part in of.items():
      if part in together:
        of[name] = of[first]

  reached = {name: {name} for name in costs.order}  # what leads to a stage
  for name in costs.order:
    for edge in costs.edges_into[name]:
      reached[name] |= reached[edge.source]
  for loop in workflow.loops:
    join(set(loop.stages))
  for sync in workflow.syncs:
    if sync.is_fresh and sync.target in reached[sync.source]:
      join({x for x in reached[sync.source] if sync.target in reached[x]})
  return of


def _is_return(
  first: str,
  part: str,
  places: dict[str, set[int]],
  after: dict[str, set[str]],
) -> bool:
  """Returns whether a chain from `first` left devices it is back on."""
  between = [x for x in after[part] if first in after[x]]
  return any(
    place not in places[x]
    for place in places[first] & places[part]
    for x in between
  )
