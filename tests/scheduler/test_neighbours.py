from __future__ import annotations

import dataclasses

import pytest

from scheduler import errors, evaluation, prices
from scheduler.devices import Devices
from scheduler.planners import Budget, collocated, layouts, tree_moves
from scheduler.planners.layouts import Layout
from scheduler.planners.seats import Piece
from scheduler.planners.trials import Trials
from scheduler.plans import Lanes, Spatial, Temporal, TreePlan
from scheduler.workflows import Loop, TraceLengths
from tests.scheduler import toys
from tests.scheduler.toys import S

CHAIN = toys.workflow(
  toys.stage(
    "rollout", 8, "decode", group=2, lengths=TraceLengths(tokens=(1, 2, 3, 4))
  ),
  toys.stage("infer", 8),
  toys.stage("train", 8, "train"),
)
PROFILE = toys.profile(rollout=toys.TOKEN, infer=1, train=1)
CLUSTER = toys.cluster(4)
COSTS = prices.of(CHAIN, PROFILE, CLUSTER)


def near(root) -> list:
  """Returns the roots of a tree's neighbours."""
  found = tree_moves.neighbours(TreePlan(root=root), COSTS)
  return [tree.root for tree in found]


def parts(*devices: str) -> tuple:
  names = ("rollout", "infer", "train")
  return tuple(toys.run(name, d, 8) for name, d in zip(names, devices))


def test_a_device_moves_from_one_part_to_another():
  found = near(Spatial(children=parts("0-1", "2", "3")))
  assert Spatial(children=parts("1", "0,2", "3")) in found
  assert Spatial(children=parts("1", "2", "0,3")) in found
  # None is left without devices.
  assert all(len(root.children) >= 2 for root in found)


def test_a_stage_takes_turns_on_the_devices_of_another():
  rollout, infer, train = parts("0-1", "2", "3")
  found = near(Spatial(children=(rollout, infer, train)))
  # It leaves its own to them, too, where they would be idle.
  joined = Temporal(
    children=(toys.run("infer", "2-3", 8), toys.run("train", "2-3", 8))
  )
  assert Spatial(children=(rollout, joined)) in found


def test_granules_turns_and_order_change():
  root = Temporal(children=parts("0-3", "0-3", "0-3"))
  found = near(root)
  smaller = toys.run("infer", "0-3", 4)
  assert Temporal(children=(root.children[0], smaller, root.children[2])) in (
    found
  )
  assert Temporal(children=root.children, turn=4) in found
  first, second, third = root.children
  assert Temporal(children=(second, first, third)) in found


def test_items_move_from_one_lane_to_another():
  workflow = toys.workflow(
    toys.stage("sim", 6, "simulate"),
    toys.stage("policy", 6),
    edges=(("sim", "policy"), ("policy", "sim")),
    loops=(Loop(name="steps", stages=("sim", "policy"), turns=2),),
  )
  costs = prices.of(workflow, toys.profile(sim=1, policy=1), CLUSTER)
  body = Spatial(
    children=(toys.run("sim", "0-1", 6), toys.run("policy", "2-3", 6))
  )
  tree = TreePlan(root=Lanes(loop="steps", body=body, lanes=(3, 3)))
  lanes = {
    found.root.lanes
    for found in tree_moves.neighbours(tree, costs)
    if isinstance(found.root, Lanes)
  }
  assert {(2, 4), (4, 2), (6,), (2, 2, 2)} <= lanes
  assert all(sum(sizes) == 6 for sizes in lanes)


def test_layouts_divide_devices_and_decodes():
  pieces = tuple(Piece(stage=name, granule=8) for name in COSTS.order)
  layout = Layout(
    atoms=(Devices.parse("0-2"), Devices.parse("3")), pieces=pieces
  )
  found = list(layouts.neighbours(layout, COSTS))
  atoms = {other.atoms for other in found}
  assert (Devices.parse("1-2"), Devices.parse("0,3")) in atoms
  assert (
    Devices.parse("1-2"), Devices.parse("0"), Devices.parse("3"),
  ) in atoms  # fmt: skip
  assert (Devices.parse("0-3"),) in atoms
  decodes = {
    tuple((p.share, p.cohort) for p in other.pieces if p.stage == "rollout")
    for other in found
  }
  # Groups of two: a quarter of the items is one of them.
  assert (((0, 2), (0, 8)), ((2, 8), (0, 8))) in decodes
  assert (((0, 4), None), ((4, 8), None)) in decodes


def test_layouts_use_whole_groups_where_there_are_some():
  groups = (Devices.parse("0-2"), Devices.parse("3"))
  cluster = dataclasses.replace(CLUSTER, groups=groups)
  costs = prices.of(CHAIN, PROFILE, cluster)
  (first, *others) = layouts.starts(costs, [parts("0-3", "0-3", "0-3")])
  assert all(layout.atoms == groups for layout in (first, *others))
  near_first = layouts.neighbours(first, costs)
  assert all(layout.atoms == groups for layout in near_first)


# ---- Trials ----


def test_trials_count_what_they_evaluate_and_return_the_best():
  trials = Trials(CHAIN, PROFILE, CLUSTER, limit=10)
  slow = TreePlan(root=Temporal(children=parts("0", "0", "0")))
  fast = TreePlan(root=Temporal(children=parts("0-3", "0-3", "0-3")))
  bad = TreePlan(root=Spatial(children=parts("0", "0", "0")))
  assert trials.best is None and trials.best_ns is None
  # 4 tokens; 8 items of 1 s, twice.
  assert trials.offer(slow) == (4 + 8 + 8) * S
  assert trials.offer(bad) is None
  assert trials.offer(fast) == (4 + 2 + 2) * S
  assert trials.left == 7
  assert trials.best_ns == 8 * S
  assert trials.result() == trials.best
  assert evaluation.evaluate(
    trials.result(), CHAIN, PROFILE, CLUSTER
  ).period_ns == (8 * S)


def test_trials_without_a_plan_say_why():
  trials = Trials(CHAIN, PROFILE, CLUSTER, limit=10)
  trials.offer(TreePlan(root=Spatial(children=parts("0", "0", "0"))))
  with pytest.raises(errors.InfeasiblePlanError, match="share the devices '0'"):
    trials.result()


def test_a_flat_plan_is_offered_as_it_is():
  trials = Trials(CHAIN, PROFILE, CLUSTER, limit=10)
  tree = collocated.collocated(CHAIN, PROFILE, CLUSTER, Budget(), 0)
  flat = evaluation.evaluate(tree, CHAIN, PROFILE, CLUSTER).flat
  assert trials.offer(flat) == trials.offer(tree)
  assert trials.best is flat
