"""Scores, standings and regrets as markdown and CSV."""

from __future__ import annotations

import csv
import dataclasses
import pathlib
from collections.abc import Iterable, Sequence

from scheduler.comparison import scores
from scheduler.comparison.outcomes import Outcome
from scheduler.comparison.regrets import Regret
from scheduler.comparison.scores import Score


def format_ranking(found: Sequence[Score]) -> str:
  """Returns planners as a markdown table, the best first, by means."""
  heads = ["planner", "plans", "to bound", "to single-mode bound",
           "over collocated", "over disaggregated", "planning, median",
           "longest"]  # fmt: skip
  has_optima = any(s.to_optimum is not None for s in found)
  if not has_optima:
    heads.append("growth")
  else:
    heads += ["to optimum", "worst", "closed", "non-trivial", "worst", "of"]
  lines = []
  for s in scores.to_standings(found):
    line = [
      s.planner,
      f"{s.num_ok} of {s.num_tried}",
      _number(s.to_bound),
      _number(s.to_single_mode),
      _number(s.over_collocated),
      _number(s.over_disaggregated),
      _seconds(s.planning_s),
      _seconds(s.longest_planning_s),
    ]
    if not has_optima:
      line.append(_number(s.growth, 2))
    else:
      line += [
        _number(s.to_optimum),
        _number(s.worst_to_optimum),
        f"{s.num_closed}",
        _number(s.to_optimum_non_trivial),
        _number(s.worst_non_trivial),
        f"{s.num_non_trivial}",
      ]
    lines.append(line)
  return _table(heads, lines)


def format_scores(found: Iterable[Score]) -> str:
  """Returns every score as a markdown table."""
  heads = ["problem", "devices", "planner", "s per iteration", "to optimum",
           "to bound", "binds", "over collocated", "over disaggregated",
           "planning", "peak memory"]  # fmt: skip
  lines = []
  for s in found:
    line = [s.problem, f"{s.num_devices:,}", s.planner]
    if s.period_s is None:
      line += [s.status, *[""] * 7]
    else:
      memory = f"{s.peak_memory:.0%}" if s.peak_memory is not None else ""
      line += [
        f"{s.period_s:.4g}",
        _number(s.to_optimum),
        _number(s.to_bound),
        s.binds,
        _number(s.over_collocated),
        _number(s.over_disaggregated),
        _seconds(s.planning_s),
        memory,
      ]
    lines.append(line)
  return _table(heads, lines)


def format_advantages(found: Sequence[Score], planner: str) -> str:
  """Returns how much longer others' plans take than one planner's."""
  heads = ["planner", f"takes, over {planner}", "at least", "problems"]
  known = scores.advantages(found, planner)
  return _table(
    heads,
    [
      [name, _number(mean), _number(least), f"{count}"]
      for name, (mean, least, count) in sorted(
        known.items(), key=lambda item: -item[1][0]
      )
    ],
  )


def format_regrets(found: Iterable[Regret]) -> str:
  """Returns regrets as a markdown table, a planner a line."""
  known = list(found)
  noises = sorted({r.noise for r in known})
  heads = ["planner", "problems", *(f"profile ±{n:.0%}" for n in noises)]
  heads += [f"worst, ±{n:.0%}" for n in noises]
  heads.append("longer than planned, lengths and links only")
  lines = []
  for name in dict.fromkeys(r.planner for r in known):
    own = {r.noise: r for r in known if r.planner == name}
    first = own[min(own)]
    lines.append(
      [
        name,
        f"{first.num_problems}",
        *(f"{own[n].mean:.1%}" if n in own else "" for n in noises),
        *(f"{own[n].worst:.1%}" if n in own else "" for n in noises),
        f"{first.change:+.1%}" if not first.noise else "",
      ]
    )
  return _table(heads, lines)


def format_open(outcomes: Iterable[Outcome]) -> str:
  """Returns how many optima are proven, and the gaps of the other cases."""
  optima = [o for o in outcomes if o.work == "optimum"]
  closed = sum(map(scores.is_closed, optima))
  lines = []
  for o in optima:
    if scores.is_closed(o):
      continue
    if o.status != "ok":
      lines.append([o.problem, o.status, ""])
    else:
      gap = 1 - o.values["bound_s"] / o.values["optimum_s"]
      lines.append([o.problem, f"{gap:.2%}", _seconds(o.values["search_s"])])
  text = f"Optima: {closed} of {len(optima)} are proven."
  table = _table(["open", "gap", "searched"], lines)
  return f"{text}\n\n{table}" if lines else text


def write_csv(found: Iterable[Score], path: str | pathlib.Path) -> None:
  """Writes every field of every score."""
  names = [field.name for field in dataclasses.fields(Score)]
  with pathlib.Path(path).open("w", encoding="utf-8", newline="") as file:
    writer = csv.DictWriter(file, names)
    writer.writeheader()
    writer.writerows(dataclasses.asdict(score) for score in found)


def _table(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
  text = [" | ".join(heads), " | ".join(["---"] * len(heads))]
  text += [" | ".join(line) for line in lines]
  return "\n".join(f"| {line} |" for line in text)


def _number(value: float | None, digits: int = 3) -> str:
  return "" if value is None else f"{value:.{digits}f}"


def _seconds(value: float | None) -> str:
  return "" if value is None else f"{value:.3g} s"
