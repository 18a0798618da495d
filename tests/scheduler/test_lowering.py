"""Trees lowered by hand: orders, arcs, holdings and periods."""

from __future__ import annotations

import pytest

from scheduler import checker, cycles, errors, lowering
from scheduler.plans import Lanes, Spatial, Temporal, TreePlan
from scheduler.profiles import ComputeLaw, Config
from scheduler.workflows import Edge, Loop, TraceLengths, WeightSync
from tests.scheduler import toys
from tests.scheduler.toys import S, run, stage

DECODE = TraceLengths(tokens=(1, 2, 4, 8))


def lower(root, workflow, profile, copies=()):
  """Lowers a tree, and has the flat plan checked."""
  where = (workflow, profile, toys.cluster(8))
  flat = lowering.lower(TreePlan(root=root, copies=copies), *where)
  checker.check(flat, *where)
  return flat


def temporal(*children, turn=None):
  return Temporal(children=children, turn=turn)


def spatial(*children, capacity=None):
  return Spatial(children=children, capacity=capacity)


def period(flat):
  return cycles.period_ns(flat) / S


def test_collocated_stages_take_turns():
  flow = toys.workflow(stage("a", 4), stage("b", 4))
  flat = lower(
    temporal(run("a", "0-1", 2), run("b", "0-1", 4)),
    flow,
    toys.profile(a=1.0, b=3.0),
  )
  assert toys.orders(flat) == {
    "0-1": ["compute of 'a' [0, 2)", "compute of 'a' [2, 4) (1)",
            "compute of 'b' [0, 4)"]
  }  # fmt: skip
  # Two devices: granules of 1, 1 and 2 * 3 s.
  assert period(flat) == 8


def test_disaggregated_stages_stream():
  flow = toys.workflow(stage("a", 4), stage("b", 4))
  flat = lower(
    spatial(run("a", "0", 1), run("b", "1", 1)),
    flow,
    toys.profile(a=1.0, b=2.0),
  )
  # b follows the first item of a after 1 s, and takes 4 * 2 s.
  assert period(flat) == 9


def test_granules_of_different_sizes_wait_for_their_last_item():
  flow = toys.workflow(stage("a", 6), stage("b", 3))
  flat = lower(
    spatial(run("a", "0", 4), run("b", "1", 1)),
    flow,
    toys.profile(a=1.0, b=1.0),
  )
  # Items of b read two of a each: [0, 1) and [1, 2) end in a's [0, 4).
  assert {
    (s, t) for s, t, lag, _ in toys.arcs(flat) if lag == 0
  } == {
    ("compute of 'a' [0, 4)", "compute of 'b' [0, 1)"),
    ("compute of 'a' [0, 4)", "compute of 'b' [1, 2) (1)"),
    ("compute of 'a' [4, 6) (1)", "compute of 'b' [2, 3) (2)"),
  }  # fmt: skip
  # a: 4 and 6; b: 5, 6, then 7.
  assert period(flat) == 7


def test_a_group_is_used_when_it_is_complete():
  flow = toys.workflow(stage("a", 6, group=3), stage("b", 6))
  flat = lower(
    spatial(run("a", "0", 1), run("b", "1", 1)),
    flow,
    toys.profile(a=1.0, b=1.0),
  )
  # The first group is there after 3 s, the second after 6; b takes 3 each.
  assert period(flat) == 9


def test_a_stage_that_needs_all_waits_for_the_last_item():
  for flow in (
    toys.workflow(stage("a", 4), stage("b", 4, needs_all=True)),
    toys.workflow(
      stage("a", 4),
      stage("b", 4),
      edges=(Edge(source="a", target="b", reads="all"),),
    ),
  ):
    flat = lower(
      spatial(run("a", "0", 1), run("b", "1", 1)),
      flow,
      toys.profile(a=1.0, b=2.0),
    )
    assert period(flat) == 4 + 4 * 2


def test_one_step_asynchronous_iterations_overlap():
  flow = toys.workflow(
    stage("a", 4), stage("b", 4), syncs=(("b", "a"),), staleness=1
  )
  flat = lower(
    spatial(run("a", "0", 1), run("b", "1", 1)),
    flow,
    toys.profile(a=1.0, b=2.0),
  )
  # The work of b, 8 s; an iteration takes 9 s, of which two are alive.
  assert period(flat) == 8
  assert (
    "compute of 'b' [3, 4) (3)", "compute of 'a' [0, 1)", 2, "end"
  ) in toys.arcs(flat)  # fmt: skip


