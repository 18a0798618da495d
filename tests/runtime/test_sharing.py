"""Granules of a stage that several sets of devices share, taken by load."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlinf_jax import flow, runtime
from rlinf_jax.runtime import machines
from scheduler.devices import Devices
from scheduler.plans import Run, Spatial, Temporal, TreePlan
from scheduler.profiles import Entry, Profile, Sample, Table
from tests.runtime import flows

pytestmark = pytest.mark.bits
ITEMS, PATIENCE_S = 8, 20.0


def make_flow(hook, weight=None):
  """Returns a flow whose stage `work` calls hook(first item) per granule."""

  def like(token_b, x_b):
    del token_b
    return jax.ShapeDtypeStruct(x_b.shape, x_b.dtype)

  def work(token_b, x_b):
    hook(int(x_b[0]) % ITEMS)
    return x_b + token_b

  stage = flow.stage(
    work, items={0: 0, 1: 0}, place="host", out_fn=like, weight=weight
  )
  return lambda x_b, token_b: stage(token_b, x_b)


def shared_run(hook, weight=None, **options):
  """Returns the flow on slots 1 and 2, half of its items on each."""
  table = Table(
    samples=tuple(
      Sample(granule=g, devices=1, seconds=1e-3 * g) for g in (1, ITEMS)
    )
  )
  half = ITEMS // 2
  plan = TreePlan(
    root=Spatial(
      children=tuple(
        Run(
          stage="work",
          devices=Devices.of([1 + k]),
          granule=2,
          share=(k * half, (k + 1) * half),
        )
        for k in (0, 1)
      )
    )
  )
  return runtime.m2flow(
    make_flow(hook, weight),
    plan=plan,
    machine=machines.of_process(1, num_host_slots=2),
    profile=Profile(
      entries=(Entry(stage="work", device_class=machines.HOST, law=table),)
    ),
    **options,
  )


def items():
  return jnp.arange(ITEMS, dtype=jnp.int32)


def tokens():
  return jnp.asarray([1, 1, 5, 5, 9, 9, 3, 3], jnp.int32)


def test_who_is_free_takes_what_others_would_have_to_wait_for():
  others, are_done = set(), threading.Event()

  def hook(item):
    if item == 0:
      assert are_done.wait(PATIENCE_S)
      return
    others.add(item)
    if others == {2, 4, 6}:
      are_done.set()

  run = shared_run(hook)
  run.prepare(items(), tokens())  # which runs twice, to compile
  others.clear()
  are_done.clear()
  out = run(items(), tokens())
  np.testing.assert_array_equal(out, items() + tokens())
  (busy,) = [e.resources for e in run.timeline.events if e.items == (0, 2)]
  # The plan put items 2 and 3 on the slot of items 0 and 1.
  (moved,) = [e.resources for e in run.timeline.events if e.items == (2, 4)]
  assert {busy, moved} == {("1",), ("2",)}


def test_granules_of_most_work_are_taken_first():
  # By twos, so that both slots are free again before either takes another.
  order, both = [], threading.Barrier(2, timeout=PATIENCE_S)

  def hook(item):
    order.append(item)
    both.wait()

  run = shared_run(hook, weight=0)
  run.prepare(items(), tokens())
  order.clear()
  run(items(), tokens())
  # Tokens of the granules at 0, 2, 4, 6: 2, 10, 18, 6.
  assert set(order[:2]) == {2, 4}
  assert set(order[2:]) == {0, 6}


def test_several_iterations_keep_apart():
  run = shared_run(lambda item: None)
  *_, last = run.iterate(items(), [(tokens(),)] * 5)
  np.testing.assert_array_equal(last, items() + 5 * tokens())


def test_a_granule_that_fails_is_named_with_who_took_it():
  def hook(item):
    if item == 6:
      raise ValueError("too heavy")

  run = shared_run(hook)
  with pytest.raises(
    runtime.StageError, match="'work' failed on items 6 to 8 of .*'[12]'"
  ):
    run(items(), tokens())


@pytest.mark.slow
def test_sums_over_shared_granules_are_bitwise_eager():
  machine = machines.of_process(4)
  half = flows.ITEMS // 2
  tree = Spatial(
    children=(
      Temporal(
        children=(
          flows.lanes("0", "0"),
          flows.run("score", "0", 4),
          flows.run("apply_update", "0", 1),
        )
      ),
      flows.run("grad", "1", 4, share=(0, half)),
      flows.run("grad", "2-3", 4, share=(half, flows.ITEMS)),
    )
  )
  run = runtime.m2flow(
    flows.iteration,
    plan=TreePlan(root=tree),
    machine=machine,
    profile=flows.profile(machine.mesh_class),
  )
  inputs = [(key,) for key in flows.keys(5)]
  *_, (state, _) = run.iterate(flows.first_state(), inputs)
  jax.tree.map(np.testing.assert_array_equal, state, flows.eager(5))


def test_a_weight_is_an_argument_with_items():
  with pytest.raises(ValueError, match="weight=1; it is the position of an"):
    flow.stage(lambda w, n: w, items={0: 0}, weight=1)
