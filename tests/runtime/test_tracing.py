"""What tracing sees of a macro flow, and what it refuses."""

import linecache
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlinf_jax import flow
from rlinf_jax.runtime import graphs, names, programs, tracing
from scheduler import errors
from scheduler.workflows import Constant, Edge, WeightSync
from tests.runtime import flows

X = jnp.ones((4, 2), jnp.float32)


@flow.stage(items={0: 0})
def double(x_b):
  return 2.0 * x_b


@flow.stage(items={0: 0})
def halve(x_b):
  return 0.5 * x_b


@flow.stage
def total(x_b):
  return jnp.sum(x_b)


def graph_of(fn, *args, **kwargs):
  return graphs.describe(tracing.trace(fn, *args), **kwargs)


@pytest.fixture(scope="module")
def example():
  return graph_of(flows.iteration, flows.first_state(), jax.random.key(0))


def test_a_flow_becomes_stages_edges_loops_and_syncs(example):
  workflow = example.workflow
  assert {s.name: s.items for s in workflow.stages} == {
    "act": 16,
    "simulate": 16,
    "score": 16,
    "grad": 16,
    "apply_update": 1,
  }
  (loop,) = workflow.loops
  assert (loop.stages, loop.turns) == (("act", "simulate"), flows.TURNS)
  # Weights are 3 x 3 float32; act reads them through flow.sync alone.
  assert set(workflow.syncs) == {
    WeightSync(source="apply_update", target="act", num_bytes=36),
    WeightSync(
      source="apply_update", target="grad", num_bytes=36, is_fresh=True
    ),
  }
  # Three float32 of observation per item pass from simulate to grad.
  by_ends = {(e.source, e.target): e for e in workflow.edges}
  assert by_ends["simulate", "grad"] == Edge(
    source="simulate", target="grad", item_bytes=12
  )
  assert by_ends["simulate", "act"].reads == "items"
  assert by_ends["grad", "apply_update"].reads == "all"


def test_state_is_what_comes_back_in_the_same_place(example):
  assert example.traced.num_state == 2
  # The first leaf is the weights: grad and apply_update read them whole.
  assert example.weights["grad"] == (0,)
  assert example.weights["apply_update"] == (0,)


def test_edges_are_called_what_their_readers_call_them(example):
  called = {(e.source, e.target): e.name for e in example.workflow.edges}
  assert called == {
    ("act", "simulate"): "a_b",
    ("simulate", "act"): "x_b",
    ("simulate", "score"): "reward_tb",
    ("simulate", "grad"): "x_b",
    ("score", "grad"): "score_bt",
    ("grad", "apply_update"): "grad_sum, weight",
  }
  assert {sync.name for sync in example.workflow.syncs} == {"state.0"}
  assert example.traced.names == ("state.0", "state.1", "key")


def test_leaves_of_one_argument_have_one_name():
  stage = flow.stage(lambda net: net["a"]["x"] + net["a"]["y"], name="net")
  both = graph_of(lambda x: stage({"a": {"x": x, "y": double(x)}, "b": x}), X)
  (edge,) = both.workflow.edges
  assert edge.name == "net.a.y"
  three = lambda x: {"a": {"x": double(x), "y": double(x)}, "b": x}
  (one, two) = graph_of(lambda x: stage(three(x)), X).workflow.edges
  assert (one.name, two.name) == ("net.a.x", "net.a.y")
  assert names.joined(["net.a.x", "net.a.y", "key"]) == "net.a, key"
  assert names.joined(["net.a.x", "net.b"]) == "net"


def test_what_no_iteration_changes_is_marked():
  def fn(state):
    x, scale = state
    return halve(double(x) + 0 * double(scale)), scale

  workflow = graph_of(fn, (X, X)).workflow
  same = {e.source: e.is_invariant for e in workflow.edges}
  assert same == {"double": False, "double#2": True}
  assert workflow.constants == (
    Constant(target="double#2", name="state.1", num_bytes=32),
  )
  assert "double#2 (x_b; the same in every iteration)" in str(workflow)


def test_a_program_evaluates_to_what_the_flow_returns(example):
  args = jax.tree.leaves((flows.first_state(), jax.random.key(0)))
  out = programs.evaluate(
    example.traced.program,
    args,
    stage_fn=programs.call_stage,
    loop_fn=programs.call_loop,
  )
  expected = flows.iteration(flows.first_state(), jax.random.key(0))
  for x, y in zip(out, jax.tree.leaves(expected)):
    np.testing.assert_allclose(x, y, rtol=1e-6)


def test_a_stage_called_twice_is_two_nodes():
  graph = graph_of(lambda x: double(double(x)), X)
  assert [s.name for s in graph.workflow.stages] == ["double", "double#2"]


def test_items_pass_directly_but_not_through_glue():
  direct = graph_of(lambda x: halve(double(x)), X).workflow.edges
  assert [e.reads for e in direct] == ["items"]
  reversed_ = graph_of(lambda x: halve(double(x)[::-1]), X).workflow.edges
  assert [e.reads for e in reversed_] == ["all"]


def test_glue_that_rounds_is_named_with_its_line():
  traced = tracing.trace(lambda x: halve(double(x) * 0.3), X)
  (where,) = traced.inexact
  assert where.startswith("mul at ")
  assert "test_tracing.py:" in where


def test_glue_that_only_moves_values_is_exact():
  traced = tracing.trace(lambda x: halve(double(x)[::-1].reshape(4, 2)), X)
  assert traced.inexact == ()


