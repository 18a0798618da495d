"""Reports say of a timeline what one reads off it by hand."""

from __future__ import annotations

import html.parser
import json
import pathlib
import re
import struct
import subprocess
import sys

import pytest

from scheduler import (
  bounds,
  evaluation,
  lowering,
  plans,
  reports,
  simulation,
  timelines,
)
from scheduler.plans import Lanes, Spatial, Temporal, TreePlan
from scheduler.reports import formatting, rows
from scheduler.timelines import Event, MemorySample, Timeline
from scheduler.workflows import Constant, Edge, Loop, WeightSync, Workflow
from tests.scheduler import toys
from tests.scheduler.toys import run, stage

ROOT = pathlib.Path(__file__).parents[2]


def event(
  kind: str, name: str, iteration: int, start: int, stop: int, **fields
) -> Event:
  resources = fields.pop("on", ("0-1",))
  return Event(
    kind=kind,
    stage=name,
    iteration=iteration,
    resources=resources,
    start_ns=start,
    stop_ns=stop,
    **fields,
  )


def two_iterations(**fields) -> Timeline:
  """Rollout on 0-1 for 60 of 100 ns, swapped for 10; training on 2 for 40."""
  events = []
  for i in range(2):
    at = 100 * i
    events += [
      event("compute", "rollout", i, at, at + 20, items=(0, 2)),
      event("compute", "rollout", i, at + 20, at + 60, items=(2, 4)),
      event("swap_out", "rollout", i, at + 60, at + 70, num_bytes=30),
      event(
        "transfer", "rollout", i, at + 60, at + 62, on=("0-1 > 2",),
        target="train", num_bytes=8,
      ),
      event("compute", "train", i, at + 60, at + 100, on=("2",), items=(0, 4)),
    ]  # fmt: skip
  memory = (
    MemorySample(resource="0-1", at_ns=0, bytes_per_device=50),
    MemorySample(resource="0-1", at_ns=70, bytes_per_device=20),
    MemorySample(resource="2", at_ns=0, bytes_per_device=7),
  )
  return Timeline(
    **{
      "source": "simulated",
      "label": "halves",
      "events": tuple(sorted(events, key=lambda e: (e.start_ns, e.stop_ns))),
      "memory": memory,
      **fields,
    }
  )


class Elements(html.parser.HTMLParser):
  """The elements of a page, by name, with their attributes and text."""

  def __init__(self, page: str):
    super().__init__()
    self.found: list[tuple[str, dict[str, str | None]]] = []
    self.text = ""
    self.feed(page)

  def handle_starttag(self, tag, attributes):
    self.found.append((tag, dict(attributes)))

  def handle_data(self, data):
    self.text += data

  def named(self, tag: str) -> list[dict[str, str | None]]:
    return [attributes for name, attributes in self.found if name == tag]


def test_a_summary_counts_what_lies_between_the_ends_of_iterations():
  summary = reports.summarise(two_iterations())
  # Of two iterations, the second: from 100 ns to 200 ns.
  assert (summary.start_ns, summary.stop_ns) == (100, 200)
  assert summary.num_iterations == 1
  assert summary.iteration_s == pytest.approx(100e-9)
  assert summary.bytes_by_kind == {"swap_out": 30, "transfer": 8}
  rollout, train, link = summary.usages
  assert (rollout.resource, rollout.is_link) == ("0-1", False)
  assert rollout.busy_ns == 70  # 20 + 40 of computing, 10 of swapping
  assert rollout.by_kind_ns == {"compute": 60, "swap_out": 10}
  assert rollout.by_stage_ns == {"rollout": 60}
  assert (rollout.num_bubbles, rollout.longest_bubble_ns) == (1, 30)
  assert (rollout.num_bytes, rollout.peak_bytes) == (30, 50)
  assert (train.busy_ns, train.longest_bubble_ns) == (40, 60)
  assert (link.resource, link.is_link, link.busy_ns) == ("0-1 > 2", True, 2)
  assert link.num_bubbles == 2  # 60 ns before, 38 ns after


def test_a_summary_of_a_simulation_has_the_loads_of_its_plan():
  flow = toys.workflow(stage("a", 4), stage("b", 4))
  root = Spatial(children=(run("a", "0", 1), run("b", "1-2", 1)))
  flat = lowering.lower(
    TreePlan(root=root), flow, toys.profile(a=2.0, b=2.0), toys.cluster(3)
  )
  summary = reports.summarise(simulation.run(flat, iterations=5))
  # Granules of 1 on two devices take 2 s, as on one: 8 s each, 10 together.
  assert summary.iteration_s == pytest.approx(10)
  assert [summary.share(u.busy_ns) for u in summary.usages] == [0.8, 0.8]


