"""Whatever the plan, the numbers are those of the eager flow."""

import random

import jax
import numpy as np
import pytest

from rlinf_jax import flow, runtime
from rlinf_jax.runtime import machines
from scheduler.devices import Devices
from scheduler.plans import Spatial, Temporal, TreePlan
from tests.runtime import flows

pytestmark = pytest.mark.optimised

ITERATIONS = 5
NAMES = ("score", "grad", "apply_update")


@pytest.fixture(scope="module")
def expected():
  return flows.eager(ITERATIONS)


def execute(tree, *, num_devices=8, staleness=0, **options):
  machine = machines.of_process(num_devices)
  run = runtime.m2flow(
    flows.iteration,
    plan=TreePlan(root=tree),
    machine=machine,
    profile=flows.profile(machine.mesh_class),
    staleness=staleness,
    deadline_s=60.0,
    **options,
  )
  inputs = [(key,) for key in flows.keys(ITERATIONS)]
  *_, (state, _) = run.iterate(flows.first_state(), inputs)
  return state, run


def assert_same(state, expected):
  jax.tree.map(np.testing.assert_array_equal, state, expected)


def test_fused_is_bitwise_eager(expected):
  fused, state = flow.fuse(flows.iteration), flows.first_state()
  for key in flows.keys(ITERATIONS):
    state, _ = fused(state, key)
  assert_same(state, expected)


@pytest.mark.parametrize("count", [1, pytest.param(8, marks=pytest.mark.slow)])
def test_collocated_is_bitwise_eager(count, expected):
  all_of_them = f"0-{count - 1}"
  tree = Temporal(
    children=(
      flows.lanes(all_of_them, all_of_them),
      *(
        flows.run(name, all_of_them, 1 if name == "apply_update" else 16)
        for name in NAMES
      ),
    )
  )
  state, run = execute(tree)
  assert run.label == "bitwise"
  assert run.is_one_program
  assert_same(state, expected)


def random_tree(rng, num_devices, *, swaps=False):
  """Returns a random plan: stages in groups, groups on devices of their own."""
  units = ["loop", *NAMES]
  num_groups = rng.randint(1, min(len(units), num_devices))
  cuts = sorted(rng.sample(range(1, len(units)), num_groups - 1))
  groups = [units[a:b] for a, b in zip([0, *cuts], [*cuts, len(units)])]
  borders = sorted(rng.sample(range(1, num_devices), num_groups - 1))
  spans = list(zip([0, *borders], [*borders, num_devices]))
  rng.shuffle(spans)
  children = []
  for group, (start, stop) in zip(groups, spans):
    is_resident = not (swaps and len(group) > 1)
    nodes = []
    for name in group:
      devices = str(Devices.span(start, stop))
      if name == "loop":
        nodes.append(random_lanes(rng, start, stop, is_resident))
        continue
      granule = flows.ITEMS
      if name == "apply_update":
        granule = 1
      elif rng.random() < 0.7:
        granule = rng.randrange(2, flows.ITEMS + 1, flows.QUANTUM)
      nodes.append(flows.run(name, devices, granule, is_resident=is_resident))
    turn = None if len(nodes) == 1 else rng.choice([None, None, 4])
    if any(name in ("loop", "apply_update") for name in group):
      turn = None
    children.append(Temporal(children=tuple(nodes), turn=turn))
  capacity = rng.choice([None, flows.ITEMS])
  return Spatial(children=tuple(children), capacity=capacity)


def random_lanes(rng, start, stop, is_resident):
  sizes = [flows.ITEMS]
  if rng.random() < 0.7:
    first = rng.randrange(2, flows.ITEMS - 1, flows.QUANTUM)
    sizes = [first, flows.ITEMS - first]
  if stop - start > 1 and rng.random() < 0.6:
    middle = rng.randint(start + 1, stop - 1)
    act_on = str(Devices.span(start, middle))
    simulate_on = str(Devices.span(middle, stop))
  else:
    act_on = simulate_on = str(Devices.span(start, stop))
  return flows.lanes(act_on, simulate_on, tuple(sizes), is_resident=is_resident)


@pytest.mark.parametrize(
  "seed",
  [0, *(pytest.param(i, marks=pytest.mark.slow) for i in range(1, 9))],
)
@pytest.mark.parametrize(
  "num_devices",
  [4, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 3, 8))],
)
def test_a_random_plan_is_bitwise_eager(seed, num_devices, expected):
  rng = random.Random(f"{seed} of {num_devices}")
  tree = random_tree(rng, num_devices, swaps=seed % 3 == 0)
  state, run = execute(tree, num_devices=num_devices)
  assert run.label == "bitwise"
  assert_same(state, expected)


@pytest.mark.parametrize(
  "staleness", [1, pytest.param(2, marks=pytest.mark.slow)]
)
def test_staleness_reads_the_weights_of_so_many_updates_ago(staleness):
  tree = Spatial(
    children=(
      flows.lanes("0", "1", (8, 8)),
      Temporal(
        children=tuple(
          flows.run(name, "2-3", 1 if name == "apply_update" else 4)
          for name in NAMES
        )
      ),
    )
  )
  state, _ = execute(tree, num_devices=4, staleness=staleness)
  assert_same(state, flows.eager(ITERATIONS, staleness))


def test_staleness_changes_the_numbers(expected):
  other = flows.eager(ITERATIONS, 1)
  assert not np.array_equal(other[0], expected[0])
