from __future__ import annotations

import dataclasses
import itertools

import pytest

from scheduler import estimates, evaluation, planners
from scheduler.clusters import Cluster
from scheduler.devices import Devices
from scheduler.planners import Budget, counts, labels
from scheduler.planners.labels import Front, Label
from scheduler.plans import Spatial, Temporal, TreePlan, runs
from scheduler.profiles import Profile
from scheduler.workflows import Workflow
from tests.scheduler import toys
from tests.scheduler.toys import S


def chain(*seconds: float, items: int = 8) -> tuple[Workflow, Profile]:
  """Returns stages of so many seconds per item and device, in a chain."""
  names = "abcd"[: len(seconds)]
  stages = [toys.stage(name, items) for name in names]
  return toys.workflow(*stages), toys.profile(**dict(zip(names, seconds)))


def pareto(workflow: Workflow, profile: Profile, cluster: Cluster) -> TreePlan:
  found = planners.PLANNERS["pareto_dp"](
    workflow, profile, cluster, Budget(), 0
  )
  assert isinstance(found, TreePlan)
  return found


def all_trees(names: str, devices: Devices, granule: int):
  """Yields every tree of a chain that divides devices or takes turns."""
  if len(names) == 1:
    yield toys.run(names, str(devices), granule)
    return
  for k in range(1, len(names)):
    for first, second in itertools.product(
      all_trees(names[:k], devices, granule),
      all_trees(names[k:], devices, granule),
    ):
      for turn in (None, granule):
        yield Temporal(children=(first, second), turn=turn)
    for n in range(1, len(devices)):
      own = devices.first(n)
      for first, second in itertools.product(
        all_trees(names[:k], own, granule),
        all_trees(names[k:], devices - own, granule),
      ):
        yield Spatial(children=(first, second))


def unit(granule_s: int, count: int) -> Label:
  """Returns a stage with so many granules of so many seconds."""
  return Label(
    total_ns=granule_s * count,
    head_ns=granule_s,
    tail_ns=granule_s,
    busy_ns=granule_s * count,
    swap_ns=0,
    kept_bytes=(),
    extra_bytes=(),
  )


def beside(*parts: Label) -> Label:
  first, *others = parts
  for other in others:
    first = labels.side_by_side(first, (1,), other, (1,), "granules")
  return first


@pytest.mark.parametrize(
  ("seconds", "num_devices"),
  [((1, 1), 3), ((3, 1), 3), ((2, 5), 4), ((1, 3, 2), 4), ((4, 1, 1), 3)],
)
def test_on_chains_no_tree_is_better(seconds, num_devices):
  workflow, profile = chain(*seconds)
  cluster = toys.cluster(num_devices)
  names = "abc"[: len(seconds)]
  best = min(
    estimates.estimate_s(TreePlan(root=root), workflow, profile, cluster)
    for granule in (1, 2, 4, 8)
    for root in all_trees(names, cluster.devices, granule)
  )
  found = pareto(workflow, profile, cluster)
  assert estimates.estimate_s(found, workflow, profile, cluster) <= best
  assert found.label == "pareto_dp (epsilon 0)"


def test_a_pipeline_takes_all_granules_once_and_the_slowest_again():
  # 2 + 5 + 1 + 3 * 5 s, however the three are put together.
  a, b, c = unit(2, 4), unit(5, 4), unit(1, 4)
  assert beside(a, b, c).total_ns == 2 + 5 + 1 + 3 * 5
  right = labels.side_by_side(a, (1,), beside(b, c), (2,), "granules")
  assert right[:3] == beside(a, b, c)[:3]


def test_what_takes_turns_counts_as_one_stage_of_a_pipeline():
  # a and b in turns of a granule take 2 + 1 s each; c takes 5 s:
  # 3 + 5 + 3 * 5 s. Once each they end 4 * 3 s before c's last granule.
  a, b, c = unit(2, 4), unit(1, 4), unit(5, 4)
  (turns,) = labels.in_turns(a, b, (1,), (), 4)
  assert beside(turns, c).total_ns == 3 + 5 + 3 * 5
  (once,) = labels.in_turn(a, b, (1,), ())
  assert once[:3] == (12, 8 + 1, 2 + 4)
  assert beside(once, c).total_ns == 8 + 1 + 4 * 5


def test_a_front_keeps_what_may_win():
  front = Front(total_ns=100, busy_ns=100, has_lag=False)
  slow, early = unit(10, 4), unit(10, 4)._replace(total_ns=41, head_ns=1)
  worse, hopeless = unit(11, 4), unit(30, 4)
  for label in (worse, slow, early, hopeless):
    front.add(label)
  assert front.labels() == [slow, early]


def test_of_many_devices_counts_grow_by_what_the_label_says():
  shares, epsilon = counts.grid(toys.cluster(1000), 3, 32)
  (pool,) = shares.pools
  gaps = [(b - 1) / a - 1 for a, b in itertools.pairwise(pool.counts)]
  assert max(gaps) == epsilon <= 0.02
  assert pool.counts[-1] == 1000


def test_odd_numbers_of_devices_are_found():
  # a takes 7 s per item, b 2 s. On 7 and 2 of 9 devices 56 items take 8 s each
  # granule of 8; on 8 and 1, or 6 and 3, one of them takes longer.
  workflow, profile = chain(7, 2, items=56)
  workflow = dataclasses.replace(workflow, staleness=1)
  found = pareto(workflow, profile, toys.cluster(9))
  period = evaluation.evaluate(
    found, workflow, profile, toys.cluster(9)
  ).period_ns
  assert period == 56 * S
  assert sorted(len(run.devices) for run in runs(found.root)) == [2, 7]


def test_memory_decides_between_turns_and_pieces():
  # On one device both states fit, on none with the other's granule: 8 + 8 s and
  # two swaps of 600 s each way, or a device each: 8 + 1 s.
  workflow = toys.workflow(
    toys.stage("a", 8, state_bytes=600), toys.stage("b", 8, state_bytes=600)
  )
  profile = toys.profile(a=1, b=1)
  found = pareto(workflow, profile, toys.cluster(2))
  assert isinstance(found.root, Spatial)
  period = evaluation.evaluate(
    found, workflow, profile, toys.cluster(2)
  ).period_ns
  assert period == 9 * S
