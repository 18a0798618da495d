"""Profiles hold what an executor takes, and what a plan needs to know."""

import threading
import time

import jax
import jax.numpy as jnp
import pytest

from rlinf_jax import flow, runtime
from rlinf_jax.runtime import (
  executables,
  graphs,
  machines,
  measurements,
  tracing,
)
from scheduler import clusters, documents, plans, profiles
from tests.runtime import flows

ITEM_S = 4e-3


def same(x_b):
  return jax.ShapeDtypeStruct(x_b.shape, x_b.dtype)


@flow.stage(items={0: 0}, place="host", out_fn=same)
def sleep(x_b):
  time.sleep(ITEM_S * len(x_b))
  return x_b + 1


@flow.stage(items={0: 0})
def double(x_b):
  return 2 * x_b


def described(fn, *args):
  traced = tracing.trace(fn, *args)
  return graphs.describe(traced), executables.Executables(traced.program)


def measured(fn, args, machine, **kwargs):
  graph, compiled = described(fn, *args)
  return measurements.measure(
    graph, machine, jax.tree.leaves(args), compiled=compiled, **kwargs
  )


def law(profile, stage):
  (entry,) = [e for e in profile.entries if e.stage == stage]
  return entry.law


@pytest.fixture(scope="module")
def slept():
  args = (jnp.arange(8, dtype=jnp.int32),)
  machine = machines.of_process(1, num_host_slots=4)
  return measured(lambda x: sleep(x), args, machine)


def test_a_stage_that_sleeps_takes_as_long_as_it_sleeps(slept):
  for sample in law(slept, "sleep").samples:
    least_s = ITEM_S * sample.granule / min(sample.devices, sample.granule)
    assert least_s <= sample.seconds < 2 * least_s + 20e-3


def test_all_items_and_a_quarter_come_first_and_the_numbers_between_last():
  graph, _ = described(lambda x: sleep(x), jnp.arange(8))
  machine = machines.of_process(1, num_host_slots=6)
  found = measurements.points(graph, machine)
  assert [(p.granule, p.devices) for p in found] == [
    (8, 1),
    (2, 1),
    (8, 6),
    (2, 6),
    (8, 2),
    (2, 2),
    (8, 4),
    (2, 4),
  ]


def test_handing_a_task_out_is_measured(slept):
  (sample,) = law(slept, measurements.HAND_OFF).samples
  assert 0 < sample.seconds < 5e-3


def test_links_are_measured_to_two_digits():
  found = measurements.links(machines.of_process(2))
  for rate in (found.host_bytes_per_s, found.intra_node_bytes_per_s):
    assert rate > 1e6
    assert rate == float(f"{rate:.1e}")
  assert 0 < found.latency_s < 1.0


def broken(place, calls_before):
  """Returns a flow whose stage raises after some calls."""
  left = iter(range(calls_before))

  def fn(x_b):
    if next(left, None) is None:
      raise ZeroDivisionError("no more")
    return x_b

  stage = flow.stage(fn, items={0: 0}, place=place, out_fn=same, name="counts")
  return lambda x_b: stage(x_b)


@pytest.mark.parametrize("place", ["host", "process"])
@pytest.mark.parametrize("calls_before", [0, 1])
def test_a_stage_that_raises_when_it_is_measured_is_named(place, calls_before):
  machine = machines.of_process(1, num_host_slots=1)
  fn = broken(place, calls_before)
  with pytest.raises(runtime.StageError, match="stage 'counts'") as caught:
    measured(fn, (jnp.arange(8),), machine)
  assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_stage_that_raises_on_a_mesh_is_named():
  def fails(x_b):
    raise ZeroDivisionError("never")

  @flow.stage(items={0: 0})
  def calls_back(x_b):
    return jax.pure_callback(fails, same(x_b), x_b)

  machine = machines.of_process(1)
  with pytest.raises(runtime.StageError, match="stage 'calls_back'"):
    measured(lambda x: calls_back(x), (jnp.arange(8),), machine)


