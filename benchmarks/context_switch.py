r"""Measures how fast a stage's state leaves device memory, and returns.

  python -m benchmarks.context_switch --megabytes=1024

What is measured is what a plan's swaps do, `values.swap`, on a state of one
leaf and of many, against a plain copy of as many bytes: from pinned host memory
to a device on an accelerator, into new memory on a CPU. Hidden is the share of
a swap's time that a computation beside it does not take longer.

On a CPU device memory and pinned host memory are the same memory: what is shown
is that the mechanism costs no more than a copy, not what a link gives.
"""

from __future__ import annotations

import json
import os
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

from rlinf_jax.runtime import ledgers, values

_MEGABYTES = flags.DEFINE_integer("megabytes", 1024, "Of state.", 1)
_LEAVES = flags.DEFINE_integer("leaves", 64, "Arrays that the state is.", 1)
_REPEATS = flags.DEFINE_integer("repeats", 5, "Swaps out and in.", 2)


def seconds(run: Callable[[], Any]) -> float:
  """Returns the seconds of one call."""
  start = time.perf_counter()
  jax.block_until_ready(run())
  return time.perf_counter() - start


def plain_copy(num_bytes: int) -> float:
  """Returns the bytes per second of a plain copy."""
  device = jax.devices()[0]
  x = np.ones(num_bytes // 4, np.float32)
  if device.platform == "cpu":
    took = [seconds(x.copy) for _ in range(_REPEATS.value)]
    return num_bytes / statistics.median(took[1:])
  pinned = jax.device_put(
    x, jax.sharding.SingleDeviceSharding(device, memory_kind="pinned_host")
  )
  home = jax.sharding.SingleDeviceSharding(device)
  took = [
    seconds(lambda: jax.device_put(pinned, home)) for _ in range(_REPEATS.value)
  ]
  return num_bytes / statistics.median(took[1:])


def state(num_bytes: int, num_leaves: int) -> list[values.Value]:
  """Returns a state on the first device."""
  board, ledger = values.Board(), ledgers.Ledger()
  home = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  found = []
  for i in range(num_leaves):
    value = values.Value(board, ledger, what=f"leaf {i}")
    leaf = np.full(num_bytes // num_leaves // 4, i, np.float32)
    value.put(jax.device_put(leaf, home))
    found.append(value)
  return found


def moves(leaves: Sequence[values.Value], kind: str) -> Callable[[], int]:
  """Returns what moves a state to memory of a kind, and counts its bytes."""
  return lambda: values.swap(leaves, frozenset(jax.devices()[:1]), kind)


def swap(num_leaves: int, num_bytes: int) -> dict[str, Any]:
  """Returns the seconds and bytes of swaps of a state of so many leaves."""
  leaves = state(num_bytes, num_leaves)
  home = jax.devices()[0].default_memory().kind
  out_s, in_s, moved = [], [], 0
  for _ in range(_REPEATS.value):
    start = time.perf_counter()
    moved = moves(leaves, "pinned_host")()
    middle = time.perf_counter()
    moves(leaves, home)()
    out_s.append(middle - start)
    in_s.append(time.perf_counter() - middle)
  return {
    "bytes": moved,
    "out_bytes_per_s": moved / statistics.median(out_s[1:]),
    "in_bytes_per_s": moved / statistics.median(in_s[1:]),
  }


def hidden(num_bytes: int) -> dict[str, float]:
  """Returns the share of a swap out and in that hides behind computing."""
  leaves = state(num_bytes, _LEAVES.value)
  home = jax.devices()[0].default_memory().kind
  x = jnp.ones((768, 768))

  @jax.jit
  def compute(x: jax.Array) -> jax.Array:
    return jax.lax.fori_loop(0, 60, lambda _, x: jnp.tanh(x @ x) * 1e-3, x)

  def both_ways() -> None:
    moves(leaves, "pinned_host")()
    moves(leaves, home)()

  def together() -> None:
    thread = threading.Thread(target=both_ways)
    thread.start()
    jax.block_until_ready(compute(x))
    thread.join()

  rows = []
  for _ in range(_REPEATS.value):
    alone_s, swap_s = seconds(lambda: compute(x)), seconds(both_ways)
    rows.append((alone_s, swap_s, seconds(together)))
  compute_s, swap_s, both_s = (
    statistics.median(column) for column in zip(*rows[1:])
  )
  return {
    "compute_s": compute_s,
    "swap_s": swap_s,
    "both_s": both_s,
    "hidden": (compute_s + swap_s - both_s) / swap_s,
  }


def main(argv: list[str]) -> None:
  """Measures and prints."""
  del argv
  num_bytes = _MEGABYTES.value << 20
  plain = plain_copy(num_bytes)
  found: dict[str, Any] = {"plain_bytes_per_s": plain}
  for num_leaves in (1, _LEAVES.value):
    row = swap(num_leaves, num_bytes)
    for way in ("out", "in"):
      row[f"{way}_of_plain"] = row[f"{way}_bytes_per_s"] / plain
    found[f"{num_leaves} leaves"] = row
  found["beside a computation"] = hidden(num_bytes)
  print(json.dumps(found, indent=1))
  print(f"load average {os.getloadavg()}, {os.cpu_count()} cores")


if __name__ == "__main__":
  app.run(main)
