"""What an executor promises when a stage fails, stalls or needs too much."""

import gc
import random
import threading
import time
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlinf_jax import flow, runtime
from rlinf_jax.runtime import executor, iterations, ledgers, machines
from scheduler.devices import Devices
from scheduler.plans import Run, Spatial, Temporal, TreePlan
from scheduler.profiles import Entry, Profile, Sample, Table
from tests.runtime import flows

ITEMS = 8


class Fault(Exception):
  pass


def host_flow(hook):
  """Returns a flow of three host stages that call hook(stage, first item)."""

  def same(x_b):
    return jax.ShapeDtypeStruct(x_b.shape, x_b.dtype)

  def make(name):
    def fn(x_b):
      hook(name, int(x_b[0]) % ITEMS)
      return x_b + ITEMS

    return flow.stage(fn, items={0: 0}, place="host", out_fn=same, name=name)

  first, second, third = (make(name) for name in ("first", "second", "third"))
  return lambda x_b: third(second(first(x_b)))


def host_plan(granule):
  return TreePlan(
    root=Spatial(
      children=tuple(
        Run(stage=name, devices=Devices.of([i + 1]), granule=granule)
        for i, name in enumerate(("first", "second", "third"))
      )
    )
  )


def host_run(hook, granule=2, deadline_s=30.0):
  table = Table(
    samples=tuple(
      Sample(granule=g, devices=1, seconds=1e-3 * g) for g in (1, ITEMS)
    )
  )
  return runtime.m2flow(
    host_flow(hook),
    plan=host_plan(granule),
    machine=machines.of_process(1, num_host_slots=3),
    profile=Profile(
      entries=tuple(
        Entry(stage=name, device_class=machines.HOST, law=table)
        for name in ("first", "second", "third")
      )
    ),
    deadline_s=deadline_s,
  )


def small_flow(w, x_b):
  return total(w, double(w, x_b))


@flow.stage(items={1: 0})
def double(w, x_b):
  return 2.0 * w * x_b


@flow.stage
def total(w, y_b):
  return w + jnp.sum(y_b)


def items():
  return jnp.arange(ITEMS, dtype=jnp.int32)


def executor_threads():
  return [t for t in threading.enumerate() if t.name.startswith("devices ")]


def test_host_stages_run_in_order_on_every_item():
  seen = []
  run = host_run(lambda name, item: seen.append((name, item)))
  run.prepare(items())  # which runs once, to compile
  seen.clear()
  np.testing.assert_array_equal(run(items()), np.arange(ITEMS) + 3 * ITEMS)
  for name in ("first", "second", "third"):
    assert [i for n, i in seen if n == name] == [0, 2, 4, 6]


@pytest.mark.parametrize("seed", range(60))
def test_the_first_error_is_raised_with_stage_and_items(seed):
  rng = random.Random(seed)
  bad = (rng.choice(["first", "second", "third"]), rng.randrange(0, ITEMS, 2))

  def hook(name, item):
    if (name, item) == bad:
      raise Fault(f"{name} broke")

  run = host_run(hook)
  with pytest.raises(
    runtime.StageError, match=f"stage '{bad[0]}' failed on items {bad[1]} to"
  ) as caught:
    run(items())
  assert isinstance(caught.value.__cause__, Fault)
  assert not executor_threads()


@pytest.mark.parametrize(
  "seed",
  [
    *range(4),
    *(pytest.param(i, marks=pytest.mark.slow) for i in range(4, 40)),
  ],
)
def test_a_stall_ends_at_the_deadline_and_is_named(seed):
  rng = random.Random(seed)
  bad = (rng.choice(["first", "second", "third"]), rng.randrange(0, ITEMS, 2))
  go_on = threading.Event()

  def hook(name, item):
    if (name, item) == bad:
      go_on.wait(20.0)

  # Long enough for the first stage to be ready on a busy machine.
  run = host_run(hook, deadline_s=0.5)
  start_s = time.monotonic()
  with pytest.raises(runtime.DeadlineError, match=rf"{bad[0]}\[{bad[1]}:"):
    run(items())
  took_s = time.monotonic() - start_s
  go_on.set()
  assert took_s < 10.0


