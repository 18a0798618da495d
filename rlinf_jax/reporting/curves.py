"""Draws a run's learning curve from its JSONL file."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.axes
import matplotlib.figure
import matplotlib.ticker
import numpy as np
from matplotlib.backends import backend_agg

from rlinf_jax.reporting import metrics

_RETURN_COLOR = "#1f5fa8"
_SUCCESS_COLOR = "#2a8f5c"
_SPEED_COLOR = "#77808a"
_GRID_COLOR = "#e4e7eb"
_TEXT_COLOR = "#30363d"


def plot_learning_curve(
  jsonl_path: str | os.PathLike[str],
  png_path: str | os.PathLike[str],
  *,
  title: str,
  return_name: str = "return",
  success_name: str | None = "success",
  speed_name: str = "steps_per_s",
  evaluation_prefix: str = "evaluation/",
  step_name: str = "environment steps",
) -> pathlib.Path:
  """Draws return, success and steps/s against steps; returns the PNG's path.

  With several seeds the line is their mean, the band one standard deviation to
  either side, and each seed a thin line. Evaluations are dots. A metric that
  the file lacks is left out.

  Args:
    jsonl_path: what `metrics.open_jsonl` wrote.
    png_path: where to draw; its directory is made.
    title: above the picture, for instance the task and the algorithm.
    return_name: of the metric on the left axis.
    success_name: of the share of successes, on the right axis; None where the
      task knows no success.
    speed_name: of the steps per second, in the panel below.
    evaluation_prefix: before the names of the same metrics in evaluations.
    step_name: of what is counted, below.

  Raises:
    ValueError: no row has a finite return.
  """
  rows = metrics.read_jsonl(jsonl_path)
  returns = _read_series(rows, return_name)
  evaluations = _read_series(rows, evaluation_prefix + return_name)
  if returns is None and evaluations is None:
    raise ValueError(
      f"No row of {jsonl_path} has a finite {return_name!r}: there is nothing"
      " to draw."
    )
  success = success_name and _read_series(rows, success_name)
  speed = _read_series(rows, speed_name)
  figure = matplotlib.figure.Figure(
    figsize=(8.0, 5.0), dpi=150, layout="constrained"
  )
  backend_agg.FigureCanvasAgg(figure)
  if speed is None:
    top = bottom = figure.subplots()
  else:
    top, bottom = figure.subplots(
      2, 1, sharex=True, gridspec_kw={"height_ratios": [5, 1]}
    )
    _draw(bottom, speed, _SPEED_COLOR)
    _dress(bottom, "steps/s", _SPEED_COLOR)
    bottom.set_ylim(0, 1.25 * np.nanmax(speed[1]))
    bottom.yaxis.set_major_locator(matplotlib.ticker.MaxNLocator(2))
    bottom.yaxis.set_major_formatter(matplotlib.ticker.EngFormatter(sep=" "))
  if returns is not None:
    _draw(top, returns, _RETURN_COLOR)
  _draw_evaluations(top, evaluations, _RETURN_COLOR)
  _dress(top, return_name, _RETURN_COLOR)
  judged = success_name and _read_series(rows, evaluation_prefix + success_name)
  if success_name and (success or judged):
    right = top.twinx()
    if success:
      _draw(right, success, _SUCCESS_COLOR)
    _draw_evaluations(right, judged or None, _SUCCESS_COLOR)
    _dress(right, success_name, _SUCCESS_COLOR)
    right.set_ylim(-0.02, 1.02)
    right.yaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1.0))
    right.grid(visible=False)
    right.spines["right"].set_visible(False)
  top.set_title(title, loc="left", color=_TEXT_COLOR, fontweight="bold")
  notes = []
  if returns is not None and returns[1].shape[1] > 1:
    num_seeds = returns[1].shape[1]
    notes.append(f"mean and standard deviation of {num_seeds} seeds")
  if evaluations is not None or judged:
    notes.append("circles: evaluation")
  top.set_title(
    ";  ".join(notes), loc="right", color=_SPEED_COLOR, fontsize="small"
  )
  bottom.set_xlabel(step_name, color=_TEXT_COLOR)
  bottom.xaxis.set_major_formatter(matplotlib.ticker.EngFormatter(sep=" "))
  png_path = pathlib.Path(png_path)
  png_path.parent.mkdir(parents=True, exist_ok=True)
  figure.savefig(png_path)
  return png_path


def _read_series(
  rows: Sequence[Mapping[str, Any]], name: str
) -> tuple[np.ndarray, np.ndarray] | None:
  """Returns steps [N] and values [N, num_seeds] of the rows that have any."""
  found = [(row["step"], row[name]) for row in rows if name in row]
  if not found:
    return None
  steps = np.asarray([step for step, _ in found], np.float64)
  # null, which is None here, becomes NaN
  values = np.asarray([value for _, value in found], np.float64)
  values = values.reshape(len(found), -1)
  is_some = np.isfinite(values).any(axis=1)
  return (steps[is_some], values[is_some]) if is_some.any() else None


def _draw(
  axes: matplotlib.axes.Axes,
  series: tuple[np.ndarray, np.ndarray],
  color: str,
) -> None:
  steps, values = series
  mean = np.nanmean(values, axis=1)
  if values.shape[1] > 1:
    axes.plot(steps, values, color=color, linewidth=0.5, alpha=0.2)
    spread = np.nanstd(values, axis=1)
    axes.fill_between(
      steps, mean - spread, mean + spread, color=color, alpha=0.15, linewidth=0
    )
  marker = "o" if len(steps) == 1 else None
  axes.plot(steps, mean, color=color, linewidth=1.8, marker=marker)


def _draw_evaluations(
  axes: matplotlib.axes.Axes,
  series: tuple[np.ndarray, np.ndarray] | None,
  color: str,
) -> None:
  if series is None:
    return
  steps, values = series
  axes.plot(
    steps,
    np.nanmean(values, axis=1),
    linestyle="none",
    marker="o",
    markersize=5,
    markerfacecolor="white",
    markeredgecolor=color,
    clip_on=False,
    zorder=4,
  )


def _dress(axes: matplotlib.axes.Axes, label: str, color: str) -> None:
  axes.set_ylabel(label, color=color)
  axes.tick_params(colors=_TEXT_COLOR, length=0)
  axes.tick_params(axis="y", labelcolor=color)
  axes.grid(color=_GRID_COLOR, linewidth=0.8)
  axes.set_axisbelow(True)
  for side in ("top", "right", "left"):
    axes.spines[side].set_visible(False)
  axes.spines["bottom"].set_color(_GRID_COLOR)
  axes.margins(x=0.01)