def test_at_most_one_plus_staleness_iterations_are_alive():
  for staleness, expected in ((0, 6), (1, 3), (2, 2), (3, 2)):
    flow = toys.workflow(
      stage("a", 1), stage("b", 1), stage("c", 1), staleness=staleness
    )
    flat = lower(
      spatial(run("a", "0", 1), run("b", "1", 1), run("c", "2", 1)),
      flow,
      toys.profile(a=2.0, b=2.0, c=2.0),
    )
    # 6 s over the iterations alive, and no less than a device's work of 2 s.
    assert period(flat) == expected


def test_a_hybrid_runs_stages_side_by_side_after_another():
  flow = toys.workflow(stage("a", 4), stage("b", 4), stage("c", 4))
  flat = lower(
    temporal(run("a", "0-3", 4), spatial(run("b", "0", 1), run("c", "1-3", 1))),
    flow,
    toys.profile(a=2.0, b=1.0, c=1.0),
  )
  assert [r.name for r in flat.resources] == ["0", "1-3"]
  # a: one item on each of four devices, 2 s; then b and c stream: 1 + 4.
  assert period(flat) == 2 + 5


def test_trees_nest():
  flow = toys.workflow(stage("a", 4), stage("b", 4), stage("c", 4))
  flat = lower(
    spatial(temporal(run("a", "0", 4), run("b", "0", 1)), run("c", "1", 1)),
    flow,
    toys.profile(a=1.0, b=1.0, c=1.0),
  )
  # a: 4 s; b: an item each second from 5 to 8; c ends one later.
  assert period(flat) == 9


def test_a_stage_runs_on_the_union_of_others_devices():
  flow = toys.workflow(
    stage("a", 2), stage("b", 2), stage("c", 2), edges=(("a", "c"), ("b", "c"))
  )
  flat = lower(
    temporal(run("a", "0", 1), run("b", "1", 1), run("c", "0-1", 2)),
    flow,
    toys.profile(a=1.0, b=3.0, c=1.0),
  )
  # a and b do not share devices: 2 and 6 s side by side, then c in 1 s.
  assert period(flat) == 7
  assert toys.orders(flat)["1"] == [
    "compute of 'b' [0, 1)", "compute of 'b' [1, 2) (1)",
    "compute of 'c' [0, 2)",
  ]  # fmt: skip


def test_a_temporal_alternates_by_turns():
  flow = toys.workflow(stage("a", 6), stage("b", 3))
  flat = lower(
    temporal(run("a", "0", 2), run("b", "0", 1), turn=4),
    flow,
    toys.profile(a=1.0, b=1.0),
  )
  # A turn is of 4 items of a, and 2 of b; the last of what is left.
  assert toys.orders(flat)["0"] == [
    "compute of 'a' [0, 2)", "compute of 'a' [2, 4) (1)",
    "compute of 'b' [0, 1)", "compute of 'b' [1, 2) (1)",
    "compute of 'a' [4, 6) (2)", "compute of 'b' [2, 3) (2)",
  ]  # fmt: skip


def test_a_turn_goes_as_far_as_items_are_there_and_cuts_no_granules():
  flow = toys.workflow(stage("a", 12), stage("b", 8))
  flat = lower(
    temporal(run("a", "0", 2), run("b", "0", 2), turn=5),
    flow,
    toys.profile(a=1.0, b=1.0),
  )
  # Of 5 items of a two granules are done, 4 items, which are enough for 2.66
  # of b: one granule. Of 10 items 10, enough for 6.66: two more.
  assert toys.orders(flat)["0"] == [
    "compute of 'a' [0, 2)", "compute of 'a' [2, 4) (1)",
    "compute of 'b' [0, 2)",
    "compute of 'a' [4, 6) (2)", "compute of 'a' [6, 8) (3)",
    "compute of 'a' [8, 10) (4)",
    "compute of 'b' [2, 4) (1)", "compute of 'b' [4, 6) (2)",
    "compute of 'a' [10, 12) (5)", "compute of 'b' [6, 8) (3)",
  ]  # fmt: skip


