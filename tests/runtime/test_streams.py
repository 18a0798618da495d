"""Process stages: their granules are in flight at once, and taken as they come.

The flow: `answer` is a process stage, `mark` a host stage, `grad` sums on a
mesh, and `update` is a barrier.
"""

import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlinf_jax import flow, runtime
from rlinf_jax.runtime import machines, streams
from scheduler.devices import Devices
from scheduler.plans import Run, Spatial, Temporal, TreePlan
from scheduler.profiles import Entry, Profile, Sample, Table

pytestmark = pytest.mark.bits
ITEMS, PATIENCE_S = 8, 20.0


def like(x_b):
  return jax.ShapeDtypeStruct(x_b.shape, x_b.dtype)


@flow.stage(items={1: 0, 2: 0}, reduces="sum", quantum=2)
def grad(w, answer_b, mark_b):
  return jnp.sum(jnp.sin(w * answer_b) * mark_b)


@flow.stage
def update(w, total):
  return w - 0.1 * total


def make_flow(answer_hook=None, mark_hook=None):
  """Returns the flow; the hooks are called with the first item's number."""

  def answer(w, x_b):
    if answer_hook is not None:
      answer_hook(int(x_b[0]))
    return x_b + w

  def mark(x_b, answer_b):
    if mark_hook is not None:
      mark_hook(int(x_b[0]))
    return np.cos(answer_b)

  answer_stage = flow.stage(
    answer, items={1: 0}, place="process", out_fn=lambda w, x_b: like(x_b)
  )
  mark_stage = flow.stage(
    mark, items={0: 0, 1: 0}, place="host", out_fn=lambda x_b, y_b: like(y_b)
  )

  def iteration(w, x_b):
    answer_b = answer_stage(flow.sync(w), x_b)
    total = grad(w, answer_b, mark_stage(x_b, answer_b))
    return update(w, total)

  return iteration


def first_state():
  return jnp.float32(0.5)


def items():
  return jnp.arange(ITEMS, dtype=jnp.float32)


def eager(count=1):
  w = first_state()
  for _ in range(count):
    w = make_flow()(w, items())
  return w


def profile(machine):
  table = Table(
    samples=tuple(
      Sample(granule=g, devices=1, seconds=1e-3 * g) for g in (1, ITEMS)
    )
  )
  on = {"answer": machines.HOST, "mark": machines.HOST}
  return Profile(
    entries=tuple(
      Entry(
        stage=name, device_class=on.get(name, machine.mesh_class), law=table
      )
      for name in ("answer", "mark", "grad", "update")
    )
  )


def run_of(stage, devices, granule):
  return Run(stage=stage, devices=Devices.parse(devices), granule=granule)


def stream(answer=2, mark=2, grad=2, on=("1", "2", "0"), **options):
  """Returns a plan with one slot each for `answer` and `mark`."""
  return TreePlan(
    root=Spatial(
      children=(
        run_of("answer", on[0], answer),
        run_of("mark", on[1], mark),
        Temporal(
          children=(run_of("grad", on[2], grad), run_of("update", on[2], 1))
        ),
      ),
      **options,
    )
  )


def planned(fn, plan, **options):
  machine = machines.of_process(1, num_host_slots=2)
  return runtime.m2flow(
    fn, plan=plan, machine=machine, profile=profile(machine), **options
  )


def test_calls_are_in_flight_together():
  everyone = threading.Barrier(4)  # passed by four calls at once, or by none
  fn = make_flow(lambda item: everyone.wait(PATIENCE_S))
  w = planned(fn, stream())(first_state(), items())
  np.testing.assert_array_equal(w, eager())


@pytest.mark.parametrize("late", [0, 2, 4, 6])
def test_no_granule_waits_for_a_slower_one(late):
  marked, others_are_marked = set(), threading.Event()

  def answer_hook(item):
    if item == late:
      assert others_are_marked.wait(PATIENCE_S)

  def mark_hook(item):
    marked.add(item)
    if marked == {0, 2, 4, 6} - {late}:
      others_are_marked.set()

  run = planned(make_flow(answer_hook, mark_hook), stream())
  np.testing.assert_array_equal(run(first_state(), items()), eager())
  of_grad = [e.items for e in run.timeline.events if e.stage == "grad"]
  assert of_grad[-1] == (late, late + 2)


