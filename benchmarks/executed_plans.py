r"""Plans executed: what was predicted of them, and whether `auto` chose well.

  python -m benchmarks.executed_plans --mode=prediction
  python -m benchmarks.executed_plans --mode=choice
  python -m benchmarks.executed_plans --mode=ppo --num_devices=2

Stages sleep on host slots, so that their durations are known and two cores do:
what is judged is the runtime, the lowering and the evaluator, not a machine.
Those of the main job do not sleep: on a CPU, devices are virtual, and stages
side by side share its cores.

prediction: random plans of a four-stage flow are executed; error of the
predicted period, and Kendall's tau over pairs that differ by more than 10 %.
choice: four flows, each made for another kind of plan to win; the plan of
`auto` beside the best one executed.
ppo: as prediction, of random plans of the main job's iteration, and of those of
the planners.
"""

from __future__ import annotations

import itertools
import json
import os
import pathlib
import random
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

from experiments import recipes
from rlinf_jax import flow, runtime
from rlinf_jax.runtime import machines
from scheduler import errors, planners, plans, workflows
from scheduler.devices import Devices
from scheduler.plans import Run, Spatial, Temporal

_MODE = flags.DEFINE_enum(
  "mode", "prediction", ["prediction", "choice", "ppo"], "What is judged."
)
_ENV = flags.DEFINE_string("env", "cartpole_swingup", "Of --mode=ppo.")
_NUM_DEVICES = flags.DEFINE_integer("num_devices", 2, "Of --mode=ppo.", 1)
_NUM_PLANS = flags.DEFINE_integer("num_plans", 24, "Random plans executed.", 2)
_ITERATIONS = flags.DEFINE_integer("iterations", 6, "Of each plan.", 3)
_MILLISECONDS = flags.DEFINE_float(
  "milliseconds", 4.0, "That a stage sleeps for each item.", 0.1
)
_OUTPUT = flags.DEFINE_string("output", None, "JSON file of the results.")

ITEMS, SLOTS = 16, 8


def sleeping(
  name: str, *, parallel: int = SLOTS, weight: float = 1.0
) -> flow.Stage:
  """Returns a stage that sleeps for each of its items.

  Args:
    name: its name.
    parallel: slots that can work at once; more of them only wait.
    weight: of its sleep.
  """
  places = threading.BoundedSemaphore(parallel)

  def fn(x_b: Any) -> Any:
    with places:
      time.sleep(weight * len(x_b) * _MILLISECONDS.value * 1e-3)
    return x_b + 1

  def same(x_b: Any) -> Any:
    return jax.ShapeDtypeStruct(x_b.shape, x_b.dtype)

  return flow.stage(fn, items={0: 0}, place="host", out_fn=same, name=name)


def chain(stages: Sequence[flow.Stage]) -> Callable[[Any], Any]:
  """Returns the flow of stages one after another."""

  def run(x_b: Any) -> Any:
    for stage in stages:
      x_b = stage(x_b)
    return x_b

  return run


def branches(
  first: flow.Stage, left: flow.Stage, right: flow.Stage
) -> Callable[[Any], Any]:
  """Returns the flow of a stage and two others that both read it."""

  def run(x_b: Any) -> Any:
    x_b = first(x_b)
    return left(x_b) + right(x_b)

  return run


def rollout_and_learn(
  rollout: flow.Stage, learn: flow.Stage
) -> Callable[[Any], Any]:
  """Returns a flow whose second stage reads the first one's whole batch."""

  def run(weights_b: Any) -> Any:
    sampled_b = rollout(flow.sync(weights_b))
    return learn(sampled_b[::-1])

  return run


def first_items() -> jax.Array:
  """Returns the flows' first state."""
  return jnp.zeros(ITEMS, jnp.int32)


def execute(run: runtime.M2Flow) -> float:
  """Returns the seconds of an iteration in the steady state."""
  inputs = [()] * _ITERATIONS.value
  stops = [time.perf_counter() for _ in run.iterate(first_items(), inputs)]
  return (stops[-1] - stops[0]) / (len(stops) - 1)


