"""Plans as text that one can read."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

from scheduler.plans import (
  Activity,
  FlatPlan,
  Lanes,
  Node,
  Plan,
  Run,
  Slot,
  Spatial,
  Temporal,
)
from scheduler.reports import rows

_MAX_LINES = 24
_LONGEST_PATTERN = 12


def format_plan(plan: Plan) -> str:
  """Returns a plan as text, a tree indented, a flat one by resource."""
  label = plan.label or "without a label"
  if isinstance(plan, FlatPlan):
    return "\n".join([_flat_title(plan, label), *_resources(plan)])
  lines = [f"plan {label}", *_node(plan.root, "  ")]
  if plan.copies:
    copies = ", ".join(plan.copies)
    lines.append(f"  with second copies of the weights of {copies}")
  return "\n".join(lines)


def seconds(duration_ns: float) -> str:
  """Returns a duration with a unit, to three digits."""
  value = duration_ns * 1e-9
  for unit, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
    if value * scale >= 0.9995:
      digits = 0 if value * scale >= 999.5 else 3
      number = f"{value * scale:,.0f}" if not digits else f"{value * scale:.3g}"
      return f"{number} {unit}"
  return f"{duration_ns:.0f} ns"


def num_bytes(count: float) -> str:
  """Returns a number of bytes with a unit, to three digits."""
  for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
    if count >= 0.9995 * scale:
      return f"{count / scale:.3g} {unit}"
  return f"{count:.0f} bytes"


def share(value: float) -> str:
  """Returns a share in percent, never rounded to all or nothing."""
  value = round(value, 9)  # sums of shares are off by 1e-16
  if 0 < value < 0.005:
    return "under 1 %"
  if 0.995 <= value < 1:
    return "over 99 %"
  return f"{100 * value:.0f} %"


def counted(count: int, noun: str) -> str:
  """Returns "1 device", "2 devices"."""
  return f"{count:,} {noun}" + "s" * (count != 1)


def listed(names: Sequence[str]) -> str:
  """Returns "a, b and c"."""
  *rest, last = names
  return f"{', '.join(rest)} and {last}" if rest else last


def _node(node: Node, indent: str) -> Iterator[str]:
  if isinstance(node, Run):
    yield indent + _run(node)
    return
  if isinstance(node, Lanes):
    lanes = f"{len(node.lanes)} lanes" if len(node.lanes) > 1 else "one lane"
    items = " + ".join(f"{count:,}" for count in node.lanes)
    yield f"{indent}loop {node.loop}, {lanes} in flight ({items} items)"
    yield from _node(node.body, indent + "  ")
    return
  if isinstance(node, Temporal):
    turns = f"{node.turn:,} items at a time" if node.turn else "each once"
    yield f"{indent}in turn, {turns}"
  if isinstance(node, Spatial):
    yield f"{indent}side by side" + (
      f", at most {node.capacity:,} items between" if node.capacity else ""
    )
  for child in node.children:
    yield from _node(child, indent + "  ")


def _run(run: Run) -> str:
  words = [f"{run.stage} on {run.devices}"]
  replicas = len(run.devices) // run.config.devices
  if run.config.devices > 1:
    words.append(f"{replicas} x {run.config}")
  words.append(f"granules of {run.granule:,}")
  if run.share is not None:
    words.append(f"items {run.share[0]:,} to {run.share[1]:,}")
  if run.cohort is not None:
    words.append(f"of a cohort from {run.cohort[0]:,} to {run.cohort[1]:,}")
  if not run.is_resident:
    words.append("swapped")
  return ", ".join(words)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Stretch:
  """Activities alike that follow each other on a resource."""

  first: Activity
  last: Activity
  count: int
  duration_ns: int
  shift: int

  def __str__(self) -> str:
    text = rows.describe(self.first.kind, self.first.stage, self.first.target)
    if any(self.last.items):
      text += f" [{self.first.items[0]:,}, {self.last.items[1]:,})"
    if self.count > 1:
      text += f" in {self.count}"
    if self.shift:
      which = "before" if self.shift > 0 else "after"
      text += f" of the iteration {abs(self.shift)} {which}"
    return f"{text}: {seconds(self.duration_ns)}"


def _flat_title(plan: FlatPlan, label: str) -> str:
  return (
    f"plan {label}, flat: {len(plan.activities):,} activities of an iteration,"
    " in the order of each resource"
  )


def _resources(plan: FlatPlan) -> Iterator[str]:
  for r, (resource, order) in enumerate(zip(plan.resources, plan.orders)):
    is_link = resource.kind == "link"
    yield f"  {'link' if is_link else 'devices'} {resource.name}"
    lines = list(_repeated([str(s) for s in _stretches(plan, order)]))
    yield from lines[:_MAX_LINES]
    if len(lines) > _MAX_LINES:
      yield f"    and {len(lines) - _MAX_LINES} lines more"
    for held in plan.holdings:
      if held.resource == r and held.begin is None and held.bytes_per_device:
        yield f"    holds {num_bytes(held.bytes_per_device)}: {held.what}"


def _repeated(lines: Sequence[str]) -> Iterator[str]:
  """Yields lines, a pattern that follows itself only once."""
  i = 0
  while i < len(lines):
    saved, length, times = 0, 1, 1
    for size in range(1, _LONGEST_PATTERN + 1):
      pattern, count = lines[i : i + size], 1
      while pattern == lines[i + count * size : i + (count + 1) * size]:
        count += 1
      if (count - 1) * size > saved:
        saved, length, times = (count - 1) * size, size, count
    deeper = "  " * (times > 1)
    if times > 1:
      yield f"    {times} times:"
    for line in lines[i : i + length]:
      yield f"    {deeper}{line}"
    i += length * times


def _stretches(plan: FlatPlan, order: Sequence[Slot]) -> list[_Stretch]:
  def alike(slot: Slot) -> tuple[str, str, str, int]:
    a = plan.activities[slot.activity]
    return a.kind, a.stage, a.target, slot.shift

  found = []
  for (*_, shift), slots in itertools.groupby(order, key=alike):
    members = [plan.activities[slot.activity] for slot in slots]
    found.append(
      _Stretch(
        first=members[0],
        last=members[-1],
        count=len(members),
        duration_ns=sum(a.duration_ns for a in members),
        shift=shift,
      )
    )
  return found
