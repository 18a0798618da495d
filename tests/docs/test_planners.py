"""The page on planners runs as it stands, and its files are what it says."""

from __future__ import annotations

import pathlib
import re

import pytest

from scheduler import (
  bounds,
  documents,
  evaluation,
  planners,
  plans,
  reports,
  workloads,
)
from scheduler.clusters import Cluster
from scheduler.profiles import Profile
from scheduler.workflows import Workflow

PAGE = (pathlib.Path(__file__).parents[2] / "docs/planners.md").read_text()
(CODE,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
DOCUMENTS = {
  re.search(r'"format": "(\w+)"', text)[1]: text
  for text in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
}


def test_a_planner_is_invented_and_ranked_in_about_thirty_lines(capsys):
  lines = [line for line in CODE.splitlines() if line.strip()]
  assert len(lines) <= 32
  names: dict = {}
  exec(compile(CODE, "planners.md", "exec"), names)
  table = capsys.readouterr().out
  ranked = re.findall(r"^\| (\w+) \| (\d) of 2 \|", table, re.MULTILINE)
  assert sorted(ranked) == [
    ("collocated", "2"), ("disaggregated", "2"), ("two_sides", "2")
  ]  # fmt: skip
  # It tries the divisions that `disaggregated` tries, one granule and one
  # configuration of each: it can win nowhere.
  ratio = {o.planner: o.values for o in names["outcomes"] if o.work == "plan"}
  assert ratio["two_sides"]["period_s"] >= ratio["disaggregated"]["period_s"]


def tiny() -> tuple[Workflow, Profile, Cluster]:
  return (
    documents.from_json(Workflow, DOCUMENTS["workflow"]),
    documents.from_json(Profile, DOCUMENTS["profile"]),
    documents.from_json(Cluster, DOCUMENTS["cluster"]),
  )


def test_the_documents_of_the_page_are_one_problem_with_a_plan():
  assert set(DOCUMENTS) == {"workflow", "profile", "cluster", "treeplan"}
  workflow, profile, cluster = tiny()
  problem = workloads.Problem(
    name="tiny", workflow=workflow, profile=profile, cluster=cluster
  )
  plan = documents.from_json(plans.TreePlan, DOCUMENTS["treeplan"])
  by_hand = evaluation.evaluate(plan, workflow, profile, cluster)
  planned = evaluation.evaluate(
    planners.PLANNERS["collocated"](
      workflow, profile, cluster, planners.Budget(iterations=4), 0
    ),
    workflow,
    profile,
    cluster,
  )
  bound = bounds.lower_bound(workflow, profile, cluster)
  assert bound.ns <= min(by_hand.period_ns, planned.period_ns)
  assert "rollout on 0-2" in reports.format_plan(plan)
  assert problem.cluster.num_devices == 4


def test_every_planner_is_described():
  described = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
  assert set(planners.PLANNERS) <= set(described)


@pytest.mark.parametrize(
  "name", ["work", "path", "straggler", "memory", "modes"]
)
def test_every_bound_is_described(name):
  bound = bounds.lower_bound(*tiny())
  assert set(bound.values_ns) == {
    "work", "path", "straggler", "memory", "modes"
  }  # fmt: skip
  assert f"`{name}`" in PAGE


def test_every_name_of_the_reports_exists():
  part = PAGE.split("## Reports")[1]
  for name in re.findall(r"`(?:reports\.)?(\w+)(?:\(|`)", part):
    assert hasattr(reports, name), name