@pytest.mark.parametrize("num_calls", [0, 3])
def test_a_stage_that_hangs_when_it_is_measured_is_given_up(num_calls):
  left, released = iter(range(num_calls)), threading.Event()

  def fn(x_b):
    if next(left, None) is None:
      released.wait(60.0)
    return x_b

  stage = flow.stage(fn, items={0: 0}, place="host", out_fn=same, name="hangs")
  machine = machines.of_process(1, num_host_slots=1)
  run = runtime.m2flow(
    lambda x: stage(x), plan="collocated", machine=machine, deadline_s=0.3
  )
  with pytest.raises(runtime.DeadlineError, match="stage 'hangs' was run"):
    run.prepare(jnp.arange(8))
  released.set()


@pytest.mark.slow
def test_what_a_plan_uses_beyond_the_first_points_is_measured_too():
  machine = machines.of_process(1, num_host_slots=4)
  graph, compiled = described(lambda x: sleep(x), jnp.arange(8))

  def plan_fn(profile):
    del profile
    return plans.FlatPlan(
      resources=(plans.Resource(name="1-2", devices=plans.Devices.span(1, 3)),),
      activities=(
        plans.Activity(
          kind="compute",
          stage="sleep",
          resources=(0,),
          duration_ns=1,
          items=(0, 4),
        ),
      ),
      arcs=(),
      orders=((plans.Slot(activity=0),),),
    )

  profile = measurements.measure(
    graph, machine, [jnp.arange(8)], compiled=compiled, plan_fn=plan_fn
  )
  found = {(s.granule, s.devices) for s in law(profile, "sleep").samples}
  assert (4, 2) in found


@pytest.mark.slow
def test_without_time_every_stage_is_measured_once():
  machine = machines.of_process(2)
  args = (flows.first_state(), *flows.keys(1))
  profile = measured(flows.iteration, args, machine, budget_s=0.0)
  for stage in ("act", "simulate", "score", "grad", "apply_update"):
    assert len(law(profile, stage).samples) == 1
  assert law(profile, "score").samples[0].num_bytes > 0
  assert "act+simulate" in [e.stage for e in profile.entries]


def test_a_profile_is_read_again_where_it_fits(tmp_path):
  path = tmp_path / "profile.json"
  args = (jnp.arange(8, dtype=jnp.int32),)
  graph, _ = described(lambda x: sleep(x), *args)
  machine = machines.of_process(1, num_host_slots=1)
  assert measurements.read(path, graph, machine) is None
  first = measured(lambda x: sleep(x), args, machine, budget_s=0.0)
  documents.write(first, path)
  assert measurements.read(path, graph, machine) == first
  more = machines.of_process(1, num_host_slots=2)
  assert measurements.read(path, graph, more) is None


def test_links_and_compile_times_are_kept_and_used_again(tmp_path, monkeypatch):
  path = tmp_path / "profile.json"

  def prepare():
    run = runtime.m2flow(
      lambda x: double(x),
      plan="collocated",
      machine=machines.of_process(2),
      profile_path=path,
      measure_s=0.0,
    )
    return run.prepare(jnp.arange(8.0, dtype=jnp.float32))

  links = prepare().machine.cluster.links
  profile = documents.read(profiles.Profile, path)
  assert profile.links == links
  # Planners take the slower way; a profile has both, and the devices' own.
  ways = links.to_device_bytes_per_s, links.to_host_bytes_per_s
  assert links.host_bytes_per_s == min(ways)
  assert links.intra_node_bytes_per_s != clusters.Links().intra_node_bytes_per_s
  (entry,) = [e for e in profile.entries if e.stage == "double"]
  assert entry.compile_s > 0
  monkeypatch.setattr(measurements, "links", lambda machine: pytest.fail())
  assert prepare().machine.cluster.links == links


def test_nothing_is_compiled_once_a_flow_is_prepared():
  machine = machines.of_process(2)
  tree = plans.Spatial(
    children=(
      flows.lanes("0", "0"),
      plans.Temporal(
        children=tuple(
          flows.run(name, "1", 1 if name == "apply_update" else 8)
          for name in ("score", "grad", "apply_update")
        )
      ),
    )
  )
  run = runtime.m2flow(
    flows.iteration,
    plan=plans.TreePlan(root=tree),
    machine=machine,
    profile=flows.profile(machine.mesh_class),
  )
  compiled = run.prepare(flows.first_state(), *flows.keys(1)).compiled
  before = len(compiled.compilations)
  for _ in run.iterate(flows.first_state(), [(key,) for key in flows.keys(3)]):
    pass
  assert before and len(compiled.compilations) == before