def random_plan(rng: random.Random, names: Sequence[str]) -> plans.TreePlan:
  """Returns a random plan of a chain on the machine's host slots."""
  count = rng.randint(1, len(names))
  cuts = sorted(rng.sample(range(1, len(names)), count - 1))
  groups = [names[a:b] for a, b in zip([0, *cuts], [*cuts, len(names)])]
  borders = sorted(rng.sample(range(1, SLOTS), count - 1))
  children = []
  for group, a, b in zip(groups, [0, *borders], [*borders, SLOTS]):
    granule = rng.choice([2, 4, 8, 16])
    runs = tuple(
      Run(stage=name, devices=Devices.span(1 + a, 1 + b), granule=granule)
      for name in group
    )
    turn = rng.choice([None, granule]) if len(runs) > 1 else None
    children.append(Temporal(children=runs, turn=turn))
  return plans.TreePlan(root=Spatial(children=tuple(children)), label="random")


def machine() -> machines.Machine:
  """Returns one device, which does nothing, and the host slots."""
  return machines.of_process(1, num_host_slots=SLOTS)


def prediction() -> dict[str, Any]:
  """Executes random plans; returns their errors and their order."""
  names = ("one", "two", "three", "four")
  weights = (1.0, 2.0, 0.5, 1.5)
  fn = chain([sleeping(n, weight=w) for n, w in zip(names, weights)])
  rng, on = random.Random(0), machine()
  rows: list[dict[str, Any]] = []
  while len(rows) < _NUM_PLANS.value:
    plan = random_plan(rng, names)
    run = runtime.m2flow(fn, plan=plan, machine=on)
    run.prepare(first_items())
    rows.append(
      {"predicted_s": run.prediction.seconds, "measured_s": execute(run)}
    )
    print(_row(plan.label, rows[-1]), flush=True)
  return _judged(rows)


def ppo_plans() -> dict[str, Any]:
  """Executes plans of a PPO iteration; returns their errors and their order."""
  settings = recipes.Settings(
    env=_ENV.value, recipe=recipes.RECIPES.get(_ENV.value, recipes.DEFAULT)
  )
  _, _, algorithm = recipes.build(settings, num_threads=0, num_eval_episodes=1)
  length = algorithm.config.unroll_length
  count = np.int32(length * algorithm.config.num_envs)
  run = runtime.m2flow(
    lambda state, num_steps: algorithm.iteration(state, length, num_steps),
    plan="collocated",
    machine=machines.of_process(_NUM_DEVICES.value),
  )
  state = jax.jit(algorithm.init)(jax.random.key(0))
  run.prepare(state, count)
  rng, rows = random.Random(0), []
  names = ["collocated", "disaggregated", "hybrid", "auto"]
  while len(rows) < _NUM_PLANS.value:
    name = names.pop() if names else "random"
    try:
      run.replan(random_stages(rng, run.workflow) if name == "random" else name)
    except errors.SchedulerError as error:
      print(f"{name}: {error}")
      continue
    # The first iterations compile what no plan before needed.
    stops = [
      time.perf_counter()
      for _, metrics in run.iterate(state, [(count,)] * (3 + _ITERATIONS.value))
      if jax.block_until_ready(metrics)
    ][2:]
    rows.append(
      {
        "plan": name,
        "predicted_s": run.prediction.seconds,
        "measured_s": float(np.median(np.diff(stops))),
      }
    )
    print(_row(name, rows[-1]), flush=True)
  return _judged(rows)


