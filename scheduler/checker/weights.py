"""Laws of weights that return from the stage that updates them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from scheduler import errors
from scheduler.checker.needs import Need
from scheduler.checker.view import Chain, View
from scheduler.devices import Devices
from scheduler.workflows import WeightSync


class Delivery(NamedTuple):
  """A weight sync of a plan.

  Attributes:
    activity: its index.
    reached: resources to which it brings weights.
    is_copy: they go to a second copy, and occupy no devices.
    after: iterations since the update that it brings.
    before: iterations until the one that reads it.
  """

  activity: int
  reached: frozenset[int]
  is_copy: bool
  after: int
  before: int


def weights_are_synced(view: View) -> None:
  """Weights are brought to all devices that read them, of the right age."""
  for sync in view.costs.workflow.syncs:
    found = deliveries(view, sync)
    for chain in readers(view, sync):
      if _sync_ns(view, sync, chain) == 0:
        continue
      for r in chain.atoms:
        if not any(r in delivery.reached for delivery in found):
          raise errors.InfeasiblePlanError(
            f"stage {sync.target!r} on '{view.devices(chain.atoms)}' receives"
            f" no weights of {sync.source!r} on"
            f" '{view.plan.resources[r].name}'; add a weight_sync"
          )


def weights_have_arrived(view: View) -> Iterator[Need]:
  """Yields what weight syncs, and those who read the weights, wait for."""
  for sync in view.costs.workflow.syncs:
    lag = view.costs.workflow.lag(sync)
    read = f"reads the weights of {sync.source!r}, exactly {lag - 1} old"
    ends, chains = _ends(view, sync), readers(view, sync)
    for chain in chains:
      for end in ends:
        yield Need(end, chain.first(), lag, read)
    for delivery in deliveries(view, sync):
      for end in ends:
        yield Need(end, delivery.activity, delivery.after, "brings its update")
      for chain in chains:
        if delivery.reached.isdisjoint(chain.atoms):
          continue
        yield Need(delivery.activity, chain.first(), delivery.before, read)
        # Whoever reads what is overwritten, is done with it.
        age = 1 + int(delivery.is_copy) - delivery.before
        last = max(chain.granules, key=lambda g: g.place)
        yield Need(
          last.activity, delivery.activity, age, "overwrites its weights"
        )


def readers(view: View, sync: WeightSync) -> list[Chain]:
  """Returns what reads the weights, in all turns."""
  return view.chains(itertools.chain.from_iterable(view.turns[sync.target]))


def deliveries(view: View, sync: WeightSync) -> list[Delivery]:
  """Returns the weight syncs of a plan that are of one of the workflow.

  Raises:
    InfeasiblePlanError: one is of the wrong age, or takes another time.
  """
  activities, ends = view.plan.activities, set(_ends(view, sync))
  own = [
    i
    for i in view.by_kind["weight_sync", sync.source]
    if activities[i].target == sync.target
  ]
  after: dict[int, set[int]] = {i: set() for i in own}
  before: dict[int, set[int]] = {i: set() for i in own}
  fed: dict[int, set[tuple[int, ...]]] = {i: set() for i in own}
  for arc in view.plan.arcs:
    if arc.target in after and arc.source in ends:
      after[arc.target].add(arc.lag)
    reader = activities[arc.target]
    if arc.source in before and reader.kind == "compute":
      if reader.stage == sync.target:
        before[arc.source].add(arc.lag)
        fed[arc.source].add(view.atoms[arc.target])
  return [_delivery(view, sync, i, after[i], before[i], fed[i]) for i in own]


def _delivery(
  view: View,
  sync: WeightSync,
  i: int,
  after: set[int],
  before: set[int],
  fed: set[tuple[int, ...]],
) -> Delivery:
  words, atoms = view.words(i), view.atoms[i]
  if sync.is_fresh and len(after) > 1:
    after = after - {view.lag}  # that one bounds how many iterations are alive
  if len(after) != 1 or len(before) != 1:
    raise errors.InfeasiblePlanError(
      f"{words} has arcs of lags {sorted(after)} from the last update of"
      f" {sync.source!r} and of lags {sorted(before)} to computes of"
      f" {sync.target!r}; it needs one lag each"
    )
  (lag_after,), (lag_before,) = after, before
  lag = view.costs.workflow.lag(sync)
  if lag_after + lag_before != lag:
    raise errors.InfeasiblePlanError(
      f"{words} brings weights of {lag_after + lag_before} iterations ago; with"
      f" staleness {lag - 1} it has to be {lag}"
    )
  found = view.plan.activities[i].duration_ns
  expected = {
    chain.atoms: _sync_ns(view, sync, chain)
    for chain in readers(view, sync)
    if chain.atoms in fed and (chain.atoms == atoms or not atoms)
  }
  reached = {
    r for fed_atoms, ns in expected.items() if ns == found for r in fed_atoms
  }
  if not reached:
    raise errors.InfeasiblePlanError(
      f"{words} takes {found} ns; {sync.num_bytes} bytes to the devices of"
      f" {sync.target!r} that wait for it take {sorted(expected.values())} ns"
    )
  return Delivery(i, frozenset(reached), not atoms, lag_after, lag_before)


def _ends(view: View, sync: WeightSync) -> list[int]:
  """Returns what ends the iteration of a sync's source: its last apply."""
  applies = view.by_kind["apply", sync.source]
  if applies:
    return [max(applies, key=lambda i: view.plan.activities[i].index)]
  granules = view.turns[sync.source][-1]
  items = view.costs.stages[sync.source].items
  last = [chain.last(0, items) for chain in view.chains(granules)]
  return [i for i in last if i is not None]


def _sync_ns(view: View, sync: WeightSync, chain: Chain) -> int:
  """Returns how long it takes to bring weights to one chain's devices."""
  source = Devices()
  for stage, atoms, _ in view.placements:
    if stage == sync.source:
      source = source | view.devices(atoms)
  config = view.plan.activities[chain.first()].config
  return view.costs.sync_ns(
    source, view.devices(chain.atoms), sync.num_bytes, config.devices
  )
