from __future__ import annotations

import itertools
import random

import pytest

from scheduler import errors
from scheduler.clusters import Cluster, DeviceClass, Nodes
from scheduler.devices import Devices
from scheduler.planners import (
  divisions,
  granules,
  graphs,
  parts,
  pools,
  residency,
  units,
)
from scheduler.planners.residency import Tenant
from scheduler.plans import Spatial, Temporal, TreePlan, runs
from scheduler.prices import of as prices_of
from scheduler.profiles import ReplicaTable, Sample
from scheduler.workflows import Edge, Loop
from tests.scheduler import toys

BOTH = frozenset({0})


def grouped(*sizes: int) -> pools.Pools:
  ends = list(itertools.accumulate(sizes, initial=0))
  return pools.of_cluster(
    Cluster(
      classes=(DeviceClass(name="d", memory_bytes=1),),
      nodes=(
        Nodes(device_class="d", num_nodes=1, devices_per_node=sum(sizes)),
      ),
      groups=tuple(
        Devices.span(start, stop) for start, stop in zip(ends, ends[1:])
      ),
    )
  )


def test_few_devices_are_divided_in_every_way():
  shares = pools.of_cluster(toys.cluster(9))
  splits = list(shares.splits(shares.full, BOTH, BOTH))
  assert sorted(splits) == [((k,), (9 - k,)) for k in range(1, 9)]


def test_of_many_devices_every_count_and_what_it_leaves_are_tried():
  shares = pools.of_cluster(toys.cluster(16_384))
  counts = shares.pools[0].counts
  assert len(counts) < 150
  assert set(range(1, 17)) <= set(counts)
  assert {16_384 - c for c in counts if c < 16_384} <= set(counts)
  # Counts grow by a factor of 8,192^(1/32) = 1.33, rounded.
  assert all(b <= 1.4 * a for a, b in itertools.pairwise(counts[8:]))


def test_counts_are_refined_around_a_key_only():
  shares = pools.of_cluster(toys.cluster(10_000))
  finer = shares.refined([(3_000,)], 100)
  added = set(finer.pools[0].counts) - set(shares.pools[0].counts)
  below = max(c for c in shares.pools[0].counts if c < 3_000)
  above = min(c for c in shares.pools[0].counts if c > 3_000)
  assert len(added) > 50
  assert all(below < c < above or below < 10_000 - c < above for c in added)


def test_unequal_groups_are_divided_as_sets():
  shares = grouped(1, 2, 4)
  found = {
    (shares.size(a, 0), shares.size(b, 0))
    for a, b in shares.splits(shares.full, BOTH, BOTH)
  }
  assert found == {(k, 7 - k) for k in range(1, 7)}


def test_devices_of_a_key_are_whole_groups():
  shares = grouped(1, 2, 4)
  (key,) = {
    a
    for a, _ in shares.splits(shares.full, BOTH, BOTH)
    if shares.size(a, 0) == 5
  }
  chosen = shares.choose(key, Devices.span(0, 7))
  assert str(chosen) == "0,3-6"


def test_equal_groups_are_counted():
  shares = grouped(3, 3, 3)
  assert shares.full == (3,)
  assert str(shares.choose((2,), Devices.span(3, 9))) == "3-8"


def test_a_group_across_classes_is_refused():
  cluster = Cluster(
    classes=tuple(DeviceClass(name=n, memory_bytes=1) for n in "de"),
    nodes=tuple(
      Nodes(device_class=n, num_nodes=1, devices_per_node=2) for n in "de"
    ),
    groups=(Devices.span(1, 3),),
  )
  with pytest.raises(errors.ClusterError, match="group '1-2'"):
    pools.of_cluster(cluster)


def test_counts_that_begin_above_one_leave_no_part_empty():
  pool = pools.Pool(name="d", devices=Devices.span(0, 8), counts=(4, 6, 8))
  # 4 + 4 of 8; 6 leaves 2, which is none of the counts.
  assert list(pool.splits(8)) == [(4, 4)]
  assert list(pool.splits(6)) == []


def test_a_division_by_weight_uses_all_devices():
  shares = pools.of_cluster(toys.cluster(10))
  # 10 devices, one for each of three parts and the other 7 as 4 : 2 : 1.
  keys = divisions.by_weight(shares, [4.0, 2.0, 1.0], [BOTH] * 3)
  assert keys == ((5,), (3,), (2,))


