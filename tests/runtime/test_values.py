"""Laws of values that come in pieces."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlinf_jax.runtime import ledgers, values


def value(**options):
  return values.Value(
    values.Board(), ledgers.Ledger(), what="a value", **options
  )


def test_items_of_another_axis_are_read_of_the_whole():
  made = value(axis=0, num_items=4)
  x = np.arange(24.0).reshape(4, 6)
  found = []
  reader = threading.Thread(
    target=lambda: found.append(made.read(4, 6, 1, None)), daemon=True
  )
  made.add(0, 2, x[:2])
  reader.start()
  assert not made.is_complete(0, 2, 1)
  made.add(2, 4, x[2:])
  reader.join(10.0)
  np.testing.assert_array_equal(found[0], x[:, 4:6])
  assert made.is_complete(0, 2, 1)


def test_what_comes_after_a_release_is_not_kept():
  ledger = ledgers.Ledger()
  made = values.Value(values.Board(), ledger, what="x", axis=0, num_items=2)
  made.release()
  x = jnp.ones(2)
  made.add(0, 2, x)
  (device,) = x.devices()
  assert ledger.resident_bytes(device) == 0
  assert made.held is None


def test_what_is_sent_ahead_twice_is_counted_once():
  ledger = ledgers.Ledger()
  made = values.Value(values.Board(), ledger, what="x", axis=0, num_items=2)
  device = jax.devices()[1]
  made.add(0, 1, jnp.ones(1))
  made.add(1, 2, jnp.ones(1))
  for _ in range(2):
    made.send_ahead(0, 2, 0, jax.sharding.SingleDeviceSharding(device))
  assert ledger.resident_bytes(device) == 8
  made.release()
  assert ledger.resident_bytes(device) == 0


@pytest.mark.parametrize("seed", range(3))
def test_readers_of_parts_and_of_the_whole_do_not_disturb_each_other(seed):
  rng = np.random.default_rng(seed)
  x = np.arange(64.0)
  for _ in range(50):
    made = value(axis=0, num_items=64)
    found, errors = [], []

    def read(start, made=made, found=found, errors=errors):
      try:
        found.append((start, made.read(start, start + 8, 0, None)))
        made.whole(None)
      except BaseException as error:  # noqa: BLE001  asserted below
        errors.append(error)

    readers = [
      threading.Thread(target=read, args=(i,), daemon=True)
      for i in range(0, 64, 8)
    ]
    for reader in readers:
      reader.start()
    for i in rng.permutation(8):
      made.add(8 * i, 8 * i + 8, x[8 * i : 8 * i + 8])
    for reader in readers:
      reader.join(10.0)
    assert not errors
    for start, part in found:
      np.testing.assert_array_equal(part, x[start : start + 8])


def test_swapped_state_has_a_pool_of_its_own_that_is_bounded():
  ledger = ledgers.Ledger(budget_bytes=100, host_bytes=50)
  device = jax.devices()[0]
  pinned = jax.sharding.SingleDeviceSharding(device, memory_kind="pinned_host")
  x = jax.device_put(jnp.ones(10), pinned)
  ledger.add(x, "state of train")
  assert ledger.resident_bytes(device) == 0
  assert ledger.resident_bytes(ledgers.HOST) == 40
  more = jax.device_put(jnp.ones(3), pinned)
  with pytest.raises(ledgers.OverBudgetError, match="pool of swapped state"):
    ledger.add(more, "state of act")
