"""Timelines as a web page of one file, to be explored without a network."""

from __future__ import annotations

import html
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

from scheduler.reports import formatting, gantt, page_script, rows, summaries
from scheduler.reports.rows import Bar
from scheduler.reports.summaries import Summary
from scheduler.timelines import Timeline

_MAX_BARS = 20_000
# Browsers keep 32-bit floats: of a timeline in units of this many a length, a
# thousandth of a picture's width can still be told apart.
_LENGTH = 100_000.0
_MEMORY_HEIGHT = 100.0


def write_page(
  timeline: Timeline,
  path: str | pathlib.Path,
  *,
  title: str = "",
  text: str = "",
  advice: Sequence[str] = (),
  memory_bytes: Mapping[str, int] | None = None,
) -> None:
  """Writes a page: the timeline, use of resources, memory, what to try next.

  Args:
    timeline: simulated or measured.
    path: of the page.
    title: its heading; "": the timeline's label.
    text: an explanation, shown as it is.
    advice: sentences, see `advise`.
    memory_bytes: of one device of each resource, where known.

  Raises:
    ValueError: nothing ran.
  """
  if not timeline.events:
    raise ValueError("the timeline has no events: there is nothing to show")
  page = "\n".join(
    _page(timeline, title or timeline.label, text, advice, memory_bytes or {})
  )
  pathlib.Path(path).write_text(page, encoding="utf-8")


def _page(
  timeline: Timeline,
  title: str,
  text: str,
  advice: Sequence[str],
  memory_bytes: Mapping[str, int],
) -> Iterator[str]:
  summary = summaries.summarise(timeline)
  heading = html.escape(title or "timeline")
  yield '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
  yield f"<title>{heading}</title><style>{page_script.STYLE}</style></head>"
  yield (
    f'<body data-length="{_LENGTH:g}"'
    f' data-seconds="{timeline.stop_ns * 1e-9!r}">'
  )
  yield f"<h1>{heading}</h1>"
  yield (
    f"<p>{timeline.source}: {summary.iteration_s:.4g} s per iteration,"
    f" {len(timeline.events):,} activities in {timeline.num_iterations}"
    f" iterations. Below, shares are of the last {summary.num_iterations}"
    f" (from {summary.start_ns * 1e-9:.4g} s on).</p>"
  )
  yield from _gantt(timeline)
  if timeline.memory:
    yield from _memory(timeline, memory_bytes)
  yield from _table(summary, memory_bytes)
  yield from _bytes(summary)
  if advice:
    items = "".join(f"<li>{html.escape(line)}</li>" for line in advice)
    yield f"<h2>What to try next</h2><ul>{items}</ul>"
  if text:
    yield f"<h2>Explanation</h2><pre>{html.escape(text)}</pre>"
  yield f"<script>{page_script.SCRIPT}</script></body></html>"


def _gantt(timeline: Timeline) -> Iterator[str]:
  drawn = gantt.drawable(timeline)
  colours = rows.colours(timeline)
  scale = _LENGTH / max(1, timeline.stop_ns)
  yield "<h2>What ran when</h2>"
  yield f"<p>{''.join(_legend(timeline, colours))}</p>"
  left = _MAX_BARS
  for row in drawn:
    bars = row.bars[: max(left, 0)]
    left -= len(bars)
    shapes = "".join(_shape(bar, colours, scale) for bar in bars)
    yield _picture("row", row.label, 20, shapes)
  number = sum(len(row.bars) for row in drawn)
  hint = "Wheel: zoom. Drag: move. Double click: all. Hover: what it is."
  if number > _MAX_BARS:
    hint += f" Only {_MAX_BARS:,} of {number:,} bars are drawn."
  yield (
    '<div class="row axis"><div class="name"></div><svg class="axis"></svg>'
    f'</div><p class="hint">{hint} Every other iteration is paler.</p>'
  )


def _legend(timeline: Timeline, colours: Mapping[str, str]) -> Iterator[str]:
  computing = {e.stage for e in timeline.events if e.kind in rows.COMPUTES}
  kinds = {event.kind for event in timeline.events}
  for name, colour in colours.items():
    if name in computing:
      yield _key(colour, name)
  for kind, colour in rows.MOVE_COLOURS.items():
    if kind in kinds:
      yield _key(colour, kind.replace("_", " "))


def _key(colour: str, name: str) -> str:
  return (
    f'<span class="key" style="background:{colour}"></span>{html.escape(name)}'
  )


def _picture(kind: str, name: str, height: float, shapes: str) -> str:
  label = html.escape(name)
  return (
    f'<div class="{kind}"><div class="name" title="{label}">{label}</div>'
    f'<svg class="time" viewBox="0 0 {_LENGTH:g} {height:g}"'
    f' preserveAspectRatio="none">{shapes}</svg></div>'
  )