def test_overlapping_events_are_drawn_on_lanes_of_their_own():
  timeline = Timeline(
    source="measured",
    events=(
      event("compute", "decode", 0, 0, 10, on=("replica 0",)),
      event("compute", "decode", 0, 5, 12, on=("replica 0",)),
      event("compute", "decode", 0, 10, 11, on=("replica 0",)),
    ),
  )
  drawn = rows.of_timeline(timeline, resolution_ns=-1)
  assert [(row.label, len(row.bars)) for row in drawn] == [
    ("replica 0", 2),
    ("replica 0 (1)", 1),
  ]
  # Two overlap from 5 to 10 and from 10 to 11: busy is not their sum.
  assert reports.summarise(timeline).usages[0].busy_ns == 12


def test_events_alike_that_are_near_become_one_bar():
  timeline = two_iterations()
  (first, *_) = rows.of_timeline(timeline)[0].bars
  assert (first.count, first.items) == (2, (0, 4))
  assert (first.start_ns, first.stop_ns) == (0, 60)
  assert len(rows.of_timeline(timeline, resolution_ns=-1)[0].bars) == 6


@pytest.mark.parametrize(
  "duration_ns, text",
  [
    (0, "0 ns"), (999, "999 ns"), (1_500, "1.5 us"), (999_400_000, "999 ms"),
    (999_600_000, "1 s"), (1_234_000_000_000, "1,234 s"), (12.34e9, "12.3 s"),
  ],
)  # fmt: skip
def test_durations_have_three_digits(duration_ns, text):
  assert formatting.seconds(duration_ns) == text


def test_shares_are_never_rounded_to_all_or_nothing():
  values = (0, 0.001, 0.5, 0.999, 1)
  assert [formatting.share(value) for value in values] == [
    "0 %", "under 1 %", "50 %", "over 99 %", "100 %"
  ]  # fmt: skip


def test_a_tree_is_formatted_with_every_setting():
  tree = TreePlan(
    root=Spatial(
      capacity=8,
      children=(
        Lanes(
          loop="game",
          lanes=(3, 1),
          body=Temporal(children=(run("sim", "0-3", 4), run("act", "0-3", 4))),
        ),
        Temporal(
          turn=2,
          children=(
            run("score", "4-5", 2, is_resident=False),
            run("train", "4-5", 2, config=plans.Config(tp=2), share=(0, 2)),
          ),
        ),
      ),
    ),
    copies=("act",),
    label="mine",
  )
  assert reports.format_plan(tree).splitlines() == [
    "plan mine",
    "  side by side, at most 8 items between",
    "    loop game, 2 lanes in flight (3 + 1 items)",
    "      in turn, each once",
    "        sim on 0-3, granules of 4",
    "        act on 0-3, granules of 4",
    "    in turn, 2 items at a time",
    "      score on 4-5, granules of 2, swapped",
    "      train on 4-5, 1 x tp2, granules of 2, items 0 to 2",
    "  with second copies of the weights of act",
  ]


def test_a_flat_plan_is_formatted_in_the_order_of_each_resource():
  flow = toys.workflow(
    stage("sim", 4, "simulate", state_bytes=900),
    stage("act", 4, state_bytes=900),
    edges=(("sim", "act"), ("act", "sim")),
    loops=(Loop(name="game", stages=("sim", "act"), turns=3),),
  )
  body = Temporal(
    children=(run("sim", "0", 4, is_resident=False), run("act", "0", 4))
  )
  flat = lowering.lower(
    TreePlan(root=Lanes(loop="game", body=body, lanes=(4,))),
    flow,
    toys.profile(sim=1.0, act=2.0),
    toys.cluster(1, memory=2000),
  )
  assert reports.format_plan(flat).splitlines() == [
    "plan without a label, flat: 12 activities of an iteration, in the order"
    " of each resource",
    "  devices 0",
    "    3 times:",
    "      swap in of sim: 900 s",
    "      sim [0, 4): 4 s",
    "      swap out of sim: 900 s",
    "      act [0, 4): 8 s",
    "    holds 900 bytes: state of act",
  ]


