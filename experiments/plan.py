r"""Plans a workflow, and says why the plan is as it is.

  python -m experiments.plan --workload=grpo_7b_h100 --num_devices=64
  python -m experiments.plan --workload=maniskill --num_devices=8 \
    --write_inputs=mine           # three files to start from, and nothing else
  python -m experiments.plan --workflow=mine/workflow.json \
    --profile=mine/profile.json --cluster=mine/cluster.json --planner=hybrid
  python -m experiments.plan ... --planner=my_planner.py:my_planner
  python -m experiments.plan ... --plan=plan.json    # of a plan made elsewhere

Needs no JAX and no accelerator; takes seconds on one core. Prints the plan and
the explanation, and writes into --out_dir: plan.json, gantt.png, report.html (a
page of one file), trace.json (for ui.perfetto.dev or chrome://tracing) and
workflow.mmd (a picture of the stages, for Mermaid).
What the files hold and what the words mean: docs/planners.md.
"""

from __future__ import annotations

import pathlib
import sys

from absl import app, flags

from experiments import planner_files
from scheduler import (
  bounds,
  clusters,
  documents,
  errors,
  evaluation,
  planners,
  plans,
  profiles,
  reports,
  simulation,
  workflows,
  workloads,
)

FLAGS = flags.FLAGS

flags.DEFINE_string("workflow", None, "JSON file: what has to be done.")
flags.DEFINE_string("profile", None, "JSON file: how long stages take.")
flags.DEFINE_string("cluster", None, "JSON file: on what devices.")
flags.DEFINE_string(
  "workload",
  None,
  "In place of the three files: " + ", ".join(workloads.SUITE) + ".",
)
flags.DEFINE_integer("num_devices", 8, "With --workload: how many.", 1)
flags.DEFINE_enum(
  "split",
  "published",
  ["published", "development", "test"],
  "With --workload: as close to published rows as is known, or of a draw.",
)
flags.DEFINE_string(
  "write_inputs",
  None,
  "Folder to write the workload's workflow.json, profile.json and cluster.json"
  " into; nothing is planned.",
)
flags.DEFINE_string(
  "planner",
  "auto",
  "Who plans: "
  + ", ".join(planners.PLANNERS)
  + ", or path/to/mine.py:my_planner.",
)
flags.DEFINE_string(
  "plan", None, "JSON file of a plan to explain, in place of --planner."
)
flags.DEFINE_list(
  "alternatives",
  ["collocated", "disaggregated"],
  "Planners whose plans it is explained against.",
)
flags.DEFINE_integer(
  "budget", planners.Budget().iterations, "Plans a planner may evaluate.", 1
)
flags.DEFINE_integer("seed", 0, "Of the planner.", 0)
flags.DEFINE_integer(
  "iterations", 3, "To simulate and draw, besides those of the staleness.", 1
)
flags.DEFINE_string(
  "out_dir", None, "Default: runs/plans/WORKFLOW_DEVICES_PLANNER."
)


def main(argv: list[str]) -> None:
  """Plans, explains, simulates and draws."""
  if len(argv) > 1:
    raise app.UsageError(f"unexpected arguments: {' '.join(argv[1:])}")
  try:
    problem = _problem()
    if FLAGS.write_inputs is not None:
      _write_inputs(problem, pathlib.Path(FLAGS.write_inputs))
    else:
      _plan(problem)
  except (ValueError, OSError, ModuleNotFoundError) as error:
    sys.exit(f"error: {error}")


def _problem() -> workloads.Problem:
  files = [FLAGS.workflow, FLAGS.profile, FLAGS.cluster]
  if FLAGS.workload is None:
    if None in files:
      raise ValueError(
        "give --workflow, --profile and --cluster, or --workload; to get three"
        " such files to start from, --workload and --write_inputs=FOLDER"
      )
    workflow = documents.read(workflows.Workflow, FLAGS.workflow)
    return workloads.Problem(
      name=workflow.name,
      workflow=workflow,
      profile=documents.read(profiles.Profile, FLAGS.profile),
      cluster=documents.read(clusters.Cluster, FLAGS.cluster),
    )
  if files != [None] * 3:
    raise ValueError("give --workload or three files, not both")
  if FLAGS.workload not in workloads.SUITE:
    raise ValueError(
      f"there is no workload {FLAGS.workload!r}; known:"
      f" {', '.join(workloads.SUITE)}"
    )
  return workloads.build(FLAGS.workload, FLAGS.num_devices, FLAGS.split)


