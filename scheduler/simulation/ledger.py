"""Memory over time: what a plan's holdings take, and when.

At an instant what is freed goes before what is taken: an activity may reuse the
memory of the one that it waited for.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler import errors, plans, timelines
from scheduler.simulation.stretches import NEVER_NS, Stretch

_MAX_LAG = 1 << 16


def samples(
  stretches: Sequence[Stretch],
) -> tuple[timelines.MemorySample, ...]:
  """Returns the bytes on each resource's devices, at every change.

  A holding that begins before the first iteration is held from the start; one
  that ends after the last iteration is never freed.

  Raises:
    InfeasiblePlanError: more bytes than can be counted.
  """
  import numpy as np

  names = tuple(
    dict.fromkeys(r.name for s in stretches for r in s.plan.resources)
  )
  number = {name: i for i, name in enumerate(names)}
  changes = [c for s in stretches for c in _changes(s, number)]
  if not any(len(resource) for resource, *_ in changes):
    return ()
  resource, at_ns, num_bytes = map(np.concatenate, zip(*changes))
  order = np.lexsort((at_ns, resource))
  resource, at_ns = resource[order], at_ns[order]
  held = np.cumsum(num_bytes[order])
  # Of several changes at one instant the last one leaves what is held.
  is_last = np.append((np.diff(resource) != 0) | (np.diff(at_ns) != 0), True)
  resource, at_ns, held = resource[is_last], at_ns[is_last], held[is_last]
  # The sum runs on from one resource to the next.
  starts = np.flatnonzero(np.diff(resource, prepend=-1))
  sizes = np.diff(starts, append=len(resource))
  held -= np.repeat(np.append(0, held[starts[1:] - 1]), sizes)
  is_change = np.diff(held, prepend=0) != 0
  is_change[starts] = True
  resource, at_ns, held = resource[is_change], at_ns[is_change], held[is_change]
  order = np.lexsort((resource, at_ns))
  return timelines.from_columns(
    timelines.MemorySample,
    len(order),
    dict(
      resource=map(names.__getitem__, resource[order].tolist()),
      at_ns=at_ns[order].tolist(),
      bytes_per_device=held[order].tolist(),
    ),
  )


def _changes(stretch: Stretch, number: dict[str, int]) -> list[tuple]:
  """Returns (resource, instant, bytes) of holdings taken, and of those freed.

  Each is three equally long arrays.
  """
  import numpy as np

  plan = stretch.plan
  holdings = [h for h in plan.holdings if h.bytes_per_device]
  if not holdings:
    return []
  n = len(plan.activities)
  iterations = len(stretch.starts_ns) // n if n else 1
  if (lag := max(h.lag for h in holdings)) > _MAX_LAG:
    raise errors.InfeasiblePlanError(
      f"a holding of plan {plan.label!r} lasts for {lag:,} iterations; at most"
      f" {_MAX_LAG:,} are kept account of"
    )
  held = sum(h.bytes_per_device * (iterations + abs(h.lag)) for h in holdings)
  if held >= NEVER_NS:
    raise errors.InfeasiblePlanError(
      f"the holdings of plan {plan.label!r} are more than {NEVER_NS:,} bytes"
    )
  # One row for all before the first iteration, and one for all after the last.
  before, after = np.full((1, n), stretch.begin_ns), np.full((1, n), NEVER_NS)
  shape = (iterations, n)
  starts = np.concatenate(
    [before, np.array(stretch.starts_ns, dtype=np.int64).reshape(shape), after]
  )
  stops = np.concatenate(
    [before, np.array(stretch.stops_ns, dtype=np.int64).reshape(shape), after]
  )
  changes = []
  for kind in dict.fromkeys(map(_kind, holdings)):
    alike = [h for h in holdings if _kind(h) == kind]
    always, forever, lag = kind
    i = np.arange(1) if always else np.arange(min(0, -lag), iterations)
    taken = np.full((len(i), len(alike)), stretch.begin_ns)
    freed = np.full((len(i), len(alike)), NEVER_NS)
    if not always:
      rows = np.clip(i, -1, iterations) + 1
      taken = starts[np.ix_(rows, np.array([h.begin or 0 for h in alike]))]
    if not forever:
      rows = np.clip(i + lag, -1, iterations) + 1
      freed = stops[np.ix_(rows, np.array([h.end or 0 for h in alike]))]
    freed = np.where(freed == NEVER_NS, stretch.stop_ns, freed)
    resource = np.array(
      [number[plan.resources[h.resource].name] for h in alike]
    )
    num_bytes = np.array([h.bytes_per_device for h in alike])
    for at_ns, sign in ((taken, 1), (freed, -1)):
      counts = (taken < freed) & (at_ns < NEVER_NS)
      columns = np.nonzero(counts)[1]
      changes.append(
        (resource[columns], at_ns[counts], sign * num_bytes[columns])
      )
  return changes


def _kind(holding: plans.Holding) -> tuple[bool, bool, int]:
  forever = holding.end is None
  return holding.begin is None, forever, 0 if forever else holding.lag
