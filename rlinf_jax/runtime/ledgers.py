"""A ledger of what lies in each device's memory.

`Device.memory_stats()` is None on CPU, and on no device does it say what the
bytes are for. A budget below the device's memory emulates a smaller one.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Iterator
from typing import Any

import jax

DEVICE_KINDS = ("device", "unpinned_host")
SWAPPED_KIND = "pinned_host"
HOST = "the host's pool of swapped state"


class OverBudgetError(MemoryError):
  """What is resident on a device exceeds its budget."""


class Ledger:
  """Bytes by device, counted as arrays come and go.

  Args:
    budget_bytes: per device; None counts without a limit.
    host_bytes: of host memory for what is swapped out; None likewise.
  """

  def __init__(
    self, budget_bytes: int | None = None, host_bytes: int | None = None
  ) -> None:
    self.budget_bytes, self._host_bytes = budget_bytes, host_bytes
    self._lock = threading.Lock()
    self._held: dict[int, tuple[Any, int, str, list[tuple[Any, int]]]] = {}
    self._bytes: dict[Any, int] = {}
    self.peak_bytes: dict[Any, int] = {}

  def add(self, array: Any, what: str) -> None:
    """Counts an array; one that is held already is counted once.

    Raises:
      OverBudgetError: a device then holds more than its budget.
    """
    if not isinstance(array, jax.Array):
      return
    with self._lock:
      key = id(array)
      if key in self._held:
        kept, count, name, parts = self._held[key]
        self._held[key] = (kept, count + 1, name, parts)
        return
      parts = list(_parts(array))
      self._held[key] = (array, 1, what, parts)
      for device, size in parts:
        self._bytes[device] = self._bytes.get(device, 0) + size
        peak = max(self.peak_bytes.get(device, 0), self._bytes[device])
        self.peak_bytes[device] = peak
        budget = self._host_bytes if device == HOST else self.budget_bytes
        if budget is not None and self._bytes[device] > budget:
          raise OverBudgetError(self._message(device, what, size, budget))

  def remove(self, array: Any) -> None:
    """Forgets one holder of an array."""
    if not isinstance(array, jax.Array):
      return
    with self._lock:
      if id(array) not in self._held:
        return
      kept, count, name, parts = self._held[id(array)]
      if count > 1:
        self._held[id(array)] = (kept, count - 1, name, parts)
        return
      del self._held[id(array)]
      for device, size in parts:
        self._bytes[device] -= size

  def num_holders(self, array: Any) -> int:
    """Returns how many hold an array; 0 if nobody does."""
    with self._lock:
      return self._held[id(array)][1] if id(array) in self._held else 0

  def resident_bytes(self, device: Any) -> int:
    """Returns the bytes that lie on a JAX device now, or in `HOST`."""
    with self._lock:
      return self._bytes.get(device, 0)

  def _message(self, device: Any, what: str, size: int, budget: int) -> str:
    by_name: dict[str, int] = {}
    for _, _, name, parts in self._held.values():
      for d, n in parts:
        if d == device:
          by_name[name] = by_name.get(name, 0) + n
    most = sorted(by_name.items(), key=lambda item: -item[1])[:5]
    listed = ", ".join(f"{name} {n:,}" for name, n in most)
    return (
      f"{what} takes {size:,} bytes on {device}, which then holds"
      f" {self._bytes[device]:,} of a budget of {budget:,}; most are"
      f" {listed}. Use smaller granules, more devices, or let the plan swap"
      " stages"
    )


def device_bytes(array: jax.Array) -> int:
  """Returns the bytes of an array on each of its devices."""
  return _shard_bytes(array.sharding, array.shape, array.dtype)


def _parts(array: jax.Array) -> Iterator[tuple[Any, int]]:
  kind = None if array.is_deleted() else array.sharding.memory_kind or "device"
  if kind not in (*DEVICE_KINDS, SWAPPED_KIND):
    return
  if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
    return  # a few bytes, without shards to ask
  size = _shard_bytes(array.sharding, array.shape, array.dtype)
  if kind == SWAPPED_KIND:
    yield HOST, size * len(array.sharding.addressable_devices)
    return
  for device in array.sharding.addressable_devices:
    yield device, size


@functools.lru_cache(maxsize=4096)
def _shard_bytes(
  sharding: jax.sharding.Sharding, shape: tuple[int, ...], dtype: Any
) -> int:
  # Not from `addressable_shards`, whose making takes tens of microseconds.
  return math.prod(sharding.shard_shape(shape)) * dtype.itemsize
