"""States that are written over, and states that must not be."""

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlinf_jax import flow, runtime
from rlinf_jax.runtime import machines
from scheduler.devices import Devices
from scheduler.plans import Run, Spatial, Temporal, TreePlan
from scheduler.profiles import Entry, Profile, Sample, Table
from tests.runtime import flows, test_executor, test_invariance

pytestmark = pytest.mark.bits

SIZE = 1000


@flow.stage(items={1: 0}, reduces="sum", quantum=2)
def grad(w, x_b):
  return jnp.sum(x_b) * jnp.ones_like(w) + 0 * w


@flow.stage
def norm(w):
  return jnp.max(w)


@flow.stage
def apply_update(w, grad_sum):
  return w - 0.1 * grad_sum, jnp.min(w)


def plain(w, x_b):
  w, least = apply_update(w, grad(w, x_b))
  return w, least


def state_is_result_too(w, x_b):
  w, _ = apply_update(w, grad(w, x_b))
  return w, w


def read_on_the_side(w, x_b):
  size = norm(w)  # of the old weights, wherever and whenever
  w, _ = apply_update(w, grad(w, x_b))
  return w, size


def planned(fn, *runs, donate=True, **options):
  """Returns a flow whose stages run where (name, devices) say."""
  machine = machines.of_process(2)
  table = Table(
    samples=(Sample(granule=1, devices=1, seconds=1e-3),), extrapolate=True
  )
  on = [
    Run(
      stage=name,
      devices=Devices.of([device]),
      granule=4 if name == "grad" else 1,
    )
    for name, device in runs
  ]
  groups = {}
  for node in on:
    groups.setdefault(str(node.devices), []).append(node)
  return runtime.m2flow(
    fn,
    plan=TreePlan(
      root=Spatial(
        children=tuple(Temporal(children=tuple(g)) for g in groups.values())
      )
    ),
    machine=machine,
    profile=Profile(
      entries=tuple(
        Entry(stage=name, device_class=machine.mesh_class, law=table)
        for name, _ in runs
      )
    ),
    donate=donate,
    **options,
  )


APART = (("grad", 0), ("apply_update", 1))
INPUTS = [(jnp.arange(4.0) + i,) for i in range(4)]


def states(run):
  """Yields each state as it was returned, and as the eager flow makes it."""
  first = jnp.ones(SIZE)
  yield from run.iterate(first, INPUTS)
  assert not first.is_deleted()


def eager():
  w = jnp.ones(SIZE)
  for (x_b,) in INPUTS:
    w, _ = plain(w, x_b)
  return w


@pytest.mark.parametrize("num_devices", [1, 4])
@pytest.mark.parametrize(
  "seed", [*(pytest.param(i, marks=pytest.mark.slow) for i in range(2)), 2]
)
def test_under_random_plans_the_numbers_stay(seed, num_devices):
  rng = random.Random(f"{seed} of {num_devices}")
  tree = test_invariance.random_tree(rng, num_devices, swaps=seed == 0)
  state, run = test_invariance.execute(
    tree, num_devices=num_devices, donate=True
  )
  expected = flows.eager(test_invariance.ITERATIONS)
  test_invariance.assert_same(state, expected)
  if not run.is_one_program:
    assert run.prepare(None).executor.donors


@pytest.mark.parametrize("donate", [False, True])
def test_a_state_is_written_over_once_the_next_is_asked_for(donate):
  returned, last = [], None
  for state, _ in states(planned(plain, *APART, donate=donate)):
    assert not state.is_deleted()
    returned.append(state)
    last = np.asarray(state).copy()
  np.testing.assert_array_equal(last, eager())
  assert [s.is_deleted() for s in returned[:-1]] == [donate] * 3


def test_it_saves_a_copy_of_the_state():
  peak = {}
  for donate in (False, True):
    run = planned(plain, *APART, donate=donate)
    for _ in states(run):
      pass
    ledger = run.prepare(None).executor.ledger
    peak[donate] = ledger.peak_bytes[jax.devices()[1]]
  assert peak[False] - peak[True] >= 4 * SIZE


