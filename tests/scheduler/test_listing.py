from __future__ import annotations

from scheduler import checker, cycles, prices
from scheduler.devices import Devices
from scheduler.lowering import listing
from scheduler.lowering.listing import Listing, Stretch
from scheduler.plans import Run
from scheduler.workflows import TraceLengths, WeightSync
from tests.scheduler import toys
from tests.scheduler.toys import S

CLUSTER = toys.cluster(3, memory=1000)


def lowered(made: Listing, workflow, profile, cluster=CLUSTER):
  """Returns a listing's flat plan, after the checker has seen it."""
  flat = listing.lower(made, prices.of(workflow, profile, cluster))
  checker.check(flat, workflow, profile, cluster)
  return flat


def stretches(*parts: tuple[int, int, int]) -> tuple[Stretch, ...]:
  """Returns stretches of (run, first item, last item plus one)."""
  return tuple(Stretch(run=r, items=(a, b)) for r, a, b in parts)


def test_runs_on_overlapping_devices_follow_the_order():
  # a on 0 and 1, b on 1 and 2, c on 0 and 2: no tree has these.
  workflow = toys.workflow(*(toys.stage(name, 2) for name in "abc"))
  runs = (
    toys.run("a", "0-1", 1),
    toys.run("b", "1-2", 1),
    toys.run("c", "0,2", 1),
  )
  order = stretches(
    (0, 0, 1), (1, 0, 1), (0, 1, 2), (2, 0, 1), (1, 1, 2), (2, 1, 2)
  )
  flat = lowered(
    Listing(runs=runs, stretches=order),
    workflow,
    toys.profile(a=1, b=2, c=3),
  )
  assert toys.orders(flat) == {
    "0": [
      "compute of 'a' [0, 1)",
      "compute of 'a' [1, 2) (1)",
      "compute of 'c' [0, 1)",
      "compute of 'c' [1, 2) (1)",
    ],
    "1": [
      "compute of 'a' [0, 1)",
      "compute of 'b' [0, 1)",
      "compute of 'a' [1, 2) (1)",
      "compute of 'b' [1, 2) (1)",
    ],
    "2": [
      "compute of 'b' [0, 1)",
      "compute of 'c' [0, 1)",
      "compute of 'b' [1, 2) (1)",
      "compute of 'c' [1, 2) (1)",
    ],
  }
  # Any two of them exclude each other: 2 * (1 + 2 + 3) s.
  assert cycles.period_ns(flat) == 12 * S


def swapped_runs() -> tuple[Run, ...]:
  return toys.run("a", "0", 1), toys.run("b", "0-1", 1)


SWAPPED = toys.workflow(
  toys.stage("a", 3, state_bytes=600), toys.stage("b", 3, state_bytes=500)
)


def test_states_leave_only_where_they_do_not_fit():
  # Device 0 holds one of both states, device 1 only has b's. On device 0 each
  # change takes 600 + 500 s, there and back, and work takes 3 * 1 + 3 * 2 s.
  flat = lowered(
    Listing(
      runs=swapped_runs(),
      stretches=stretches((0, 0, 3), (1, 0, 3)),
      swapped={Devices.of([0]): frozenset({"a", "b"})},
    ),
    SWAPPED,
    toys.profile(a=1, b=2),
  )
  assert cycles.period_ns(flat) == (2 * (600 + 500) + 3 + 6) * S
  held = {(h.what, flat.resources[h.resource].name): h for h in flat.holdings}
  assert held["state of b", "1"].begin is None
  assert held["state of b", "0"].begin is not None


def test_what_is_in_at_the_end_stays_for_the_next_iteration():
  # a first and last: it leaves once and returns once.
  flat = lowered(
    Listing(
      runs=swapped_runs(),
      stretches=stretches((0, 0, 1), (1, 0, 1), (0, 1, 3), (1, 1, 3)),
      swapped={Devices.of([0]): frozenset({"a", "b"})},
    ),
    SWAPPED,
    toys.profile(a=1, b=2),
  )
  assert [a.kind for a in flat.activities if a.stage == "a"].count(
    "swap_in"
  ) == 2
  workflow = toys.workflow(
    toys.stage("a", 3, state_bytes=600),
    toys.stage("b", 3, state_bytes=500),
    edges=(),
  )
  flat = lowered(
    Listing(
      runs=swapped_runs(),
      stretches=stretches((0, 0, 1), (1, 0, 3), (0, 1, 3)),
      swapped={Devices.of([0]): frozenset({"a", "b"})},
    ),
    workflow,
    toys.profile(a=1, b=2),
  )
  kinds = [a.kind for a in flat.activities if a.stage == "a"]
  assert (kinds.count("swap_out"), kinds.count("swap_in")) == (1, 1)
  (around,) = [h for h in flat.holdings if h.what == "state of a"]
  assert around.lag == 1


def test_a_period_may_mix_iterations():
  # a and c on device 0, b on device 1, a granule of 4 s each. In a period
  # device 0 runs a of iteration k and c of iteration k - 1: 8 s, not 12.
  workflow = toys.workflow(
    toys.stage("a", 1, "simulate"),
    toys.stage("b", 1),
    toys.stage("c", 1, "train"),
    staleness=1,
  )
  runs = toys.run("a", "0", 1), toys.run("b", "1", 1), toys.run("c", "0", 1)
  order = (
    Stretch(run=0, items=(0, 1), rank=0, shift=0),
    Stretch(run=1, items=(0, 1), rank=2, shift=0),
    Stretch(run=2, items=(0, 1), rank=1, shift=1),
  )
  flat = lowered(
    Listing(runs=runs, stretches=order),
    workflow,
    toys.profile(a=4, b=4, c=4),
  )
  assert cycles.period_ns(flat) == 8 * S


def test_all_runs_of_a_stage_receive_their_weights_before_the_first():
  # The tail on devices 0-2 begins after the head on 1, which is part of them:
  # weights for all three come first, or the head would wait for the tail's.
  lengths = [1, 2, 3, 9]
  workflow = toys.workflow(
    toys.stage(
      "rollout", 4, "decode", lengths=TraceLengths(tokens=tuple(lengths))
    ),
    toys.stage("train", 4, "train"),
    syncs=(WeightSync(source="train", target="rollout", num_bytes=4),),
  )
  head = toys.run("rollout", "1", 1, share=(0, 3), cohort=(0, 4))
  tail = toys.run("rollout", "0-2", 1, share=(3, 4), cohort=(0, 4))
  flat = lowered(
    Listing(
      runs=(head, tail, toys.run("train", "0", 4)),
      stretches=stretches((0, 0, 3), (1, 3, 4), (2, 0, 4)),
    ),
    workflow,
    toys.profile(rollout=toys.TOKEN, train=1),
  )
  assert toys.orders(flat)["1"][0].startswith("weight_sync")
