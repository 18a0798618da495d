"""Trees that contradict themselves or their workflow."""

from __future__ import annotations

import dataclasses
import re

import pytest

from scheduler import cycles, errors, lowering
from scheduler.plans import Lanes, Spatial, Temporal, TreePlan
from scheduler.workflows import Loop
from tests.scheduler import toys
from tests.scheduler.toys import run, stage

CHAIN = toys.workflow(stage("a", 4, "decode"), stage("b", 4))
LOOP = toys.workflow(
  stage("sim", 4, "simulate", granule_max=3),
  stage("act", 4, quantum=2),
  edges=(("sim", "act"), ("act", "sim")),
  loops=(Loop(name="l", stages=("sim", "act"), turns=2),),
)
A, B = run("a", "0", 2), run("b", "1", 2)
SIM, ACT = run("sim", "0", 2), run("act", "1", 2)


def spatial(*children, capacity=None):
  return Spatial(children=children, capacity=capacity)


def temporal(*children, turn=None):
  return Temporal(children=children, turn=turn)


def lanes(body, *sizes, loop="l"):
  return Lanes(loop=loop, body=body, lanes=sizes)


def shares(*parts, **fields):
  """Runs of a on devices of their own, and one of b."""
  return spatial(
    *(
      run("a", str(2 + i), 1, share=part, **fields)
      for i, part in enumerate(parts)
    ),
    B,
  )


