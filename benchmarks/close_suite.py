r"""Closes the suite of class S: proven optima, and gaps where there are none.

  python -m benchmarks.close_suite --draw=test --workers=2
  python -m benchmarks.close_suite --draw=development --every=11

Solves one instance after another with `scheduler.exact.solve` and a time limit
each, checks every plan, and adds a line of JSON per instance to --output. Run
again, it goes on where it was stopped; what is in the file is not solved again.
At the end it prints how many are closed, by stages and by granules, how many of
those are not trivial, and every one that is open with its gap.

An instance is trivial if list scheduling met the bound before anything had to
be proven, or if `collocated` or `disaggregated` is within 10 % of the optimum.
"""

from __future__ import annotations

import collections
import json
import os
import pathlib
import statistics
from typing import Any

from absl import app, flags

from scheduler import (
  bounds,
  checker,
  cycles,
  errors,
  evaluation,
  exact,
  planners,
)
from scheduler.exact import suite
from scheduler.exact.suite import Instance

FLAGS = flags.FLAGS

flags.DEFINE_enum("draw", "test", sorted(suite.SEEDS), "Which draw.")
flags.DEFINE_float("time_limit_s", 60.0, "Seconds for each instance.")
flags.DEFINE_integer("workers", 2, "Threads.", lower_bound=1)
flags.DEFINE_integer(
  "every", 1, "Only every so manieth instance.", lower_bound=1
)
flags.DEFINE_boolean(
  "replay", False, "Also check each certificate, from scratch."
)
flags.DEFINE_string(
  "output",
  None,
  "Lines of JSON. Default: runs/close_suite_DRAW_TIMELIMITs_WORKERS.jsonl",
)

Record = dict[str, Any]
BASELINES = ("collocated", "disaggregated")
_NON_TRIVIAL = 1.10


def main(argv: list[str]) -> None:
  """Solves what is left, and prints what is closed."""
  if len(argv) > 1:
    raise app.UsageError(f"unexpected arguments {argv[1:]}")
  path = pathlib.Path(
    FLAGS.output
    or f"runs/close_suite_{FLAGS.draw}_{FLAGS.time_limit_s:g}s"
    f"_{FLAGS.workers}.jsonl"
  )
  path.parent.mkdir(parents=True, exist_ok=True)
  records = _read(path)
  instances = suite.draw(FLAGS.draw)[:: FLAGS.every]
  for k, instance in enumerate(instances):
    if instance.name in records:
      continue
    record = _solved(instance)
    records[instance.name] = record
    with path.open("a", encoding="utf-8") as file:
      file.write(json.dumps(record) + "\n")
    print(f"{k + 1:3d}/{len(instances)} {_line(record)}", flush=True)
  print(summary([records[instance.name] for instance in instances]))
  print(f"numbers: {path}")


def _read(path: pathlib.Path) -> dict[str, Record]:
  """Returns what was solved before, by name.

  Raises:
    ValueError: it was solved on another draw or with other settings.
  """
  records: dict[str, Record] = {}
  if not path.exists():
    return records
  text = path.read_text(encoding="utf-8")
  whole, cut, _ = text.rpartition("\n")
  if whole + cut != text:  # a run was killed as it wrote its last line
    path.write_text(whole + cut, encoding="utf-8")
  for line in whole.splitlines():
    record = json.loads(line)
    if record["settings"] != _settings():
      raise ValueError(
        f"{path} was made with {record['settings']}, not {_settings()}; give"
        " another --output"
      )
    records[record["name"]] = record
  return records


def _settings() -> Record:
  return {
    "draw": FLAGS.draw,
    "time_limit_s": FLAGS.time_limit_s,
    "workers": FLAGS.workers,
  }


