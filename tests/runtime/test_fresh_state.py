"""State that a stage reads fresh, while what passes a sync may be old."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlinf_jax import flow, runtime
from rlinf_jax.runtime import graphs, machines, tracing
from scheduler.workflows import WeightSync


@flow.stage(items={1: 0}, quantum=2)
def act(w, x_b):
  return jnp.tanh(x_b @ w)


@flow.stage(items={1: 0}, quantum=2)
def judge(w, a_b):
  return jnp.sum(a_b @ w, axis=1)


@flow.stage(items={1: 0, 2: 0}, reduces="sum", quantum=2)
def grad(w, a_b, score_b):
  return jax.grad(lambda w: jnp.sum(jnp.tanh(a_b @ w) * score_b[:, None]))(w)


@flow.stage
def apply_update(w, grad_sum):
  return w - 0.01 * grad_sum


def iteration(w, x_b):
  a_b = act(flow.sync(w), x_b)
  score_b = judge(w, a_b)
  return apply_update(w, grad(w, a_b, score_b)), score_b


def reference(w, inputs, staleness):
  versions, scores = [w], []
  for i, x_b in enumerate(inputs):
    w = versions[-1]
    a_b = act(versions[max(i - staleness, 0)], x_b)
    score_b = judge(w, a_b)
    versions.append(apply_update(w, grad(w, a_b, score_b)))
    scores.append(score_b)
  return versions[-1], scores


def inputs(num):
  return list(jax.random.normal(jax.random.key(3), (num, 8, 3)))


@pytest.mark.slow
@pytest.mark.parametrize("planner", ["disaggregated", "hybrid"])
@pytest.mark.parametrize("staleness", [1, 2])
def test_it_is_the_last_iterations_whatever_the_staleness(staleness, planner):
  run = runtime.m2flow(
    iteration,
    plan=planner,
    staleness=staleness,
    machine=machines.of_process(3),
    measure_s=0.5,
    deadline_s=60.0,
  )
  given = inputs(5)
  found = list(run.iterate(jnp.eye(3), [(x,) for x in given]))
  w, scores = reference(jnp.eye(3), given, staleness)
  np.testing.assert_array_equal(found[-1][0], w)
  for (_, score), expected in zip(found, scores):
    np.testing.assert_array_equal(score, expected)


def test_the_workflow_says_which_reads_are_fresh():
  traced = tracing.trace(iteration, jnp.eye(3), inputs(1)[0])
  graph = graphs.describe(traced, staleness=1)
  assert set(graph.workflow.syncs) == {
    WeightSync(source="apply_update", target="act", num_bytes=36),
    WeightSync(
      source="apply_update", target="judge", num_bytes=36, is_fresh=True
    ),
    WeightSync(
      source="apply_update", target="grad", num_bytes=36, is_fresh=True
    ),
  }
