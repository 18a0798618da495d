"""Workflows by hand: orders, loops, and what contradicts itself."""

from __future__ import annotations

import pytest

from scheduler import documents, errors, workflows
from scheduler.workflows import (
  Constant,
  Edge,
  LogNormalLengths,
  Loop,
  Stage,
  TraceLengths,
  WeightSync,
  Workflow,
)

SIM = Stage(name="sim", kind="simulate", items=8)
ACT = Stage(name="act", kind="infer", items=8)
TRAIN = Stage(name="train", kind="train", items=8, updates=2)

LOOPED = Workflow(
  name="looped",
  stages=(TRAIN, ACT, SIM),
  edges=(
    Edge(source="sim", target="act"),
    Edge(source="act", target="sim"),
    Edge(source="act", target="train"),
  ),
  loops=(Loop(name="play", stages=("sim", "act"), turns=3),),
  syncs=(WeightSync(source="train", target="act", num_bytes=10),),
  staleness=1,
)


def test_stages_are_ordered_by_what_they_read():
  assert workflows.topological_order(LOOPED) == ("sim", "act", "train")


def test_independent_stages_keep_their_order():
  names = ("c", "a", "b")
  stages = tuple(Stage(name=name, kind="infer", items=1) for name in names)
  workflow = Workflow(name="w", stages=stages)
  assert workflows.topological_order(workflow) == names


def test_an_edge_against_a_loops_order_reaches_the_next_turn():
  backs = [LOOPED.is_back_edge(edge) for edge in LOOPED.edges]
  assert backs == [False, True, False]


def test_a_workflow_is_shown_as_text():
  assert workflows.format_workflow(LOOPED) == "\n".join(
    [
      "workflow looped (staleness 1)",
      "  sim: simulate, 8 items, 3 turns of loop play <- act",
      "  act: infer, 8 items, 3 turns of loop play <- sim",
      "  train: train, 8 items, 2 updates <- act",
      "  train => act: weights, 10 bytes",
    ]
  )


NAMED = Workflow(
  name="named",
  stages=(ACT, TRAIN),
  edges=(
    Edge(source="act", target="train", name="batch_b", is_invariant=True),
  ),
  syncs=(WeightSync(source="train", target="act", num_bytes=10, name="w"),),
  constants=(Constant(target="act", name="scale", num_bytes=4),),
)


def test_names_and_what_never_changes_are_shown():
  assert str(NAMED).splitlines()[2:] == [
    "  train: train, 8 items, 2 updates"
    " <- act (batch_b; the same in every iteration)",
    "  train => act: w, 10 bytes",
    "  act reads scale, 4 bytes: the same in every iteration",
  ]


def test_names_are_for_people_and_survive_a_file():
  bare = Edge(source="act", target="train")
  assert NAMED.edges == (bare,) and hash(NAMED.edges[0]) == hash(bare)
  again = documents.from_json(Workflow, documents.to_json(NAMED))
  assert str(again) == str(NAMED)


def test_a_constant_of_no_stage_is_refused():
  with pytest.raises(errors.WorkflowError, match="'scale' .* read by 'eat'"):
    Workflow(
      name="w",
      stages=(ACT,),
      constants=(Constant(target="eat", name="scale"),),
    )


@pytest.mark.parametrize(
  ("granule", "is_allowed"),
  [(2, False), (4, True), (6, False), (8, True), (10, True), (12, False)],
)
def test_granules_are_bounded_multiples_of_the_quantum(granule, is_allowed):
  # 10 is all the items: the last quantum of 4 is not full.
  stage = Stage(name="a", kind="infer", items=10, granule_min=3, quantum=4)
  if is_allowed:
    stage.check_granule(granule)
  else:
    with pytest.raises(errors.InfeasiblePlanError, match="allows 3 to 10"):
      stage.check_granule(granule)


STAGES = [
  (dict(name=""), "needs a name"),
  (dict(items=0), "must be at least 1"),
  (dict(updates=0), "must be at least 1"),
  (dict(items=1 << 21), "at most 1048576 are planned one by one"),
  (dict(state_bytes=-1), "bytes cannot be negative"),
  (dict(granule_min=5, granule_max=4), "granules from 5 to 4 of 8 items"),
  (dict(granule_max=9), "granules from 1 to 9 of 8 items"),
  (dict(group=3), "8 items are not divided evenly by 1 updates and groups of"),
  (dict(updates=2), "only train stages have them"),
]