def _solved(instance: Instance) -> Record:
  case = (instance.workflow, instance.profile, instance.cluster)
  solution = exact.solve(
    *case, time_limit_s=FLAGS.time_limit_s, workers=FLAGS.workers
  )
  checker.check(solution.plan, *case)
  if cycles.period_ns(solution.plan) > solution.period_ns:
    raise AssertionError(f"{instance.name}: the plan takes longer than stated")
  if FLAGS.replay:
    exact.replay(solution.certificate, *case)
  baselines = {name: _period_ms(name, instance) for name in BASELINES}
  return {
    "name": instance.name,
    "settings": _settings(),
    "stages": instance.num_stages,
    "groups": instance.num_groups,
    "granules": instance.num_granules,
    "status": solution.status,
    "period_ms": solution.period_ns / 1e6,
    "bound_ms": solution.bound_ns / 1e6,
    "gap": solution.gap,
    "first_period_ms": solution.first_period_ns / 1e6,
    "first_bound_ms": solution.first_bound_ns / 1e6,
    "any_plan_bound_ms": bounds.lower_bound(*case).ns / 1e6,
    "single_mode_bound_ms": bounds.single_mode_bound(*case).ns / 1e6,
    "shops": solution.num_shops,
    "decided": solution.num_decided,
    "seconds": solution.seconds,
    "load": os.getloadavg()[0],
    "is_replayed": FLAGS.replay,
    **{f"{name}_ms": period for name, period in baselines.items()},
  }


def _period_ms(planner: str, instance: Instance) -> float | None:
  """Returns the period of a planner's plan; None: it found none."""
  case = (instance.workflow, instance.profile, instance.cluster)
  try:
    plan = planners.PLANNERS[planner](*case, planners.Budget(), 0)
    return float(evaluation.evaluate(plan, *case).period_ns) / 1e6
  except errors.InfeasiblePlanError:
    return None


def is_closed(record: Record) -> bool:
  """Returns whether the plan of an instance is proven to be the best."""
  return record["status"] == "optimal"


def is_trivial(record: Record) -> bool:
  """Returns whether a closed instance says little about planners."""
  if record["first_period_ms"] <= record["first_bound_ms"]:
    return True
  found = [record[f"{name}_ms"] for name in BASELINES]
  best = min((period for period in found if period is not None), default=None)
  return best is not None and best / record["period_ms"] < _NON_TRIVIAL


def summary(records: list[Record]) -> str:
  """Returns what was closed, in words and a table."""
  closed = [r for r in records if is_closed(r)]
  still_open = sorted(
    (r for r in records if not is_closed(r)), key=lambda r: -r["gap"]
  )
  non_trivial = sum(not is_trivial(r) for r in closed)
  lines = [
    f"closed: {len(closed)} of {len(records)}; not trivial: {non_trivial}",
    *_counts(records, "stages"),
    *_counts(records, "granules"),
    *_counts(records, "groups"),
  ]
  if closed:
    times = sorted(r["seconds"] for r in closed)
    lines.append(
      f"seconds of closed ones: median {statistics.median(times):.1f}, longest"
      f" {times[-1]:.1f}"
    )
  if still_open:
    gaps = [r["gap"] for r in still_open]
    lines.append(
      f"open: {len(still_open)}; gap: median {statistics.median(gaps):.2%},"
      f" largest {gaps[0]:.2%}"
    )
  lines += [f"  {_line(r)}" for r in still_open]
  return "\n".join(lines)


def _counts(records: list[Record], key: str) -> list[str]:
  total = collections.Counter(r[key] for r in records)
  closed = collections.Counter(r[key] for r in records if is_closed(r))
  parts = [f"{n}: {closed[n]} of {total[n]}" for n in sorted(total)]
  return [f"closed by {key}: {', '.join(parts)}"]


def _line(record: Record) -> str:
  state = "closed" if is_closed(record) else f"gap {record['gap']:.2%}"
  return (
    f"{record['name']}: {state}, period {record['period_ms']:.0f} ms, bound"
    f" {record['bound_ms']:.0f} ms, {record['seconds']:.1f} s"
  )


if __name__ == "__main__":
  app.run(main)