def test_an_unused_stage_is_left_out_with_a_warning():
  def fn(x):
    halve(x)
    return double(x)

  with pytest.warns(UserWarning, match="what stage 'halve'.*tracing.py:"):
    graph = graph_of(fn, X)
  assert [s.name for s in graph.workflow.stages] == ["double"]


@pytest.mark.parametrize("hide", [jax.jit, jax.checkpoint])
def test_a_hidden_stage_is_refused_with_name_and_line(hide):
  with pytest.raises(TypeError, match="stage 'double' is hidden inside .* at"):
    tracing.trace(hide(lambda x: double(x)), X)


NEEDS_VALUES = {
  "branches in Python on": lambda x_b: x_b if jnp.sum(x_b) > 0 else -x_b,
  "makes a NumPy array of": lambda x_b: jnp.asarray(np.sin(x_b)),
  "makes a Python index, or a size, of": lambda x_b: (
    x_b * [0.0, 1.0][x_b[0, 0].astype(jnp.int32)]
  ),
  "selects as many elements as are true in": lambda x_b: x_b[x_b > 0],
  "makes a Python number of": lambda x_b: x_b * float(x_b[0, 0]),
}


def line(error):
  """Returns the line of this file that an error names."""
  found = re.search(r"test_tracing\.py:(\d+)", str(error.value))
  return linecache.getline(__file__, int(found[1]))


@pytest.mark.parametrize("did", NEEDS_VALUES)
def test_a_flow_that_needs_a_value_is_refused_with_line_and_remedy(did):
  with pytest.raises(TypeError, match=f"the macro flow {did} a value") as error:
    tracing.trace(lambda x: NEEDS_VALUES[did](double(x)), X)
  assert "x_b" in line(error)
  assert "; " in str(error.value)


@pytest.mark.parametrize("did", NEEDS_VALUES)
@pytest.mark.parametrize("run", [tracing.trace, lambda fn, x: fn(x)])
def test_a_stage_that_needs_a_value_is_named_with_its_line(run, did):
  stage = flow.stage(NEEDS_VALUES[did], items={0: 0}, name="mine")
  with pytest.raises(TypeError, match=f"stage 'mine' {did} a value") as error:
    run(lambda x: stage(x), X)
  assert "x_b" in line(error)


def test_a_branch_in_a_loop_is_named_with_its_line():
  def body(x, _):
    return double(x) if jnp.sum(x) > 0 else x, None  # here

  with pytest.raises(TypeError, match="branches in Python") as error:
    tracing.trace(lambda x: flow.loop(body, x, length=3)[0], X)
  assert "# here" in line(error)


def test_a_state_that_changes_its_shape_is_refused():
  with pytest.raises(TypeError, match=r"came in as .*\[4, 2\] and went out"):
    tracing.trace(lambda x: total(x), X)


def test_a_flow_that_returns_no_state_is_refused():
  with pytest.raises(TypeError, match="returns the next state"):
    tracing.trace(lambda state, x: double(x), {"a": X}, X)


@pytest.mark.parametrize(
  "fn",
  [
    lambda x: jnp.sum(double(x)),
    lambda x: jnp.sum(flow.loop(lambda x, _: (double(x), 0), x, length=2)[0]),
  ],
)
def test_a_gradient_through_a_stage_is_refused_with_its_line(fn):
  with pytest.raises(TypeError, match="a gradient was taken") as error:
    tracing.trace(jax.grad(fn), X)
  assert "double" in str(error.value)
  assert "jnp.sum(" in line(error)


def test_staleness_without_a_sync_is_refused():
  with pytest.raises(errors.WorkflowError, match=r"passes flow\.sync"):
    graph_of(lambda x: double(x), X, staleness=1)


def test_a_loop_of_updates_is_one_barrier():
  def fn(w):
    body = lambda w, x: (w + total(double(w) * x), None)
    return flow.loop(body, w, jnp.ones(3))[0]

  graph = graph_of(fn, X)
  (stage,) = graph.workflow.stages
  assert (stage.name, stage.items) == ("double+total", 1)
  assert not graph.workflow.loops


def test_a_loop_whose_glue_mixes_items_has_no_lanes():
  def mixing(x):
    body = lambda x, _: (double(x) - jnp.mean(x, axis=0, keepdims=True), None)
    return flow.loop(body, x, length=3)[0]

  def apart(x):
    body = lambda x, _: (double(x) - jnp.mean(x, axis=1, keepdims=True), None)
    return flow.loop(body, x, length=3)[0]

  assert not graph_of(mixing, X).divisions
  assert graph_of(apart, X).divisions["double"].items == 4


def test_what_is_read_whole_is_as_many_bytes_as_there_are():
  # score hands [16, 3] float32 on, item by item: 12 bytes each. The loop hands
  # its rewards [3, 16] and its state [16, 3] on: 12 bytes an item each.
  graph = graphs.describe(
    tracing.trace(flows.iteration, flows.first_state(), *flows.keys(1))
  )
  edges = {(e.source, e.target): e for e in graph.workflow.edges}
  assert edges["score", "grad"].item_bytes == 12
  assert edges["simulate", "score"].item_bytes == 12
  # The sums over 16 items, [3, 3] and [] float32: 40 bytes, 3 for each item.
  assert edges["grad", "apply_update"].reads == "all"
  assert edges["grad", "apply_update"].item_bytes == 3
