"""Comparisons are the ratios and means that one works out by hand."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import subprocess
import sys

import pytest

from scheduler import comparison, errors, planners, plans
from scheduler.comparison import cases, figures, outcomes
from scheduler.comparison.outcomes import Outcome
from scheduler.plans import Run, TreePlan
from scheduler.workloads import Problem
from tests.scheduler import toys
from tests.scheduler.toys import stage


def planned(problem: str, planner: str, period_s: float, **fields) -> Outcome:
  values = {
    "period_s": period_s,
    "planning_s": 0.5,
    "planning_cpu_s": fields.pop("cpu_s", 0.25),
    "evaluation_s": 0.1,
    "peak_memory": 0.75,
    "activities": 8.0,
  }
  return Outcome(
    work="plan",
    problem=problem,
    workload="toy",
    planner=planner,
    values=values,
    **{"num_devices": 4, **fields},
  )


def failed(problem: str, planner: str, status: outcomes.Status) -> Outcome:
  return Outcome(
    work="plan",
    problem=problem,
    workload="toy",
    num_devices=4,
    planner=planner,
    status=status,
    message="why",
  )


def bound(problem: str, bound_s: float, single_mode_s: float) -> Outcome:
  return Outcome(
    work="bound",
    problem=problem,
    workload="toy",
    num_devices=4,
    values={"bound_s": bound_s, "single_mode_s": single_mode_s},
    words={"binds": "work", "single_mode_binds": "modes"},
  )


def optimum(problem: str, optimum_s: float, **values: float) -> Outcome:
  known = {
    "optimum_s": optimum_s,
    "bound_s": optimum_s,
    "first_s": 2 * optimum_s,
    "first_bound_s": optimum_s,
    "search_s": 1.0,
  }
  return Outcome(
    work="optimum",
    problem=problem,
    workload="toy",
    num_devices=4,
    values=known | values,
  )


TWO_PROBLEMS = (
  bound("p", 8.0, 10.0),
  planned("p", "collocated", 12.0),
  planned("p", "disaggregated", 16.0),
  planned("p", "auto", 10.0),
  bound("q", 8.0, 8.0),
  planned("q", "collocated", 16.0),
  failed("q", "disaggregated", "timeout"),
  planned("q", "auto", 16.0),
)


def test_scores_are_ratios_of_periods():
  collocated, disaggregated, auto, *_ = comparison.to_scores(TWO_PROBLEMS)
  assert (collocated.to_bound, collocated.to_single_mode) == (1.5, 1.2)
  assert collocated.binds == "work"
  assert auto.over_collocated == pytest.approx(1.2)
  assert auto.over_disaggregated == pytest.approx(1.6)
  assert disaggregated.over_collocated == 0.75
  assert auto.to_optimum is None and auto.is_trivial is None
  assert (auto.peak_memory, auto.planning_s) == (0.75, 0.5)


def test_a_planner_that_ran_out_of_time_keeps_its_row():
  score = comparison.to_scores(TWO_PROBLEMS)[4]
  assert (score.problem, score.planner) == ("q", "disaggregated")
  assert (score.status, score.message) == ("timeout", "why")
  assert score.period_s is None and score.to_bound is None
  assert "| q | 4 | disaggregated | timeout |" in comparison.format_scores(
    [score]
  )


def test_standings_are_geometric_means_and_count_what_failed():
  found = comparison.to_standings(comparison.to_scores(TWO_PROBLEMS))
  # Over the bounds: auto 1.25 and 2, collocated 1.5 and 2, disaggregated 2.
  assert [s.planner for s in found] == ["auto", "collocated", "disaggregated"]
  auto, collocated, disaggregated = found
  assert auto.to_bound == pytest.approx(math.sqrt(1.25 * 2))
  assert collocated.to_bound == pytest.approx(math.sqrt(1.5 * 2))
  assert auto.over_collocated == pytest.approx(math.sqrt(1.2 * 1))
  assert auto.over_disaggregated == pytest.approx(1.6)  # of p alone
  assert (disaggregated.num_ok, disaggregated.num_tried) == (1, 2)
  table = comparison.format_ranking(comparison.to_scores(TWO_PROBLEMS))
  assert "| disaggregated | 1 of 2 | 2.000 |" in table


def test_the_advantage_over_a_planner_is_where_both_have_plans():
  table = comparison.format_advantages(
    comparison.to_scores(TWO_PROBLEMS), "auto"
  ).splitlines()
  # Over collocated 1.2 and 1; over disaggregated 1.6, once.
  assert table[2:] == [
    "| disaggregated | 1.600 | 1.600 | 1 |",
    f"| collocated | {math.sqrt(1.2):.3f} | 1.000 | 2 |",
  ]


def test_instances_are_trivial_near_simple_planners_or_closed_at_the_root():
  def is_trivial(collocated_s: float, **values: float) -> bool | None:
    (score,) = comparison.to_scores(
      [planned("p", "collocated", collocated_s), optimum("p", 10.0, **values)]
    )
    return score.is_trivial

  assert is_trivial(10.9) is True  # 1.09 times the optimum
  assert is_trivial(11.1) is False
  assert is_trivial(20.0, first_s=10.0) is True  # list scheduling met the bound
  assert is_trivial(20.0, bound_s=9.0) is None  # not closed


def test_what_is_not_closed_counts_against_bounds_only():
  closed = [planned("p", "auto", 11.0), optimum("p", 10.0)]
  still_open = [planned("q", "auto", 30.0), optimum("q", 20.0, bound_s=19.0)]
  found = comparison.to_scores([*closed, *still_open])
  assert [s.to_optimum for s in found] == [pytest.approx(1.1), None]
  text = comparison.format_open([*closed, *still_open])
  assert "Optima: 1 of 2 are proven." in text
  assert "| q | 5.00% | 1 s |" in text
  (standing,) = comparison.to_standings(found)
  assert (standing.num_closed, standing.num_tried) == (1, 2)


def test_growth_is_the_exponent_within_workloads():
  # CPU time grows as devices to the 1.5, from another level in each workload.
  every = [
    planned(f"{w}{n}", "auto", 1.0, cpu_s=level * n**1.5, num_devices=n)
    for w, level, sizes in (("a", 1e-3, (1, 8, 64)), ("b", 1e-5, (4, 1024)))
    for n in sizes
  ]
  every = [dataclasses.replace(o, workload=o.problem[0]) for o in every]
  (standing,) = comparison.to_standings(comparison.to_scores(every))
  assert standing.growth == pytest.approx(1.5)


def world(planner: str, values: dict[str, float], problem="p") -> Outcome:
  return Outcome(
    work="realism",
    problem=problem,
    workload="toy",
    num_devices=4,
    planner=planner,
    values=values,
  )


def test_regret_is_over_the_best_plan_in_the_same_world():
  every = [
    planned("p", "a", 8.0),
    planned("p", "b", 8.0),
    world("a", {"0 0": 10.0, "0 1": 12.0, "0.3 0": 9.0}),
    world("b", {"0 0": 11.0, "0 1": 10.0, "0.3 0": 9.0}),
    world("a", {"0 0": 5.0}, problem="q"),
  ]
  found = {(r.planner, r.noise): r for r in comparison.to_regrets(every)}
  # a is best in world 0 and 20 % longer in world 1: 10 % on p, and 0 on q.
  assert found["a", 0.0].mean == pytest.approx(0.05)
  assert found["a", 0.0].worst == pytest.approx(0.1)
  assert found["a", 0.0].num_problems == 2
  assert found["b", 0.0].mean == pytest.approx(0.05)
  assert found["b", 0.3].mean == 0
  # 10 and 12 where 8 were planned.
  assert found["a", 0.0].change == pytest.approx(0.375)
  table = comparison.format_regrets(comparison.to_regrets(every))
  assert "| a | 2 | 5.0% | 0.0% | 10.0% | 0.0% | +37.5% |" in table


def problem(**fields) -> Problem:
  return Problem(
    **{
      "name": "toy",
      "workflow": toys.workflow(stage("a", 4), stage("b", 4)),
      "profile": toys.profile(a=1.0, b=1.0),
      "cluster": toys.cluster(2),
      **fields,
    }
  )


def test_a_planner_is_timed_and_its_plan_evaluated():
  outcome, plan = comparison.try_planner(
    problem(), "collocated", planners.PLANNERS["collocated"],
    planners.Budget(), 0,
  )  # fmt: skip
  assert outcome.status == "ok" and plan is not None
  # 4 items of 1 s on two devices, twice.
  assert outcome.values["period_s"] == 4
  assert outcome.values["planning_s"] > 0
  assert comparison.bound_of(problem()).values["bound_s"] == 4


@pytest.mark.parametrize(
  "planner, status, message",
  [
    ("infeasible", "infeasible", "no room"),
    ("elsewhere", "refused", "'0-7'"),
    ("unprofiled", "error", "not profiled"),
  ],
)
def test_planners_without_a_plan_have_an_outcome(planner, status, message):
  def plan(workflow, profile, cluster, budget, seed):
    if planner == "infeasible":
      raise errors.InfeasiblePlanError("no room")
    if planner == "unprofiled":
      raise errors.ProfileError("not profiled")
    return TreePlan(
      root=plans.Temporal(
        children=tuple(
          Run(stage=name, devices=toys.Devices.span(0, 8), granule=4)
          for name in ("a", "b")
        )
      )
    )

  outcome, made = comparison.try_planner(
    problem(), planner, plan, planners.Budget(), 0
  )
  assert (outcome.status, made) == (status, None)
  assert message in outcome.message


def test_worlds_are_the_same_for_all_plans_and_none_is_without_noise():
  plan = planners.PLANNERS["collocated"](
    problem().workflow, problem().profile, problem().cluster,
    planners.Budget(), 0,
  )  # fmt: skip
  one, two = (
    comparison.realism_of(
      problem(), name, plan, noises=(0.0, 0.5), num_seeds=2
    ).values
    for name in ("x", "y")
  )
  assert one == two
  assert one["0 0"] == one["0 1"] == 4  # nothing varies in this workflow
  assert one["0.5 0"] != one["0.5 1"]
  assert 2 <= one["0.5 0"] <= 6


def test_outcomes_are_read_as_written_but_for_a_line_cut_off(tmp_path):
  path = tmp_path / "outcomes.jsonl"
  assert outcomes.read(path) == ()
  for outcome in TWO_PROBLEMS:
    outcomes.append(outcome, path)
  with path.open("a") as file:
    file.write('{"work": "plan", "prob')
  assert outcomes.read(path) == TWO_PROBLEMS
  outcomes.append(TWO_PROBLEMS[0], path)  # goes on a line of its own
  assert outcomes.read(path) == (*TWO_PROBLEMS, TWO_PROBLEMS[0])
  path.write_text("nonsense\n" + path.read_text())
  with pytest.raises(errors.DocumentError, match="line 1 is not JSON"):
    outcomes.read(path)


def test_a_csv_has_every_field_of_every_score(tmp_path):
  found = comparison.to_scores(TWO_PROBLEMS)
  comparison.write_csv(found, tmp_path / "results.csv")
  with (tmp_path / "results.csv").open() as file:
    lines = list(csv.DictReader(file))
  assert len(lines) == len(found)
  assert lines[0]["to_bound"] == "1.5"
  assert lines[4]["status"] == "timeout" and lines[4]["to_bound"] == ""


def test_pictures_are_drawn_of_what_there_is(tmp_path):
  every = [
    *TWO_PROBLEMS,
    planned("r", "auto", 2.0, num_devices=8),
    world("auto", {"0 0": 10.0}),
  ]
  found = comparison.to_scores(every)
  drawn = figures.write_figures(found, comparison.to_regrets(every), tmp_path)
  assert [p.name for p in drawn] == [
    "ratios.png", "planning_time.png", "regrets.png"
  ]  # fmt: skip
  for path in drawn:
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
  assert figures.write_figures((), (), tmp_path) == ()


@pytest.mark.parametrize("draw", comparison.DRAWS)
def test_cases_have_the_names_of_the_problems_that_they_build(draw):
  found = comparison.cases_of(draw)
  assert len({case.name for case in found}) == len(found)
  assert len(found) >= {"classS": 144, "classS_development": 144}.get(draw, 30)
  for case in found[::20]:
    built = case.build()
    assert built.name == case.name
    assert case.is_class_s == draw.startswith("classS")
  assert cases.digest(found[0].build()) == cases.digest(found[0].build())
  assert cases.digest(found[0].build()) != cases.digest(found[1].build())


def test_the_test_draw_covers_what_was_asked_for():
  found = comparison.cases_of("test")
  assert {1, 3, 24, 48, 96, 16_384} <= {case.num_devices for case in found}
  mixed = [case for case in found if case.workload.endswith("_mixed")]
  assert {c.name for c in mixed[0].build().cluster.classes} == {"h20", "h800"}


def test_an_unknown_draw_is_refused():
  with pytest.raises(ValueError, match="no draw 'best'"):
    comparison.cases_of("best")


def test_importing_the_comparison_imports_nothing_heavy():
  code = (
    "import sys, json, scheduler.comparison\n"
    "heavy = {'jax', 'matplotlib', 'ortools', 'highspy'}\n"
    "print(json.dumps(sorted(heavy & set(sys.modules))))"
  )
  result = subprocess.run(
    [sys.executable, "-c", code], capture_output=True, check=True, text=True
  )
  assert json.loads(result.stdout) == []
