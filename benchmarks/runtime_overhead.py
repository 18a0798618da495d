r"""Measures what the runtime costs beside the work that it hands out.

  python -m benchmarks.runtime_overhead --mode=tasks
  python -m benchmarks.runtime_overhead --mode=fused
  python -m benchmarks.runtime_overhead --mode=ppo

tasks: stages that add one to an item for each device, on 1, 2, 4 and 8 devices.
An empty activity is all that such a stage takes on items that lie where it
runs: being handed out, the call, and waiting for its end. A granule's items
have to be cut from the batch besides, and laid out, if it lies elsewhere.
fused: a flow of four stages and a loop under `plan="collocated"` on one device,
beside the same functions without stages, in turn.
ppo: the main job's iteration under `plan="auto"` on one device, beside the
program that runs without a plan, in turn.

On a CPU, devices are virtual ones: more of them than cores wait for each other.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

from experiments import recipes
from rlinf_jax import flow, runtime
from rlinf_jax.runtime import (
  executables,
  executor,
  graphs,
  machines,
  tasks,
  tracing,
)
from scheduler import plans
from scheduler.devices import Devices

_MODE = flags.DEFINE_enum(
  "mode", "tasks", ["tasks", "fused", "ppo"], "What is measured."
)
_PAIRS = flags.DEFINE_integer("pairs", 20, "Calls of each side, in turn.", 2)
_ENV = flags.DEFINE_string("env", "cartpole_swingup", "Of --mode=ppo.")

NUM_TASKS, ITERATIONS = 16, 30


@flow.stage(items={0: 0})
def empty(x_b: jax.Array) -> jax.Array:
  """Adds one to each item."""
  return x_b + 1


def empty_activities(num_devices: int) -> dict[str, float]:
  """Returns microseconds of an empty activity on so many devices.

  Returns:
    Medians: of an activity, of one per device, of what is between the end of
    one and the start of the next; of a granule, cut from a batch on the first
    device.
  """

  def chain(x_b: jax.Array) -> jax.Array:
    for _ in range(NUM_TASKS):
      x_b = empty(x_b)
    return x_b

  def name(i: int) -> str:
    return f"empty#{i + 1}" if i else "empty"

  whole = [(name(i), (0, num_devices), 0) for i in range(NUM_TASKS)]
  activity_us, hand_out_us = _per_activity(chain, whole, num_devices)
  granules = [
    ("empty", (i * num_devices, (i + 1) * num_devices), i)
    for i in range(NUM_TASKS)
  ]
  granule_us, _ = _per_activity(lambda x: empty(x), granules, num_devices)
  return {
    "activity_us": activity_us,
    "per_device_us": activity_us / num_devices,
    "hand_out_us": hand_out_us,
    "granule_us": granule_us,
  }


def _per_activity(
  fn: Callable[[jax.Array], jax.Array],
  activities: Sequence[tuple[str, tuple[int, int], int]],
  num_devices: int,
) -> tuple[float, float]:
  """Returns the median microseconds of activities, and of the gaps between."""
  x = jnp.zeros(max(items[1] for _, items, _ in activities), jnp.int32)
  traced = tracing.trace(fn, x)
  graph = graphs.describe(traced, name="empty")
  resource = plans.Resource(
    name=f"0-{num_devices - 1}", devices=Devices.span(0, num_devices)
  )
  flat = plans.FlatPlan(
    resources=(resource,),
    activities=tuple(
      plans.Activity(
        kind="compute",
        stage=stage,
        resources=(0,),
        duration_ns=0,
        items=items,
        index=index,
      )
      for stage, items, index in activities
    ),
    arcs=(),
    orders=(tuple(plans.Slot(activity=i) for i in range(len(activities))),),
  )
  runner = executor.Executor(
    graph,
    tasks.make(flat, graph),
    machines.of_process(num_devices),
    compiled=executables.Executables(traced.program),
  )
  for _ in runner.iterate([x], iter([()] * ITERATIONS)):
    pass
  events = [e for e in runner.timeline.events if e.iteration > 1]
  pairs = [
    (a, b) for a, b in zip(events, events[1:]) if a.iteration == b.iteration
  ]
  return (
    statistics.median(b.start_ns - a.start_ns for a, b in pairs) * 1e-3,
    statistics.median(b.start_ns - a.stop_ns for a, b in pairs) * 1e-3,
  )


def fused_and_direct() -> dict[str, Callable[[], Any]]:
  """Returns a flow under a plan on one device, and the same without stages."""

  def act(w: jax.Array, x_b: jax.Array) -> jax.Array:
    return jnp.tanh(x_b @ w)

  def simulate(x_b: jax.Array, a_b: jax.Array) -> Any:
    return jnp.sin(x_b + a_b), jnp.sum(a_b * a_b, axis=1)

  def grad(w: jax.Array, x_b: jax.Array) -> jax.Array:
    return jax.grad(lambda w: jnp.sum(jnp.tanh(x_b @ w)))(w)

  def update(w: jax.Array, total: jax.Array) -> jax.Array:
    return w - 1e-5 * total

  def made_of(
    act: Any, simulate: Any, grad: Any, update: Any, loop: Any
  ) -> Callable[..., Any]:
    def iteration(state: Any, turn_t: jax.Array) -> Any:
      w, x_b = state

      def body(x_b: jax.Array, turn: jax.Array) -> Any:
        return simulate(x_b, act(w, x_b + turn))

      x_b, reward_tb = loop(body, x_b, turn_t)
      return (update(w, grad(w, x_b)), x_b), jnp.mean(reward_tb)

    return iteration

  direct = jax.jit(made_of(act, simulate, grad, update, jax.lax.scan))
  planned = runtime.m2flow(
    made_of(
      flow.stage(act, items={1: 0}),
      flow.stage(simulate, items={0: 0, 1: 0}),
      flow.stage(grad, items={1: 0}, reduces="sum"),
      flow.stage(update),
      flow.loop,
    ),
    plan="collocated",
    machine=machines.of_process(1),
  )
  size, items = 128, 2048
  state = (jnp.eye(size), jnp.ones((items, size)))
  turn_t = jnp.arange(8.0)
  return {
    "direct": lambda: direct(state, turn_t),
    "planned": lambda: planned(state, turn_t),
  }


def ppo_and_direct() -> dict[str, Callable[[], Any]]:
  """Returns an iteration of PPO under a plan, and without one."""
  settings = recipes.Settings(
    env=_ENV.value, recipe=recipes.RECIPES.get(_ENV.value, recipes.DEFAULT)
  )
  _, _, algorithm = recipes.build(settings, num_threads=0, num_eval_episodes=1)
  rows = algorithm.config.unroll_length
  count = np.int32(rows * algorithm.config.num_envs)

  def iteration(state: Any, num_steps: Any) -> Any:
    return algorithm.iteration(state, rows, num_steps)

  state = jax.jit(algorithm.init)(jax.random.key(0))
  direct = flow.fuse(iteration, donate=(0,))
  planned = runtime.m2flow(
    iteration, plan="auto", machine=machines.of_process(1), donate=True
  )
  planned.prepare(state, count)
  print(f"one program: {planned.is_one_program}; {planned.prediction}")
  states = {
    name: jax.tree.map(jnp.copy, state) for name in ("direct", "planned")
  }

  def call(name: str, fn: Any) -> Callable[[], Any]:
    def run() -> Any:
      states[name], metrics = fn(states[name], count)
      return states[name], metrics

    return run

  return {"direct": call("direct", direct), "planned": call("planned", planned)}


def in_pairs(calls: dict[str, Callable[[], Any]]) -> dict[str, Any]:
  """Returns the median of each call's seconds, and of the ratio of pairs."""
  seconds: dict[str, list[float]] = {name: [] for name in calls}
  for call in calls.values():
    for _ in range(2):
      jax.block_until_ready(call())
  for pair in range(_PAIRS.value):
    # Each side goes first in turn.
    for name in list(calls)[:: 1 if pair % 2 else -1]:
      start = time.perf_counter()
      jax.block_until_ready(calls[name]())
      seconds[name].append(time.perf_counter() - start)
  first, second = seconds
  ratios = [b / a for a, b in zip(seconds[first], seconds[second])]
  return {
    **{f"{name}_s": statistics.median(s) for name, s in seconds.items()},
    **{f"{name}_least_s": min(s) for name, s in seconds.items()},
    f"{second}_over_{first}": statistics.median(ratios),
    "quartiles": statistics.quantiles(ratios, n=4),
  }


def main(argv: list[str]) -> None:
  """Measures and prints."""
  del argv
  if _MODE.value == "tasks":
    jax.config.update("jax_num_cpu_devices", 8)
    found: Any = {
      str(n): empty_activities(n)
      for n in (1, 2, 4, 8)
      if n <= len(jax.devices())
    }
  elif _MODE.value == "fused":
    found = in_pairs(fused_and_direct())
  else:
    found = in_pairs(ppo_and_direct())
  print(json.dumps(found, indent=1))
  print(f"load average {os.getloadavg()}, {os.cpu_count()} cores")


if __name__ == "__main__":
  app.run(main)
