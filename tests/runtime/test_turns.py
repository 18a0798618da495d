"""Loops whose stages are in different turns give the eager numbers."""

import itertools
import subprocess
import sys
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlinf_jax import flow, runtime
from rlinf_jax.runtime import graphs, machines, tracing
from scheduler.devices import Devices
from scheduler.plans import Lanes, Run, Spatial, TreePlan
from scheduler.profiles import Entry, Profile, Sample, Table

TURNS, ITEMS = 4, 8


def stage(name, fn, *, place="mesh", hook=lambda: None):
  """Returns a stage of items; a host one calls a hook first."""
  num = fn.__code__.co_argcount
  items = dict.fromkeys(range(num), 0)
  if place == "mesh":
    return flow.stage(fn, items=items, quantum=2, name=name)

  def on_host(*args):
    hook()
    return np.asarray(fn(*args), np.float32)

  def same(x_b, *_):
    return jax.ShapeDtypeStruct(x_b.shape, x_b.dtype)

  return flow.stage(on_host, items=items, place="host", out_fn=same, name=name)


def judged(simulate, judge):
  """What is judged is not waited for: the simulator is a turn ahead."""

  def body(x_b, _):
    x_b = simulate(x_b)
    return x_b, judge(x_b)

  return body


def judged_before(simulate, judge):
  """The last stage in order is not the last to end."""

  def body(x_b, _):
    reward_b = judge(x_b)
    return simulate(x_b), reward_b

  return body


def branched(simulate, judge):
  """Two stages read what a third has made of both."""

  def body(x_b, _):
    both = simulate(x_b) + judge(x_b)
    return both, both

  return body


def handed_forward(simulate, judge):
  """What an earlier stage makes is read by a later one, a turn later."""

  def body(carry, _):
    x_b, y_b = carry
    return (judge(y_b), simulate(x_b)), x_b

  return body


def shifted(simulate, judge):
  """What is read was made two turns ago."""

  def body(carry, _):
    x_b, old_b, older_b = carry
    return (simulate(x_b), x_b, old_b), judge(older_b)

  return body


def with_glue(simulate, judge):
  """Glue behind the stages; part of it needs one of them alone."""

  def body(x_b, _):
    made_b = simulate(x_b)
    reward_b = judge(x_b)
    return jnp.maximum(made_b, -made_b), (jnp.maximum(reward_b, made_b), x_b)

  return body


BODIES = {
  f.__name__: f
  for f in (judged, judged_before, branched, handed_forward, shifted, with_glue)
}
NUM_CARRY = {"handed_forward": 2, "shifted": 3}


def flow_of(name, **kwargs):
  simulate = stage("simulate", lambda x_b: jnp.sin(2 * x_b + 1), **kwargs)
  judge = stage("judge", lambda x_b: jnp.tanh(x_b * x_b - 0.3))
  read = stage("read", lambda x_b: 2 * x_b)
  body = BODIES[name](simulate, judge)

  def iteration(carry):
    carry, ys_t = flow.loop(body, carry, None, length=TURNS)
    first, *others = jax.tree.leaves(carry)
    after = [read(first), *others]
    return jax.tree.unflatten(jax.tree.structure(carry), after), ys_t

  x_b = jnp.linspace(-1.0, 1.0, ITEMS)
  num = NUM_CARRY.get(name, 1)
  state = x_b if num == 1 else tuple((x_b + i) / 4 for i in range(num))
  return iteration, state


def run_under(iteration, state, devices, lanes, machine, deadline_s=20.0):
  at = dict(zip(("simulate", "judge"), devices))

  def run(name):
    where = Devices.parse(at.get(name, devices[2]))
    return Run(stage=name, devices=where, granule=ITEMS)

  names = workflow_stages(iteration, state)
  loop = "+".join(n for n in names if n in at)
  body = Spatial(children=tuple(run(n) for n in names if n in at))
  tree = Spatial(
    children=(
      Lanes(loop=loop, body=body, lanes=lanes),
      *(run(n) for n in names if n not in at),
    )
  )
  samples = tuple(
    Sample(granule=g, devices=1, seconds=1e-3 * g) for g in (1, ITEMS)
  )
  profile = Profile(
    entries=tuple(
      Entry(stage=name, device_class=device_class, law=Table(samples=samples))
      for name, device_class in itertools.product(
        names, (machine.mesh_class, machines.HOST)
      )
    )
  )
  return runtime.m2flow(
    iteration,
    plan=TreePlan(root=tree),
    machine=machine,
    profile=profile,
    deadline_s=deadline_s,
  )


def workflow_stages(iteration, state):
  workflow = graphs.describe(tracing.trace(iteration, state)).workflow
  return [s.name for s in workflow.stages]