def evaluated(root: plans.Node, label: str) -> evaluation.Evaluation:
  return evaluation.evaluate(
    TreePlan(root=root, label=label), FLOW, PROFILE, CLUSTER
  )


FLOW = toys.workflow(stage("rollout", 8), stage("train", 8, "train"))
PROFILE = toys.profile(rollout=1.0, train=1.0)
CLUSTER = toys.cluster(4)


def together() -> evaluation.Evaluation:
  """8 items over 4 devices, twice: 4 s."""
  children = (run("rollout", "0-3", 8), run("train", "0-3", 8))
  return evaluated(Temporal(children=children), "collocated")


def apart() -> evaluation.Evaluation:
  """Granules of 4 on 2 devices take 2 s: 2 + 2 + 2, devices wait 2 of 6 s."""
  children = (run("rollout", "0-1", 4), run("train", "2-3", 4))
  return evaluated(Spatial(children=children), "disaggregated")


def test_an_explanation_says_why_stages_share_devices():
  bound = bounds.lower_bound(FLOW, PROFILE, CLUSTER)
  text = reports.explain(
    together(),
    FLOW,
    CLUSTER,
    alternatives={"disaggregated": apart(), "hybrid": "no memory"},
    bound=bound,
  )
  assert "Plan collocated takes 4 s per iteration of toy on 4 devices." in text
  assert "disaggregated: 6 s, 1.50 times as long\n" in text
  assert "hybrid: cannot run: no memory\n" in text
  assert (
    "rollout and train share 4 d devices (0-3), one after the other, because"
    " with rollout and train apart (disaggregated) an iteration takes 6 s, 1.50"
    " times as long: there devices 0-1 wait 33 % of the time." in text
  )
  assert "Along the way, in 1 iteration: rollout 2 s and train 2 s." in text
  assert "0-3: computes 100 %, moves 0 %, idle 0 %" in text
  # 16 s of work over 4 devices.
  assert (
    "No plan takes less than 4 s (work binds); this one takes 1.000 times that"
    in text
  )


def test_an_explanation_does_not_hide_that_an_alternative_is_better():
  text = reports.explain(
    apart(), FLOW, CLUSTER, alternatives={"collocated": together()}
  )
  assert "collocated: 4 s, 0.67 times as long; it is the better plan" in text
  assert (
    "rollout | train have devices of their own, although with rollout and train"
    " together (collocated) an iteration takes 4 s" in text
  )
  assert "rollout runs on 2 d devices (0-1)." in text


def test_an_explanation_names_what_is_swapped():
  flow = toys.workflow(
    stage("a", 4, state_bytes=600), stage("b", 4, state_bytes=600)
  )
  children = (
    run("a", "0", 4, is_resident=False),
    run("b", "0", 4, is_resident=False),
  )
  cluster = toys.cluster(1, host_bytes_per_s=600.0)
  found = evaluation.evaluate(
    TreePlan(root=Temporal(children=children)),
    flow,
    toys.profile(a=1.0, b=1.0),
    cluster,
  )
  text = reports.explain(found, flow, cluster)
  # Four swaps of 1 s, and 8 s of work.
  assert "0: computes 67 %, moves 33 %, idle 0 %; memory at most 600 bytes" in (
    text
  )
  assert "Swapped, as memory does not hold all: a, b." in text


def test_advice_has_the_numbers_of_the_timeline():
  summary = reports.summarise(two_iterations())
  sentences = reports.advise(summary, memory_bytes={"0-1": 52, "2": 100})
  assert sentences == (
    "Idle time is 60 % on device 2 and 30 % on devices 0-1: move devices from"
    " the first to rollout, or a stage to the first.",
    "The busiest, devices 0-1, waits 30 % of the time, at most 30 ns at once:"
    " smaller granules would let stages overlap more; with staleness 1"
    " iterations would overlap too, down to 7e-08 s each at best.",
    "Swaps take 10 % of the time of devices 0-1: turns of more items, or states"
    " divided over more devices, swap less.",
    "Memory of devices 0-1 is 96 % full: smaller granules or a swapped stage"
    " would leave room for caches.",
  )


def test_advice_says_when_no_plan_can_be_better():
  full = Timeline(
    source="simulated",
    events=tuple(event("compute", "a", i, 10 * i, 10 * i + 10) for i in (0, 1)),
  )
  summary = reports.summarise(full)
  (sentence,) = reports.advise(summary, bound_s=9.9e-9)
  assert sentence.startswith("No plan takes less than 9.9e-09 s")
  assert reports.advise(summary) == ("Nothing stands out.",)


