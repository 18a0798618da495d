"""Which states leave device memory while other stages run there."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Sequence

from scheduler import plans
from scheduler.plans import Lanes, Node, Run, TreePlan
from scheduler.prices import Prices

# Of up to so many states every choice is tried; of more, the cheapest go first.
_MAX_EXHAUSTIVE = 10


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Tenant:
  """A stage on some devices, as memory sees it.

  Attributes:
    state_bytes: per device, taken always or, if swapped, while it runs.
    transient_bytes: per device, taken while it runs.
    swap_ns: time in which the state leaves, or returns.
    places: indices of the sets of devices on which it lies.
  """

  state_bytes: int
  transient_bytes: int
  swap_ns: int
  places: tuple[int, ...] = (0,)


@functools.lru_cache(maxsize=1 << 14)
def swapped(
  tenants: tuple[Tenant, ...], memory_bytes: tuple[int, ...]
) -> frozenset[int] | None:
  """Returns the tenants to swap so that all fit, in the least time.

  Args:
    tenants: who shares devices; one of those on a place runs at a time.
    memory_bytes: of a device of each place.

  Returns:
    Indices of tenants; None where not even swapping all of them is enough.
  """
  everyone = range(len(tenants))
  if _fits(tenants, memory_bytes, ()):
    return frozenset()
  if not _fits(tenants, memory_bytes, everyone):
    return None
  if len(tenants) <= _MAX_EXHAUSTIVE:
    fitting = (
      chosen
      for size in range(1, len(tenants) + 1)
      for chosen in itertools.combinations(everyone, size)
      if _fits(tenants, memory_bytes, chosen)
    )
    return frozenset(
      min(fitting, key=lambda chosen: sum(tenants[i].swap_ns for i in chosen))
    )
  # Those that free most for their time leave, then return where they still fit.
  order = sorted(
    everyone,
    key=lambda i: (tenants[i].swap_ns / max(1, tenants[i].state_bytes), i),
  )
  out: list[int] = []
  for i in order:
    if _fits(tenants, memory_bytes, out):
      break
    out.append(i)
  for i in sorted(out, key=lambda i: -tenants[i].swap_ns):
    rest = [j for j in out if j != i]
    if _fits(tenants, memory_bytes, rest):
      out = rest
  return frozenset(out)


def settled(plan: TreePlan, prices: Prices) -> Iterator[TreePlan]:
  """Yields a tree whose Runs are swapped where memory needs it.

  First as if items that wait to be read took no memory; where that makes a
  difference, then as if their buffers were always full, which is safe. None is
  yielded where swapping everything is not enough.
  """
  found = tuple(plans.runs(plan.root))
  atoms, places = prices.atoms(tuple(run.devices for run in found))
  lanes = {lanes.loop: len(lanes.lanes) for lanes in _lanes(plan.root)}
  # Inside a loop each lane of each turn brings the state back.
  turns = {
    name: loop.turns * lanes.get(loop.name, 1)
    for loop in prices.workflow.loops
    for name in loop.stages
  }
  tenants = []
  for run, where in zip(found, places):
    state = prices.state_bytes(run)
    tenants.append(
      Tenant(
        state,
        prices.transient_bytes(run, _items(run, prices)),
        prices.swap_ns(run.devices, state) * turns.get(run.stage, 1),
        where,
      )
    )
  earlier = None
  for is_buffered in (False, True):
    left = [0] * len(atoms)
    for run, where in zip(found, places):
      for place in where:
        left[place] = prices.device_class(run).memory_bytes
    for run, where in zip(found, places):
      taken = _copy_bytes(plan, run, prices)
      taken += _buffer_bytes(run, prices) if is_buffered else 0
      for place in where:
        left[place] -= taken
    out = swapped(tuple(tenants), tuple(left))
    if out is None or out == earlier:
      return
    earlier = out
    leaving = {id(found[i]) for i in out}
    yield dataclasses.replace(plan, root=_rebuilt(plan.root, leaving))


def _lanes(node: Node) -> Iterator[Lanes]:
  if isinstance(node, Lanes):
    yield node
  elif not isinstance(node, Run):
    for child in node.children:
      yield from _lanes(child)


def _items(run: Run, prices: Prices) -> int:
  """Returns how many items' transient bytes a Run takes."""
  stage, (start, stop) = prices.stages[run.stage], prices.share(run)
  if stage.kind == "decode" and not prices.workflow.loop_of(run.stage):
    return (run.cohort or (start, stop))[1] - start
  return min(run.granule, stop - start)


def _copy_bytes(plan: TreePlan, run: Run, prices: Prices) -> int:
  if run.stage not in plan.copies:
    return 0
  return sum(
    math.ceil(sync.num_bytes / run.config.devices)
    for sync in prices.workflow.syncs
    if sync.target == run.stage
  )


def _buffer_bytes(run: Run, prices: Prices) -> int:
  stage, (start, stop) = prices.stages[run.stage], prices.share(run)
  return sum(
    math.ceil(
      prices.stages[edge.source].items
      * (stop - start)
      / stage.items
      * edge.item_bytes
      / len(run.devices)
    )
    for edge in prices.edges_into[run.stage]
  )


def _rebuilt(node: Node, leaving: set[int]) -> Node:
  """Returns a tree whose Runs of these identities are swapped, others stay."""
  if isinstance(node, Run):
    return dataclasses.replace(node, is_resident=id(node) not in leaving)
  if isinstance(node, Lanes):
    return dataclasses.replace(node, body=_rebuilt(node.body, leaving))
  return dataclasses.replace(
    node, children=tuple(_rebuilt(child, leaving) for child in node.children)
  )


def _fits(
  tenants: tuple[Tenant, ...],
  memory_bytes: tuple[int, ...],
  out: Sequence[int],
) -> bool:
  kept = list(memory_bytes)
  for i, tenant in enumerate(tenants):
    if i not in out:
      for place in tenant.places:
        kept[place] -= tenant.state_bytes
  return all(
    tenant.transient_bytes + (tenant.state_bytes if i in out else 0)
    <= kept[place]
    for i, tenant in enumerate(tenants)
    for place in tenant.places
  )
