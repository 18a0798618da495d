"""What to try next, from what a timeline shows."""

from __future__ import annotations

from collections.abc import Mapping

from scheduler.reports import formatting, rows
from scheduler.reports.summaries import Summary, Usage

# Less than these shares is not worth a sentence.
_NEAR_BOUND = 1.03
_MUCH_IDLE = 0.15
_MUCH_MOVING = 0.03
_FULL = 0.95


def advise(
  summary: Summary,
  *,
  staleness: int = 0,
  memory_bytes: Mapping[str, int] | None = None,
  bound_s: float | None = None,
) -> tuple[str, ...]:
  """Returns what to try next, a sentence each, with the numbers.

  Args:
    summary: of a timeline.
    staleness: of the workflow.
    memory_bytes: of one device of each resource, where known.
    bound_s: seconds that no plan's iteration can take less than, where known.
  """
  found = []
  if bound_s and summary.iteration_s <= _NEAR_BOUND * bound_s:
    found.append(
      f"No plan takes less than {bound_s:.4g} s and this one takes"
      f" {summary.iteration_s:.4g}: better plans cannot help, only more or"
      " faster devices, or less work."
    )
  devices = [u for u in summary.usages if not u.is_link]
  if devices:
    found += _balance(summary, devices, staleness)
  for usage in devices:
    found += _swaps(summary, usage)
    memory = (memory_bytes or {}).get(usage.resource, 0)
    if memory and usage.peak_bytes >= _FULL * memory:
      found.append(
        f"Memory of {rows.named(usage.resource)} is"
        f" {formatting.share(usage.peak_bytes / memory)} full: smaller granules"
        " or a swapped stage would leave room for caches."
      )
  found += [s for u in summary.usages if u.is_link for s in _link(summary, u)]
  return tuple(found) or ("Nothing stands out.",)


def _balance(
  summary: Summary, devices: list[Usage], staleness: int
) -> list[str]:
  busiest = max(devices, key=lambda u: u.busy_ns)
  idlest = min(devices, key=lambda u: u.busy_ns)
  busy = summary.share(busiest.busy_ns)
  found = []
  if summary.share(busiest.busy_ns - idlest.busy_ns) > _MUCH_IDLE:
    found.append(
      f"Idle time is {formatting.share(1 - summary.share(idlest.busy_ns))} on"
      f" {rows.named(idlest.resource)} and {formatting.share(1 - busy)} on"
      f" {rows.named(busiest.resource)}: move devices from the first to"
      f" {_work(busiest)}, or a stage to the first."
    )
  if 1 - busy > _MUCH_IDLE:
    without_s = busy * summary.iteration_s
    sentence = (
      f"The busiest, {rows.named(busiest.resource)}, waits"
      f" {formatting.share(1 - busy)} of the time, at most"
      f" {formatting.seconds(busiest.longest_bubble_ns)} at once: smaller"
      " granules would let stages overlap more"
    )
    if not staleness:
      sentence += (
        "; with staleness 1 iterations would overlap too, down to"
        f" {without_s:.4g} s each at best"
      )
    found.append(f"{sentence}.")
  return found


def _work(usage: Usage) -> str:
  by_stage = usage.by_stage_ns
  return max(by_stage, key=by_stage.__getitem__) if by_stage else "the second"


def _swaps(summary: Summary, usage: Usage) -> list[str]:
  spent = summary.share(sum(usage.by_kind_ns.get(k, 0) for k in rows.SWAPS))
  if spent <= _MUCH_MOVING:
    return []
  return [
    f"Swaps take {formatting.share(spent)} of the time of"
    f" {rows.named(usage.resource)}:"
    " turns of more items, or states divided over more devices, swap less."
  ]


def _link(summary: Summary, usage: Usage) -> list[str]:
  if summary.share(usage.busy_ns) < 1 - _MUCH_IDLE:
    return []
  return [
    f"Link {usage.resource} is busy"
    f" {formatting.share(summary.share(usage.busy_ns))} of the time: keep what"
    " it carries on the devices where it is made."
  ]