def test_a_perfetto_file_has_every_event_in_microseconds(tmp_path):
  reports.write_perfetto(two_iterations(), tmp_path / "t.json")
  document = json.loads((tmp_path / "t.json").read_text())
  events = document["traceEvents"]
  assert {e["ph"] for e in events} == {"M", "X", "C"}
  names = {
    (e["pid"], e["tid"]): e["args"]["name"]
    for e in events
    if e["name"] == "thread_name"
  }
  processes = {
    e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"
  }
  assert processes == {1: "devices, simulated", 2: "links, simulated"}
  assert sorted(names.values()) == ["0-1", "0-1 > 2", "2"]
  complete = [e for e in events if e["ph"] == "X"]
  assert len(complete) == 10
  assert {(e["pid"], e["tid"]) for e in complete} == set(names)
  (sent,) = [e for e in complete if e["cat"] == "transfer" and e["ts"] < 0.1]
  assert sent["name"] == "transfer of rollout to train"
  assert (sent["ts"], sent["dur"]) == (0.06, 0.002)
  assert sent["args"] == {"iteration": 0, "bytes": 8}
  assert names[sent["pid"], sent["tid"]] == "0-1 > 2"
  # Complete events of one thread must not overlap, or viewers nest them.
  for thread in names:
    own = [e for e in complete if (e["pid"], e["tid"]) == thread]
    own.sort(key=lambda e: e["ts"])
    for before, after in zip(own, own[1:]):
      assert before["ts"] + before["dur"] <= after["ts"] + 1e-9
  counters = [e for e in events if e["ph"] == "C"]
  assert [(e["ts"], e["args"]["bytes"]) for e in counters] == [
    (0, 50), (0.07, 20), (0, 7)
  ]  # fmt: skip


def test_a_page_is_complete_by_itself_and_escapes_names(tmp_path):
  timeline = two_iterations()
  evil = "<script>alert(1)</script>"
  reports.write_page(
    timeline,
    tmp_path / "page.html",
    title=evil,
    text="why & wherefore",
    advice=("Try <more> devices.",),
    memory_bytes={"0-1": 100},
  )
  page = (tmp_path / "page.html").read_text()
  elements = Elements(page)
  assert evil not in page
  # Nothing is fetched: no address but that of SVG's names.
  assert not re.search(r"(?:src|href)=|https?://|@import|url\(", page)
  assert elements.text.count("rollout x 2, iteration 1") == 1
  assert "Try <more> devices." in elements.text
  assert "why & wherefore" in elements.text
  assert "0-1: at most 50 bytes of 100 bytes" in elements.text
  # Per iteration: two bars of 0-1, one of 2, one of the link.
  shapes = elements.named("rect")
  assert len(shapes) == 8
  # The first is rollout for 60 of 200 ns, on a scale of 100,000.
  assert (shapes[0]["x"], shapes[0]["width"]) == ("0.00", "30000.00")
  assert len(elements.named("path")) == 2  # memory of two resources


def test_a_picture_is_a_png_and_nothing_is_no_picture(tmp_path):
  reports.write_gantt(two_iterations(), tmp_path / "gantt.png")
  data = (tmp_path / "gantt.png").read_bytes()
  assert data[:8] == b"\x89PNG\r\n\x1a\n"
  width, height = struct.unpack(">II", data[16:24])
  assert width == 1300 and height > 300
  empty = Timeline(source="simulated", events=())
  for write in (reports.write_gantt, reports.write_page):
    with pytest.raises(ValueError, match="no events"):
      write(empty, tmp_path / "empty")


