from __future__ import annotations

import dataclasses
import random

import hypothesis
import pytest
from hypothesis import strategies as st

from scheduler import clusters, errors, simulation
from scheduler.devices import Devices
from scheduler.plans import Activity, Arc, FlatPlan, Resource, Slot
from scheduler.simulation import clock as clocks
from scheduler.simulation import fairness
from scheduler.simulation.fairness import Flow

GB = 10**9
S = 10**9  # in nanoseconds


def crossing(cap: float, *links: str, weight: float = 1.0) -> Flow:
  """A flow that by itself needs all of every link that it crosses."""
  return Flow(cap, tuple((link, 1 / cap) for link in links), weight)


def test_two_flows_halve_a_link():
  assert fairness.max_min_rates([crossing(8, "x"), crossing(8, "x")]) == [4, 4]


def test_three_flows_share_two_links():
  # x gives 8, y gives 16. The first crosses both: x is full at 4 each, and
  # the third has what the first leaves of y, 16 - 4.
  flows = [
    Flow(100, (("x", 1 / 8), ("y", 1 / 16))),
    Flow(100, (("x", 1 / 8),)),
    Flow(100, (("y", 1 / 16),)),
  ]
  assert fairness.max_min_rates(flows) == [4, 4, 12]


def test_what_a_capped_flow_leaves_goes_to_the_others():
  flows = [Flow(cap, (("x", 1 / 8),)) for cap in (2, 100, 100)]
  assert fairness.max_min_rates(flows) == [2, 3, 3]


def test_a_link_is_divided_by_weight():
  flows = [crossing(8, "x", weight=3), crossing(8, "x", weight=1)]
  assert fairness.max_min_rates(flows) == [6, 2]


def test_a_flow_without_links_has_its_cap():
  assert fairness.max_min_rates([Flow(5)]) == [5]


def random_flows(rng: random.Random) -> list[Flow]:
  flows = []
  for _ in range(rng.randint(1, 8)):
    links = rng.sample(range(4), rng.randint(0, 3))
    uses = tuple((link, rng.choice([0.1, 0.25, 1.0])) for link in links)
    flows.append(Flow(rng.choice([0.5, 1, 3, 50]), uses, rng.choice([1, 2, 8])))
  return flows


@hypothesis.given(st.randoms(use_true_random=False).map(random_flows))
def test_no_flow_can_grow_without_lowering_a_smaller_one(flows: list[Flow]):
  rates = fairness.max_min_rates(flows)
  used = {link: 0.0 for flow in flows for link, _ in flow.uses}
  for flow, rate in zip(flows, rates):
    for link, amount in flow.uses:
      used[link] += amount * rate
  assert all(use <= 1 + 1e-9 for use in used.values())
  for flow, rate in zip(flows, rates):
    assert 0 < rate <= flow.cap
    if rate < flow.cap:
      # Some link of it is full, on which none goes faster for its weight.
      assert any(
        used[link] > 1 - 1e-9
        and all(
          other_rate / other.weight <= rate / flow.weight * (1 + 1e-9)
          for other, other_rate in zip(flows, rates)
          if link in dict(other.uses)
        )
        for link, _ in flow.uses
      )


def run_flows(flows: list[Flow], lengths_ns: list[int]) -> list[int]:
  clock = clocks.Clock()
  clock.flows += flows
  for f, length_ns in enumerate(lengths_ns):
    clock.add(length_ns, f)
  clock.run()
  return clock.stops_ns


def test_a_flow_speeds_up_when_another_ends():
  # Half a link each: the second is done after 2 * 4; the first has then done 4
  # of its 10, and has the link for itself.
  flows = [crossing(1, "x"), crossing(1, "x")]
  assert run_flows(flows, [10, 4]) == [14, 8]


def test_three_flows_on_two_links_end_one_after_the_other():
  # All at half speed until the second ends, at 4; the first stays at half
  # speed, because of y, and ends at 8; the third has 6 - 4 left then.
  flows = [crossing(1, "x", "y"), crossing(1, "x"), crossing(1, "y")]
  assert run_flows(flows, [4, 2, 6]) == [8, 4, 10]


def test_a_flow_by_itself_takes_its_length():
  assert run_flows([crossing(0.3, "x", "y")], [10**15 + 1]) == [10**15 + 1]


def move(kind: str, resource: int, num_bytes: int, seconds: int, **fields):
  return Activity(
    kind=kind,
    stage="a",
    resources=(resource,),
    duration_ns=seconds * S,
    num_bytes=num_bytes,
    **fields,
  )


def on_own_devices(*activities: Activity, spans: list[str]) -> FlatPlan:
  return FlatPlan(
    resources=tuple(
      Resource(name=span, devices=Devices.parse(span)) for span in spans
    ),
    activities=activities,
    arcs=(),
    orders=tuple(
      tuple(
        Slot(activity=i) for i, a in enumerate(activities) if r in a.resources
      )
      for r in range(len(spans))
    ),
  )


def cluster_of(num_devices: int, **links: float) -> clusters.Cluster:
  return clusters.homogeneous(
    clusters.DeviceClass(name="any", memory_bytes=1),
    num_devices,
    devices_per_node=4,
    links=clusters.Links(**links),
  )


def stops_s(plan: FlatPlan, cluster: clusters.Cluster) -> list[float]:
  timeline = simulation.run(plan, iterations=1, cluster=cluster)
  stops = {e.index: e.stop_ns / S for e in timeline.events}
  return [stops[i] for i in range(len(plan.activities))]


SLOW_HOST = dict(host_bytes_per_s=10 * GB, host_cap_bytes_per_s=20 * GB)


