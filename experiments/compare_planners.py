r"""Compares planners over a whole draw of problems, with bounds and optima.

  python -m experiments.compare_planners --draw=test
  python -m experiments.compare_planners --draw=classS --optimum_s=60
  python -m experiments.compare_planners --draw=test --realism
  python -m experiments.compare_planners --problems='grpo_7b_*' \
    --planners=auto,collocated,my_planner.py:my_planner

Needs no JAX and no accelerator. Every outcome is added to outcomes.jsonl in
--out_dir as it is known: the same command goes on where it was stopped, and
works on nothing twice. Each piece of work has a process of its own; what takes
longer than --time_limit_s is a row too, with the status "timeout". Plan with
one worker on an idle machine where planning times matter.

Writes summary.md, results.md, results.csv, plans/ and pictures. How long a draw
takes, and what came of it: experiments/README.md. What ratios, bounds and
optima mean: docs/planners.md.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import hashlib
import json
import os
import pathlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from absl import app, flags

import scheduler
from experiments import planner_files
from scheduler import comparison, documents, planners, plans
from scheduler.comparison import cases, figures, outcomes, processes
from scheduler.comparison.cases import Case
from scheduler.comparison.outcomes import Outcome, Work
from scheduler.comparison.processes import Failure

FLAGS = flags.FLAGS

flags.DEFINE_enum("draw", "development", list(comparison.DRAWS), "Of problems.")
flags.DEFINE_list(
  "problems", ["*"], "Patterns of names, such as 'grpo_*_8_*'; any must match."
)
flags.DEFINE_list(
  "planners",
  [name for name in planners.PLANNERS if name != "exact"],
  "Names, or path/to/mine.py:my_planner.",
)
flags.DEFINE_integer(
  "budget", planners.Budget().iterations, "Plans a planner may evaluate.", 1
)
flags.DEFINE_integer("seed", 0, "Of the planners.", 0)
flags.DEFINE_integer("workers", os.cpu_count() or 1, "Processes at a time.", 1)
flags.DEFINE_float("time_limit_s", 120.0, "For each piece of work.", 0.01)
flags.DEFINE_float(
  "optimum_s", 60.0, "In class S, for the search of each optimum.", 0.1
)
flags.DEFINE_string(
  "optima",
  None,
  "In class S: file that benchmarks.close_suite wrote, in place of searching.",
)
flags.DEFINE_bool(
  "realism", False, "Also simulate plans in worlds they were not made for."
)
flags.DEFINE_integer(
  "realism_seeds", 3, "With --realism: worlds for each noise.", 1
)
flags.DEFINE_string("out_dir", None, "Default: runs/compare_planners/DRAW.")
flags.DEFINE_bool(
  "fresh", False, "Work on everything anew; what is known is kept aside."
)

_OPTIMUM_SLACK = 1.5, 30.0  # building, bounding and checking take time too


class Task(NamedTuple):
  """One piece of work.

  Attributes:
    work: what is to be done.
    case: on which problem.
    planner: of "plan" and "realism", whose plan.
    key: what the outcome depends on.
    limit_s: time that it is allowed.
  """

  work: Work
  case: Case
  planner: str
  key: str
  limit_s: float


def main(argv: list[str]) -> None:
  """Works on what is not known yet; writes tables and pictures."""
  if len(argv) > 1:
    raise app.UsageError(f"unexpected arguments: {' '.join(argv[1:])}")
  try:
    _compare()
  except KeyboardInterrupt:
    sys.exit("interrupted; the same command goes on")
  except (ValueError, OSError, ModuleNotFoundError) as error:
    sys.exit(f"error: {error}")


def _compare() -> None:
  folder = pathlib.Path(
    FLAGS.out_dir or pathlib.Path("runs") / "compare_planners" / FLAGS.draw
  )
  (folder / "plans").mkdir(parents=True, exist_ok=True)
  for name in FLAGS.planners:
    planner_files.load(name)
  chosen = [
    case
    for case in comparison.cases_of(FLAGS.draw)
    if any(fnmatch.fnmatch(case.name, p) for p in FLAGS.problems)
  ]
  if not chosen:
    raise ValueError(
      f"no problem of the draw {FLAGS.draw} matches"
      f" --problems={','.join(FLAGS.problems)}"
    )
  path = folder / "outcomes.jsonl"
  if FLAGS.fresh and path.exists():
    path.rename(path.with_suffix(".old.jsonl"))
  known = {outcome.key: outcome for outcome in outcomes.read(path)}
  optima = _optima(chosen)
  tasks = list(_tasks(chosen, optima))
  if len(others := {o.sources for o in known.values()} - {_sources()}):
    print(
      f"{path} has outcomes of {len(others)} other state(s) of scheduler/;"
      " --fresh works on them anew"
    )
  # Worlds are for plans, which have to be there before.
  for works in (("plan", "bound", "optimum"), ("realism",)):
    _work_on([t for t in tasks if t.work in works], known, path)
  _report([*optima.values(), *(known[t.key] for t in tasks)], folder)


def _optima(chosen: Iterable[Case]) -> dict[str, Outcome]:
  """Returns the optima of --optima, by problem.

  Raises:
    ValueError: the file is not of benchmarks.close_suite, or of another draw.
  """
  if FLAGS.optima is None:
    return {}
  by_name = {case.name: case for case in chosen if case.is_class_s}
  draw = "development" if FLAGS.draw == "classS_development" else "test"
  found = {}
  text = pathlib.Path(FLAGS.optima).read_text(encoding="utf-8")
  for number, line in enumerate(text.splitlines(), 1):
    try:
      record = json.loads(line)
      is_of_draw = record["settings"]["draw"] == draw
      values = {
        "optimum_s": record["period_ms"] / 1e3,
        "bound_s": record["bound_ms"] / 1e3,
        "first_s": record["first_period_ms"] / 1e3,
        "first_bound_s": record["first_bound_ms"] / 1e3,
        "search_s": record["seconds"],
      }
      case = by_name.get(record["name"])
    except (ValueError, TypeError, LookupError) as error:
      raise ValueError(
        f"{FLAGS.optima}, line {number} is no line of benchmarks.close_suite:"
        f" {type(error).__name__}: {error}"
      ) from None
    if not is_of_draw:
      raise ValueError(
        f"{FLAGS.optima}, line {number} is not of the draw {draw!r}"
      )
    if case is not None:
      found[case.name] = Outcome(
        work="optimum",
        problem=case.name,
        workload=case.workload,
        num_devices=case.num_devices,
        values=values,
      )
  return found


def _tasks(
  chosen: Iterable[Case], optima: Mapping[str, Outcome]
) -> Iterable[Task]:
  for case in chosen:
    problem = cases.digest(case.build())
    slack, more_s = _OPTIMUM_SLACK
    optimum_s = FLAGS.optimum_s * slack + more_s
    yield Task("bound", case, "", f"bound {problem}", FLAGS.time_limit_s)
    if case.is_class_s and case.name not in optima:
      yield Task("optimum", case, "", f"optimum {problem}", optimum_s)
    for planner in FLAGS.planners:
      own = f"{_identity(planner)} {FLAGS.budget} {FLAGS.seed} {problem}"
      yield Task("plan", case, planner, f"plan {own}", FLAGS.time_limit_s)
      if FLAGS.realism:
        key = f"realism {FLAGS.realism_seeds} {own}"
        yield Task("realism", case, planner, key, FLAGS.time_limit_s)


@functools.cache
def _identity(planner: str) -> str:
  """Returns a planner's name, and of a file what is in it."""
  path, colon, _ = planner.rpartition(":")
  if not colon:
    return planner
  return f"{planner}@{_hash([pathlib.Path(path)])}"


