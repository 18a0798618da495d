"""The planning command, run as a user runs it."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest

from scheduler import documents, plans, workloads
from scheduler.workflows import Workflow

ROOT = pathlib.Path(__file__).parents[2]
FAST = ("--planner=collocated", "--alternatives=disaggregated", "--budget=2")


def run(*flags: str, check: bool = True) -> subprocess.CompletedProcess:
  result = subprocess.run(
    [sys.executable, "-m", "experiments.plan", *flags],
    cwd=ROOT,
    capture_output=True,
    text=True,
    timeout=120,
    check=False,
  )
  if check:
    assert result.returncode == 0, result.stdout + result.stderr
  return result


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  """A folder with the three files of a small workload."""
  folder = tmp_path_factory.mktemp("inputs")
  output = run(
    "--workload=grpo_1_5b_h100", "--num_devices=2", f"--write_inputs={folder}"
  ).stdout
  assert f"--workflow={folder}/workflow.json" in output
  return folder


def files(folder: pathlib.Path) -> list[str]:
  return [
    f"--{name}={folder / name}.json"
    for name in ("workflow", "profile", "cluster")
  ]


def test_the_files_written_are_those_of_the_workload(inputs):
  problem = workloads.build("grpo_1_5b_h100", 2, "published")
  found = documents.read(Workflow, inputs / "workflow.json")
  assert found == problem.workflow
  assert sorted(p.name for p in inputs.iterdir()) == [
    "cluster.json", "profile.json", "workflow.json"
  ]  # fmt: skip


@pytest.mark.slow
def test_three_files_give_a_plan_an_explanation_and_five_files(
  inputs, tmp_path
):
  result = run(*files(inputs), *FAST, f"--out_dir={tmp_path}")
  assert "rollout, logprob and train share 2 h100 devices (0-1)" in (
    result.stdout
  )
  assert "because with" in result.stdout and "(disaggregated)" in result.stdout
  assert "No plan takes less than" in result.stdout
  assert sorted(p.name for p in tmp_path.iterdir()) == [
    "gantt.png", "plan.json", "report.html", "trace.json", "workflow.mmd"
  ]  # fmt: skip
  plan = plans.read(tmp_path / "plan.json")
  assert isinstance(plan, plans.TreePlan)
  assert {node.stage for node in plans.runs(plan.root)} == {
    "rollout", "logprob", "train"
  }  # fmt: skip
  assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
  page = (tmp_path / "report.html").read_text()
  assert "rollout, logprob and train share" in page
  # The plan that was written can be explained in turn, and is the same.
  again = run(
    *files(inputs), *FAST, f"--plan={tmp_path / 'plan.json'}",
    f"--out_dir={tmp_path / 'again'}",
  ).stdout  # fmt: skip
  first_lines = result.stdout.split("What binds")[1].split("wrote")[0]
  assert first_lines in again


def test_a_planner_from_a_file_is_used(tmp_path):
  file = tmp_path / "mine.py"
  file.write_text(
    "from scheduler.planners.collocated import collocated\n"
    "import dataclasses\n"
    "def mine(workflow, profile, cluster, budget, seed):\n"
    "  plan = collocated(workflow, profile, cluster, budget, seed)\n"
    "  return dataclasses.replace(plan, label='mine own')\n"
  )
  output = run(
    "--workload=grpo_1_5b_h100", "--num_devices=2", "--alternatives=",
    f"--planner={file}:mine", f"--out_dir={tmp_path / 'out'}",
  ).stdout  # fmt: skip
  assert "Plan mine own takes" in output


def edited(inputs: pathlib.Path, folder: pathlib.Path, name: str, edit) -> None:
  for path in inputs.iterdir():
    data = json.loads(path.read_text())
    if path.stem == name:
      edit(data)
    (folder / path.name).write_text(json.dumps(data))


def negative_time(data: dict) -> None:
  data["entries"][0]["law"]["t0_s"] = -1.0


def cycle(data: dict) -> None:
  data["edges"].append({"source": "train", "target": "rollout"})


def tiny_memory(data: dict) -> None:
  data["classes"][0]["memory_bytes"] = 1000


def unknown_field(data: dict) -> None:
  data["nodes"][0]["colour"] = "blue"


@pytest.mark.parametrize(
  "name, edit, message",
  [
    ("profile", negative_time, "cannot be negative"),
    ("workflow", cycle, "has the cycle"),
    ("cluster", tiny_memory, "fits on no devices"),
    ("cluster", unknown_field, "unknown field 'colour'"),
  ],
)
def test_a_bad_file_is_one_sentence(name, edit, message, inputs, tmp_path):
  edited(inputs, tmp_path, name, edit)
  result = run(*files(tmp_path), *FAST, check=False)
  assert_one_line(result, message)


@pytest.mark.parametrize(
  "flags, message",
  [
    ([], "give --workflow, --profile and --cluster, or --workload"),
    (["--workload=grpo"], "known: grpo_1_5b_h100"),
    (["--workload=behavior", "--num_devices=1"], "fits on no devices"),
    (["--workload=libero", "--planner=best"], "no planner 'best'; known"),
    (["--workload=libero", "--planner=none.py:f"], "no Python file none.py"),
    (["--workload=libero", "--plan=none.json"], "cannot read none.json"),
    (["--workload=libero", "--cluster=x.json"], "not both"),
    (["--workflow=a.json", "--profile=b.json", "--cluster=c.json"], "a.json"),
  ],
)
def test_what_cannot_be_had_is_one_sentence(flags, message):
  assert_one_line(run(*flags, check=False), message)


def assert_one_line(result: subprocess.CompletedProcess, message: str) -> None:
  assert result.returncode == 1
  assert message in result.stderr
  assert result.stderr.startswith("error: ")
  assert result.stderr.count("\n") == 1
  assert result.stdout == ""


@pytest.mark.parametrize("module", ["plan", "compare_planners"])
def test_the_commands_import_no_jax(module):
  code = (
    f"import sys, experiments.{module}\n"
    "print(sorted({'jax', 'flax', 'mujoco', 'matplotlib', 'ortools'}"
    " & set(sys.modules)))"
  )
  result = subprocess.run(
    [sys.executable, "-c", code],
    cwd=ROOT, capture_output=True, text=True, check=True,
  )  # fmt: skip
  assert result.stdout == "[]\n"