def test_swaps_of_one_node_share_its_host():
  # 1 device alone 10 GB/s, 3 devices alone 20 GB/s, in which 15 GB take 0.75 s.
  # Together 5 and 15 GB/s: 5 GB and 15 GB take a second each.
  plan = on_own_devices(
    move("swap_in", 0, 5 * GB, 9),
    move("swap_in", 1, 15 * GB, 9),
    spans=["0", "1-3"],
  )
  assert stops_s(plan, cluster_of(4, **SLOW_HOST)) == [1, 1]


def test_a_swap_alone_is_as_fast_as_its_devices_links():
  plan = on_own_devices(move("swap_out", 0, 5 * GB, 9), spans=["0"])
  assert stops_s(plan, cluster_of(4, **SLOW_HOST)) == [0.5]


def test_swaps_in_and_out_do_not_share_the_host():
  plan = on_own_devices(
    move("swap_in", 0, 20 * GB, 9),
    move("swap_out", 1, 20 * GB, 9),
    spans=["0-1", "2-3"],
  )
  assert stops_s(plan, cluster_of(4, **SLOW_HOST)) == [1, 1]


def test_swaps_of_two_nodes_share_nothing():
  plan = on_own_devices(
    move("swap_in", 0, 20 * GB, 9),
    move("swap_in", 1, 20 * GB, 9),
    spans=["0-1", "4-5"],
  )
  assert stops_s(plan, cluster_of(8, **SLOW_HOST)) == [1, 1]


def two_transfers(target: str) -> FlatPlan:
  """Two stages on node 0 send items to stage c, 8 GB/s for a second each."""
  links = ["0 > c", "1 > c"]
  return FlatPlan(
    resources=(
      *(Resource(name=n, devices=Devices.parse(n)) for n in ("0", "1", target)),
      *(Resource(name=n, kind="link") for n in links),
    ),
    activities=(
      Activity(kind="compute", stage="a", resources=(0,), duration_ns=0),
      Activity(kind="compute", stage="b", resources=(1,), duration_ns=0),
      move("transfer", 3, 8 * GB, 1, target="c"),
      Activity(
        kind="transfer",
        stage="b",
        resources=(4,),
        duration_ns=S,
        num_bytes=8 * GB,
        target="c",
      ),
      Activity(kind="compute", stage="c", resources=(2,), duration_ns=0),
    ),
    arcs=tuple(
      Arc(source=s, target=t) for s, t in [(0, 2), (1, 3), (2, 4), (3, 4)]
    ),
    orders=tuple((Slot(activity=i),) for i in (0, 1, 4, 2, 3)),
  )


def test_transfers_between_nodes_share_what_leaves_their_node():
  # 10 GB/s leave a node: 5 GB/s each for 8 GB.
  cluster = cluster_of(8, inter_node_bytes_per_s=10 * GB)
  assert stops_s(two_transfers("4"), cluster)[2:] == [1.6, 1.6, 1.6]


def test_transfers_within_a_node_take_their_durations():
  cluster = cluster_of(8, inter_node_bytes_per_s=10 * GB)
  assert stops_s(two_transfers("2"), cluster)[2:] == [1, 1, 1]


def test_items_that_are_read_together_are_moved_between_the_same_devices():
  # Two stages of two granules each; c waits only for the last of a link, as
  # the first is moved before it. All within a node: nothing is shared.
  plan = two_transfers("2")
  first = dataclasses.replace(plan.activities[2], items=(0, 1))
  plan = dataclasses.replace(
    plan,
    activities=(*plan.activities, first),
    arcs=(*plan.arcs, Arc(source=0, target=5)),
    orders=(
      *plan.orders[:3],
      (Slot(activity=5), Slot(activity=2)),
      (Slot(activity=3),),
    ),
  )
  cluster = cluster_of(8, inter_node_bytes_per_s=1 * GB)
  assert stops_s(plan, cluster)[2:] == [2, 1, 2, 1]


def test_weights_that_reach_several_nodes_enter_each_of_them():
  # 16 GB of weights from node 0 to nodes 1 and 2, and 16 GB of items from node
  # 3 to the same two, 2 s each by themselves. At a rate r each node receives r
  # of weights and r / 2 of items, 8 GB/s together: r is 16 / 3 GB/s, and both
  # take 3 s.
  parts = ["0", "4-11", "12"]
  resources = tuple(
    Resource(name=part, devices=Devices.parse(part)) for part in parts
  )
  plan = FlatPlan(
    resources=(
      *resources,
      Resource(name="weights", kind="link"),
      Resource(name="items", kind="link"),
    ),
    activities=(
      Activity(kind="apply", stage="a", resources=(0,), duration_ns=0),
      move("weight_sync", 3, 16 * GB, 2, target="b"),
      Activity(kind="compute", stage="b", resources=(1,), duration_ns=0),
      Activity(kind="compute", stage="c", resources=(2,), duration_ns=0),
      Activity(
        kind="transfer",
        stage="c",
        target="b",
        resources=(4,),
        duration_ns=2 * S,
        num_bytes=16 * GB,
      ),
    ),
    arcs=tuple(
      Arc(source=s, target=t) for s, t in [(0, 1), (1, 2), (3, 4), (4, 2)]
    ),
    orders=tuple((Slot(activity=k),) for k in (0, 2, 3, 1, 4)),
  )
  cluster = cluster_of(16, inter_node_bytes_per_s=8 * GB)
  assert stops_s(plan, cluster) == [0, 3, 3, 0, 3]


def test_devices_beyond_the_cluster_are_refused():
  plan = on_own_devices(move("swap_in", 0, 1, 1), spans=["6-9"])
  with pytest.raises(errors.InfeasiblePlanError, match="'8-9'"):
    simulation.run(plan, iterations=1, cluster=cluster_of(8))
