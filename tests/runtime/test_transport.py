"""What is sent arrives, and no byte crosses that need not."""

import random
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlinf_jax.runtime import redistribution, transport

P = jax.sharding.PartitionSpec
SHAPE = (24, 12, 8)


def row(devices):
  return jax.sharding.Mesh(
    np.asarray(devices), ("a",), axis_types=(jax.sharding.AxisType.Auto,)
  )


def random_layout(rng):
  """Returns a random layout on one to eight of the devices, in any order."""
  devices = rng.sample(jax.devices(), rng.choice([1, 2, 4, 6, 8]))
  if len(devices) == 1:
    return jax.sharding.SingleDeviceSharding(devices[0])
  rows = rng.choice([n for n in (1, 2, 3, 4) if len(devices) % n == 0])
  mesh = jax.sharding.Mesh(
    np.asarray(devices).reshape(rows, -1),
    ("a", "b"),
    axis_types=(jax.sharding.AxisType.Auto,) * 2,
  )
  axes = ["a", "b"]
  while True:
    spec = [None, None, None]
    for axis in rng.sample(axes, rng.randint(0, 2)):
      spec[rng.randrange(3)] = axis
    if all(
      name is None or size % mesh.shape[name] == 0
      for name, size in zip(spec, SHAPE)
    ):
      return jax.NamedSharding(mesh, P(*spec))


def entries(layout):
  """Returns, by device, which entries of an array it holds."""
  held = {}
  for device, index in layout.devices_indices_map(SHAPE).items():
    held[device] = np.zeros(SHAPE, bool)
    held[device][index] = True
  return held


def missing_entries(source, target):
  """Returns how many entries devices need that they do not hold: the least."""
  nothing, held = np.zeros(SHAPE, bool), entries(source)
  return sum(
    int(np.sum(wanted & ~held.get(device, nothing)))
    for device, wanted in entries(target).items()
  )


@pytest.mark.parametrize("seed", range(40))
def test_no_entry_crosses_but_those_that_are_missing(seed):
  rng = random.Random(seed)
  source, target = random_layout(rng), random_layout(rng)
  assert redistribution.moved_items(SHAPE, source, target) == missing_entries(
    source, target
  )


@pytest.mark.parametrize("seed", range(8))
def test_bytes_are_counted_that_devices_lack(seed):
  rng = random.Random(seed)
  source, target = random_layout(rng), random_layout(rng)
  x = np.arange(np.prod(SHAPE), dtype=np.float32).reshape(SHAPE)
  there = jax.device_put(x, source)
  missing = missing_entries(source, target)
  assert transport.moved_bytes(there, target) == 4 * missing


@pytest.mark.parametrize("seed", range(40))
def test_every_device_gets_each_entry_of_its_own_once_from_one_that_has_it(
  seed,
):
  rng = random.Random(seed)
  source, target = random_layout(rng), random_layout(rng)
  held, counts = entries(source), {}
  for piece in redistribution.pieces(SHAPE, source, target):
    index = tuple(slice(*interval) for interval in piece.box)
    assert np.all(held[piece.source][index])
    count = counts.setdefault(piece.target, np.zeros(SHAPE, int))
    count[index] += 1
  for device, wanted in entries(target).items():
    np.testing.assert_array_equal(counts[device], wanted.astype(int))


@pytest.mark.parametrize("seed", range(6))
def test_a_redistributed_array_is_the_same_array(seed):
  rng = random.Random(seed)
  source, target = random_layout(rng), random_layout(rng)
  x = np.arange(np.prod(SHAPE), dtype=np.float32).reshape(SHAPE)
  moved = redistribution.redistribute(jax.device_put(x, source), target)
  assert moved.sharding == target
  np.testing.assert_array_equal(moved, x)


def test_copies_are_taken_from_holders_in_turn():
  devices = jax.devices()
  copies = jax.NamedSharding(row(devices[:2]), P())
  halves = jax.NamedSharding(row(devices[2:4]), P("a"))
  first, second = redistribution.pieces((8,), copies, halves)
  assert (first.source, second.source) == (devices[0], devices[1])


def test_only_unlike_parts_need_to_be_redistributed():
  devices = jax.devices()
  here, there = row(devices[:2]), row(devices[2:4])
  rows, columns = (
    jax.NamedSharding(here, P(*axes)) for axes in (("a",), (None, "a"))
  )
  elsewhere = jax.NamedSharding(there, P("a"))
  assert redistribution.is_needed((8, 8), rows, columns)
  assert not redistribution.is_needed((8, 8), rows, rows)
  assert not redistribution.is_needed((8, 8), rows, elsewhere)


def test_what_lies_there_already_is_not_touched_and_all_else_is_sent():
  mesh = row(jax.devices()[:2])
  rows = jax.NamedSharding(mesh, P("a"))
  columns = jax.NamedSharding(mesh, P(None, "a"))
  x = np.ones((1 << 10, 1 << 8), np.float32)
  there, other = jax.device_put(x, columns), jax.device_put(x, rows)
  sent = transport.send({"there": there, "other": other, "host": x}, columns)
  assert sent["there"] is there
  for array in sent.values():
    assert array.sharding == columns
    np.testing.assert_array_equal(array, x)


def test_what_may_go_anywhere_is_bound_to_where_it_was_sent():
  x = jax.numpy.ones(3)
  assert not x.committed
  assert transport.send(x, x.sharding).committed


def test_numpy_stays_on_the_host_where_nothing_is_asked():
  x = np.ones(3)
  assert transport.send(x, None) is x


READER = """
import mmap, os, sys
import numpy as np
path, dtype, size, begin = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
shared = mmap.mmap(os.open(path, os.O_RDONLY), 0, access=mmap.ACCESS_READ)
print(np.frombuffer(shared, dtype, size, begin).sum())
"""


def test_another_process_reads_what_was_sent_and_sent_again():
  shared = transport.SharedMemory(num_threads=2)
  for scale in (1, 3):
    many = scale * jnp.arange(5_000_000, dtype="int32").reshape(5, -1)
    few = np.full(7, scale, np.int64)
    places = transport.send({"w": {"a": many}, "b": few}, shared)
    assert places["w"]["a"].name == "w.a"
    for place, array in ((places["w"]["a"], many), (places["b"], few)):
      assert place.shape == list(array.shape)
      numbers = [str(array.size), str(place.begin)]
      read = subprocess.run(
        [sys.executable, "-c", READER, shared.path, place.dtype, *numbers],
        capture_output=True,
        text=True,
        check=True,
      )
      assert int(read.stdout) == np.asarray(array, np.int64).sum()
  shared.close()