def test_in_turns_a_stage_that_needs_all_runs_in_the_last():
  flow = toys.workflow(stage("a", 4), stage("b", 4, needs_all=True))
  flat = lower(
    temporal(run("a", "0", 2), run("b", "0", 4), turn=2),
    flow,
    toys.profile(a=1.0, b=1.0),
  )
  assert toys.orders(flat)["0"][-1] == "compute of 'b' [0, 4)"
  assert period(flat) == 8


def test_in_turns_incomplete_groups_wait():
  flow = toys.workflow(stage("a", 6, group=3), stage("b", 6))
  flat = lower(
    temporal(run("a", "0", 2), run("b", "0", 1), turn=4),
    flow,
    toys.profile(a=1.0, b=1.0),
  )
  assert [name.split(" (")[0] for name in toys.orders(flat)["0"]] == [
    "compute of 'a' [0, 2)", "compute of 'a' [2, 4)",
    "compute of 'b' [0, 1)", "compute of 'b' [1, 2)", "compute of 'b' [2, 3)",
    "compute of 'a' [4, 6)",
    "compute of 'b' [3, 4)", "compute of 'b' [4, 5)", "compute of 'b' [5, 6)",
  ]  # fmt: skip


def test_swaps_surround_each_turn_on_every_atom():
  flow = toys.workflow(
    stage("a", 4, state_bytes=3), stage("b", 4, state_bytes=5)
  )
  flat = lower(
    temporal(
      run("a", "0", 2, is_resident=False),
      run("b", "0", 2, is_resident=False),
      turn=2,
    ),
    flow,
    toys.profile(a=1.0, b=1.0),
  )
  turns = [
    "swap_in of 'a'", "compute of 'a' [0, 2)", "swap_out of 'a'",
    "swap_in of 'b'", "compute of 'b' [0, 2)", "swap_out of 'b'",
    "swap_in of 'a' (1)", "compute of 'a' [2, 4) (1)", "swap_out of 'a' (1)",
    "swap_in of 'b' (1)", "compute of 'b' [2, 4) (1)", "swap_out of 'b' (1)",
  ]  # fmt: skip
  assert toys.orders(flat)["0"] == turns
  # One byte per second: 2 * (3 + 5) s of swaps in each of 2 turns, 8 s of work.
  assert period(flat) == 2 * 16 + 8


def test_state_is_swapped_on_each_atom_by_itself():
  flow = toys.workflow(stage("a", 2, state_bytes=3), stage("b", 2))
  flat = lower(
    temporal(run("a", "0-2", 2, is_resident=False), run("b", "0", 2)),
    flow,
    toys.profile(a=1.0, b=1.0),
  )
  moved = {
    flat.resources[a.resources[0]].name: (a.duration_ns, a.num_bytes)
    for a in flat.activities
    if a.kind == "swap_in"
  }
  assert moved == {"0": (3 * S, 3), "1-2": (3 * S, 6)}
  # 3 in, 1 of a, 3 out, 2 of b.
  assert period(flat) == 9


def test_the_tail_of_a_decode_keeps_fewer_devices():
  flow = toys.workflow(
    stage("g", 4, "decode", lengths=DECODE), stage("t", 4, "train")
  )
  flat = lower(
    temporal(
      run("g", "0-1", 1, share=(0, 2), cohort=(0, 4)),
      spatial(run("g", "0", 1, share=(2, 4), cohort=(0, 4)), run("t", "1", 1)),
    ),
    flow,
    toys.profile(g=toys.TOKEN, t=1.0),
  )
  # Two replicas: items 0 and 1 are there at 2 s, when device 1 begins to train
  # on them. On one replica items of lengths 4 and 8 come 2 and 4 s later: at
  # 2 + 2 + 4 = 8 s, and the last is trained on until 9 s.
  assert period(flat) == 9
  assert (
    "compute of 'g' [1, 2) (1)", "compute of 'g' [2, 3) (2)", 0, "end"
  ) in toys.arcs(flat)  # fmt: skip


def test_replicas_of_different_sizes_take_short_and_long_items():
  profile = toys.profile(t=1.0, g=toys.TOKEN, tp2={"g": toys.TOKEN})
  flow = toys.workflow(stage("g", 4, "decode", lengths=DECODE), stage("t", 4))
  flat = lower(
    spatial(
      run("g", "0", 1, share=(0, 3)),
      run("g", "1-2", 1, share=(3, 4), config=Config(tp=2)),
      run("t", "3", 1),
    ),
    flow,
    profile,
  )
  # Short items at 1, 2 and 4 s, the long one at 8 s; t ends a second later.
  assert period(flat) == 9