def test_after_an_error_the_same_flow_runs_again():
  is_bad = True

  def hook(name, item):
    del item
    if is_bad and name == "second":
      raise Fault

  run = host_run(hook)
  with pytest.raises(runtime.StageError):
    run(items())
  is_bad = False
  np.testing.assert_array_equal(run(items()), np.arange(ITEMS) + 3 * ITEMS)


def test_from_the_last_state_a_flow_resumes_exactly():
  rng, countdown = random.Random(0), [-1]

  def hook(name, item):
    del name, item
    countdown[0] -= 1
    if countdown[0] == 0:
      raise Fault

  run = host_run(hook)
  run.prepare(items())
  state, done, faults = items(), 0, 0
  while done < 20:
    # An iteration has 12 granules: about every second attempt ends in a fault.
    countdown[0] = rng.randrange(1, 60)
    try:
      for after in run.iterate(state, [()] * (20 - done)):
        state, done = after, done + 1
    except runtime.StageError:
      faults += 1
  assert faults > 3
  # Each iteration adds 8 in each of three stages.
  np.testing.assert_array_equal(state, np.arange(ITEMS) + 20 * 3 * ITEMS)


@pytest.mark.slow
def test_from_the_last_state_a_flow_resumes_exactly_after_a_stall():
  go_on, countdown = threading.Event(), [-1]

  def hook(name, item):
    del name, item
    countdown[0] -= 1
    if countdown[0] == 0:
      go_on.wait(20.0)

  run = host_run(hook, deadline_s=0.2)
  run.prepare(items())
  state, done, stalls = items(), 0, 0
  while done < 6:
    countdown[0] = 17  # in the second iteration
    try:
      for after in run.iterate(state, [()] * (6 - done)):
        state, done = after, done + 1
    except runtime.DeadlineError:
      stalls += 1
  go_on.set()
  assert stalls == 5  # the last attempt has one iteration left
  np.testing.assert_array_equal(state, np.arange(ITEMS) + 6 * 3 * ITEMS)


def test_a_host_stage_that_breaks_its_promise_is_named():
  bad = flow.stage(
    lambda x_b: x_b.astype(np.float64),
    items={0: 0},
    place="host",
    out_fn=lambda x_b: jax.ShapeDtypeStruct(x_b.shape, x_b.dtype),
    name="bad",
  )
  with pytest.raises(ValueError, match="'bad' returned .*float64.*out_fn says"):
    bad(np.arange(ITEMS, dtype=np.float32))


def test_more_than_the_budget_is_an_error_that_names_the_stage():
  machine = machines.of_process(1)
  run = runtime.m2flow(
    flows.iteration,
    plan=TreePlan(
      root=Temporal(
        children=(
          flows.lanes("0", "0", (8, 8)),
          flows.run("score", "0"),
          flows.run("grad", "0"),
          flows.run("apply_update", "0", 1),
        )
      )
    ),
    machine=machine,
    profile=flows.profile(machine.mesh_class),
    budget_bytes=700,
  )
  with pytest.raises(runtime.StageError, match="of a budget of 700") as caught:
    run(flows.first_state(), jax.random.key(0))
  assert isinstance(caught.value.__cause__, runtime.OverBudgetError)


def test_what_an_iteration_leaves_in_memory_does_not_add_up():
  plan = TreePlan(
    root=Spatial(
      children=(
        Run(stage="double", devices=Devices.of([0]), granule=2),
        Run(stage="total", devices=Devices.of([1]), granule=1),
      )
    )
  )
  machine = machines.of_process(2)
  table = Table(samples=(Sample(granule=1, devices=1, seconds=1e-3),),
                extrapolate=True)  # fmt: skip
  run = runtime.m2flow(
    small_flow,
    plan=plan,
    machine=machine,
    profile=Profile(
      entries=tuple(
        Entry(stage=name, device_class=machine.mesh_class, law=table)
        for name in ("double", "total")
      )
    ),
  )
  ledger = run.prepare(jnp.float32(1.0), jnp.ones(4)).executor.ledger
  resident = []
  for _ in run.iterate(jnp.float32(1.0), [(jnp.ones(4),)] * 6):
    resident.append(ledger.resident_bytes(jax.devices()[0]))
  assert len(set(resident[1:])) == 1


