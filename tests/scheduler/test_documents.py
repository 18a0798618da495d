"""Documents come back as they were written, or are refused with an error."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from scheduler import checker, documents, errors, lowering
from scheduler.clusters import Cluster, DeviceClass, Nodes
from scheduler.devices import Devices
from scheduler.plans import FlatPlan, Run, Temporal, TreePlan
from scheduler.profiles import (
  ComputeLaw,
  Config,
  DecodeLaw,
  Entry,
  Profile,
  Sample,
  Table,
)
from scheduler.timelines import Event, MemorySample, Timeline
from scheduler.workflows import LogNormalLengths, Stage, Workflow
from tests.scheduler import strategies

EXAMPLE = Workflow(
  name="toy",
  stages=(
    Stage(
      name="roll",
      kind="decode",
      items=8,
      group=4,
      lengths=LogNormalLengths(median_tokens=100, sigma=0.5, max_tokens=1000),
    ),
    Stage(name="score", kind="host", items=8),
  ),
)

EXAMPLE_JSON = """\
{
 "format": "workflow",
 "version": 1,
 "name": "toy",
 "stages": [
  {
   "name": "roll",
   "kind": "decode",
   "items": 8,
   "group": 4,
   "lengths": {
    "type": "LogNormalLengths",
    "median_tokens": 100,
    "sigma": 0.5,
    "max_tokens": 1000
   }
  },
  {
   "name": "score",
   "kind": "host",
   "items": 8
  }
 ]
}
"""


def test_the_format_is_what_people_would_write():
  assert documents.to_json(EXAMPLE) == EXAMPLE_JSON
  assert documents.from_json(Workflow, EXAMPLE_JSON) == EXAMPLE


def test_a_union_in_a_tree_is_told_apart_by_type():
  run = Run(stage="roll", devices=Devices.span(0, 8), granule=4)
  plan = TreePlan(root=Temporal(children=(run,)))
  assert json.loads(documents.to_json(plan))["root"] == {
    "type": "Temporal",
    "children": [
      {"type": "Run", "stage": "roll", "devices": "0-7", "granule": 4}
    ],
  }


def some_documents(rng: random.Random) -> tuple[Any, ...]:
  """Returns a workflow, a profile, a cluster, both plans and a timeline."""
  given = strategies.problem(rng)
  classes = (
    DeviceClass(name="d", memory_bytes=1000, flops_per_s=rng.random() + 1),
    DeviceClass(name="e", memory_bytes=rng.randint(1, 1 << 40)),
  )
  cluster = Cluster(
    classes=classes,
    nodes=tuple(
      Nodes(
        device_class=c.name, num_nodes=rng.randint(1, 3), devices_per_node=2
      )
      for c in classes
    ),
    groups=(Devices.span(0, 2),) if rng.random() < 0.5 else (),
  )
  laws = (
    Table(samples=(Sample(granule=1, devices=1, seconds=rng.random()),)),
    ComputeLaw(flop_per_item=rng.random(), efficiency=0.5),
    DecodeLaw(
      t0_s=rng.random(), weight_bytes=1, kv_bytes_per_token=0, num_params=1e9
    ),
  )
  profile = Profile(
    entries=tuple(
      Entry(stage="s", device_class="d", law=law, config=Config(tp=i + 1))
      for i, law in enumerate(laws)
    ),
    provenance=rng.choice(["", "measured on paper", '\u00e9\n"\\']),
  )
  timeline = Timeline(
    source=rng.choice(["simulated", "measured"]),
    events=(
      Event(
        kind="compute",
        stage="s",
        iteration=rng.randint(0, 3),
        resources=("0-3", "link"),
        start_ns=rng.randint(0, 1 << 60),
        stop_ns=1 << 61,
      ),
    ),
    memory=(MemorySample(resource="0-3", at_ns=0, bytes_per_device=1),),
  )
  return (
    given.workflow,
    given.profile,
    given.cluster,
    cluster,
    profile,
    strategies.tree(rng, given),
    strategies.flat_plan(rng),
    timeline,
  )


@hypothesis.given(strategies.drawn(some_documents))
def test_every_document_comes_back_as_it_was_written(written: tuple[Any, ...]):
  for document in written:
    text = documents.to_json(document)
    assert documents.from_json(type(document), text) == document


def test_a_document_comes_back_from_its_file(tmp_path):
  path = tmp_path / "workflow.json"
  documents.write(EXAMPLE, path)
  assert documents.read(Workflow, path) == EXAMPLE


def edited(**fields: Any) -> str:
  return json.dumps({**json.loads(EXAMPLE_JSON), **fields})


def nested(depth: int) -> str:
  """Returns a plan of Temporals in Temporals."""
  run = '{"type": "Run", "stage": "a", "devices": "0", "granule": 1}'
  node = '{"type": "Temporal", "children": [' * depth + run + "]}" * depth
  return f'{{"root": {node}}}'


WRONG = [
  (Workflow, "", "document is not JSON: Expecting value: line 1 column 1"),
  (Workflow, "[" * 100_000, "document is not JSON"),
  (Workflow, "9" * 5000, "document is not JSON: Exceeds the limit"),
  (Workflow, "[]", r"document is \[\]; a workflow is a JSON object"),
  (Cluster, EXAMPLE_JSON, "has format \"workflow\"; expected 'cluster'"),
  (Workflow, edited(version=2), "has version 2; this release reads 1"),
  (Workflow, edited(format={"a": 1}), 'has format {"a": 1}; expected'),
  (Workflow, edited(stage=1), "has the unknown field 'stage'; Workflow has"),
  (Workflow, '{"name": "a"}', "document lacks the field 'stages'"),
  (Workflow, edited(name=3), r"document.name is 3; expected a string"),
  (Workflow, edited(stages={}), r"document.stages is {}; expected a list"),
  (Workflow, edited(stages=[1]), r"stages\[0\] is 1; expected an object"),
  (Workflow, edited(staleness=True), "staleness is true; expected a whole"),
  (Workflow, edited(staleness=1.0), "staleness is 1.0; expected a whole"),
  (
    Workflow,
    edited(staleness=1 << 63),
    "staleness is 9223372036854775808; expected a whole number up to",
  ),
  (
    Workflow,
    EXAMPLE_JSON.replace("0.5", "NaN"),
    r"stages\[0\].lengths.sigma is NaN; expected a finite number",
  ),
  (
    Workflow,
    EXAMPLE_JSON.replace("0.5", "1e999"),
    r"stages\[0\].lengths.sigma is Infinity; expected a finite number",
  ),
  (
    Workflow,
    EXAMPLE_JSON.replace("0.5", "1" + "0" * 400),
    r"stages\[0\].lengths.sigma is 1000.*\.\.\.; expected a finite number",
  ),
  (
    Workflow,
    EXAMPLE_JSON.replace("LogNormalLengths", "Uniform"),
    r"stages\[0\].lengths.type is \"Uniform\"; expected one of \['LogNormal",
  ),
  (
    Workflow,
    EXAMPLE_JSON.replace('"LogNormalLengths"', "[{}]"),
    r"stages\[0\].lengths.type is \[{}\]; expected one of",
  ),
  (
    Workflow,
    EXAMPLE_JSON.replace('"decode"', '{"a": []}'),
    r"stages\[0\].kind is {\"a\": \[\]}; expected one of \['decode'",
  ),
  (
    Workflow,
    EXAMPLE_JSON.replace('"group": 4', '"group": 3'),
    r"stages\[0\]: stage 'roll': 8 items are not divided evenly by 1 updates",
  ),
  (TreePlan, nested(150), "document nests too deeply"),
  (
    TreePlan,
    nested(0).replace('"0"', '"7-3"'),
    "devices '7-3' has the span '7-3', which runs backwards",
  ),
  (TreePlan, nested(0).replace('"0"', '"a"'), "'a' is not a list of spans"),
  (TreePlan, nested(0).replace('"0"', '"-1"'), "'-1' is not a list of spans"),
  (
    TreePlan,
    nested(0).replace('"0"', "[0]"),
    r"root.devices is \[0\]; expected",
  ),
  (
    TreePlan,
    nested(0).replace('"0"', '"' + "9" * 5000 + '"'),
    "is not a list of spans",
  ),
  (
    TreePlan,
    nested(0).replace('"0"', '"0-4294967296"'),
    "device 4294967296 is beyond the 2147483648 that a set can hold",
  ),
  (
    FlatPlan,
    '{"resources": [], "activities": [], "arcs": [{"source": 0, "target": 0}],'
    ' "orders": []}',
    "names an activity outside 0 to -1",
  ),
]


@pytest.mark.parametrize(("cls", "text", "message"), WRONG)
def test_what_is_no_document_is_named(cls: type, text: str, message: str):
  with pytest.raises(errors.SchedulerError, match=message):
    documents.from_json(cls, text)


def test_a_tree_as_deep_as_anyone_needs_is_read():
  plan = documents.from_json(TreePlan, nested(50))
  assert documents.from_json(TreePlan, documents.to_json(plan)) == plan


def test_an_error_names_the_file(tmp_path):
  path = tmp_path / "bad.json"
  path.write_text("{}")
  with pytest.raises(errors.DocumentError, match=r"bad\.json lacks the field"):
    documents.read(Workflow, path)
  path.write_bytes(b"\xff")
  with pytest.raises(errors.DocumentError, match=r"cannot read .*bad\.json"):
    documents.read(Workflow, path)
  with pytest.raises(errors.DocumentError, match=r"cannot read .*none\.json"):
    documents.read(Workflow, tmp_path / "none.json")


# What a typing error, a script or another program may leave in a document.
STRANGE: tuple[Any, ...] = (
  None, True, False, 0, 1, -1, 2, 3, 7, 1 << 31, 1 << 62, 1 << 70, -(1 << 62),
  0.0, 0.5, -0.5, 1e-300, 1e300, float("nan"), float("inf"), "", "s0", "0",
  "0-1", "5", "0-2147483647", "Run", "decode", "\ud800", [], [0], [0, 4], [[]],
  {}, {"type": "Run"}, {"a": {}},
)  # fmt: skip


def mutated(rng: random.Random, data: Any) -> Any:
  """Returns a document's data with values changed, dropped or repeated."""
  # These two would be hit most often, and end all reading.
  body = {k: v for k, v in data.items() if k not in ("format", "version")}
  root = [copy.deepcopy(body)]
  for _ in range(rng.randint(1, 3)):
    holder: Any = root
    key: Any = 0
    while isinstance(holder[key], (dict, list)) and holder[key]:
      if rng.random() < 0.1:
        break
      holder = holder[key]
      keys = list(holder) if isinstance(holder, dict) else range(len(holder))
      key = rng.choice(list(keys))
    what = rng.random()
    if what < 0.8:
      old = type(holder[key])
      alike = [v for v in STRANGE if type(v) is old and rng.random() < 0.9]
      holder[key] = copy.deepcopy(rng.choice(alike or STRANGE))
    elif what < 0.85 and holder is not root:
      del holder[key]
    elif what < 0.9 and isinstance(holder, list):
      holder.append(copy.deepcopy(holder[key]))
    elif isinstance(holder, dict):
      holder[rng.choice(["type", "items", "x"])] = holder[key]
  return root[0]