def test_updates_divide_a_train_stage():
  flow = toys.workflow(stage("a", 6), stage("t", 6, "train", updates=2))
  flat = lower(
    spatial(run("a", "0", 1), run("t", "1", 2)),
    flow,
    toys.profile(a=1.0, t=1.0),
  )
  assert toys.orders(flat)["1"] == [
    "compute of 't' [0, 2)", "compute of 't' [2, 3) (1)", "apply of 't'",
    "compute of 't' [3, 5) (2)", "compute of 't' [5, 6) (3)",
    "apply of 't' (1)",
  ]  # fmt: skip
  assert {
    ("compute of 't' [2, 3) (1)", "apply of 't'", 0, "end"),
    ("apply of 't'", "compute of 't' [3, 5) (2)", 0, "end"),
    ("apply of 't'", "apply of 't' (1)", 0, "end"),
  } <= toys.arcs(flat)
  # t: 2 to 4, 4 to 5, 5 to 7, 7 to 8.
  assert period(flat) == 8


def test_an_update_waits_for_all_its_shares():
  flow = toys.workflow(stage("t", 8, "train", updates=2))
  flat = lower(
    spatial(run("t", "0", 2, share=(0, 6)), run("t", "1", 2, share=(6, 8))),
    flow,
    toys.profile(t=1.0),
  )
  # Update 0 ends on device 0 after 4 s. Of update 1 device 0 has two items and
  # device 1 two, which wait for it.
  assert period(flat) == 6
  assert {
    ("apply of 't'", "compute of 't' [6, 8) (3)", 0, "end"),
    ("compute of 't' [4, 6) (2)", "apply of 't' (1)", 0, "end"),
  } <= toys.arcs(flat)


def test_weights_go_from_the_last_apply_to_every_replica():
  flow = toys.workflow(
    stage("g", 4, "decode"),
    stage("t", 4, "train", updates=2),
    syncs=(WeightSync(source="t", target="g", num_bytes=3),),
    staleness=1,
  )
  root = spatial(
    run("g", "0", 2, share=(0, 2)),
    run("g", "1", 2, share=(2, 4)),
    run("t", "2", 2),
  )
  profile = toys.profile(g=toys.TOKEN, t=1.0)
  flat = lower(root, flow, profile)
  assert toys.orders(flat) == {
    "0": ["weight_sync of 't' to 'g'", "compute of 'g' [0, 2)"],
    "1": ["weight_sync of 't' to 'g'", "compute of 'g' [2, 4) (1)"],
    "2": ["compute of 't' [0, 2)", "apply of 't'",
          "compute of 't' [2, 4) (1)", "apply of 't' (1)"],
    "weights 2 > 0": ["weight_sync of 't' to 'g'"],
    "weights 2 > 1": ["weight_sync of 't' to 'g'"],
  }  # fmt: skip
  assert (
    "apply of 't' (1)", "weight_sync of 't' to 'g'", 2, "end"
  ) in toys.arcs(flat)  # fmt: skip
  # Sync 3, decode 1, train 4: 8 s of which two are alive; no device has more
  # than 4 s of work.
  assert period(flat) == 4


def test_a_copy_lets_weights_arrive_while_the_stage_works():
  flow = toys.workflow(
    stage("g", 4),
    stage("t", 4, "train"),
    syncs=(WeightSync(source="t", target="g", num_bytes=3),),
    staleness=1,
  )
  root = spatial(run("g", "0", 4), run("t", "1", 4))
  profile = toys.profile(g=1.0, t=1.0)
  # In place the decode's device has 3 + 4 s of work; else both have 4, and an
  # iteration takes 3 + 8 s, of which two are alive.
  assert period(lower(root, flow, profile)) == 7
  copied = lower(root, flow, profile, copies=("g",))
  assert period(copied) == 5.5
  assert toys.orders(copied)["0"] == ["compute of 'g' [0, 4)"]
  (held,) = [h for h in copied.holdings if "copy" in h.what]
  assert (held.resource, held.bytes_per_device, held.begin) == (0, 3, None)