def test_timelines_are_compared_activity_by_activity():
  measured = two_iterations(
    source="measured",
    events=tuple(
      # In the second iteration rollout's granules take 24 and 48 ns.
      event("compute", "rollout", i, start, stop, items=items)
      for i, start, stop, items in (
        (0, 0, 70, (0, 2)), (0, 70, 140, (2, 4)),
        (1, 140, 164, (0, 2)), (1, 164, 212, (2, 4)),
      )
    )
    + (event("apply", "train", 1, 212, 260, on=("2",)),),
  )  # fmt: skip
  found = reports.compare_timelines(two_iterations(), measured)
  by_name = {(a.kind, a.stage, a.items): a for a in found.activities}
  first = by_name["compute", "rollout", (0, 2)]
  assert (first.predicted_ns, first.measured_ns) == (20, 24)
  second = by_name["compute", "rollout", (2, 4)]
  assert (second.predicted_ns, second.measured_ns) == (40, 48)
  assert by_name["compute", "train", (0, 4)].measured_ns is None
  assert by_name["apply", "train", (0, 0)].predicted_ns is None
  # Iterations end at 100 and 200, and at 140 and 260.
  assert (found.predicted_ns, found.measured_ns) == (100, 120)
  assert found.error == pytest.approx(0.2)
  text = reports.format_comparison(found)
  assert "took 120 ns; 100 ns were predicted (+20.0%)" in text
  assert "  rollout: 72 ns, 60 ns predicted, +20%\n" in text
  assert "only measured: apply of train on 2" in text


def test_the_last_iterations_are_counted_from_zero_again():
  events = tuple(
    Event(
      kind="compute",
      stage="a",
      iteration=i,
      resources=("0",),
      start_ns=10 * i,
      stop_ns=10 * i + 4,
    )
    for i in range(5)
  )
  memory = tuple(
    MemorySample(resource="0", at_ns=at, bytes_per_device=1) for at in (0, 45)
  )
  whole = Timeline(source="measured", events=events, memory=memory)
  assert timelines.last_iterations(whole, 5) == whole
  last = timelines.last_iterations(whole, 2)
  # Iteration 3 began at 30.
  assert [(e.iteration, e.start_ns, e.stop_ns) for e in last.events] == [
    (0, 0, 4),
    (1, 10, 14),
  ]
  assert [m.at_ns for m in last.memory] == [15]


def test_turns_of_a_loop_are_told_apart():
  flow = toys.workflow(
    stage("sim", 2, "simulate"),
    stage("act", 2),
    edges=(("sim", "act"), Edge(source="act", target="sim")),
    loops=(Loop(name="game", stages=("sim", "act"), turns=3),),
  )
  body = Temporal(children=(run("sim", "0", 2), run("act", "0", 2)))
  flat = lowering.lower(
    TreePlan(root=Lanes(loop="game", body=body, lanes=(2,))),
    flow,
    toys.profile(sim=1.0, act=2.0),
    toys.cluster(1),
  )
  timeline = simulation.run(flat, iterations=3)
  found = reports.compare_timelines(timeline, timeline)
  assert [(a.stage, a.turn) for a in found.activities] == [
    (name, turn) for turn in range(3) for name in ("sim", "act")
  ]
  assert found.error == 0


def test_a_workflow_is_a_flowchart_with_loops_names_and_bytes():
  drawn = reports.to_mermaid(
    Workflow(
      name="w",
      stages=(
        stage("sim", items=8),
        stage("act", items=8),
        stage("judge", items=1),
      ),
      edges=(
        Edge(source="sim", target="act", item_bytes=100, name='"obs"'),
        Edge(source="act", target="sim"),
        Edge(source="act", target="judge", item_bytes=1, is_invariant=True),
      ),
      loops=(Loop(name="play", stages=("sim", "act"), turns=3),),
      syncs=(WeightSync(source="judge", target="act", num_bytes=10, name="w"),),
      constants=(Constant(target="sim", name="model", num_bytes=2000),),
      staleness=1,
    ),
    places={"sim": "host"},
  )
  # 8 items of 100 bytes; the weights are read 1 + 1 iterations later.
  assert drawn.splitlines() == [
    "flowchart TD",
    '  subgraph loop0["loop play<br/>3 turns"]',
    '    s0["sim<br/>host, 8 items"]',
    '    s1["act<br/>infer, 8 items"]',
    "  end",
    '  s2["judge<br/>infer, barrier"]',
    '  s0 -->|"#quot;obs#quot;<br/>800 bytes"| s1',
    '  s1 -.->|"items"| s0',
    '  s1 ==>|"8 bytes"| s2',
    '  s2 -.->|"w<br/>10 bytes<br/>2 iterations later"| s1',
    '  c0(["model<br/>2 kB"]) ==> s0',
  ]


def test_importing_the_reports_imports_nothing_heavy():
  code = (
    "import sys, scheduler.reports\n"
    "heavy = {'jax', 'numpy', 'matplotlib', 'ortools', 'highspy'}\n"
    "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
  )
  result = subprocess.run(
    [sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=False
  )
  assert result.returncode == 0, result.stderr