def _write_inputs(problem: workloads.Problem, folder: pathlib.Path) -> None:
  folder.mkdir(parents=True, exist_ok=True)
  parts = {
    "workflow": problem.workflow,
    "profile": problem.profile,
    "cluster": problem.cluster,
  }
  for name, part in parts.items():
    documents.write(part, folder / f"{name}.json")
  given = " ".join(f"--{name}={folder / name}.json" for name in parts)
  print(
    f"wrote three files; to plan from them:\npython -m experiments.plan {given}"
  )


def _plan(problem: workloads.Problem) -> None:
  given = (problem.workflow, problem.profile, problem.cluster)
  budget = planners.Budget(iterations=FLAGS.budget)
  if FLAGS.plan is not None:
    plan, maker = plans.read(FLAGS.plan), pathlib.Path(FLAGS.plan).stem
  else:
    planner = planner_files.load(FLAGS.planner)
    maker = planner_files.label(FLAGS.planner)
    plan = planner(*given, budget, FLAGS.seed)
  found = evaluation.evaluate(plan, *given)
  alternatives = {
    name: _alternative(name, problem, budget)
    for name in FLAGS.alternatives
    if name != FLAGS.planner or FLAGS.plan
  }
  bound = _bound(problem)
  text = reports.explain(
    found,
    problem.workflow,
    problem.cluster,
    alternatives=alternatives,
    bound=bound,
  )
  staleness = problem.workflow.staleness
  timeline = simulation.run(found.flat, iterations=staleness + FLAGS.iterations)
  memory_bytes = {
    resource.name: problem.cluster.class_of(resource.devices).memory_bytes
    for resource in found.flat.resources
    if resource.kind == "devices"
  }
  advice = reports.advise(
    reports.summarise(timeline),
    staleness=staleness,
    memory_bytes=memory_bytes,
    bound_s=bound.seconds if bound else None,
  )
  title = f"{problem.workflow.name} on {problem.cluster.num_devices}, {maker}"
  folder = pathlib.Path(FLAGS.out_dir or _default_folder(problem, maker))
  folder.mkdir(parents=True, exist_ok=True)
  shown = reports.format_plan(plan)
  documents.write(plan, folder / "plan.json")
  reports.write_gantt(timeline, folder / "gantt.png", title=title)
  reports.write_page(
    timeline,
    folder / "report.html",
    title=title,
    text=f"{shown}\n\n{text}",
    advice=advice,
    memory_bytes=memory_bytes,
  )
  reports.write_perfetto(timeline, folder / "trace.json")
  picture = reports.to_mermaid(problem.workflow)
  (folder / "workflow.mmd").write_text(f"{picture}\n", encoding="utf-8")
  print(f"{workflows.format_workflow(problem.workflow)}\n\n{shown}\n\n{text}\n")
  print("\n".join(["What to try next", *(f"  {line}" for line in advice)]))
  files = "plan.json, gantt.png, report.html, trace.json and workflow.mmd"
  print(f"\nwrote {files} to {folder}")


def _alternative(
  name: str, problem: workloads.Problem, budget: planners.Budget
) -> evaluation.Evaluation | str:
  given = (problem.workflow, problem.profile, problem.cluster)
  planner = planner_files.load(name)
  try:
    plan = planner(*given, budget, FLAGS.seed)
    return evaluation.evaluate(plan, *given)
  except errors.SchedulerError as error:
    return str(error)


def _bound(problem: workloads.Problem) -> bounds.Bound | None:
  """Returns the bound of all plans, None where the profile is too small."""
  given = (problem.workflow, problem.profile, problem.cluster)
  try:
    return bounds.lower_bound(*given)
  except errors.ProfileError:
    return None


def _default_folder(problem: workloads.Problem, maker: str) -> pathlib.Path:
  name = f"{problem.workflow.name}_{problem.cluster.num_devices}_{maker}"
  return pathlib.Path("runs") / "plans" / name


if __name__ == "__main__":
  app.run(main)