@functools.cache
def _sources() -> str:
  """Returns what tells the code of scheduler/ from that of other days."""
  (root,) = scheduler.__path__
  return _hash(sorted(pathlib.Path(root).rglob("*.py")))


def _hash(files: Iterable[pathlib.Path]) -> str:
  digest = hashlib.sha256()
  for file in files:
    digest.update(file.read_bytes())
  return digest.hexdigest()[:16]


def _work_on(
  tasks: Sequence[Task], known: dict[str, Outcome], path: pathlib.Path
) -> None:
  """Runs the tasks of which nothing is known; adds their outcomes."""
  todo = [task for task in tasks if not _is_known(task, known.get(task.key))]
  if todo:
    print(f"{len(todo)} of {len(tasks)} pieces of work are to be done")
  done = 0

  def finish(task: Task, result: Outcome | Failure) -> None:
    nonlocal done
    done += 1
    if isinstance(result, Failure):
      result = _failed(task, result)
    known[task.key] = result
    outcomes.append(result, path)
    print(f"[{done}/{len(todo)}] {_in_words(result)}", flush=True)

  plan_folder = path.parent / "plans"
  for limit_s in sorted({task.limit_s for task in todo}):
    processes.run_all(
      [task for task in todo if task.limit_s == limit_s],
      functools.partial(_do, plan_folder=plan_folder),
      finish,
      num_workers=FLAGS.workers,
      time_limit_s=limit_s,
    )


