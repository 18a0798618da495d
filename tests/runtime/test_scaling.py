"""Stages that get other devices while a flow runs."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlinf_jax import flow, runtime
from rlinf_jax.runtime import elasticity, machines, tasks
from scheduler.devices import Devices
from scheduler.plans import Run, Spatial, Temporal, TreePlan
from scheduler.profiles import Entry, Profile, Sample, Table
from tests.runtime import flows

pytestmark = pytest.mark.bits
ITEMS = 8


def same(x_b):
  return jax.ShapeDtypeStruct(x_b.shape, x_b.dtype)


def host_run(hook, *, num_slots, devices, granule=2, **options):
  """Returns a flow of the host stages `roll` and `train`, on given slots."""
  machine = machines.of_process(1, num_host_slots=num_slots)

  def make(name):
    def fn(x_b):
      hook(name, int(x_b[0]) % ITEMS)
      return x_b + ITEMS

    return flow.stage(fn, items={0: 0}, place="host", out_fn=same, name=name)

  roll, train = make("roll"), make("train")
  # Twice the slots, half the time.
  table = Table(
    samples=tuple(
      Sample(granule=g, devices=n, seconds=g / n)
      for g in (1, ITEMS)
      for n in (1, num_slots)
    )
  )
  plan = TreePlan(
    root=Spatial(
      children=tuple(
        Run(stage=name, devices=Devices.parse(on), granule=granule)
        for name, on in devices.items()
      )
    )
  )
  return runtime.m2flow(
    lambda x_b: train(roll(x_b)),
    plan=plan,
    machine=machine,
    profile=Profile(
      entries=tuple(
        Entry(stage=name, device_class=machines.HOST, law=table)
        for name in ("roll", "train")
      )
    ),
    **options,
  )


def items():
  return jnp.arange(ITEMS, dtype=jnp.int32)


def resources_of(run, stage):
  """Returns where each granule of a stage ran, in order."""
  return [e.resources for e in run.timeline.events if e.stage == stage]


def test_granules_that_have_not_begun_move():
  run = None

  def hook(name, item):
    if run is not None and (name, item) == ("train", 2):
      run.scale("train", "2-3")

  scaled = host_run(hook, num_slots=3, devices={"roll": "1", "train": "2"})
  scaled.prepare(items())
  run = scaled
  np.testing.assert_array_equal(run(items()), np.arange(ITEMS) + 2 * ITEMS)
  # The second granule asks, the third and fourth are on both slots.
  assert resources_of(run, "train") == [("2",), ("2",), ("2", "3"), ("2", "3")]


def test_none_gives_back_what_the_plan_says():
  run = host_run(
    lambda name, item: None, num_slots=3, devices={"roll": "1", "train": "2"}
  )
  run.prepare(items())
  run.scale("train", "3")
  run(items())
  assert set(resources_of(run, "train")) == {("3",)}
  run.scale("train", None)
  run(items())
  assert set(resources_of(run, "train")) == {("2",)}


def test_a_device_has_one_task_at_a_time():
  run = host_run(
    lambda name, item: time.sleep(0.01),
    num_slots=2,
    devices={"roll": "1", "train": "2"},
  )
  run.prepare(items())
  run.scale("train", "1-2")
  np.testing.assert_array_equal(run(items()), np.arange(ITEMS) + 2 * ITEMS)
  on_first = sorted(
    (e.start_ns, e.stop_ns) for e in run.timeline.events if "1" in e.resources
  )
  assert len(on_first) == 8
  for (_, stop), (start, _) in zip(on_first, on_first[1:]):
    assert stop <= start


def mesh_run(plan=None):
  machine = machines.of_process(4)
  tree = Spatial(
    children=(
      flows.lanes("0", "1", (8, 8)),
      Temporal(
        children=tuple(
          flows.run(name, "2", 1 if name == "apply_update" else 4)
          for name in ("score", "grad", "apply_update")
        )
      ),
    )
  )
  return runtime.m2flow(
    flows.iteration,
    plan=plan or TreePlan(root=tree),
    machine=machine,
    profile=flows.profile(machine.mesh_class),
  )


@pytest.mark.slow
def test_scaling_between_iterations_moves_weights_once_and_no_number():
  run = mesh_run()
  run.prepare(flows.first_state(), jax.random.key(0))
  inputs = [(key,) for key in flows.keys(5)]
  states = []
  for i, (state, _) in enumerate(run.iterate(flows.first_state(), inputs)):
    states.append(state)
    if i == 1:
      run.scale("grad", "2-3")
    if i == 3:
      run.scale("grad", "0-3")
  jax.tree.map(np.testing.assert_array_equal, states[-1], flows.eager(5))
  of_grad = {}
  for event in run.timeline.events:
    if event.stage == "grad":
      of_grad.setdefault(event.iteration, []).append(event)
  assert [len(e.resources) for e in of_grad[1]] == [1] * 4
  # Granules of 4 items have two quanta of 2: as many devices are used.
  assert of_grad[3][0].resources == ("2", "3")
  # w, 3 x 3 float32, was made on device 2. The first granule brings it to
  # device 3; beside it all granules bring as many items.
  first, *others = [e.num_bytes for e in of_grad[3]]
  assert {first - b for b in others} == {36}


@pytest.mark.slow
def test_what_cannot_be_scaled_is_refused():
  run = mesh_run()
  run.prepare(flows.first_state(), jax.random.key(0))
  with pytest.raises(ValueError, match="'no' cannot be scaled: it is not in"):
    run.scale("no", "0")
  with pytest.raises(ValueError, match="runs on mesh devices, '0-3'; given"):
    run.scale("grad", "3-4")
  one = mesh_run("collocated")
  one.prepare(flows.first_state(), jax.random.key(0))
  assert one.is_one_program
  with pytest.raises(ValueError, match=r"part of one program; give .replan"):
    one.scale("grad", "0")


@pytest.mark.slow
def test_idle_devices_take_over_the_tail():
  """Rollout has slots 1 to 3 and ends early; training on 4 is slow."""

  def hook(name, item):
    del item
    time.sleep(0.01 if name == "roll" else 0.05)

  run = host_run(
    hook, num_slots=4, devices={"roll": "1-3", "train": "4"}, is_elastic=True
  )
  np.testing.assert_array_equal(run(items()), np.arange(ITEMS) + 2 * ITEMS)
  where = [sum(n != "" for n in names) for names in resources_of(run, "train")]
  assert where[0] == 1  # rollout was still at work
  assert where[-1] == 2  # all four slots: atoms "1-3" and "4"


def task(stage, start, stop, devices):
  return tasks.Task(
    kind="compute",
    stage=stage,
    node=None,
    inner=None,
    items=(start, stop),
    turn=0,
    devices=Devices.parse(devices),
    resources=(),
    activities=(),
  )


def test_the_longest_stage_grows():
  left = [task("a", 0, 4, "0"), task("a", 4, 8, "0"), task("b", 0, 6, "1")]
  per_item = lambda stage, items, devices: items / devices
  # a has 8 items left on one device, b 6; devices 2 and 3 are idle.
  idle = Devices.parse("2-3")
  assert elasticity.grown(left, idle, per_item) == ("a", Devices.parse("0,2-3"))


def test_what_would_not_be_faster_does_not_grow():
  left = [task("a", 0, 4, "0")]
  constant = lambda stage, items, devices: 1.0
  assert elasticity.grown(left, Devices.parse("1"), constant) is None
  assert elasticity.grown([], Devices.parse("1"), constant) is None
