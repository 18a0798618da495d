"""Laws of memory, at every instant of the earliest 1-periodic schedule."""

from __future__ import annotations

import collections
import fractions
import itertools
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from scheduler import errors
from scheduler.checker import moves, swaps, weights
from scheduler.checker.view import View
from scheduler.devices import Devices

Taking = dict[int, list["Taken"]]  # by resource


class Taken(NamedTuple):
  """Bytes that every iteration takes, or that are always taken.

  Attributes:
    num_bytes: on each device of a resource, or on the host of a node.
    what: for messages.
    start: when iteration 0 takes them, in the view's units.
    stop: when iteration 0 frees them; None: always taken, once.
  """

  num_bytes: int
  what: str
  start: int = 0
  stop: int | None = None

  def at(self, instant: int, period: int) -> int:
    """Returns how many bytes all iterations together take at an instant."""
    if self.stop is None:
      return self.num_bytes
    if period == 0:
      return 0
    begun = (instant - self.start) // period
    return self.num_bytes * (begun - (instant - self.stop) // period)


def holdings_cover_what_is_needed(view: View) -> None:
  """The plan's holdings account for all that has to lie on devices."""
  held, needed = _held(view), _needed(view)
  for r, taken in needed.items():
    less = [t._replace(num_bytes=-t.num_bytes) for t in held[r]]
    instant, missing = _peak([*taken, *less], view.period)
    if missing > 0:
      raise errors.InfeasiblePlanError(
        f"holdings miss {missing} bytes on each device of"
        f" '{view.plan.resources[r].name}' {_when(view, instant)}; they are"
        f" {_words(view, held[r], instant)}, but needed are"
        f" {_words(view, taken, instant)}"
      )


def devices_hold_all(view: View) -> None:
  """Devices have memory for all that is held at any instant."""
  for r, taken in _held(view).items():
    devices = view.plan.resources[r].devices
    instant, peak = _peak(taken, view.period)
    memory = view.costs.cluster.class_of(devices).memory_bytes
    if peak > memory:
      raise errors.InfeasiblePlanError(
        f"each device of '{devices}' holds {peak} bytes {_when(view, instant)},"
        f" of {memory}: {_words(view, taken, instant)}; swap the state of a"
        " stage, or use smaller granules or more devices"
      )


def hosts_hold_what_is_swapped(view: View) -> None:
  """Hosts have memory for the state that is not on devices, or on its way."""
  away: Taking = collections.defaultdict(list)
  for s in view.once(swaps.stretches):
    away[s.resource].append(
      Taken(
        s.num_bytes,
        f"state of {s.stage}",
        view.starts[s.swap_out],
        view.stop(s.swap_back) + s.absence * view.period,
      )
    )
  for node, host_bytes in _unlike_nodes(view, away):
    taken = []
    for r, own in away.items():
      count = len(view.plan.resources[r].devices & node)
      taken += [t._replace(num_bytes=t.num_bytes * count) for t in own if count]
    instant, peak = _peak(taken, view.period)
    if peak > host_bytes:
      raise errors.InfeasiblePlanError(
        f"the host of devices '{node}' holds {peak} bytes"
        f" {_when(view, instant)}, of {host_bytes}:"
        f" {_words(view, taken, instant)}; keep the state of a stage on devices"
      )


def _held(view: View) -> Taking:
  found: Taking = collections.defaultdict(list)
  for h in view.plan.holdings:
    if h.bytes_per_device < 0:
      raise errors.InfeasiblePlanError(
        f"the holding {h.what!r} is of {h.bytes_per_device} bytes; it takes"
        " memory and cannot give any"
      )
    if h.begin is None or h.end is None:
      taken = Taken(h.bytes_per_device, h.what)
    else:
      stop = view.stop(h.end) + h.lag * view.period
      taken = Taken(h.bytes_per_device, h.what, view.starts[h.begin], stop)
      if stop < taken.start:
        raise errors.InfeasiblePlanError(
          f"the holding {h.what!r} would end {_when(view, stop)}, before it"
          f" begins {_when(view, taken.start)}; give its end a larger lag"
        )
    found[h.resource].append(taken)
  return found


def _needed(view: View) -> Taking:
  found: Taking = collections.defaultdict(list)
  for r, taken in itertools.chain(
    _states(view), _copies(view), _transients(view), _waiting(view)
  ):
    if taken.num_bytes:
      found[r].append(taken)
  return found


def _states(view: View) -> Iterator[tuple[int, Taken]]:
  """Yields state: while it is swapped in, or always."""
  inside: set[tuple[int, int]] = set()
  for s in view.once(swaps.stretches):
    inside.update((s.resource, i) for i in s.computes)
    stop = view.stop(s.swap_out) + s.lag * view.period
    what = f"state of {s.stage}"
    yield (
      s.resource,
      Taken(s.num_bytes, what, view.starts[s.swap_in], stop),
    )
  always: dict[tuple[int, str], int] = {}
  for i, a in enumerate(view.plan.activities):
    if a.kind == "compute":
      for r in view.atoms[i]:
        if (r, i) not in inside:
          key = (r, a.stage)
          always[key] = max(always.get(key, 0), view.state_bytes(i))
  for (r, stage), num_bytes in always.items():
    yield r, Taken(num_bytes, f"state of {stage}")


def _copies(view: View) -> Iterator[tuple[int, Taken]]:
  """Yields second copies of weights, which syncs fill behind the work."""
  for sync in view.costs.workflow.syncs:
    copied: dict[int, int] = {}
    for delivery in weights.deliveries(view, sync):
      for chain in weights.readers(view, sync) if delivery.is_copy else ():
        config = view.plan.activities[chain.first()].config
        num_bytes = -(-sync.num_bytes // config.devices)
        for r in delivery.reached.intersection(chain.atoms):
          copied[r] = max(copied.get(r, 0), num_bytes)
    for r, num_bytes in copied.items():
      yield r, Taken(num_bytes, f"second copy of weights of {sync.target}")


def _transients(view: View) -> Iterator[tuple[int, Taken]]:
  for i, a in enumerate(view.plan.activities):
    if a.kind == "compute":
      num_bytes = view.transient_bytes(i)
      taken = Taken(
        num_bytes, f"granule of {a.stage}", view.starts[i], view.stop(i)
      )
      for r in view.atoms[i]:
        yield r, taken


def _waiting(view: View) -> Iterator[tuple[int, Taken]]:
  """Yields items from when they are made to when their first reader starts.

  They lie where they are read. What passes within a turn of a loop is left out.
  """
  for hop in moves.hops(view):
    edge = hop.edge
    if hop.is_inside or edge.item_bytes == 0:
      continue
    for target in view.chains(hop.readers):
      size = len(view.devices(target.atoms))
      writers = iter(hop.writers)
      writer, reached = next(writers), 0
      for reader in target.granules:
        start, stop = moves.receives(view, edge, reader) or (0, 0)
        reached = max(reached, start)
        while reached < stop:
          while writer.stop <= reached:
            writer = next(writers)
          part = min(stop, writer.stop) - reached
          reached += part
          for r in target.atoms:
            yield (
              r,
              Taken(
                part * edge.item_bytes // size,
                f"items from {edge.source} to {edge.target}",
                view.stop(writer.activity),
                max(view.stop(writer.activity), view.starts[reader.activity]),
              ),
            )


def _peak(taken: list[Taken], period: int) -> tuple[int, int]:
  """Returns an instant at which most is taken, and how much."""
  changes: dict[int, int] = collections.defaultdict(int)
  for t in taken:
    if t.stop is not None and period:
      changes[t.start % period] += t.num_bytes
      changes[t.stop % period] -= t.num_bytes
  now = sum(t.at(0, period) for t in taken)
  found = (0, now)
  for instant in sorted(changes):
    now += changes[instant] if instant else 0
    if now > found[1]:
      found = (instant, now)
  return found


def _when(view: View, instant: int) -> str:
  ns = fractions.Fraction(instant, view.unit)
  return f"{float(ns):.12g} ns into the period"


def _words(view: View, taken: Iterable[Taken], instant: int) -> str:
  """Returns what is taken at an instant, most first."""
  amounts: dict[str, int] = collections.defaultdict(int)
  for t in taken:
    amounts[t.what] += t.at(instant, view.period)
  largest = sorted(amounts.items(), key=lambda item: -item[1])
  words = [f"{what} ({amount})" for what, amount in largest if amount]
  return ", ".join(words) or "nothing"


def _unlike_nodes(view: View, away: Taking) -> Iterator[tuple[Devices, int]]:
  """Yields nodes and their host memory; all others are like one of them.

  Between two ends of spans nodes have equally many devices of each resource.
  """
  ends = {
    x
    for r in away
    for span in view.plan.resources[r].devices.spans
    for x in span
  }
  start = 0
  for kind in view.costs.cluster.nodes:
    size = kind.devices_per_node
    near = {(x - start) // size + i for x in ends for i in (-1, 0, 1)}
    for node in sorted(near):
      if 0 <= node < kind.num_nodes:
        first = start + node * size
        yield Devices.span(first, first + size), kind.host_bytes
    start += kind.num_nodes * size