CASES = {
  "a stage is missing": (
    CHAIN,
    spatial(A),
    "the tree does not run stage 'b' of workflow 'toy'; add a Run of it",
  ),
  "a stage is unknown": (
    CHAIN,
    spatial(A, B, run("c", "2", 1)),
    "the tree runs 'c', which is no stage of workflow 'toy'; it has ['a', 'b']",
  ),
  "a stage is there twice": (
    CHAIN,
    spatial(A, B, run("a", "2", 2)),
    "two Runs of stage 'a' emit items 0 to 3; give them shares that do not"
    " overlap",
  ),
  "shares overlap": (
    CHAIN,
    shares((0, 3), (2, 4)),
    "two Runs of stage 'a' emit items 2 to 2",
  ),
  "shares leave a gap": (
    CHAIN,
    shares((0, 1), (3, 4)),
    "no Run of stage 'a' emits items 1 to 2",
  ),
  "shares do not reach the end": (
    CHAIN,
    shares((0, 1), (1, 3)),
    "the shares of stage 'a' end at item 3; it has 4 items",
  ),
  "shares go beyond the end": (
    CHAIN,
    shares((0, 1), (1, 5)),
    "the shares of stage 'a' end at item 5; it has 4 items",
  ),
  "a share cuts a quantum": (
    toys.workflow(stage("a", 4, "decode", quantum=2), stage("b", 4)),
    spatial(run("a", "0", 2, share=(0, 1)), run("a", "2", 2, share=(1, 4)), B),
    "a share of stage 'a' begins at item 1 and cuts a quantum; begin shares at"
    " multiples of 2 items",
  ),
  "a granule is not allowed": (
    toys.workflow(stage("a", 4, "decode"), stage("b", 4, granule_max=3)),
    spatial(A, run("b", "1", 4)),
    "stage 'b' cannot run granules of 4: it allows 1 to 3",
  ),
  "a cohort that does not decode": (
    CHAIN,
    spatial(A, run("b", "1", 2, share=(0, 4), cohort=(0, 4))),
    "stage 'b' is of kind 'infer' and cannot have the cohort (0, 4)",
  ),
  "a cohort beyond the items": (
    CHAIN,
    spatial(run("a", "0", 2, share=(0, 4), cohort=(0, 5)), B),
    "stage 'a' has the cohort (0, 5) of 4 items",
  ),
  "a cohort that is not emitted": (
    CHAIN,
    spatial(
      run("a", "0", 2, share=(0, 2), cohort=(0, 4)),
      run("a", "2", 2, share=(2, 4)),
      B,
    ),
    "the Runs of stage 'a' with the cohort (0, 4) emit only [(0, 2)]",
  ),
  "children of a Spatial share devices": (
    CHAIN,
    spatial(run("a", "0-2", 2), run("b", "2-3", 2)),
    "'a' and 'b' run side by side (Spatial) but share the devices '2'; give"
    " them disjoint ones, or let them take turns (Temporal)",
  ),
  "children of a Temporal have different devices": (
    CHAIN,
    temporal(run("a", "0-2", 2), run("b", "2-3", 2)),
    "children of a Temporal take turns on one set of devices: 'a' on '0-2',"
    " 'b' on '2-3'; one of them must have all the devices of the others",
  ),
  "devices that do not exist": (
    CHAIN,
    spatial(A, run("b", "7-8", 2)),
    "stage 'b': devices '7-8' are not all of one class of this cluster",
  ),
  "copies of a stage without weights": (
    CHAIN,
    TreePlan(root=spatial(A, B), copies=("b",)),
    "copies names 'b', which receives no weights; those that do: []",
  ),
  "lanes of an unknown loop": (
    CHAIN,
    spatial(A, lanes(B, 4)),
    "the tree has Lanes of 'l', which is no loop of workflow 'toy'; it has []",
  ),
  "a loop's stage outside of lanes": (
    LOOP,
    spatial(SIM, ACT),
    "stage 'sim' belongs to loop 'l'; run it inside Lanes of that loop",
  ),
  "lanes without all stages": (
    LOOP,
    spatial(lanes(SIM, 2, 2), ACT),
    "the body of loop 'l' runs ['sim']; each of ['sim', 'act'] has to run"
    " there once",
  ),
  "lanes with shares": (
    LOOP,
    lanes(spatial(run("sim", "0", 2, share=(0, 4)), ACT), 2, 2),
    "stage 'sim' has the share (0, 4) inside loop 'l'",
  ),
  "lanes with a capacity": (
    LOOP,
    lanes(spatial(SIM, ACT, capacity=2), 2, 2),
    "lanes are what is in flight, so that turn and capacity have to be None",
  ),
  "lanes with a turn": (
    LOOP,
    lanes(temporal(SIM, run("act", "0", 2), turn=2), 2, 2),
    "turn and capacity have to be None",
  ),
  "lanes that do not add up": (
    LOOP,
    lanes(spatial(SIM, ACT), 2, 1),
    "the lanes of loop 'l' add up to 3 items; its stages have 4",
  ),
  "a lane that is no granule": (
    LOOP,
    lanes(spatial(SIM, ACT), 1, 3),
    "stage 'act' cannot run granules of 1: it allows 1 to 4, in multiples of 2",
  ),
  "a last lane that is too large": (
    LOOP,
    lanes(spatial(SIM, ACT), 4),
    "stage 'sim' cannot run granules of 4: it allows 1 to 3",
  ),
  "a loop that takes turns": (
    LOOP,
    temporal(lanes(spatial(SIM, ACT), 2, 2), turn=2),
    "loop 'l' takes turns of 2 items with other stages; its lanes cannot be"
    " cut, so that its Temporal needs turn=None",
  ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_tree_that_contradicts_its_workflow_is_refused(name):
  workflow, plan, message = CASES[name]
  if not isinstance(plan, TreePlan):
    plan = TreePlan(root=plan)
  profile = toys.profile(a=toys.TOKEN, b=1.0, sim=1.0, act=1.0)
  with pytest.raises(errors.InfeasiblePlanError, match=re.escape(message)):
    lowering.lower(plan, workflow, profile, toys.cluster(8))


def test_too_many_activities_are_refused():
  profile = toys.profile(a=toys.per_item(1e-9, 0), sim=1e-9, act=1e-9)
  many = toys.workflow(stage("a", 300_000))
  with pytest.raises(errors.InfeasiblePlanError, match="at most 200,000 are"):
    lowering.lower(
      TreePlan(root=run("a", "0", 1)), many, profile, toys.cluster(1)
    )
  turns = toys.workflow(
    stage("sim", 4, "simulate"),
    stage("act", 4),
    loops=(Loop(name="l", stages=("sim", "act"), turns=50_001),),
  )
  tree = TreePlan(root=lanes(spatial(SIM, ACT), 2, 2))
  with pytest.raises(errors.InfeasiblePlanError, match="of 200,004 activities"):
    lowering.lower(tree, turns, profile, toys.cluster(8))


def test_an_order_against_the_data_is_a_deadlock():
  tree = TreePlan(root=temporal(run("b", "0", 2), run("a", "0", 2)))
  flat = lowering.lower(
    tree, CHAIN, toys.profile(a=toys.TOKEN, b=1.0), toys.cluster(1)
  )
  with pytest.raises(errors.InfeasiblePlanError, match="deadlocks"):
    cycles.period_ns(flat)


def test_a_cohort_that_queues_is_not_divided():
  # Two places for 4 sequences: those that wait cannot go on elsewhere, and the
  # second Run would get their tokens for nothing.
  law = dataclasses.replace(toys.TOKEN, max_active=2)
  tree = TreePlan(
    root=temporal(
      run("a", "0", 1, share=(0, 2), cohort=(0, 4)),
      run("a", "0-1", 1, share=(2, 4), cohort=(0, 4)),
    )
  )
  flow = toys.workflow(stage("a", 4, "decode"))
  with pytest.raises(
    errors.InfeasiblePlanError, match="has 2 places for its 4"
  ):
    lowering.lower(tree, flow, toys.profile(a=law), toys.cluster(2))
