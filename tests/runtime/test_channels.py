"""Channels that are full by weight."""

import random
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlinf_jax import flow, runtime
from rlinf_jax.runtime import machines
from scheduler.devices import Devices
from scheduler.plans import Run, Spatial, TreePlan
from scheduler.profiles import Entry, Profile, Sample, Table

ITEMS = 8


def run_of(write_hook, read_hook, *, granules=(1, 1), **options):
  """Returns a flow of a writer and a reader, each on a host slot of its own.

  The reader takes what the writer makes by its weight: the items' numbers.
  """

  def like(*args):
    return jax.ShapeDtypeStruct(args[0].shape, args[0].dtype)

  def write(x_b):
    write_hook(int(x_b[0]))
    return x_b

  def read(weight_b):
    read_hook(int(weight_b[0]))
    return weight_b + 1

  writer = flow.stage(write, items={0: 0}, place="host", out_fn=like)
  reader = flow.stage(read, items={0: 0}, place="host", out_fn=like, weight=0)
  table = Table(
    samples=tuple(
      Sample(granule=g, devices=1, seconds=1e-3 * g) for g in (1, ITEMS)
    )
  )
  return runtime.m2flow(
    lambda x_b: reader(writer(x_b)),
    plan=TreePlan(
      root=Spatial(
        children=tuple(
          Run(stage=name, devices=Devices.of([i + 1]), granule=granules[i])
          for i, name in enumerate(("write", "read"))
        )
      )
    ),
    machine=machines.of_process(1, num_host_slots=2),
    profile=Profile(
      entries=tuple(
        Entry(stage=name, device_class=machines.HOST, law=table)
        for name in ("write", "read")
      )
    ),
    deadline_s=20.0,
    **options,
  )


def check_written(weights, budget, expected, granules=(1, 1)):
  """Checks what is written while the reader is kept at its first granule."""
  is_on, go_on = threading.Event(), threading.Event()
  written, found = [], []

  def write_hook(item):
    if is_on.is_set():
      written.append(item)

  def read_hook(item):
    del item
    if is_on.is_set():
      go_on.wait(15.0)

  def watch():
    deadline = time.monotonic() + 10.0
    while len(written) < len(expected) and time.monotonic() < deadline:
      time.sleep(0.01)
    time.sleep(0.2)  # for what should not be written
    found.extend(written)
    go_on.set()

  run = run_of(write_hook, read_hook, granules=granules, channel_budget=budget)
  x_b = jnp.asarray(weights, jnp.int32)
  run.prepare(x_b)
  is_on.set()
  watcher = threading.Thread(target=watch)
  watcher.start()
  np.testing.assert_array_equal(run(x_b), np.asarray(weights) + 1)
  watcher.join()
  assert found == expected


@pytest.mark.parametrize(
  # 10 is with the reader; a channel of 5 is over it with the second of 3 and 4.
  ("budget", "num_written"),
  [(5, 3), (12, 5), (13, 5), (18, 6), (None, 8)],
)
def test_a_writer_is_held_back_by_weight(budget, num_written):
  weights = [10, 3, 4, 5, 6, 7, 8, 9]
  check_written(weights, budget, weights[:num_written])


def test_an_item_heavier_than_the_budget_passes():
  check_written([100, 200, 300, 1, 1, 1, 1, 1], 0, [100, 200])


def test_what_a_reader_needs_together_comes_whatever_it_weighs():
  # The reader takes four items at once: with fewer it would not go on.
  weights = [10, 20, 30, 40, 50, 60, 70, 80]
  check_written(weights, 5, weights[:5], granules=(1, 4))


@pytest.mark.parametrize("seed", range(10))
def test_no_budget_stops_a_flow_or_changes_its_numbers(seed):
  rng = random.Random(seed)
  weights = [rng.randint(0, 20) for _ in range(ITEMS)]
  granules = rng.choices([1, 2, 4, 8], k=2)
  nap = lambda item: time.sleep(1e-3 * rng.random())
  budget = rng.choice([0, 1, 10, 50])
  run = run_of(nap, nap, granules=granules, channel_budget=budget)
  state = jnp.asarray(weights, jnp.int32)
  *_, last = run.iterate(state, [()] * 3)
  np.testing.assert_array_equal(last, np.asarray(weights) + 3)


def test_a_budget_below_zero_is_refused():
  with pytest.raises(ValueError, match="channel_budget is -1"):
    run_of(print, print, channel_budget=-1)
