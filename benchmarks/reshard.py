r"""Bandwidth at which a stage's state follows it to other devices.

  python -m benchmarks.reshard --megabytes=256

A stage that reads a large state is scaled from 2 devices to 4 while its flow
runs: the weight sync of the next iteration brings it to the two new ones.
Beside it stands a plain copy of as many bytes in this machine's memory, to
pages that were not used before either: that is most of what both take. On CPU,
devices are virtual and share one memory.
"""

from __future__ import annotations

import json
import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

from rlinf_jax import flow, runtime
from rlinf_jax.runtime import machines
from scheduler import plans, profiles
from scheduler.devices import Devices

_MEGABYTES = flags.DEFINE_integer("megabytes", 256, "Of the state.", 1)
_REPEATS = flags.DEFINE_integer("repeats", 5, "The median is reported.", 1)

ITEMS = 8


@flow.stage(items={1: 0}, quantum=1)
def read(state: Any, x_b: Any) -> Any:
  """Reads one entry of the state for each item."""
  return jax.vmap(lambda x: x + state[0])(x_b)


@flow.stage
def keep(state: Any, y_b: Any) -> Any:
  """Changes one entry of the state."""
  return state.at[0].add(0.0 * jnp.sum(y_b))


def iteration(state: Any, x_b: Any) -> Any:
  """Reads the state granule by granule, and changes it."""
  return keep(state, read(state, x_b))


def make() -> runtime.M2Flow:
  """Returns the flow: `read` on devices 0 and 1, `keep` on device 0."""
  machine = machines.of_process(4)
  law = profiles.Table(
    samples=(profiles.Sample(granule=1, devices=1, seconds=1e-3),),
    extrapolate=True,
  )
  tree = plans.Temporal(
    children=(
      plans.Run(stage="read", devices=Devices.span(0, 2), granule=4),
      plans.Run(stage="keep", devices=Devices.span(0, 2), granule=1),
    )
  )
  return runtime.m2flow(
    iteration,
    plan=plans.TreePlan(root=tree),
    machine=machine,
    profile=profiles.Profile(
      entries=tuple(
        profiles.Entry(stage=name, device_class=machine.mesh_class, law=law)
        for name in ("read", "keep")
      )
    ),
  )


def moved(run: runtime.M2Flow, state: Any) -> tuple[int, float]:
  """Returns the bytes that scaling moved, and the seconds they took."""
  x_b = jnp.ones(ITEMS)
  run.prepare(state, x_b)
  run.scale("read", None)
  for i, _ in enumerate(run.iterate(state, [(x_b,)] * 2)):
    if i == 0:
      run.scale("read", "0-3")
  (sync,) = (
    e
    for e in run.timeline.events
    if e.kind == "weight_sync" and e.iteration == 1
  )
  return sync.num_bytes, (sync.stop_ns - sync.start_ns) * 1e-9


def copy_s(num_bytes: int) -> float:
  """Returns the seconds of copying so many bytes to memory that is new, too."""
  source = np.ones(num_bytes, np.uint8)
  times = []
  for _ in range(_REPEATS.value):
    start = time.perf_counter()
    copy = source.copy()
    times.append(time.perf_counter() - start)
    del copy
  return statistics.median(times)


def main(argv: list[str]) -> None:
  """Prints bytes, bandwidths and their ratio."""
  del argv
  jax.config.update("jax_num_cpu_devices", 4)
  state = jnp.ones(_MEGABYTES.value * (1 << 20) // 4, jnp.float32)
  run = make()
  moved(run, state)  # compiles for 4 devices
  found = [moved(run, state) for _ in range(_REPEATS.value)]
  num_bytes = found[0][0]
  seconds = statistics.median(s for _, s in found)
  plain_s = copy_s(num_bytes)
  print(
    json.dumps(
      {
        "moved_bytes": num_bytes,
        "reshard_bytes_per_s": num_bytes / seconds,
        "copy_bytes_per_s": num_bytes / plain_s,
        "share_of_copy": plain_s / seconds,
      },
      indent=1,
    )
  )


if __name__ == "__main__":
  app.run(main)