def random_stages(
  rng: random.Random, workflow: workflows.Workflow
) -> plans.TreePlan:
  """Returns a random plan of a workflow: groups of stages on own devices."""
  units: list[str | workflows.Loop] = []
  for stage in workflows.topological_order(workflow):
    unit = workflow.loop_of(stage) or stage
    if unit not in units:
      units.append(unit)
  count = rng.randint(1, min(len(units), _NUM_DEVICES.value))
  cuts = sorted(rng.sample(range(1, len(units)), count - 1))
  borders = sorted(rng.sample(range(1, _NUM_DEVICES.value), count - 1))
  children = []
  for a, b, first, last in zip(
    [0, *cuts], [*cuts, len(units)], [0, *borders], [*borders, None]
  ):
    devices = Devices.span(first, last or _NUM_DEVICES.value)
    nodes: list[plans.Node] = []
    for unit in units[a:b]:
      if isinstance(unit, str):
        nodes.append(_run_of(workflow.stage(unit), devices, rng))
        continue
      items = workflow.stage(unit.stages[0]).items
      sizes = rng.choice([(items,), (items // 2, items // 2)])
      body = tuple(
        Run(stage=name, devices=devices, granule=sizes[0])
        for name in unit.stages
      )
      nodes.append(
        plans.Lanes(loop=unit.name, body=Temporal(children=body), lanes=sizes)
      )
    children.append(Temporal(children=tuple(nodes)))
  return plans.TreePlan(root=Spatial(children=tuple(children)), label="random")


def _run_of(
  stage: workflows.Stage, devices: Devices, rng: random.Random
) -> Run:
  parts = 1
  if stage.items % 4 == 0:
    parts = rng.choice([1, 2, 4])
  return Run(stage=stage.name, devices=devices, granule=stage.items // parts)


def _row(name: str, row: dict[str, Any]) -> str:
  predicted, measured = row["predicted_s"], row["measured_s"]
  return (
    f"{name}: predicted {predicted:.4f} s, measured {measured:.4f} s,"
    f" {predicted / measured - 1:+.1%}"
  )


def _judged(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
  errors_of = [abs(r["predicted_s"] / r["measured_s"] - 1) for r in rows]
  return {
    "rows": rows,
    "median_error": statistics.median(errors_of),
    "worst_error": max(errors_of),
    "kendall_tau": kendall_tau(rows),
    "load_average": os.getloadavg(),
  }


def kendall_tau(rows: Sequence[dict[str, Any]]) -> float:
  """Returns tau over pairs whose measured times differ by more than 10 %."""
  agree = total = 0
  for a, b in itertools.combinations(rows, 2):
    low, high = sorted((a["measured_s"], b["measured_s"]))
    if high < 1.1 * low:
      continue
    total += 1
    predicted = np.sign(a["predicted_s"] - b["predicted_s"])
    agree += int(predicted * np.sign(a["measured_s"] - b["measured_s"]))
  return agree / total if total else float("nan")


def choice() -> dict[str, Any]:
  """Executes each planner's plan of four flows; returns their times."""
  half = SLOTS // 2
  flows = {
    "collocated": (chain([sleeping("a"), sleeping("b")]), 0),
    "disaggregated": (
      chain([sleeping("a", parallel=half), sleeping("b", parallel=half)]),
      0,
    ),
    "hybrid": (
      branches(
        sleeping("a"),
        sleeping("b", parallel=half),
        sleeping("c", parallel=half),
      ),
      0,
    ),
    "asynchronous": (
      rollout_and_learn(
        sleeping("a", parallel=half), sleeping("b", parallel=half)
      ),
      1,
    ),
  }
  table: dict[str, Any] = {}
  for made_for, (fn, staleness) in flows.items():
    on = machine()
    profile, times = None, {}
    for name in planners.PLANNERS:
      if name == "exact":
        continue
      run = runtime.m2flow(
        fn, plan=name, machine=on, staleness=staleness, profile=profile
      )
      try:
        run.prepare(first_items())
      except errors.SchedulerError as error:
        print(f"{made_for}: {name}: {error}")
        continue
      profile = run.profile
      times[name] = execute(run)
      print(
        f"{made_for}: {name}: measured {times[name]:.4f} s, predicted"
        f" {run.prediction.seconds:.4f} s",
        flush=True,
      )
    table[made_for] = times
  return table


def main(argv: list[str]) -> None:
  """Runs one mode and prints what came of it."""
  del argv
  if _MODE.value == "ppo":
    jax.config.update("jax_num_cpu_devices", _NUM_DEVICES.value)
  modes = {"prediction": prediction, "choice": choice, "ppo": ppo_plans}
  found = modes[_MODE.value]()
  summary = {k: v for k, v in found.items() if k != "rows"}
  print(json.dumps(summary, indent=1))
  if _OUTPUT.value:
    pathlib.Path(_OUTPUT.value).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
  app.run(main)