@pytest.mark.optimised
@pytest.mark.parametrize(
  "lanes", [pytest.param((ITEMS,), marks=pytest.mark.slow), (4, 4)]
)
@pytest.mark.parametrize("name", BODIES)
def test_stages_in_different_turns_give_the_eager_numbers(name, lanes):
  iteration, state = flow_of(name)
  expected = []
  given = state
  for _ in range(3):
    given, ys = iteration(given)
    expected.append((given, ys))
  planned = run_under(
    iteration, state, ("0", "1", "2"), lanes, machines.of_process(3)
  )
  found = list(planned.iterate(state, [()] * 3))
  jax.tree.map(np.testing.assert_array_equal, found, expected)


@pytest.mark.parametrize("lanes", [(ITEMS,), (4, 4)])
def test_what_turns_have_given_is_counted_until_it_is_stacked(lanes):
  iteration, state = flow_of("judged")
  run = run_under(
    iteration, state, ("0", "1", "2"), lanes, machines.of_process(3)
  )
  list(run.iterate(state, [()] * 2))
  ledger, judge_on = run.prepare(None).executor.ledger, jax.devices()[1]
  # Rows of four bytes by item, and a lane's stack of them.
  assert ledger.peak_bytes[judge_on] >= 4 * TURNS * (ITEMS + lanes[0])
  assert not any(ledger.resident_bytes(d) for d in jax.devices()[:3])


def test_what_glue_alone_reads_is_waited_for():
  simulate = stage("simulate", lambda x_b: jnp.sin(2 * x_b + 1))
  judge = stage("judge", lambda x_b: jnp.tanh(x_b))
  scale = stage("scale", lambda x_b: 1 + x_b * x_b)

  def iteration(x_b):
    scale_b = scale(x_b)

    def body(x_b, _):
      x_b = simulate(x_b)
      return x_b, judge(x_b) * scale_b

    return flow.loop(body, x_b, None, length=TURNS)

  workflow = graphs.describe(tracing.trace(iteration, jnp.ones(ITEMS))).workflow
  edges = {(e.source, e.target) for e in workflow.edges}
  assert {("scale", "simulate"), ("scale", "judge")} <= edges


@pytest.mark.parametrize("name", ["judged", "judged_before", "with_glue"])
def test_a_slow_stage_on_the_host_is_waited_for(name):
  iteration, state = flow_of(name, place="host", hook=lambda: time.sleep(0.01))
  expected = iteration(state)
  machine = machines.of_process(2, num_host_slots=1)
  planned = run_under(iteration, state, ("2", "0", "1"), (4, 4), machine)
  found = planned(state)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), found, expected
  )


class Fault(Exception):
  pass


@pytest.mark.parametrize(
  "call",
  [0, *(pytest.param(i, marks=pytest.mark.slow) for i in range(1, 2 * TURNS))],
)
def test_a_stage_that_fails_in_some_turn_of_some_lane_is_named(call):
  calls, is_bad = itertools.count(), True

  def hook():
    if is_bad and next(calls) == call:
      raise Fault

  iteration, state = flow_of("judged", place="host", hook=hook)
  machine = machines.of_process(2, num_host_slots=1)
  run = run_under(iteration, state, ("2", "0", "1"), (4, 4), machine)
  with pytest.raises(
    runtime.StageError, match="stage 'simulate' failed on items [04] to [48]"
  ) as caught:
    run(state)
  assert isinstance(caught.value.__cause__, Fault)
  assert not [t for t in threading.enumerate() if "devices" in t.name]
  is_bad = False
  jax.tree.map(np.testing.assert_allclose, run(state), iteration(state))


def test_a_stage_that_hangs_in_some_turn_is_named():
  calls, go_on = itertools.count(), threading.Event()

  def hook():
    if next(calls) == 2 * TURNS + 3:  # once all is compiled
      go_on.wait(20.0)

  iteration, state = flow_of("judged", place="host", hook=hook)
  machine = machines.of_process(2, num_host_slots=1)
  run = run_under(iteration, state, ("2", "0", "1"), (4, 4), machine, 1.0)
  with pytest.raises(runtime.DeadlineError, match="simulate.* turn"):
    for _ in run.iterate(state, [()] * 3):
      pass
  go_on.set()


HANGS = """
import time
import jax, jax.numpy as jnp
from rlinf_jax import flow, runtime
from rlinf_jax.runtime import machines

same = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype)
is_first = True

@flow.stage(items={0: 0}, place="host", out_fn=same)
def hang(x):
  if not is_first:
    time.sleep(600)
  return x

run = runtime.m2flow(
  lambda x: hang(x), plan="disaggregated", deadline_s=1.0,
  machine=machines.of_process(1, num_host_slots=1),
)
x = jnp.arange(4.0)
run.prepare(x)
is_first = False
try:
  run(x)
except runtime.DeadlineError as error:
  print("told:", error)
"""


@pytest.mark.slow
def test_a_process_ends_though_a_stage_of_it_hangs():
  ended = subprocess.run(
    [sys.executable, "-c", HANGS],
    capture_output=True,
    text=True,
    timeout=60,  # the stage takes ten times that
    check=True,
  )
  assert "told: nothing has finished" in ended.stdout
