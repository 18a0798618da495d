"""What a plan moves is moved when it says so, and counted."""

import jax.numpy as jnp
import numpy as np
import pytest

from rlinf_jax import flow, runtime
from rlinf_jax.runtime import machines
from scheduler.devices import Devices
from scheduler.plans import Run, Spatial, Temporal, TreePlan
from scheduler.profiles import Entry, Profile, Sample, Table

pytestmark = pytest.mark.bits
ITEMS, SIZE = 8, 3


@flow.stage(items={1: 0}, quantum=2)
def first(w, x_b):
  return x_b + w[None]


@flow.stage(items={1: 0}, reduces="sum", quantum=2)
def second(w, y_b):
  return jnp.sum(w[None] * y_b)


@flow.stage
def update(w, total):
  return w + 0.01 * total


def iteration(w, x_b):
  return update(w, second(w, first(flow.sync(w), x_b)))


def run_of(root, **options):
  machine = machines.of_process(3)
  table = Table(
    samples=(Sample(granule=1, devices=1, seconds=1e-3),), extrapolate=True
  )
  return runtime.m2flow(
    iteration,
    plan=TreePlan(root=root),
    machine=machine,
    profile=Profile(
      entries=tuple(
        Entry(stage=name, device_class=machine.mesh_class, law=table)
        for name in ("first", "second", "update")
      )
    ),
    **options,
  )


def on(stage, devices, granule, **kwargs):
  return Run(
    stage=stage, devices=Devices.parse(devices), granule=granule, **kwargs
  )


def arguments():
  w = jnp.arange(SIZE, dtype=jnp.float32)
  return w, jnp.ones((ITEMS, SIZE), jnp.float32)


def events_of(run, count=3):
  """Returns the events of the last of some iterations."""
  w, x_b = arguments()
  *_, last = run.iterate(w, [(x_b,)] * count)
  expected = w
  for _ in range(count):
    expected = iteration(expected, x_b)
  np.testing.assert_array_equal(last, expected)
  return [e for e in run.timeline.events if e.iteration == count - 1]


def test_items_and_weights_wait_where_they_are_read():
  events = events_of(
    run_of(
      Spatial(
        children=(
          on("first", "1", 2),
          Temporal(children=(on("second", "2", 2), on("update", "2", 1))),
        )
      )
    )
  )
  # Two items of three float32 cross with each granule.
  moved = [e.num_bytes for e in events if e.kind == "transfer"]
  assert moved == [24] * 4
  # w, three float32, was updated on device 2 and is read on device 1.
  assert [e.num_bytes for e in events if e.kind == "weight_sync"] == [12]
  # So nothing is left to be moved by who computes, but the flow's argument.
  assert [e.num_bytes for e in events if e.stage == "second"] == [0] * 4
  assert [e.num_bytes for e in events if e.kind == "compute"][0] == 24


def test_a_state_that_is_swapped_in_comes_from_wherever_it_is():
  run = run_of(
    Spatial(
      children=(
        Temporal(
          children=(
            on("first", "1", 4, is_resident=False),
            on("second", "1", 8, is_resident=False),
          )
        ),
        on("update", "2", 1),
      )
    )
  )
  events = events_of(run)
  swaps = [(e.kind, e.stage) for e in events if e.kind.startswith("swap")]
  assert ("swap_in", "second") in swaps
  assert ("swap_out", "second") in swaps
  # update left w on device 2: it is copied to device 1 for each stage's turn,
  # and dropped after it, so that nobody has to move it when computing.
  came = [e.num_bytes for e in events if e.kind == "swap_in"]
  assert came == [12] * len(came)
  (of_second,) = [
    e for e in events if (e.kind, e.stage) == ("compute", "second")
  ]
  assert of_second.num_bytes == 0