def test_a_tail_needs_no_second_sync():
  flow = toys.workflow(
    stage("g", 4, "decode", lengths=DECODE),
    stage("t", 4, "train"),
    syncs=(WeightSync(source="t", target="g", num_bytes=3),),
  )
  flat = lower(
    temporal(
      run("g", "0-1", 1, share=(0, 2), cohort=(0, 4)),
      spatial(run("g", "0", 1, share=(2, 4), cohort=(0, 4)), run("t", "1", 1)),
    ),
    flow,
    toys.profile(g=toys.TOKEN, t=1.0),
  )
  kinds = [a.kind for a in flat.activities]
  assert kinds.count("weight_sync") == 1


def test_a_second_copy_is_not_overwritten_before_it_was_read():
  flow = toys.workflow(
    stage("g", 4),
    stage("t", 4, "train"),
    syncs=(WeightSync(source="t", target="g", num_bytes=3),),
    staleness=2,
  )
  flat = lower(
    spatial(run("g", "0", 4), run("t", "1", 4)),
    flow,
    toys.profile(g=1.0, t=1.0),
    copies=("g",),
  )
  # Weights for iteration i may come after i - 3 was trained on, but overwrite
  # what i - 2 reads.
  assert {
    ("apply of 't'", "weight_sync of 't' to 'g'", 3, "end"),
    ("compute of 'g' [0, 4)", "weight_sync of 't' to 'g'", 2, "end"),
    ("weight_sync of 't' to 'g'", "compute of 'g' [0, 4)", 0, "end"),
  } <= toys.arcs(flat)


def test_a_decode_waits_for_the_inputs_of_its_cohort():
  flow = toys.workflow(
    stage("a", 4),
    stage("g", 4, "decode", lengths=DECODE),
    edges=(Edge(source="a", target="g", item_bytes=1),),
  )
  flat = lower(
    spatial(
      run("a", "0", 1),
      temporal(
        run("g", "1-2", 1, share=(0, 2), cohort=(0, 4)),
        run("g", "1", 1, share=(2, 4), cohort=(0, 4)),
      ),
    ),
    flow,
    toys.profile(a=1.0, g=toys.TOKEN),
  )
  # All four are brought to where the cohort begins, each in 1 s after 1 s; two
  # replicas decode 2 items until 2 s later, one the others for 6 s more.
  moved = [name for name in toys.orders(flat) if " > " in name]
  assert moved == ["0 > 1-2"]
  assert period(flat) == 5 + 2 + 6


def test_a_link_carries_first_what_is_read_first():
  stages = (stage("a", 1), stage("b", 1), stage("c", 1))
  edges = (
    Edge(source="a", target="b", item_bytes=1),
    Edge(source="a", target="c", item_bytes=4),
  )
  root = spatial(run("a", "0", 1), temporal(run("b", "1", 1), run("c", "1", 1)))
  for listed in (edges, edges[::-1]):
    flat = lower(
      root,
      toys.workflow(*stages, edges=listed),
      toys.profile(a=1.0, b=1.0, c=1.0),
    )
    assert toys.orders(flat)["0 > 1"] == [
      "transfer of 'a' to 'b' [0, 1)", "transfer of 'a' to 'c' [0, 1)"
    ]  # fmt: skip
    # a 1 s, to b 1 s, and 4 s to c, while b works.
    assert period(flat) == 1 + 1 + 4 + 1


def test_items_move_between_devices_in_order():
  flow = toys.workflow(
    stage("a", 4),
    stage("b", 4),
    edges=(Edge(source="a", target="b", item_bytes=2),),
  )
  flat = lower(
    spatial(run("a", "0", 1), run("b", "1", 2)),
    flow,
    toys.profile(a=1.0, b=1.0),
  )
  assert toys.orders(flat)["0 > 1"] == [
    "transfer of 'a' to 'b' [0, 1)",
    "transfer of 'a' to 'b' [1, 2) (1)",
    "transfer of 'a' to 'b' [2, 3) (2)",
    "transfer of 'a' to 'b' [3, 4) (3)",
  ]
  # a ends at 1..4; items arrive at 3, 5, 7, 9; b works 5 to 7 and 9 to 11.
  assert period(flat) == 11