def _is_known(task: Task, outcome: Outcome | None) -> bool:
  """Returns whether working on a task again could not tell more."""
  if outcome is None:
    return False
  if outcome.status == "timeout" or (
    outcome.work == "optimum" and not comparison.is_closed(outcome)
  ):
    return outcome.limit_s >= task.limit_s
  return True


def _do(task: Task, *, plan_folder: pathlib.Path) -> Outcome:
  """Does one piece of work, in a process of its own."""
  problem, path = task.case.build(), plan_folder / f"{_name(task)}.json"
  name = planner_files.label(task.planner)
  if task.work == "bound":
    outcome = comparison.bound_of(problem)
  elif task.work == "optimum":
    outcome = comparison.optimum_of(problem, time_limit_s=FLAGS.optimum_s)
  elif task.work == "plan":
    outcome, plan = comparison.try_planner(
      problem,
      name,
      planner_files.load(task.planner),
      planners.Budget(iterations=FLAGS.budget),
      FLAGS.seed,
    )
    if plan is not None:
      documents.write(plan, path)
  elif not path.exists():
    outcome = _failed(task, Failure("error", "there is no plan"))
  else:
    outcome = comparison.realism_of(
      problem, name, plans.read(path), num_seeds=FLAGS.realism_seeds
    )
  return _completed(outcome, task)


def _name(task: Task) -> str:
  """Returns the file name of the plan that a task makes, or is about."""
  name = planner_files.label(task.planner)
  own = f"{_identity(task.planner)} {FLAGS.budget} {FLAGS.seed}"
  short = hashlib.sha256(own.encode()).hexdigest()[:8]
  return f"{task.case.name}.{name}.{short}"


def _failed(task: Task, failure: Failure) -> Outcome:
  outcome = Outcome(
    work=task.work,
    problem=task.case.name,
    workload=task.case.workload,
    num_devices=task.case.num_devices,
    planner=planner_files.label(task.planner),
    status=failure.status,
    message=failure.message,
  )
  return _completed(outcome, task)


def _completed(outcome: Outcome, task: Task) -> Outcome:
  return dataclasses.replace(
    outcome,
    workload=task.case.workload,
    num_devices=task.case.num_devices,
    key=task.key,
    limit_s=task.limit_s,
    sources=_sources(),
  )


def _in_words(outcome: Outcome) -> str:
  what = f"{outcome.problem}, {outcome.planner or outcome.work}"
  if outcome.work == "realism":
    what += " elsewhere"
  if outcome.status != "ok":
    return f"{what}: {outcome.status}, {outcome.message}"
  values = outcome.values
  if outcome.work == "plan":
    took = f"planned in {values['planning_s']:.3g} s"
    return f"{what}: {values['period_s']:.4g} s, {took}"
  if outcome.work == "optimum":
    state = "closed" if comparison.is_closed(outcome) else "open"
    return f"{what}: {values['optimum_s']:.4g} s, {state}"
  return f"{what}: {next(iter(values.values())):.4g} s"


def _report(found: Sequence[Outcome], folder: pathlib.Path) -> None:
  """Writes and prints tables, and draws pictures."""
  scores = comparison.to_scores(found)
  regrets = comparison.to_regrets(found)
  parts = [
    f"# Planners on the draw {FLAGS.draw}",
    f"{len({s.problem for s in scores})} problems, budget {FLAGS.budget}, seed"
    f" {FLAGS.seed}. Means are geometric; ratios of periods, 1 is best.",
    comparison.format_ranking(scores),
  ]
  if any(score.planner == "auto" for score in scores):
    parts.append(comparison.format_advantages(scores, "auto"))
  if any(outcome.work == "optimum" for outcome in found):
    parts.append(comparison.format_open(found))
  if regrets:
    parts.append(
      "Regret in worlds that no plan was made for, mean of problems:"
    )
    parts.append(comparison.format_regrets(regrets))
  if failed := [s for s in scores if s.status != "ok"]:
    lines = [
      f"- {s.problem}, {s.planner}: {s.status}. {s.message}" for s in failed
    ]
    parts.append("\n".join(["Without a plan:", "", *lines]))
  text = "\n\n".join(parts) + "\n"
  (folder / "summary.md").write_text(text, encoding="utf-8")
  table = comparison.format_scores(scores) + "\n"
  (folder / "results.md").write_text(table, encoding="utf-8")
  comparison.write_csv(scores, folder / "results.csv")
  figures.write_figures(scores, regrets, folder)
  print(f"\n{text}\nwrote tables and pictures to {folder}")


if __name__ == "__main__":
  app.run(main)
