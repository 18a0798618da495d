"""A profile is measured anew where what was timed has changed."""

import functools

import jax
import jax.numpy as jnp
import pytest

from rlinf_jax import flow
from rlinf_jax.runtime import fingerprints, graphs, machines, tracing

X = jnp.ones((4, 2), jnp.float32)


def same(x_b):
  return jax.ShapeDtypeStruct(x_b.shape, x_b.dtype)


def of(fn, *args, num_devices=1):
  graph = graphs.describe(tracing.trace(fn, *(args or (X,))), name="flow")
  return fingerprints.of(
    graph, machines.of_process(num_devices, num_host_slots=1)
  )


def stage_of(fn, **options):
  """A flow of one stage, always called by the same name."""
  stage = flow.stage(fn, name="stage", **options)
  return of(lambda x: stage(x))


def updates(num):
  """A loop of updates, which planners see as one stage of one item."""

  @flow.stage(items={1: 0}, reduces="sum")
  def grad(w, x_b):
    return jnp.sum(x_b) * w

  @flow.stage
  def apply(w, g):
    return w - g

  def fn(state):
    w, x_b = state
    w, _ = flow.loop(lambda w, _: (apply(w, grad(w, x_b)), 0), w, length=num)
    return w, x_b

  return of(fn, (jnp.float32(1.0), X))


def test_the_same_flow_written_twice_has_one_fingerprint():
  first = stage_of(lambda x_b: jnp.tanh(x_b), items={0: 0})
  # Another function on another line, and a comment.
  assert stage_of(lambda x_b: jnp.tanh(x_b), items={0: 0}) == first


def test_another_function_of_the_same_shapes_is_measured_anew():
  first = stage_of(lambda x_b: jnp.tanh(x_b), items={0: 0})
  assert stage_of(lambda x_b: jnp.sin(x_b), items={0: 0}) != first


def test_more_updates_in_a_loop_are_measured_anew():
  assert updates(4) == updates(4)
  assert updates(4) != updates(16)


def test_another_quantum_is_measured_anew():
  fn = lambda x_b: jnp.tanh(x_b)
  one, two = (stage_of(fn, items={0: 0}, quantum=q) for q in (1, 2))
  assert one != two


def test_another_glue_is_measured_anew():
  stage = flow.stage(lambda x_b: x_b + 1, items={0: 0}, name="stage")
  assert of(lambda x: stage(stage(x)[::-1])) != of(lambda x: stage(stage(x)))


def test_another_precision_is_measured_anew():
  fn = lambda x_b: jnp.tanh(x_b)
  first = stage_of(fn, items={0: 0})
  with jax.default_matmul_precision("float32"):
    assert stage_of(fn, items={0: 0}) != first
  assert stage_of(fn, items={0: 0}) == first


def test_more_devices_are_measured_anew():
  stage = flow.stage(lambda x_b: x_b + 1, items={0: 0}, name="stage")
  fn = lambda x: stage(x)
  assert of(fn, X, num_devices=1) != of(fn, X, num_devices=2)


@pytest.mark.parametrize("wrap", [lambda fn: fn, functools.partial])
def test_a_host_stage_is_known_by_its_code(wrap):
  host = {"items": {0: 0}, "place": "host", "out_fn": same}
  first = stage_of(wrap(lambda x_b: x_b + 1), **host)
  assert stage_of(wrap(lambda x_b: x_b + 1), **host) == first
  assert stage_of(wrap(lambda x_b: x_b + 2), **host) != first
  assert stage_of(wrap(lambda x_b: max(x_b, 1)), **host) != first


def test_a_host_stage_may_be_any_callable():
  class Adds:
    def __call__(self, x_b):
      return x_b + 1

  host = {"items": {0: 0}, "place": "host", "out_fn": same}
  assert stage_of(Adds(), **host) == stage_of(Adds(), **host)