@flow.stage(items={1: 0}, name="roll_out")
def roll_out(big, x_b):
  return x_b + jnp.sum(big)


@flow.stage(name="train")
def train(params, moments, x_b):
  moments = 0.9 * moments + jnp.sum(x_b)
  return params - 0.1 * moments, moments


def big_flow(state, x_b):
  big, params, moments = state
  x_b = roll_out(big, x_b + 0 * params[0])
  params, moments = train(params, moments, x_b)
  return (big, params, moments), x_b


def taking_turns(stage_names, **options):
  machine = machines.of_process(1)
  table = Table(samples=(Sample(granule=1, devices=1, seconds=1e-3),),
                extrapolate=True)  # fmt: skip
  profile = Profile(
    entries=tuple(
      Entry(stage=name, device_class=machine.mesh_class, law=table)
      for name in stage_names
    )
  )
  tree = Temporal(
    children=tuple(
      Run(
        stage=name,
        devices=Devices.of([0]),
        granule=1 if name == "train" else 4,
        is_resident=False,
      )
      for name in stage_names
    )
  )
  return runtime.m2flow(
    big_flow,
    plan=TreePlan(root=tree),
    machine=machine,
    profile=profile,
    **options,
  )


def big_state():
  # Of NumPy: nothing lies on the device before a stage reads it.
  sizes = (3000, 1000, 1000)
  return tuple(np.full(n, i, np.float32) for i, n in enumerate(sizes))


def test_a_swapped_out_trainer_leaves_no_new_state_behind():
  # Either stage's 12 kB or 8 kB fit, and what it makes of them; both do not.
  run = taking_turns(("roll_out", "train"), budget_bytes=17_000)
  state, expected = big_state(), big_state()
  inputs = [(jnp.arange(4.0) + i,) for i in range(4)]
  *_, (found, _) = run.iterate(state, inputs)
  for given in inputs:
    expected, _ = big_flow(expected, *given)
  jax.tree.map(np.testing.assert_array_equal, found, expected)
  peak = run.prepare(None).executor.ledger.peak_bytes
  assert peak[jax.devices()[0]] < 17_000
  assert peak[ledgers.HOST] >= 8_000  # what train has made


@pytest.mark.parametrize("budget", [17_000, 24_000])
@pytest.mark.parametrize("planner", ["auto", "collocated", "hybrid"])
def test_planners_swap_what_does_not_fit(planner, budget):
  run = runtime.m2flow(
    big_flow,
    plan=planner,
    machine=machines.of_process(1, memory_bytes=budget),
    budget_bytes=budget,
    measure_s=1.0,
  )
  expected = big_state()
  for state, _ in run.iterate(big_state(), [(jnp.arange(4.0),)] * 3):
    expected, _ = big_flow(expected, jnp.arange(4.0))
    jax.tree.map(np.testing.assert_array_equal, state, expected)
  swaps = [e for e in run.timeline.events if e.kind == "swap_out"]
  assert {e.stage for e in swaps} >= {"roll_out"}


@pytest.mark.parametrize(
  ("budget", "is_early"), [(None, True), (40_000, True), (17_000, False)]
)
def test_state_comes_back_early_where_there_is_room(
  budget, is_early, monkeypatch
):
  early, swap_early = [], iterations.Iteration.swap_early

  def spy(iteration, task):
    early.append((iteration.index, task.stage))
    swap_early(iteration, task)

  monkeypatch.setattr(iterations.Iteration, "swap_early", spy)
  run = taking_turns(("roll_out", "train"), budget_bytes=budget)
  run.prepare(big_state(), jnp.arange(4.0))
  early.clear()
  expected = big_state()
  for state, _ in run.iterate(big_state(), [(jnp.arange(4.0),)] * 3):
    expected, _ = big_flow(expected, jnp.arange(4.0))
    jax.tree.map(np.testing.assert_array_equal, state, expected)
  # In the first iteration the state has never been on the device.
  assert early == ([(1, "train"), (2, "train")] if is_early else [])
  brought = [
    e.num_bytes
    for e in run.timeline.events
    if (e.kind, e.stage) == ("swap_in", "train")
  ]
  assert brought == [8000] * 3  # first from NumPy