def test_more_parts_than_devices_have_no_division():
  shares = pools.of_cluster(toys.cluster(2))
  assert divisions.by_weight(shares, [1.0] * 3, [BOTH] * 3) is None


def test_every_division_is_listed_once():
  shares = pools.of_cluster(toys.cluster(6))
  found = list(divisions.every(shares, shares.full, [BOTH] * 3))
  # Compositions of 6 into 3: C(5, 2).
  assert len(found) == len(set(found)) == 10
  assert divisions.count(shares, [BOTH] * 3) == 10


def test_neighbours_keep_the_number_of_devices():
  shares = pools.of_cluster(toys.cluster(12))
  found = list(divisions.neighbours(shares, ((5,), (7,)), [BOTH] * 2))
  assert ((4,), (8,)) in found
  assert ((9,), (3,)) in found
  assert {a + b for (a,), (b,) in found} == {12}


def test_granules_respect_the_quantum_the_group_and_the_limits():
  stage = toys.stage("a", 96, group=4, quantum=6, granule_max=48)
  found = granules.candidates(stage, toys.TOKEN, 5)
  assert found
  assert all(g % 12 == 0 and g <= 48 for g in found)


def test_granules_leave_no_replica_idle():
  stage = toys.stage("a", 1000)
  found = granules.candidates(stage, toys.TOKEN, 7)
  assert {7, 14, 28, 56, 112, 224, 448} <= set(found)


def test_granules_divide_an_update_not_the_batch():
  stage = toys.stage("a", 120, "train", updates=4)
  assert max(granules.candidates(stage, toys.TOKEN, 1)) == 30
  # 8 granules of a batch are 2 of each update.
  assert granules.of_stream(stage, 8) == 15


def test_measured_granules_are_tried():
  law = ReplicaTable(
    samples=tuple(Sample(granule=g, devices=1, seconds=g) for g in (5, 9))
  )
  assert {10, 18} <= set(granules.candidates(toys.stage("a", 100), law, 2))


def test_lanes_add_up_and_may_be_unequal():
  stage = toys.stage("a", 10)
  found = granules.lane_candidates((stage,), (4,))
  assert all(sum(lanes) == 10 for lanes in found)
  assert {len(lanes) for lanes in found} == {1, 2, 3, 4}
  assert {(10,), (5, 5), (4, 6), (8, 2)} <= set(found)


def test_lanes_respect_quanta():
  stage = toys.stage("a", 12, quantum=4)
  found = granules.lane_candidates((stage,), (1,))
  assert {len(lanes) for lanes in found} == {1, 2, 3}
  assert all(size % 4 == 0 for lanes in found for size in lanes)


@pytest.mark.parametrize("seed", range(20))
def test_the_cheapest_tenants_leave(seed):
  rng = random.Random(seed)
  tenants = tuple(
    Tenant(
      rng.randint(1, 9),
      rng.randint(0, 9),
      rng.randint(1, 9),
      tuple(sorted(rng.sample(range(2), rng.randint(1, 2)))),
    )
    for _ in range(5)
  )
  memory = (rng.randint(10, 30), rng.randint(10, 30))

  def fits(out: tuple[int, ...]) -> bool:
    return all(
      tenant.transient_bytes
      + sum(
        other.state_bytes
        for j, other in enumerate(tenants)
        if place in other.places and (j == i or j not in out)
      )
      <= memory[place]
      for i, tenant in enumerate(tenants)
      for place in tenant.places
    )

  feasible = [
    out
    for size in range(6)
    for out in itertools.combinations(range(5), size)
    if fits(out)
  ]
  found = residency.swapped(tenants, memory)
  if not feasible:
    assert found is None
    return
  cost = min(sum(tenants[i].swap_ns for i in out) for out in feasible)
  assert found is not None and fits(tuple(found))
  assert sum(tenants[i].swap_ns for i in found) == cost


def test_many_tenants_are_swapped_until_they_fit():
  tenants = tuple(Tenant(10, 0, i) for i in range(1, 13))
  found = residency.swapped(tenants, (100,))
  # 12 states of 10 on 100: all but 9 leave, so that one of them fits beside.
  assert found == {0, 1, 2}


