"""Records of legs as markdown."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks import jobs

Record = Mapping[str, Any]
PARTS = {
  "collecting": "collecting",
  "physics_only": "physics only",
  "engine": "the engine by itself",
  "envpool_only": "EnvPool by itself",
}


def speed(records: Sequence[Record]) -> str:
  """Returns the speeds of one setting's legs, and what binds ours.

  Where a step of an environment is several steps of physics (ours is one), a
  second ratio counts those.
  """
  ours = next((r for r in records if r["leg"] == "ours"), None)
  rows = []
  for r in records:
    ratio = ours and ours["steps_per_s"] / r["steps_per_s"]
    num_substeps = r.get("num_substeps", 1)
    rows.append(
      [
        f"{r['leg']}: {jobs.LEGS[r['leg']][1]}",
        r["physics"],
        f"{r['steps_per_s']:,.0f}",
        f"{num_substeps}",
        "" if ratio is None else f"{ratio:.2f}",
        "" if ratio is None else f"{ratio / num_substeps:.2f}",
        f"{r['num_steps']:,} in {r['seconds']:.1f} s",
        f"{r['compile_s']:.0f} s" if "compile_s" in r else "",
      ]
    )
  header = (
    "leg|physics|env-steps/s|physics steps per step|ours / it"
    "|ours / it, physics steps|measured|compiling, apart"
  )
  lines = [_table(header.split("|"), rows), ""]
  lines += [what_binds(ours)] if ours else []
  lines += [f"- `{r['leg']}`: {_parts(r)}" for r in records if r.get("parts")]
  lines += [
    f"- `{r['leg']}`: {_variants(r)}" for r in records if "variants" in r
  ]
  return "\n".join(lines)


def what_binds(ours: Record) -> str:
  """Returns how our iteration divides its time, and which part is largest."""
  per_step = {
    name: 1 / rate["steps_per_s"] for name, rate in ours["parts"].items()
  }
  whole = per_step["iteration"]
  shares = {
    "physics": per_step["physics_only"] / whole,
    "acting, auto-reset and recording": (
      (per_step["collecting"] - per_step["physics_only"]) / whole
    ),
    "advantages and updates": (whole - per_step["collecting"]) / whole,
  }
  largest = max(shares, key=lambda name: shares[name])
  parts = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
  return (
    f"- `ours` end to end is {per_step['physics_only'] / whole:.0%} of the"
    f" physics-only rate. Of an iteration: {parts}. {largest} binds."
  )


def learning(records: Sequence[Record], *, target: float | None = None) -> str:
  """Returns returns at equal steps, and the time to a return.

  Args:
    records: of one setting, whose curves have the same steps.
    target: the return to be reached; None is 90 % of the lowest final one, so
      that every leg reached it.
  """
  means = {r["leg"]: _mean_curve(r["curves"]) for r in records}
  if target is None:
    target = 0.9 * min(float(curve["return"][-1]) for curve in means.values())
  rows = []
  for r in records:
    finals = [curve[-1]["return"] for curve in r["curves"]]
    curve = means[r["leg"]]
    rows.append(
      [
        f"{r['leg']}: {jobs.LEGS[r['leg']][1]}",
        r["physics"],
        f"{len(finals)}",
        f"{curve['step'][-1]:,.0f}",
        f"{np.mean(finals):.1f} ± {np.std(finals):.1f}",
        _crossing(curve["step"], curve["return"], target, "{:,.0f}"),
        _crossing(curve["seconds"], curve["return"], target, "{:.1f} s"),
      ]
    )
  header = (
    f"leg|physics|seeds|steps|return|steps to return {target:.0f}"
    f"|training time to return {target:.0f}"
  )
  return _table(header.split("|"), rows)


def crossing(x: np.ndarray, y: np.ndarray, target: float) -> float:
  """Returns where the broken line through (x, y) first reaches a height.

  Args:
    x: [N], rising.
    y: [N].
    target: the height; inf is returned where it is never reached.
  """
  reached = np.flatnonzero(y >= target)
  if not reached.size:
    return math.inf
  i = int(reached[0])
  if i == 0:
    return float(x[0])
  share = (target - y[i - 1]) / (y[i] - y[i - 1])
  return float(x[i - 1] + share * (x[i] - x[i - 1]))


def _mean_curve(curves: Sequence[Sequence[Record]]) -> dict[str, np.ndarray]:
  names = ("step", "seconds", "return")
  return {
    name: np.mean([[p[name] for p in curve] for curve in curves], axis=0)
    for name in names
  }


def _crossing(x: np.ndarray, y: np.ndarray, target: float, form: str) -> str:
  at = crossing(x, y, target)
  return "not reached" if math.isinf(at) else form.format(at)


def _parts(record: Record) -> str:
  return ", ".join(
    f"{PARTS[name]} {rate['steps_per_s']:,.0f} env-steps/s"
    for name, rate in record["parts"].items()
    if name in PARTS
  )


def _variants(record: Record) -> str:
  return "; ".join(
    f"{name}: {rate['steps_per_s']:,.0f} env-steps/s"
    for name, rate in record["variants"].items()
  )


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
  lines = [header, ["---"] * len(header), *rows]
  return "\n".join("| " + " | ".join(line) + " |" for line in lines)