def test_a_share_receives_only_the_items_it_reads():
  flow = toys.workflow(
    stage("a", 4),
    stage("b", 4),
    edges=(Edge(source="a", target="b", item_bytes=1),),
  )
  flat = lower(
    spatial(
      run("a", "0", 4),
      run("b", "1", 1, share=(0, 1)),
      run("b", "2", 1, share=(1, 4)),
    ),
    flow,
    toys.profile(a=1.0, b=1.0),
  )
  moved = [(a.items, a.num_bytes) for a in flat.activities
           if a.kind == "transfer"]  # fmt: skip
  assert moved == [((0, 1), 1), ((1, 4), 3)]


def test_a_channel_holds_its_capacity():
  flow = toys.workflow(stage("a", 4), stage("b", 4))
  flat = lower(
    spatial(run("a", "0", 1), run("b", "1", 1), capacity=2),
    flow,
    toys.profile(a=1.0, b=3.0),
  )
  # a's item 2 fits once b takes item 0, and item 3 once b takes item 1.
  starts = {arc for arc in toys.arcs(flat) if arc[3] == "start"}
  assert starts == {
    ("compute of 'b' [0, 1)", "compute of 'a' [2, 3) (2)", 0, "start"),
    ("compute of 'b' [1, 2) (1)", "compute of 'a' [3, 4) (3)", 0, "start"),
  }
  # b takes item 0 at 1 s and item 1 at 4 s.
  times = [t / S for t in cycles.start_times(flat)]
  assert times[:4] == [0, 1, 2, 4]
  assert period(flat) == 13


def test_a_channel_holds_its_capacity_across_iterations():
  flow = toys.workflow(stage("a", 4), stage("b", 4), staleness=1)
  flat = lower(
    spatial(run("a", "0", 1), run("b", "1", 1), capacity=2),
    flow,
    toys.profile(a=1.0, b=3.0),
  )
  starts = {arc for arc in toys.arcs(flat) if arc[3] == "start"}
  # a's item 0 of the next iteration is the third in the channel after item 2.
  assert (
    "compute of 'b' [2, 3) (2)", "compute of 'a' [0, 1)", 1, "start"
  ) in starts  # fmt: skip
  assert (
    "compute of 'b' [3, 4) (3)", "compute of 'a' [1, 2) (1)", 1, "start"
  ) in starts  # fmt: skip
  assert len(starts) == 4


def test_a_channel_too_small_for_a_granule_is_refused():
  flow = toys.workflow(stage("a", 4), stage("b", 4))
  with pytest.raises(errors.InfeasiblePlanError, match="holds 2 items deadl"):
    lower(
      spatial(run("a", "0", 1), run("b", "1", 4), capacity=2),
      flow,
      toys.profile(a=1.0, b=1.0),
    )


def loop_flow(turns=3, items=4):
  return toys.workflow(
    stage("sim", items, "simulate"),
    stage("act", items),
    stage("t", items, "train"),
    edges=(("sim", "act"), ("act", "sim"), ("act", "t")),
    loops=(Loop(name="l", stages=("sim", "act"), turns=turns),),
  )


def test_lanes_on_devices_of_their_own_overlap():
  flat = lower(
    temporal(
      Lanes(
        loop="l",
        body=spatial(run("sim", "0", 4), run("act", "1", 4)),
        lanes=(2, 2),
      ),
      run("t", "0-1", 4),
    ),
    loop_flow(),
    toys.profile(sim=1.0, act=1.0, t=1.0),
  )
  assert toys.orders(flat)["0"][:3] == [
    "compute of 'sim' [0, 2)", "compute of 'sim' [2, 4)",
    "compute of 'sim' [0, 2) (1)",
  ]  # fmt: skip
  # Both devices work 2 s on each lane; the second starts a lane later: 3 turns
  # of 4 s and 2 s. Then 4 items on two devices, 2 s.
  assert period(flat) == 3 * 4 + 2 + 2


def test_one_lane_leaves_devices_waiting():
  flat = lower(
    temporal(
      Lanes(
        loop="l",
        body=spatial(run("sim", "0", 4), run("act", "1", 4)),
        lanes=(4,),
      ),
      run("t", "0-1", 4),
    ),
    loop_flow(),
    toys.profile(sim=1.0, act=1.0, t=1.0),
  )
  assert period(flat) == 3 * (4 + 4) + 2