def test_a_call_leaves_nothing_counted():
  run = taking_turns(("roll_out", "train"))
  state = jax.tree.map(jnp.asarray, big_state())
  resident = []
  for i in range(4):
    state, _ = run(state, jnp.arange(4.0) + i)
    ledger = run.prepare(None).executor.ledger
    resident.append(ledger.resident_bytes(jax.devices()[0]))
  assert resident == resident[:1] * 4


def test_other_inputs_in_each_iteration_do_not_add_up():
  run = taking_turns(("roll_out", "train"))
  resident = []
  inputs = ((jnp.arange(4.0) + i,) for i in range(6))
  for _ in run.iterate(jax.tree.map(jnp.asarray, big_state()), inputs):
    ledger = run.prepare(None).executor.ledger
    resident.append(ledger.resident_bytes(jax.devices()[0]))
  assert resident[2:] == resident[2:3] * 4


def test_an_abandoned_call_leaves_nothing_counted():
  run = taking_turns(("roll_out", "train"))
  for _ in range(3):
    inputs = ((jnp.arange(4.0) + i,) for i in range(3))
    for _ in run.iterate(big_state(), inputs):
      break
    ledger = run.prepare(None).executor.ledger
    assert ledger.resident_bytes(jax.devices()[0]) == 0


def test_numbers_of_python_are_arrays():
  flow_of_number = lambda state, x: big_flow(state, jnp.arange(4.0) + x)
  planned = runtime.m2flow(
    flow_of_number,
    plan="disaggregated",
    machine=machines.of_process(2),
    measure_s=1.0,
  )
  *_, (state, _) = planned.iterate(big_state(), [(1.0,), (2.0,)])
  expected = big_state()
  for x in (1.0, 2.0):
    expected, _ = flow_of_number(expected, x)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), state, expected
  )


def test_of_a_long_run_the_last_iterations_are_kept(monkeypatch):
  monkeypatch.setattr(executor, "KEPT_ITERATIONS", 4)
  run = taking_turns(("roll_out", "train"))
  for _ in run.iterate(big_state(), [(jnp.arange(4.0),)] * 15):
    pass
  timeline = run.timeline
  assert timeline.num_iterations == 4
  for i in range(4):
    done = [e.stage for e in timeline.events if e.iteration == i]
    assert {"roll_out", "train"} <= set(done)
  assert run.prepare(None).executor.timeline.events[0].start_ns == 0


def test_the_first_state_does_not_stay_in_memory():
  run = taking_turns(("roll_out", "train"))
  run.prepare(big_state(), jnp.arange(4.0))
  first = jax.tree.map(jnp.asarray, big_state())
  moments = weakref.ref(first[2])
  iterations_ = run.iterate(first, [(jnp.arange(4.0),)] * 4)
  del first
  for _ in range(3):
    next(iterations_)
  gc.collect()
  assert moments() is None


@pytest.mark.slow
def test_a_caller_that_takes_its_time_is_no_stall():
  run = host_run(lambda name, item: time.sleep(0.03), deadline_s=0.5)
  for _ in run.iterate(items(), [()] * 2):
    time.sleep(0.7)


def test_a_measured_timeline_has_each_task_once_and_no_device_twice():
  run = host_run(lambda name, item: None)
  for _ in run.iterate(items(), [()] * 3):
    pass
  events = [e for e in run.timeline.events if e.kind == "compute"]
  assert len(events) == 3 * 3 * 4  # iterations, stages, granules
  by_resource = {}
  for event in events:
    for resource in event.resources:
      by_resource.setdefault(resource, []).append(event)
  for of_one in by_resource.values():
    for before, after in zip(of_one, of_one[1:]):
      assert before.stop_ns <= after.start_ns


def test_staleness_needs_iterate():
  run = runtime.m2flow(flows.iteration, plan="collocated", staleness=1)
  with pytest.raises(ValueError, match="iterations overlap; run them by"):
    run(flows.first_state(), jax.random.key(0))


def test_a_plan_that_does_not_exist_is_refused_with_the_choices():
  with pytest.raises(ValueError, match="plan is 'fastest'; give a planner of"):
    runtime.m2flow(flows.iteration, plan="fastest")
