"""A fused plan is the program that one would have written without a plan."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlinf_jax import flow, runtime
from rlinf_jax.runtime import machines
from tests.runtime import flows

TURNS, ITEMS, SIZE = 4, 8, 3


def act_fn(w, x_b):
  return jnp.tanh(x_b @ w)


def simulate_fn(x_b, a_b):
  return jnp.sin(x_b + a_b), jnp.sum(a_b * a_b, axis=1)


def grad_fn(w, x_b):
  return jax.grad(lambda w: jnp.sum(jnp.tanh(x_b @ w)))(w)


def update_fn(w, grad):
  return w - 0.1 * grad


def iteration(stages, loop):
  """Returns a flow of four functions, given as they are or as stages."""
  act, simulate, grad, update = stages

  def run(state, turn_t):
    w, x_b = state

    def body(x_b, turn):
      return simulate(x_b, act(w, x_b + turn))

    x_b, reward_tb = loop(body, x_b, turn_t)
    return (update(w, grad(w, x_b)), x_b), jnp.mean(reward_tb)

  return run


FUNCTIONS = (act_fn, simulate_fn, grad_fn, update_fn)
DIRECT = iteration(FUNCTIONS, jax.lax.scan)
STAGES = iteration(
  (
    flow.stage(act_fn, items={1: 0}),
    flow.stage(simulate_fn, items={0: 0, 1: 0}),
    flow.stage(grad_fn, items={1: 0}, reduces="sum"),
    flow.stage(update_fn),
  ),
  flow.loop,
)


def first():
  x_b = jnp.linspace(0.0, 1.0, ITEMS * SIZE, dtype=jnp.float32)
  state = (jnp.eye(SIZE, dtype=jnp.float32), x_b.reshape(ITEMS, SIZE))
  return state, jnp.arange(TURNS, dtype=jnp.float32)


def without_names(text):
  """Returns compiled HLO in which names say only where they first stand."""
  text = re.sub(r", metadata=\{[^}]*\}", "", text)
  text = re.sub(r"^HloModule [^,]*,", "", text, flags=re.MULTILINE)
  text = re.sub(r"[\w.]+: (?=[a-z0-9]+\[|\()", "", text)  # of parameters
  lines = [
    line
    for line in text.splitlines()
    if line.strip() and not re.match(r"^(FileNames|FunctionNames|FileLocations"
                                     r"|StackFrames|\d+ )", line)
  ]  # fmt: skip
  numbers: dict[str, str] = {}
  return re.sub(
    r"%[\w.\-]+",
    lambda m: numbers.setdefault(m.group(), f"%{len(numbers)}"),
    "\n".join(lines),
  )


@pytest.mark.optimised
def test_it_compiles_to_what_the_flow_without_stages_does():
  compiled = [
    without_names(program.lower(*first()).compile().as_text())
    for program in (jax.jit(DIRECT), flow.fuse(STAGES))
  ]
  assert compiled[0] == compiled[1]


def test_names_are_all_that_is_left_out_of_a_comparison():
  add, subtract = (
    without_names(jax.jit(fn).lower(1.0, 2.0).compile().as_text())
    for fn in (lambda x, y: x + y, lambda x, y: x - y)
  )
  other = without_names(
    jax.jit(lambda left, right: left + right).lower(1.0, 2.0).compile()
    .as_text()
  )  # fmt: skip
  assert add != subtract
  assert add == other


@pytest.mark.optimised
def test_it_is_compiled_ahead_and_its_calls_are_timed():
  run = runtime.m2flow(
    STAGES,
    plan="collocated",
    machine=machines.of_process(1),
    measure_s=0.0,
  )
  state, turn_t = first()
  run.prepare(state, turn_t)
  assert run.is_one_program
  times = []
  jax.monitoring.register_event_duration_secs_listener(
    lambda event, duration, **_: (
      times.append(duration) if "backend_compile" in event else None
    )
  )
  outputs = list(run.iterate(state, [(turn_t,)] * 4))
  assert not times
  assert run.timeline.num_iterations == 3  # the last one's end is not known
  assert "were predicted" in run.compare()
  direct = jax.jit(DIRECT)
  for planned, _ in outputs:
    state, _ = direct(state, turn_t)
    jax.tree.map(np.testing.assert_array_equal, planned, state)


def test_warming_up_leaves_a_state_that_is_donated_to_the_caller():
  machine = machines.of_process(1)
  run = runtime.m2flow(
    flows.iteration,
    plan="collocated",
    machine=machine,
    profile=flows.profile(machine.mesh_class),
    donate=True,
  )
  state = flows.first_state()
  run.prepare(state, *flows.keys(1))
  assert run.is_one_program
  assert not any(x.is_deleted() for x in jax.tree.leaves(state))


def fused(budget_bytes, **options):
  machine = machines.of_process(1)
  return runtime.m2flow(
    flows.iteration,
    plan="collocated",
    machine=machine,
    profile=flows.profile(machine.mesh_class),
    budget_bytes=budget_bytes,
    **options,
  )


@flow.stage(items={0: 0}, quantum=1)
def square(x_b):
  product_b = jnp.sort(x_b[:, :, None] * x_b[:, None, :], axis=1)
  return product_b[:, 0, :1]


@flow.stage
def keep(state, x_b):
  return state + jnp.sum(x_b)


def spacious(state, x_b):
  """A flow that as one program has temporaries which no planner sees."""
  state = keep(state, square(x_b))
  return state, state


def test_auto_goes_on_to_a_plan_that_fits():
  state, x_b = jnp.float32(0), jnp.ones((2, 200))
  run = runtime.m2flow(
    spacious,
    machine=machines.of_process(2),
    budget_bytes=20_000,
    measure_s=0.0,
  )
  whole = flow.fuse(spacious)
  needs = whole.lower(state, x_b).compile().memory_analysis()
  assert needs.temp_size_in_bytes > 20_000
  found, _ = run(state, x_b)
  np.testing.assert_array_equal(found, whole(state, x_b)[0])
  assert not run.is_one_program
  assert "as one program it takes" in run.explain()


@pytest.mark.parametrize("donate", [False, True])
def test_a_program_over_its_budget_is_not_run(donate):
  state, (key,) = flows.first_state(), flows.keys(1)
  with pytest.raises(runtime.StageError, match="flow 'iteration'") as caught:
    fused(100, donate=donate)(state, key)
  assert isinstance(caught.value.__cause__, runtime.OverBudgetError)
  # Weights of 36 bytes, 192 of observations, and a key.
  assert "arguments 236, " in str(caught.value)
  jax.tree.map(
    np.testing.assert_array_equal,
    fused(100_000, donate=donate)(state, key)[0],
    flows.eager(1),
  )
