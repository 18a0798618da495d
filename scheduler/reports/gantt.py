"""Timelines as a picture."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any

from scheduler.reports import rows, summaries
from scheduler.reports.rows import Row
from scheduler.timelines import Timeline

_MAX_BARS = 20_000
_TEXT, _GRID = "#30363d", "#e4e7eb"


def write_gantt(
  timeline: Timeline, path: str | pathlib.Path, *, title: str = ""
) -> None:
  """Draws a timeline as a PNG: what each resource does, and memory below.

  Args:
    timeline: simulated or measured.
    path: of the picture.
    title: above it; "": the timeline's label.

  Raises:
    ValueError: nothing ran.
  """
  if not timeline.events:
    raise ValueError("the timeline has no events: there is nothing to draw")
  # Imported here: most who import the reports draw nothing.
  from matplotlib import figure as figures
  from matplotlib import ticker
  from matplotlib.backends import backend_agg

  drawn = drawable(timeline)
  summary = summaries.summarise(timeline)
  memory = _memory(timeline)
  heights = [max(1.2, 0.32 * len(drawn))] + [1.2] * bool(memory)
  figure = figures.Figure(
    figsize=(10.0, 1.6 + sum(heights)), dpi=130, layout="constrained"
  )
  backend_agg.FigureCanvasAgg(figure)
  panels = figure.subplots(
    len(heights), 1, sharex=True, squeeze=False, height_ratios=heights
  )[:, 0]
  _draw_rows(panels[0], drawn, summary, timeline)
  if memory:
    _draw_memory(panels[1], memory, timeline)
  panels[0].set_title(
    title or timeline.label, loc="left", color=_TEXT, fontweight="bold"
  )
  panels[0].set_title(
    f"{timeline.source}, {summary.iteration_s:.4g} s per iteration",
    loc="right",
    color=_TEXT,
    fontsize="small",
  )
  panels[-1].set_xlabel("seconds", color=_TEXT)
  panels[-1].xaxis.set_major_formatter(ticker.FormatStrFormatter("%.4g"))
  figure.savefig(path)


def drawable(timeline: Timeline) -> tuple[Row, ...]:
  """Returns rows with what is too near to be told apart as one bar."""
  resolution_ns = timeline.stop_ns // 4000
  return rows.of_timeline(timeline, resolution_ns=resolution_ns)


def _draw_rows(
  axes: Any,
  drawn: Sequence[Row],
  summary: summaries.Summary,
  timeline: Timeline,
) -> None:
  colours = rows.colours(timeline)
  left = _MAX_BARS
  for y, row in enumerate(drawn):
    bars = row.bars[: max(left, 0)]
    left -= len(bars)
    for is_odd in (False, True):
      own = [bar for bar in bars if bar.iteration % 2 == is_odd]
      axes.broken_barh(
        [(b.start_ns * 1e-9, (b.stop_ns - b.start_ns) * 1e-9) for b in own],
        (y - 0.4, 0.8),
        facecolors=[
          rows.MOVE_COLOURS.get(b.kind, colours[b.stage]) for b in own
        ],
        alpha=0.62 if is_odd else 1.0,
        linewidth=0,
      )
  shares = {u.resource: summary.share(u.busy_ns) for u in summary.usages}
  axes.set_yticks(
    range(len(drawn)),
    [f"{_short(r.label)}  {shares[r.resource]:.0%}" for r in drawn],
  )
  axes.set_ylim(len(drawn) - 0.4, -0.6)
  axes.set_xlim(0, timeline.stop_ns * 1e-9)
  axes.tick_params(colors=_TEXT, length=0)
  axes.grid(axis="x", color=_GRID)
  axes.set_axisbelow(True)
  for side in ("top", "right", "left"):
    axes.spines[side].set_visible(False)
  _draw_legend(axes, colours, timeline)


def _draw_legend(
  axes: Any, colours: dict[str, str], timeline: Timeline
) -> None:
  from matplotlib import patches

  kinds = {event.kind for event in timeline.events}
  computing = {e.stage for e in timeline.events if e.kind in rows.COMPUTES}
  named = [(n, c) for n, c in colours.items() if n in computing]
  named += [
    (kind.replace("_", " "), colour)
    for kind, colour in rows.MOVE_COLOURS.items()
    if kind in kinds
  ]
  axes.legend(
    handles=[patches.Patch(color=c, label=n) for n, c in named],
    loc="upper left",
    bbox_to_anchor=(1.0, 1.0),
    frameon=False,
    fontsize="small",
  )


def _draw_memory(
  axes: Any, memory: dict[str, list[tuple[int, int]]], timeline: Timeline
) -> None:
  for name, samples in memory.items():
    at_s = [at_ns * 1e-9 for at_ns, _ in samples] + [timeline.stop_ns * 1e-9]
    taken = [count * 1e-9 for _, count in samples]
    axes.step(
      at_s, taken + taken[-1:], where="post", label=_short(name), linewidth=1.2
    )
  axes.set_ylabel("GB per device", color=_TEXT)
  axes.set_ylim(bottom=0)
  axes.tick_params(colors=_TEXT, length=0)
  axes.grid(color=_GRID)
  axes.set_axisbelow(True)
  for side in ("top", "right", "left"):
    axes.spines[side].set_visible(False)
  if len(memory) <= 8:
    axes.legend(
      loc="upper left",
      bbox_to_anchor=(1.0, 1.0),
      frameon=False,
      fontsize="small",
    )


def _memory(timeline: Timeline) -> dict[str, list[tuple[int, int]]]:
  """Returns instants and bytes by resource."""
  found: dict[str, list[tuple[int, int]]] = {}
  for sample in timeline.memory:
    found.setdefault(sample.resource, []).append(
      (sample.at_ns, sample.bytes_per_device)
    )
  return found


def _short(name: str) -> str:
  return name if len(name) <= 28 else f"{name[:25]}..."