def test_unequal_lanes_on_shared_devices_take_turns():
  flat = lower(
    temporal(
      Lanes(
        loop="l",
        body=temporal(run("sim", "0", 4), run("act", "0", 4)),
        lanes=(3, 1),
      ),
      run("t", "0", 4),
    ),
    loop_flow(turns=2),
    toys.profile(sim=1.0, act=2.0, t=1.0),
  )
  assert toys.orders(flat)["0"][:4] == [
    "compute of 'sim' [0, 3)", "compute of 'act' [0, 3)",
    "compute of 'sim' [3, 4)", "compute of 'act' [3, 4)",
  ]  # fmt: skip
  assert period(flat) == 2 * 4 * 3 + 4


def test_items_leave_a_loop_after_its_last_turn():
  flat = lower(
    spatial(
      Lanes(
        loop="l",
        body=spatial(run("sim", "0", 4), run("act", "1", 4)),
        lanes=(2, 2),
      ),
      run("t", "2", 2),
    ),
    loop_flow(turns=2),
    toys.profile(sim=1.0, act=1.0, t=3.0),
  )
  assert {
    ("compute of 'act' [0, 2) (1)", "compute of 't' [0, 2)", 0, "end"),
    ("compute of 'act' [2, 4) (1)", "compute of 't' [2, 4) (1)", 0, "end"),
    ("compute of 'act' [0, 2)", "compute of 'sim' [0, 2) (1)", 0, "end"),
  } <= toys.arcs(flat)
  # The first lane's last turn ends at 8; training takes 2 * 6.
  assert period(flat) == 20


def test_under_staleness_a_stage_that_returns_is_an_iteration_behind():
  stages = (stage("a", 2), stage("b", 2), stage("c", 2))
  root = spatial(temporal(run("a", "0", 2), run("c", "0", 2)), run("b", "1", 2))
  profile = toys.profile(a=1.0, b=2.0, c=1.0)
  flat = lower(root, toys.workflow(*stages, staleness=1), profile)
  assert toys.orders(flat)["0"] == [
    "compute of 'a' [0, 2)", "compute of 'c' [0, 2) -1"
  ]  # fmt: skip
  # Device 0: 4 s of work, device 1: 4 s, an iteration over the two alive:
  # (2 + 4 + 2) / 2. In step with the tree it would be 8.
  assert period(flat) == 4
  assert period(lower(root, toys.workflow(*stages), profile)) == 8


def test_a_temporal_root_finishes_an_iteration_before_the_next():
  flow = toys.workflow(stage("a", 2), stage("b", 2), staleness=1)
  flat = lower(
    temporal(run("a", "0-1", 2), run("b", "0-1", 2)),
    flow,
    toys.profile(a=2.0, b=2.0),
  )
  assert {slot.shift for order in flat.orders for slot in order} == {0}
  assert period(flat) == 4


def test_what_takes_memory_is_charged_from_where_to_where():
  flow = toys.workflow(
    stage("a", 4, state_bytes=8, item_bytes=2),
    stage("b", 4, state_bytes=6),
    edges=(Edge(source="a", target="b", item_bytes=5),),
  )
  flat = lower(
    temporal(
      run("a", "0-1", 2, config=Config(tp=2)),
      run("b", "0-1", 2, is_resident=False),
    ),
    flow,
    toys.profile(
      tp2={"a": ComputeLaw(flop_per_item=1, efficiency=1)},
      b=toys.per_item(1.0, 3),
    ),
  )
  names = [str(a) for a in flat.activities]
  held = {
    h.what: (
      h.bytes_per_device,
      h.begin if h.begin is None else names[h.begin],
      h.end if h.end is None else names[h.end],
    )
    for h in flat.holdings
  }
  assert held == {
    # 8 bytes over a replica's two devices.
    "state of a": (4, None, None),
    "state of b": (6, "swap_in of 'b'", "swap_out of 'b'"),
    # 2 items of 2 bytes over two devices, while a has them.
    "granule of a": (2, "compute of 'a' [0, 2)", "compute of 'a' [2, 4) (1)"),
    # One item on each device, of 3 bytes.
    "granule of b": (3, "compute of 'b' [0, 2)", "compute of 'b' [2, 4) (1)"),
    # 4 items of 5 bytes on two devices, from the first to the last use.
    "items from a to b": (
      10, "compute of 'a' [0, 2)", "compute of 'b' [2, 4) (1)"
    ),
  }  # fmt: skip
