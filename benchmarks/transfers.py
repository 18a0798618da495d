r"""Measures moving arrays between layouts: only what is missing, or all of it.

  python -m benchmarks.transfers

`redistribution.redistribute` beside `jax.device_put`, in turn, by size: medians
of seconds, and the bytes that have to cross, which is what the former moves.
On a CPU the devices are eight virtual ones, which share one memory.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from absl import app, flags

from rlinf_jax.runtime import executables, redistribution

_REPEATS = flags.DEFINE_integer("repeats", 9, "Of each.", 3)
_KILOBYTES = flags.DEFINE_multi_integer(
  "kilobytes", [16, 128, 1024, 8192, 65536], "Sizes of the array."
)


def layouts() -> dict[str, tuple[Any, Any]]:
  """Returns where an array [rows, columns] comes from and goes to."""
  devices = tuple(jax.devices())
  four, two = (
    executables.place_of(devices[:4]),
    executables.place_of(devices[:2]),
  )
  others = executables.place_of(devices[4:8])
  rows, columns = four.sharding(0, 4), four.sharding(1, 4)
  return {
    "4 by rows to the same by columns": (rows, columns),
    "4 by rows to 2 of them": (rows, two.sharding(0, 2)),
    "2 by rows to 4 others": (two.sharding(0, 2), others.sharding(0, 4)),
    "a copy on each of 4 to parts": (four.replicated(), rows),
    "4 by rows to a copy on each": (rows, four.replicated()),
  }


def in_turn(calls: list[Callable[[], Any]], repeats: int) -> list[float]:
  """Returns the median seconds of each call, made in turn."""
  seconds: list[list[float]] = [[] for _ in calls]
  for _ in range(repeats + 1):
    for call, own in zip(calls, seconds):
      start = time.perf_counter()
      jax.block_until_ready(call())
      own.append(time.perf_counter() - start)
  return [statistics.median(own[1:]) for own in seconds]


def main(argv: list[str]) -> None:
  """Measures and prints a table."""
  del argv
  jax.config.update("jax_num_cpu_devices", 8)  # of a GPU nothing is changed
  print("| from, to | array | crosses | missing only | `device_put` |")
  print("| --- | --- | --- | --- | --- |")
  for kilobytes in _KILOBYTES.value:
    x = np.ones((kilobytes, 256), np.float32)
    for name, (source, target) in layouts().items():
      given = jax.device_put(x, source)
      crossing = 4 * redistribution.moved_items(x.shape, source, target)
      ours_s, theirs_s = in_turn(
        [
          lambda given=given, to=target: redistribution.redistribute(given, to),
          lambda given=given, to=target: jax.device_put(given, to),
        ],
        _REPEATS.value,
      )
      print(
        f"| {name} | {kilobytes} KiB | {crossing / 1024:.0f} KiB |"
        f" {ours_s * 1e3:.2f} ms | {theirs_s * 1e3:.2f} ms |",
        flush=True,
      )
  print(f"load average {os.getloadavg()}, {os.cpu_count()} cores")


if __name__ == "__main__":
  app.run(main)
