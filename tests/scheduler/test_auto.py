from __future__ import annotations

import math

import pytest

from scheduler import evaluation, exact, planners
from scheduler.exact import suite
from scheduler.planners import Budget
from scheduler.plans import Plan
from scheduler.profiles import DecodeLaw
from scheduler.workflows import TraceLengths
from tests.scheduler import toys
from tests.scheduler.test_planners import CASES, Case

# Never beaten by these.
OTHERS = ("collocated", "disaggregated", "rlinf_dp", "rlinf_toolkit")
SMALL = Budget(iterations=8)


def plan(name: str, case: Case, budget: Budget = SMALL) -> Plan:
  return planners.PLANNERS[name](
    case.workflow, case.profile, case.cluster, budget, 0
  )


def period_ns(found: Plan, case: Case) -> float:
  evaluated = evaluation.evaluate(
    found, case.workflow, case.profile, case.cluster
  )
  return float(evaluated.period_ns)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_none_of_the_planners_that_it_asks_is_better(case: Case):
  own = period_ns(plan("auto", case), case)
  for name in OTHERS:
    assert own <= period_ns(plan(name, case), case), name


def elastic(num_devices: int) -> Case:
  """Returns a decode with a tail, and training, on so many devices."""
  law = DecodeLaw(t0_s=1, weight_bytes=0, kv_bytes_per_token=0, num_params=0.1)
  return Case(
    workflow=toys.workflow(
      toys.stage(
        "rollout",
        12,
        "decode",
        state_bytes=200,
        lengths=TraceLengths(tokens=(3, 3, 4, 4, 5, 5, 6, 6, 7, 8, 20, 30)),
      ),
      toys.stage("infer", 12, state_bytes=100),
      toys.stage("train", 12, "train", updates=2, state_bytes=300),
      syncs=(("train", "rollout"),),
    ),
    profile=toys.profile(rollout=law, infer=1, train=4),
    cluster=toys.cluster(num_devices, memory=700),
  )


def test_a_device_more_never_makes_it_worse():
  periods = []
  for num_devices in (1, 2, 3, 4):
    case = elastic(num_devices)
    periods.append(period_ns(plan("auto", case), case))
  assert periods == sorted(periods, reverse=True)
  assert periods[-1] < periods[0] / 2


def test_devices_that_do_not_help_are_left_idle():
  # One item at a time keeps one device busy: a takes 8 s and b 4 s on any
  # number of devices, and side by side b's last item follows a's: 8 + 0.5 s.
  case = Case(
    workflow=toys.workflow(
      toys.stage("a", 8, "simulate", granule_max=1),
      toys.stage("b", 8, "train", granule_max=1),
    ),
    profile=toys.profile(a=1, b=0.5),
    cluster=toys.cluster(16),
  )
  assert period_ns(plan("auto", case), case) == 8.5 * toys.S


def test_it_does_without_exact(monkeypatch: pytest.MonkeyPatch):
  def refuse(*args, **kwargs):
    raise AssertionError("auto asked for an exact solution")

  for name in ("solve", "solve_free", "brute_force"):
    monkeypatch.setattr(exact, name, refuse)
  case = next(iter(suite.draw("development")))
  problem = Case(
    workflow=case.workflow, profile=case.profile, cluster=case.cluster
  )
  assert period_ns(plan("auto", problem), problem) > 0


# Proven by `exact` on the development draw, in milliseconds.
OPTIMA_MS = {
  "v4-g3-m8-branches-loose-equal": 9954,
  "v4-g3-m32-chain-loose-unequal": 25888,
  "v4-g4-m8-branches-tight-equal": 8151,
  "v4-g4-m32-chain-tight-unequal": 11635,
  "v5-g3-m16-chain-loose-equal": 33061,
  "v5-g3-m32-branches-loose-unequal": 17600,
  "v5-g4-m16-chain-tight-equal": 22170,
  "v5-g4-m32-branches-tight-unequal": 16193,
  "v6-g3-m16-branches-loose-equal": 30597,
  "v6-g4-m8-chain-loose-unequal": 11685,
  "v6-g4-m16-branches-tight-equal": 11962,
}


@pytest.mark.slow
def test_in_class_s_it_comes_within_a_hundredth_of_the_optimum():
  ratios = []
  for case in suite.draw("development"):
    if case.name in OPTIMA_MS:
      problem = Case(
        workflow=case.workflow, profile=case.profile, cluster=case.cluster
      )
      found = period_ns(plan("auto", problem, Budget()), problem)
      ratios.append(found / 1e6 / OPTIMA_MS[case.name])
  assert len(ratios) == len(OPTIMA_MS)
  assert max(ratios) <= 1.05
  assert math.prod(ratios) ** (1 / len(ratios)) <= 1.01
