"""Pictures of a comparison."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from scheduler.comparison import scores
from scheduler.comparison.regrets import Regret
from scheduler.comparison.scores import Score
from scheduler.reports import rows

_TEXT, _GRID = "#30363d", "#e4e7eb"


def write_figures(
  found: Sequence[Score],
  regrets: Iterable[Regret],
  directory: pathlib.Path,
) -> tuple[pathlib.Path, ...]:
  """Draws what there are numbers for; returns the pictures' paths.

  ratios.png: each plan's time over the optimum, where it is known, or over the
  bound; planning_time.png: against devices; regrets.png: against noise.
  """
  fine = [score for score in found if score.status == "ok"]
  names = [standing.planner for standing in scores.to_standings(found)]
  colours = {
    name: rows.STAGE_COLOURS[i % len(rows.STAGE_COLOURS)]
    for i, name in enumerate(names)
  }
  written = []
  if any(_ratio(score) is not None for score in fine):
    path = directory / "ratios.png"
    _draw(path, lambda axes: _ratios(axes, fine, names, colours))
    written.append(path)
  if len({score.num_devices for score in fine}) > 1:
    path = directory / "planning_time.png"
    _draw(path, lambda axes: _planning_time(axes, fine, names, colours))
    written.append(path)
  if known := list(regrets):
    path = directory / "regrets.png"
    _draw(path, lambda axes: _regrets(axes, known, names, colours))
    written.append(path)
  return tuple(written)


def _draw(path: pathlib.Path, fill: Callable[[Any], None]) -> None:
  # Imported here: most who compare in one process draw nothing.
  from matplotlib import figure as figures
  from matplotlib.backends import backend_agg

  figure = figures.Figure(figsize=(8.0, 4.5), dpi=130, layout="constrained")
  backend_agg.FigureCanvasAgg(figure)
  axes = figure.subplots()
  fill(axes)
  axes.tick_params(colors=_TEXT, length=0)
  axes.grid(color=_GRID)
  axes.set_axisbelow(True)
  for side in ("top", "right", "left"):
    axes.spines[side].set_visible(False)
  figure.savefig(path)


def _ratio(score: Score) -> float | None:
  return score.to_optimum if score.to_optimum is not None else score.to_bound


def _ratios(
  axes: Any, fine: Sequence[Score], names: Sequence[str], colours: dict
) -> None:
  has_optima = any(score.to_optimum is not None for score in fine)
  for y, name in enumerate(reversed(names)):
    own = [
      s.to_optimum if has_optima else s.to_bound
      for s in fine
      if s.planner == name
    ]
    ratios = sorted(r for r in own if r is not None)
    axes.plot(
      ratios, [y] * len(ratios), "|", color=colours[name], markersize=14
    )
    if ratios:
      middle = ratios[len(ratios) // 2]
      axes.plot([middle], [y], "o", color=colours[name], markersize=7)
  axes.set_yticks(range(len(names)), list(reversed(names)))
  axes.set_xscale("log")
  axes.xaxis.set_major_formatter("{x:g}")
  axes.xaxis.set_minor_formatter("{x:g}")
  what = "proven optimum" if has_optima else "lower bound"
  axes.set_xlabel(f"time per iteration over the {what}; dots: medians")


def _planning_time(
  axes: Any, fine: Sequence[Score], names: Sequence[str], colours: dict
) -> None:
  for name in names:
    points = [
      (s.num_devices, s.planning_cpu_s)
      for s in fine
      if s.planner == name and s.planning_cpu_s
    ]
    if points:
      axes.plot(
        *zip(*sorted(points)), ".", color=colours[name], label=name, alpha=0.8
      )
  axes.set_xscale("log")
  axes.set_yscale("log")
  axes.xaxis.set_major_formatter("{x:,.0f}")
  axes.set_xlabel("devices")
  axes.set_ylabel("CPU seconds to plan")
  axes.legend(frameon=False, fontsize="small")


def _regrets(
  axes: Any, known: Sequence[Regret], names: Sequence[str], colours: dict
) -> None:
  for name in names:
    own = [(r.noise, r.mean) for r in known if r.planner == name]
    if own:
      noises, means = zip(*sorted(own))
      axes.plot(
        [100 * n for n in noises],
        [100 * m for m in means],
        "o-",
        color=colours[name],
        label=name,
        markersize=4,
      )
  axes.set_xlabel("profile wrong by up to, %")
  axes.set_ylabel("longer than the best plan there, %")
  axes.set_ylim(bottom=0)
  axes.legend(frameon=False, fontsize="small")