def _shape(bar: Bar, colours: Mapping[str, str], scale: float) -> str:
  colour = rows.MOVE_COLOURS.get(bar.kind, colours[bar.stage])
  lines = [
    f"{bar}, iteration {bar.iteration}",
    f"{formatting.seconds(bar.stop_ns - bar.start_ns)} from"
    f" {bar.start_ns * 1e-9:.6g} s",
  ]
  if any(bar.items):
    lines.append(f"items {bar.items[0]:,} to {bar.items[1]:,}")
  if bar.num_bytes:
    lines.append(formatting.num_bytes(bar.num_bytes))
  pale = ' opacity="0.62"' if bar.iteration % 2 else ""
  return (
    f'<rect x="{bar.start_ns * scale:.2f}" y="1" height="18"'
    f' width="{(bar.stop_ns - bar.start_ns) * scale:.2f}"'
    f' fill="{colour}"{pale}><title>{html.escape(chr(10).join(lines))}</title>'
    "</rect>"
  )


def _memory(
  timeline: Timeline, memory_bytes: Mapping[str, int]
) -> Iterator[str]:
  scale = _LENGTH / max(1, timeline.stop_ns)
  samples: dict[str, list[tuple[int, int]]] = {}
  for sample in timeline.memory:
    samples.setdefault(sample.resource, []).append(
      (sample.at_ns, sample.bytes_per_device)
    )
  yield "<h2>Memory of each device</h2>"
  for name, points in samples.items():
    peak = max(count for _, count in points)
    top = max(peak, memory_bytes.get(name, 0), 1)
    path: list[str] = []
    previous = 0.0
    for at_ns, count in points:
      y = _MEMORY_HEIGHT * (1 - count / top)
      x = at_ns * scale
      path.append(f"L{x:.2f} {previous:.2f}L{x:.2f} {y:.2f}" if path else
                  f"M{x:.2f} {y:.2f}")  # fmt: skip
      previous = y
    path.append(f"L{_LENGTH:g} {previous:.2f}")
    text = formatting.num_bytes(peak)
    if name in memory_bytes:
      text += f" of {formatting.num_bytes(memory_bytes[name])}"
    yield _picture(
      "tall",
      f"{name}: at most {text}",
      _MEMORY_HEIGHT,
      f'<path d="{"".join(path)}" fill="none" stroke="#3b75af"'
      ' stroke-width="1.5" vector-effect="non-scaling-stroke"/>',
    )


def _table(summary: Summary, memory_bytes: Mapping[str, int]) -> Iterator[str]:
  yield "<h2>How busy each resource is</h2><table>"
  heads = ["busy", "computing", "swapping", "bubbles", "longest bubble",
           "moved", "peak memory"]  # fmt: skip
  yield _cells("th", ["resource"], heads)
  for u in summary.usages:
    spent = u.by_kind_ns
    peak = formatting.num_bytes(u.peak_bytes) if u.peak_bytes else ""
    if peak and memory_bytes.get(u.resource):
      ratio = u.peak_bytes / memory_bytes[u.resource]
      peak += f" ({formatting.share(ratio)})"
    yield _cells(
      "td",
      [u.resource],
      [
        _share(summary, u.busy_ns),
        _share(summary, sum(spent.get(k, 0) for k in rows.COMPUTES)),
        _share(summary, sum(spent.get(k, 0) for k in rows.SWAPS)),
        f"{u.num_bubbles:,}",
        formatting.seconds(u.longest_bubble_ns) if u.num_bubbles else "",
        formatting.num_bytes(u.num_bytes) if u.num_bytes else "",
        peak,
      ],
    )
  yield "</table>"


def _bytes(summary: Summary) -> Iterator[str]:
  if not summary.bytes_by_kind:
    return
  yield "<h2>Bytes moved per iteration</h2><table>"
  for kind, count in summary.bytes_by_kind.items():
    each = count / max(1, summary.num_iterations)
    yield _cells("td", [kind.replace("_", " ")], [formatting.num_bytes(each)])
  yield "</table>"


def _share(summary: Summary, duration_ns: int) -> str:
  return formatting.share(summary.share(duration_ns))


def _cells(tag: str, names: Iterable[str], numbers: Iterable[str]) -> str:
  left = "".join(f"<{tag}>{html.escape(name)}</{tag}>" for name in names)
  right = "".join(
    f'<{tag} class="n">{html.escape(number)}</{tag}>' for number in numbers
  )
  return f"<tr>{left}{right}</tr>"
