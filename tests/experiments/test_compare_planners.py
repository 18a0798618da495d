"""The comparison command, run as a user runs it."""

from __future__ import annotations

import csv
import json
import pathlib
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).parents[2]
ONE = ("--problems=grpo_1_5b_h100_1_*", "--budget=1", "--workers=2")

# A planner that is good, and the ways in which one can fail.
PLANNERS = """
import dataclasses, os, time
from scheduler import errors, plans
from scheduler.devices import Devices
from scheduler.planners.collocated import collocated

def good(workflow, profile, cluster, budget, seed):
  return collocated(workflow, profile, cluster, budget, seed)

def slow(workflow, profile, cluster, budget, seed):
  time.sleep(60)

def wrong(workflow, profile, cluster, budget, seed):
  return 1 / 0

def dead(workflow, profile, cluster, budget, seed):
  os._exit(7)

def none(workflow, profile, cluster, budget, seed):
  raise errors.InfeasiblePlanError("there is no room")

def elsewhere(workflow, profile, cluster, budget, seed):
  runs = tuple(
    plans.Run(stage=stage.name, devices=Devices.span(90, 91), granule=1)
    for stage in workflow.stages
  )
  return plans.TreePlan(root=plans.Temporal(children=runs))
"""


def run(*flags: str, check: bool = True) -> subprocess.CompletedProcess:
  result = subprocess.run(
    [sys.executable, "-m", "experiments.compare_planners", *flags],
    cwd=ROOT,
    capture_output=True,
    text=True,
    timeout=120,
    check=False,
  )
  if check:
    assert result.returncode == 0, result.stdout + result.stderr
  return result


def rows(folder: pathlib.Path) -> dict[str, dict[str, str]]:
  with (folder / "results.csv").open() as file:
    return {row["planner"]: row for row in csv.DictReader(file)}


@pytest.mark.slow
def test_planners_that_fail_keep_their_rows_and_disturb_no_one(tmp_path):
  file = tmp_path / "mine.py"
  file.write_text(PLANNERS)
  names = ("good", "slow", "wrong", "dead", "none", "elsewhere")
  flags = (
    *ONE,
    f"--planners=collocated,{','.join(f'{file}:{name}' for name in names)}",
    "--time_limit_s=4",
    f"--out_dir={tmp_path / 'out'}",
  )
  start_s = time.monotonic()
  run(*flags)
  assert time.monotonic() - start_s < 50  # slow one was ended
  found = rows(tmp_path / "out")
  assert {name: row["status"] for name, row in found.items()} == {
    "collocated": "ok",
    "good": "ok",
    "slow": "timeout",
    "wrong": "error",
    "dead": "error",
    "none": "infeasible",
    "elsewhere": "refused",
  }
  assert found["wrong"]["message"] == "ZeroDivisionError: division by zero"
  assert found["dead"]["message"] == "its process ended with 7"
  assert found["none"]["message"] == "there is no room"
  assert "took more than 4 s" in found["slow"]["message"]
  assert float(found["good"]["over_collocated"]) == 1
  assert float(found["good"]["to_bound"]) >= 1
  # Nothing is worked on twice, but what timed out under a longer limit.
  path = tmp_path / "out" / "outcomes.jsonl"
  before = path.read_text()
  assert "pieces of work" not in run(*flags).stdout
  assert path.read_text() == before
  again = run(*flags, "--time_limit_s=5").stdout
  assert "1 of 8 pieces of work are to be done" in again
  # A planner whose file has changed is another one.
  file.write_text(f"{PLANNERS}\n# changed\n")
  again = run(*flags, f"--planners=collocated,{file}:good")
  assert "1 of 3 pieces of work are to be done" in again.stdout


@pytest.mark.slow
def test_a_run_that_was_cut_off_goes_on(tmp_path):
  flags = (*ONE, "--planners=collocated,rlinf_dp", f"--out_dir={tmp_path}")
  run(*flags)
  path = tmp_path / "outcomes.jsonl"
  whole = path.read_text()
  assert whole.count("\n") == 3  # a bound and two planners
  path.write_text(whole[: whole.rindex("\n", 0, -1) + 40])
  assert "1 of 3 pieces of work" in run(*flags).stdout
  keys = [json.loads(line)["key"] for line in path.read_text().splitlines()]
  assert len(set(keys)) == len(keys) == 3
  assert "(s) of scheduler/" not in run(*flags).stdout
  path.write_text(path.read_text().replace('"sources": "', '"sources": "x'))
  assert "1 other state(s) of scheduler/" in run(*flags).stdout
  assert "3 of 3 pieces" in run(*flags, "--fresh").stdout


@pytest.mark.slow
def test_realism_is_a_second_table(tmp_path):
  run(
    *ONE,
    "--planners=collocated,rlinf_dp",
    "--realism",
    "--realism_seeds=1",
    f"--out_dir={tmp_path}",
  )
  summary = (tmp_path / "summary.md").read_text()
  assert "| planner | plans | to bound |" in summary
  assert "profile ±0% | profile ±10% | profile ±30% | profile ±50%" in summary
  assert sorted(p.name for p in tmp_path.glob("*.png")) == [
    "ratios.png", "regrets.png"
  ]  # fmt: skip


@pytest.mark.slow
def test_in_class_s_plans_are_beside_the_optimum(tmp_path):
  pytest.importorskip("ortools")
  name = "v4-g3-m8-chain-loose-equal"
  flags = (
    "--draw=classS", f"--problems={name}", "--planners=collocated",
    "--budget=1", "--workers=1",
  )  # fmt: skip
  run(*flags, "--optimum_s=30", f"--out_dir={tmp_path / 'searched'}")
  (row,) = rows(tmp_path / "searched").values()
  assert float(row["to_optimum"]) >= 1
  assert float(row["to_bound"]) >= float(row["to_optimum"])
  # The same from a file that says what the optimum is: half of what it takes.
  period_ms = 1e3 * float(row["period_s"])
  record = {
    "name": name,
    "settings": {"draw": "test"},
    "period_ms": period_ms / 2,
    "bound_ms": period_ms / 2,
    "first_period_ms": period_ms,
    "first_bound_ms": period_ms / 4,
    "seconds": 1.0,
  }
  file = tmp_path / "optima.jsonl"
  file.write_text(json.dumps(record) + "\n")
  given = (f"--optima={file}", f"--out_dir={tmp_path / 'given'}")
  run(*flags, *given)
  (row,) = rows(tmp_path / "given").values()
  assert float(row["to_optimum"]) == pytest.approx(2)
  assert row["is_trivial"] == "False"
  result = run(*flags, "--draw=classS_development", *given, check=False)
  assert "is not of the draw 'development'" in result.stderr


@pytest.mark.parametrize(
  "flags, message",
  [
    (["--problems=nothing*"], "no problem of the draw development matches"),
    (["--planners=best"], "no planner 'best'"),
    (["--optima=none.jsonl", "--draw=classS"], "none.jsonl"),
  ],
)
def test_what_cannot_be_had_is_one_sentence(flags, message, tmp_path):
  result = run(*flags, f"--out_dir={tmp_path}", check=False)
  assert result.returncode == 1
  assert message in result.stderr
  assert result.stderr.startswith("error: ")
  assert result.stderr.count("\n") == 1
