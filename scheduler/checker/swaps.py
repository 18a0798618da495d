"""Laws of state that leaves devices for the host, and returns."""

from __future__ import annotations

from typing import NamedTuple

from scheduler import errors
from scheduler.checker.view import View
from scheduler.plans import Slot


class Stretch(NamedTuple):
  """A stay of a stage's state on devices, from one swap to the other.

  Attributes:
    stage: whose state.
    resource: on which devices.
    swap_in: the activity that brings it.
    swap_out: the activity that takes it away.
    computes: activities of the stage between the two.
    swap_back: the next swap_in.
    lag: the iteration of the swap_out less that of the swap_in.
    absence: the iteration of the next swap_in less that of the swap_out.
    num_bytes: on each device.
  """

  stage: str
  resource: int
  swap_in: int
  swap_out: int
  computes: tuple[int, ...]
  swap_back: int
  lag: int
  absence: int
  num_bytes: int


def swaps_alternate(view: View) -> None:
  """Swaps of a stage in and out follow each other on every resource."""
  for r, order in enumerate(view.plan.orders):
    kinds: dict[str, str] = {}
    # Twice around: the last of a period is followed by the first of the next.
    for slot in (*order, *order):
      a = view.plan.activities[slot.activity]
      if a.kind in ("swap_in", "swap_out"):
        if kinds.get(a.stage) == a.kind:
          raise errors.InfeasiblePlanError(
            f"{view.words(slot.activity)} follows another {a.kind} of the stage"
            f" on '{view.plan.resources[r].name}'; swaps in and out alternate"
          )
        kinds[a.stage] = a.kind


def swaps_take_their_time(view: View) -> None:
  """Swaps take what the link to the host allows."""
  for s in view.once(stretches):
    devices = view.plan.resources[s.resource].devices
    expected = view.costs.swap_ns(devices, s.num_bytes)
    for i in (s.swap_in, s.swap_out):
      if (found := view.plan.activities[i].duration_ns) != expected:
        raise errors.InfeasiblePlanError(
          f"{view.words(i)} takes {found} ns; the {s.num_bytes} bytes on each"
          f" device of '{devices}' take {expected} ns"
        )


def stretches(view: View) -> list[Stretch]:
  """Returns each stay of swapped state on devices; swaps have to alternate."""
  activities, found = view.plan.activities, []
  for r, order in enumerate(view.plan.orders):
    of_stage: dict[str, list[int]] = {}
    for p, slot in enumerate(order):
      if activities[slot.activity].kind == "swap_in":
        of_stage.setdefault(activities[slot.activity].stage, []).append(p)
    for stage, begins in of_stage.items():
      for begin, again in zip(begins, (*begins[1:], begins[0] + len(order))):
        found.append(_stretch(view, r, stage, begin, again))
  return found


def _stretch(view: View, r: int, stage: str, begin: int, again: int) -> Stretch:
  """Returns the stay from one swap_in, before the next; positions run on."""
  activities, order = view.plan.activities, view.plan.orders[r]
  computes: list[int] = []
  for end in range(begin + 1, again):
    i = order[end % len(order)].activity
    if activities[i].stage == stage:
      if activities[i].kind == "swap_out":
        break
      if activities[i].kind == "compute":
        computes.append(i)
  return Stretch(
    stage=stage,
    resource=r,
    swap_in=order[begin % len(order)].activity,
    swap_out=order[end % len(order)].activity,
    computes=tuple(computes),
    swap_back=order[again % len(order)].activity,
    lag=_lag(order, begin, end),
    absence=_lag(order, end, again),
    num_bytes=max((view.state_bytes(i) for i in computes), default=0),
  )


def _lag(order: tuple[Slot, ...], p: int, q: int) -> int:
  """Returns the iteration of the slot at q less that of the one at p."""
  (turns_p, p), (turns_q, q) = divmod(p, len(order)), divmod(q, len(order))
  return turns_q - turns_p + order[p].shift - order[q].shift