def test_what_the_caller_has_otherwise_stays():
  for state, result in states(planned(state_is_result_too, *APART)):
    kept = state, result
  assert not any(x.is_deleted() for x in kept)
  results = [
    result for _, result in states(planned(state_is_result_too, *APART))
  ]
  assert not any(x.is_deleted() for x in results)


@pytest.mark.parametrize("device", [0, 1])
def test_what_others_may_still_read_stays(device):
  run = planned(read_on_the_side, *APART, ("norm", device))
  sizes = [float(size) for _, size in states(run)]
  w, expected = jnp.ones(SIZE), []
  for (x_b,) in INPUTS:
    expected.append(float(jnp.max(w)))
    w, _ = plain(w, x_b)
  assert sizes == expected


def test_what_glue_makes_another_argument_of_stays():
  @flow.stage
  def step(w, twice):
    return twice - w

  def glued(w, x_b):
    w = w + jnp.sum(x_b)
    return step(w, 2 * w), w[0]

  def both(w, x_b):
    return step(w, 2 * w + jnp.sum(x_b)), x_b

  for fn in (glued, both):
    run, w = planned(fn, ("step", 1)), jnp.ones(SIZE)
    *_, (found, _) = run.iterate(w, INPUTS)
    for given in INPUTS:
      w, _ = fn(w, *given)
    np.testing.assert_array_equal(found, w)


def test_a_loop_that_runs_whole_writes_over_its_carry():
  def looped(w, x_b):
    sum_t = jnp.broadcast_to(grad(w, x_b), (4, SIZE))
    return flow.loop(lambda w, x: apply_update(w, x), w, sum_t)

  run, w = planned(looped, *APART), jnp.ones(SIZE)
  *_, (found, _) = run.iterate(w, INPUTS)
  for given in INPUTS:
    w, _ = looped(w, *given)
  np.testing.assert_array_equal(found, w)
  assert list(run.prepare(None).executor.donors.values()) == [{0}]


def test_with_staleness_nothing_is_written_over():
  def late(w, x_b):
    w, least = apply_update(w, grad(flow.sync(w), x_b))
    return w, least

  run = planned(late, *APART, staleness=1)
  assert all(not s.is_deleted() for s in [s for s, _ in states(run)])


def test_parts_that_share_their_memory_are_written_over_apart():
  def both(state, x_b):
    a, b = state
    a, least = apply_update(a, grad(a, x_b))
    return (a, b + a), least

  shared = jnp.ones(SIZE)
  run = planned(both, *APART)
  *_, ((a, b), _) = run.iterate((shared, shared), INPUTS)
  w, total = shared, shared
  for (x_b,) in INPUTS:
    w, _ = plain(w, x_b)
    total = total + w
  np.testing.assert_array_equal(a, w)
  np.testing.assert_allclose(b, total, rtol=1e-6)
  assert not shared.is_deleted()


def test_a_state_that_is_swapped_out_is_written_over_too():
  run = test_executor.taking_turns(
    ("roll_out", "train"), budget_bytes=17_000, donate=True
  )
  state = expected = test_executor.big_state()
  *_, (found, _) = run.iterate(state, INPUTS)
  for given in INPUTS:
    expected, _ = test_executor.big_flow(expected, *given)
  jax.tree.map(np.testing.assert_array_equal, found, expected)
  jax.tree.map(np.testing.assert_array_equal, state, test_executor.big_state())
  assert run.prepare(None).executor.donors


def test_a_failure_before_it_is_written_over_leaves_the_state():
  def refuse(total):
    if total > 10:
      raise ArithmeticError("too much")
    return total

  @flow.stage
  def check(total):
    return jax.pure_callback(refuse, total, total)

  def checked(w, x_b):
    return plain(w, x_b + 0 * check(jnp.sum(x_b)))

  run, last = planned(checked, ("check", 0), *APART), None
  with pytest.raises(runtime.StageError, match="too much"):
    for state, _ in states(run):
      last = state
  assert last is not None and not last.is_deleted()