@hypothesis.given(
  strategies.drawn(some_documents), st.randoms(use_true_random=False)
)
def test_mutated_json_is_read_or_refused(
  written: tuple[Any, ...], rng: random.Random
):
  for document in written:
    data = mutated(rng, json.loads(documents.to_json(document)))
    try:
      read = documents.from_json(type(document), json.dumps(data))
    except errors.SchedulerError as error:
      assert str(error)
    else:
      assert documents.from_json(type(read), documents.to_json(read)) == read


def pipeline_documents(rng: random.Random) -> tuple[Any, ...]:
  """Returns what an evaluator reads, one of it mutated; all as JSON."""
  given = strategies.problem(rng)
  plan: Any = strategies.tree(rng, given)
  parts = (given.workflow, given.profile, given.cluster)
  if rng.random() < 0.5:
    try:
      plan = lowering.lower(plan, *parts)
    except errors.SchedulerError:
      pass
  written = [*parts, plan]
  which = rng.randrange(len(written))
  texts = [documents.to_json(document) for document in written]
  texts[which] = json.dumps(mutated(rng, json.loads(texts[which])))
  return tuple(zip(map(type, written), texts))


@pytest.mark.slow
@hypothesis.given(strategies.drawn(pipeline_documents))
def test_mutated_json_is_planned_or_refused(texts: tuple[Any, ...]):
  try:
    workflow, profile, cluster, plan = (
      documents.from_json(cls, text) for cls, text in texts
    )
    flat = lowering.lower(plan, workflow, profile, cluster)
    checker.check(flat, workflow, profile, cluster)
  except errors.SchedulerError as error:
    assert str(error)
