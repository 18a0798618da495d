"""What is predicted beyond planners: shared cores, and loops as one program."""

import jax.numpy as jnp
import pytest

from rlinf_jax import flow
from rlinf_jax.runtime import (
  graphs,
  machines,
  measurements,
  predictions,
  tracing,
)
from scheduler import evaluation
from scheduler.devices import Devices
from scheduler.plans import Run, Spatial, Temporal, TreePlan
from scheduler.profiles import Entry, Profile, Sample, Table
from tests.runtime import flows


@flow.stage(items={0: 0})
def left(x_b):
  return x_b + 1


@flow.stage(items={0: 0})
def right(x_b):
  return x_b * 2


def both(x_b):
  return left(x_b) + right(x_b)


def one(stage, device, granule=8):
  return Run(stage=stage, devices=Devices.of([device]), granule=granule)


def machine(num_devices):
  return machines.of_process(num_devices)


def table(seconds, cores=0.0, granule=8):
  return Table(
    samples=(Sample(granule=granule, devices=1, seconds=seconds, cores=cores),),
    extrapolate=True,
  )


def predict(tree, entries, on, **kwargs):
  graph = graphs.describe(tracing.trace(both, jnp.arange(8)))
  profile = Profile(entries=tuple(entries))
  flat = evaluation.evaluate(
    TreePlan(root=tree), graph.workflow, profile, on.cluster
  ).flat
  return predictions.predict(flat, graph, profile, on, **kwargs)


def entries(on, cores, seconds=(1.0, 1.0)):
  return [
    Entry(stage=name, device_class=on.mesh_class, law=table(s, cores))
    for name, s in zip(("left", "right"), seconds)
  ]


SIDE_BY_SIDE = Spatial(children=(one("left", 0), one("right", 1)))


def cores_of(on):
  return on.cluster.nodes[0].num_cores


def test_two_stages_that_want_all_cores_take_as_long_as_one_after_another():
  on = machine(2)
  found = predict(SIDE_BY_SIDE, entries(on, cores=cores_of(on)), on)
  assert found.apart_s == pytest.approx(1.0)
  assert found.seconds == pytest.approx(2.0)
  assert found.busy_cores == pytest.approx(cores_of(on))


def test_what_is_left_alone_goes_on_at_full_speed():
  on = machine(2)
  # Both at half speed until the shorter one is done after 2 s, having had 1 s
  # of work; 2 s of the longer one are left: 4 s.
  found = predict(
    SIDE_BY_SIDE, entries(on, cores=cores_of(on), seconds=(1.0, 3.0)), on
  )
  assert found.seconds == pytest.approx(4.0)


def test_stages_that_together_want_no_more_than_the_cores_do_not_wait():
  on = machine(2)
  found = predict(SIDE_BY_SIDE, entries(on, cores=cores_of(on) / 2), on)
  assert found.seconds == pytest.approx(1.0)
  assert "if devices did not share" not in str(found)


def test_nothing_is_shared_where_nothing_is_known():
  on = machine(2)
  assert predict(SIDE_BY_SIDE, entries(on, 0.0), on).seconds == 1.0


def test_one_program_is_not_handed_out_and_not_read_between_iterations():
  on = machine(1)
  known = entries(on, 0.0) + [
    Entry(stage=name, device_class=on.mesh_class, law=table(seconds, granule=1))
    for name, seconds in (
      (measurements.HAND_OFF, 0.1),
      (measurements.BETWEEN, 0.5),
    )
  ]
  tree = Temporal(children=(one("left", 0), one("right", 0)))
  apart = predict(tree, known, on)
  together = predict(tree, known, on, is_one_program=True)
  assert apart.seconds == pytest.approx(2.5)
  assert together.seconds == pytest.approx(1.8)


def test_a_loop_on_one_device_takes_what_it_takes_as_one_program():
  on = machine(2)
  graph = graphs.describe(
    tracing.trace(flows.iteration, flows.first_state(), *flows.keys(1))
  )
  profile = flows.profile(on.mesh_class)
  loop = Entry(
    stage="act+simulate",
    device_class=on.mesh_class,
    law=table(0.01, granule=1),
  )
  profile = Profile(entries=(*profile.entries, loop))
  tree = Spatial(
    children=(
      flows.lanes("0", "0"),
      Temporal(
        children=tuple(
          flows.run(name, "1", 1 if name == "apply_update" else 16)
          for name in ("score", "grad", "apply_update")
        )
      ),
    )
  )
  flat = evaluation.evaluate(
    TreePlan(root=tree), graph.workflow, profile, on.cluster
  ).flat
  found = predictions.predict(flat, graph, profile, on)
  assert found.stage_s["act"] == pytest.approx(0.01)
  assert found.stage_s.get("simulate", 0.0) < 1e-6  # weights that are synced