def test_granules_come_in_spans_that_all_who_take_them_share():
  # mark takes 4 at once: the call of items 6, 7 is late, so that 4 to 8 are.
  last_is_asked = threading.Event()

  def answer_hook(item):
    if item == 0:
      assert last_is_asked.wait(PATIENCE_S)

  seen = []

  def mark_hook(item):
    seen.append(item)
    last_is_asked.set()

  run = planned(make_flow(answer_hook, mark_hook), stream(mark=4))
  np.testing.assert_array_equal(run(first_state(), items()), eager())
  assert seen == [4, 0]


def test_a_full_channel_holds_calls_back():
  # A channel of 4 holds two granules: the third begins when mark takes one.
  together, most = set(), []
  lock = threading.Lock()

  def answer_hook(item):
    with lock:
      together.add(item)

  def mark_hook(item):
    with lock:
      most.append(len(together))
      together.discard(item)

  run = planned(make_flow(answer_hook, mark_hook), stream(capacity=4))
  np.testing.assert_array_equal(run(first_state(), items()), eager())
  assert most[0] <= 3


@pytest.mark.parametrize("staleness", [0, 1])
def test_iterations_do_not_mix(staleness):
  calls, lock = [], threading.Lock()

  def answer_hook(item):
    with lock:
      calls.append(item)

  run = planned(make_flow(answer_hook), stream(), staleness=staleness)
  states = list(run.iterate(first_state(), [(items(),)] * 3))
  if not staleness:
    np.testing.assert_array_equal(states[-1], eager(3))
  assert [sorted(calls[i : i + 4]) for i in (0, 4, 8)] == [[0, 2, 4, 6]] * 3


def test_a_call_that_fails_is_named():
  def answer_hook(item):
    if item == 4:
      raise ValueError("no answer")

  run = planned(make_flow(answer_hook), stream())
  with pytest.raises(
    runtime.StageError, match="'answer' failed on items 4 to 6 of iteration 0"
  ):
    run(first_state(), items())


def test_a_service_is_not_called_to_compile_ahead():
  calls = []
  run = planned(make_flow(calls.append), stream())
  run.prepare(first_state(), items())
  assert not calls


@pytest.mark.slow
@pytest.mark.parametrize(
  "plan", ["collocated", "disaggregated", "hybrid", "auto", "online"]
)
def test_it_runs_under_planners_on_whatever_slots_there_are(plan):
  run = runtime.m2flow(make_flow(), plan=plan, machine=machines.of_process(1))
  np.testing.assert_array_equal(run(first_state(), items()), eager())
  slots = run.profile.device_classes("answer")
  assert slots == (machines.HOST,)


def test_arrivals_by_hand():
  # Spans 0, 1, 2 are alike; span 3 is smaller and comes last. Task 10 + k is
  # the call of span k, task 20 + k the k-th granule of a reader with 4 items
  # in each span.
  arrivals = streams.Arrivals(
    streams.Stream(
      spans=((10,), (11,), (12,), (13,)),
      num_alike=3,
      span_of={20 + k: k for k in range(4)},
      size_of=dict.fromkeys(range(20, 24), 4),
    )
  )
  assert arrivals.finish(12) == (10,)  # the first to come takes place 0
  assert arrivals.items(20, (0, 4)) == (8, 12)
  assert arrivals.finish(13) == ()
  assert arrivals.finish(10) == (11,)
  assert arrivals.finish(11) == (12, 13)
  assert arrivals.items(22, (8, 12)) == (4, 8)
  assert arrivals.items(23, (12, 14)) == (12, 14)


def test_without_any_alike_calls_end_in_the_plan_order():
  arrivals = streams.Arrivals(streams.Stream(spans=((5,), (6,), (7,))))
  assert arrivals.finish(6) == ()
  assert arrivals.finish(5) == (5, 6)
  assert arrivals.finish(7) == (7,)


def test_a_call_that_ends_after_its_run_is_no_part_of_the_next():
  is_late, go_on = True, threading.Event()

  def answer_hook(item):
    if item != 2:
      return
    if is_late:
      go_on.wait(PATIENCE_S)
    else:
      go_on.set()  # the call of the run before ends in this one
      time.sleep(0.2)

  run = planned(make_flow(answer_hook), stream(), deadline_s=0.5)
  with pytest.raises(runtime.DeadlineError):
    run(first_state(), items())
  is_late = False
  np.testing.assert_array_equal(run(first_state(), items()), eager())