@pytest.mark.parametrize(("fields", "message"), STAGES)
def test_a_stage_that_contradicts_itself_is_refused(fields, message):
  with pytest.raises(errors.WorkflowError, match=message):
    Stage(**{"name": "a", "kind": "infer", "items": 8, **fields})


@pytest.mark.parametrize(
  ("make_fn", "message"),
  [
    (
      lambda: LogNormalLengths(median_tokens=0, sigma=1, max_tokens=9),
      "a positive median_tokens",
    ),
    (
      lambda: LogNormalLengths(median_tokens=1, sigma=11, max_tokens=9),
      r"a sigma in \[0, 10\]",
    ),
    (
      lambda: LogNormalLengths(
        median_tokens=1, sigma=1, max_tokens=9, correlation=2
      ),
      r"a correlation in \[0, 1\]",
    ),
    (lambda: TraceLengths(tokens=()), "at least one item"),
    (lambda: TraceLengths(tokens=(3, 0)), "at least one token"),
  ],
)
def test_lengths_that_contradict_themselves_are_refused(make_fn, message):
  with pytest.raises(errors.WorkflowError, match=message):
    make_fn()


WORKFLOWS = [
  (dict(stages=()), "has no stages"),
  (dict(stages=(SIM, SIM)), "two stages are called 'sim'"),
  (dict(staleness=-1), "staleness is -1"),
  (
    dict(edges=(Edge(source="sim", target="x"),)),
    r"'sim' -> 'x' names the stage 'x'; known: \['sim', 'act', 'train'\]",
  ),
  (
    dict(syncs=(WeightSync(source="x", target="act"),)),
    "names the stage 'x'",
  ),
  (
    dict(edges=(Edge(source="sim", target="act", item_bytes=-1),)),
    "carries a negative number of bytes",
  ),
  (dict(edges=(Edge(source="sim", target="act"),) * 2), "is given twice"),
  (
    dict(
      edges=(
        Edge(source="sim", target="act"),
        Edge(source="act", target="train"),
        Edge(source="train", target="sim"),
      )
    ),
    "has the cycle .*; stages that take turns belong to a Loop, and parameters"
    " that return to a WeightSync",
  ),
  (
    dict(loops=(Loop(name="l", stages=("sim",), turns=0),)),
    "needs stages and at least one turn",
  ),
  (
    dict(loops=(Loop(name="l", stages=("sim", "x"), turns=1),)),
    "names 'x', which is no stage or in a loop already",
  ),
  (
    dict(loops=(Loop(name="l", stages=("sim", "sim"), turns=1),)),
    "names 'sim', which is no stage or in a loop already",
  ),
  (
    dict(
      stages=(SIM, Stage(name="act", kind="infer", items=4)),
      loops=(Loop(name="l", stages=("sim", "act"), turns=1),),
    ),
    "have different items: {'sim': 8, 'act': 4}",
  ),
]


@pytest.mark.parametrize(("fields", "message"), WORKFLOWS)
def test_a_workflow_that_contradicts_itself_is_refused(fields, message):
  with pytest.raises(errors.WorkflowError, match=message):
    Workflow(**{"name": "w", "stages": (SIM, ACT, TRAIN), **fields})


def test_a_cycle_is_named_along_its_edges():
  stages = tuple(Stage(name=n, kind="infer", items=1) for n in "abc")
  edges = tuple(Edge(source=s, target=t) for s, t in ("ab", "bc", "ca"))
  with pytest.raises(
    errors.WorkflowError,
    match="(a -> b -> c -> a|b -> c -> a -> b|c -> a -> b)",
  ):
    Workflow(name="w", stages=stages, edges=edges)


def test_a_stage_that_does_not_exist_is_named():
  with pytest.raises(errors.WorkflowError, match="has no stage 'x'; it has"):
    LOOPED.stage("x")