def test_a_stage_on_the_union_of_others_is_swapped_on_both():
  # c shares device 0 with a and device 1 with b; a alone does not fit with it.
  workflow = toys.workflow(
    toys.stage("a", 4, "simulate", state_bytes=700),
    toys.stage("b", 4, "simulate", state_bytes=100),
    toys.stage("c", 4, "train", state_bytes=500),
    edges=(("a", "c"), ("b", "c")),
  )
  tree = Temporal(
    children=(
      Spatial(children=(toys.run("a", "0", 4), toys.run("b", "1", 4))),
      toys.run("c", "0-1", 4),
    )
  )
  profile, cluster = toys.profile(a=1, b=1, c=1), toys.cluster(2)
  known = prices_of(workflow, profile, cluster)
  (found,) = residency.settled(TreePlan(root=tree), known)
  # Neither of a and c can stay while the other runs.
  kept = {run.stage: run.is_resident for run in runs(found.root)}
  assert kept == {"a": False, "b": True, "c": False}


def test_full_buffers_are_a_second_choice():
  # 4 items of 100 bytes wait for b: beside both states they do not fit.
  workflow = toys.workflow(
    toys.stage("a", 4, "simulate", state_bytes=400),
    toys.stage("b", 4, "train", state_bytes=400),
    edges=(Edge(source="a", target="b", item_bytes=100),),
  )
  tree = Temporal(children=(toys.run("a", "0", 4), toys.run("b", "0", 4)))
  profile, cluster = toys.profile(a=1, b=1), toys.cluster(1)
  known = prices_of(workflow, profile, cluster)
  found = [
    [run.is_resident for run in runs(plan.root)]
    for plan in residency.settled(TreePlan(root=tree), known)
  ]
  assert found == [[True, True], [False, False]]


def test_a_loop_is_one_unit_where_its_first_stage_stands():
  workflow = toys.workflow(
    toys.stage("before", 4),
    toys.stage("sim", 4, "simulate"),
    toys.stage("policy", 4),
    toys.stage("after", 4, needs_all=True),
    edges=(
      ("before", "sim"),
      ("sim", "policy"),
      ("policy", "sim"),
      ("policy", "after"),
    ),
    loops=(Loop(name="steps", stages=("sim", "policy"), turns=2),),
  )
  graph = graphs.collapse(workflow)
  assert [u.stages for u in graph.units] == [
    ("before",),
    ("sim", "policy"),
    ("after",),
  ]
  assert graph.readers == ((1,), (2,), ())
  assert graph.waits == {(0, 1), (1, 2)}


def test_a_stage_between_two_of_a_loop_is_refused():
  workflow = toys.workflow(
    *(toys.stage(name, 4) for name in ("sim", "between", "policy")),
    loops=(Loop(name="steps", stages=("sim", "policy"), turns=2),),
  )
  with pytest.raises(errors.InfeasiblePlanError, match="between"):
    graphs.collapse(workflow)


def test_cuts_of_a_chain_and_of_branches_are_counted():
  # A chain of 3 has 2 cuts, and its two parts of 2 stages have 1 each.
  chain = toys.workflow(*(toys.stage(name, 4) for name in "abc"))
  assert graphs.num_cuts(graphs.collapse(chain)) == 4
  # a feeds b and c: {a}, {a, b} and {a, c} come first; what is left of 2
  # stages is {b, c}, with 2 cuts, and {a, b} and {a, c}, with 1 each.
  branches = toys.workflow(
    *(toys.stage(name, 4) for name in "abc"), edges=(("a", "b"), ("a", "c"))
  )
  graph = graphs.collapse(branches)
  assert set(graphs.downsets(graph, 0b111)) == {0b001, 0b011, 0b101}
  assert graphs.num_cuts(graph) == 7


def test_turns_of_lanes_side_by_side_overlap():
  # Lanes of 3 and 2 s in the first stage and 1 and 2 s in the second. Turn 1
  # ends at 3 + max(1, 2) + 2 = 7; the first stage is busy 5 s of every turn.
  times = [(3, 2), (1, 2)]
  assert units.turns_ns(times, 4, is_shared=False) == 7 + 3 * 5
  assert units.turns_ns(times, 4, is_shared=True) == 4 * 8


def test_what_is_late_delays_only_what_follows():
  # 4 granules of 2 s that read from one of 1, 1, 6, 1 s: 1, 2, 8, 9. From the
  # start at 1 they end at 3, 5, then 8 + 2 = 10, and 12.
  own = ((0.25, 2), (0.5, 4), (0.75, 6), (1.0, 8))
  source = ((0.25, 1), (0.5, 2), (0.75, 8), (1.0, 9))
  found = parts.after(1, own, 2, [source])
  assert found == ((0.25, 3), (0.5, 5), (0.75, 10), (1.0, 12))
