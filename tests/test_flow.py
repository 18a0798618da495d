"""Laws of stages and loops: every way to run a flow gives its numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlinf_jax import flow
from rlinf_jax.runtime import meshes

pytestmark = pytest.mark.optimised

X = jnp.linspace(-1.0, 1.0, 16 * 3, dtype=jnp.float32).reshape(16, 3)


@flow.stage(items={1: 0})
def act(w, x_b):
  return jnp.tanh(x_b @ w), {"norm": jnp.sum(x_b * x_b, axis=1)}


@flow.stage(items={1: 0, 2: 0}, reduces="sum", quantum=2)
def grad(w, x_b, y_b):
  loss = lambda w: jnp.sum(jnp.square(jnp.tanh(x_b @ w) - y_b))
  return jax.grad(loss)(w), jnp.asarray(x_b.shape[0], jnp.float32)


@flow.stage
def apply_update(w, grad_sum, weight):
  return w - 0.1 * grad_sum / weight


def iteration(w, x_b):
  def body(w, scale):
    y_b, info = act(w, x_b * scale)
    return apply_update(w, *grad(w, x_b, y_b * 0.5)), info["norm"]

  return flow.loop(body, w, jnp.asarray([1.0, 0.5, 0.25], jnp.float32))


def weights(seed=0):
  return jax.random.normal(jax.random.key(seed), (3, 3), jnp.float32)


def assert_same(a, b):
  jax.tree.map(np.testing.assert_array_equal, a, b)


def assert_close(a, b):
  # DESIGN.md section 5.1: relative to the largest entry of a leaf.
  def check(x, y):
    assert np.max(np.abs(x - y)) <= 1e-5 * np.max(np.abs(y))

  jax.tree.map(check, a, b)


def test_eager_runs_each_stage_and_equals_plain_functions_bitwise():
  w = weights()
  y_b, _ = act(w, X)
  assert_same(y_b, jax.jit(lambda w, x: jnp.tanh(x @ w))(w, X))


def test_fused_equals_eager():
  assert_close(flow.fuse(iteration)(weights(), X), iteration(weights(), X))


@pytest.mark.parametrize(
  "num_devices",
  [1, 2, *(pytest.param(n, marks=pytest.mark.slow) for n in (4, 8))],
)
def test_quanta_make_any_number_of_devices_bitwise_equal(num_devices):
  mesh = meshes.items_mesh(num_devices)
  w = jax.device_put(weights(), meshes.replicate(weights(), mesh))
  x_b = jax.device_put(X, meshes.split(X, mesh))
  on_mesh, _ = flow.fuse(iteration, mesh=mesh)(w, x_b)
  one, _ = flow.fuse(iteration, mesh=meshes.items_mesh(1))(weights(), X)
  assert_same(on_mesh, one)


def test_sum_of_quanta_is_taken_in_item_order():
  # In float32, (1 + 1e8) - 1e8 = 0 but 1 + (1e8 - 1e8) = 1.
  @flow.stage(items={0: 0}, reduces="sum", quantum=1)
  def total(x_b):
    return jnp.sum(x_b)

  assert total(jnp.asarray([1.0, 1e8, -1e8], jnp.float32)) == 0.0
  assert total(jnp.asarray([1e8, -1e8, 1.0], jnp.float32)) == 1.0


def test_sums_of_quanta_are_not_all_in_memory_at_once():
  @flow.stage(items={1: 0}, reduces="sum", quantum=1)
  def products(w, x_b):
    return w * x_b[0]

  w, x_b = jnp.full((1000,), -0.0), jnp.ones((64,))
  program = flow.fuse(lambda w, x_b: products(w, x_b))
  program = program.lower(w, x_b).compile()
  assert program.memory_analysis().temp_size_in_bytes < 4 * w.nbytes
  # -0 and no more: nothing was added to 0.
  assert jnp.signbit(program(w, x_b)).all()


def test_without_a_quantum_a_mesh_is_close():
  whole = flow.stage(grad.fn, items={1: 0, 2: 0}, reduces="sum", name="whole")
  fn = lambda w, x_b: whole(w, x_b, x_b)
  mesh = meshes.items_mesh(8)
  w = jax.device_put(weights(), meshes.replicate(weights(), mesh))
  x_b = jax.device_put(X, meshes.split(X, mesh))
  assert_close(flow.fuse(fn, mesh=mesh)(w, x_b), flow.fuse(fn)(weights(), X))


def test_vmap_over_seeds_equals_one_seed_at_a_time():
  ws = jnp.stack([weights(0), weights(1)])
  both, _ = flow.fuse(jax.vmap(iteration, in_axes=(0, None)))(ws, X)
  for i in range(2):
    one, _ = flow.fuse(iteration)(ws[i], X)
    assert_close(both[i], one)


def test_vmap_over_seeds_runs_on_a_mesh():
  ws = jnp.stack([weights(0), weights(1)])
  fn = jax.vmap(iteration, in_axes=(0, None))
  mesh = meshes.items_mesh(4)
  args = (
    jax.device_put(ws, meshes.replicate(ws, mesh)),
    jax.device_put(X, meshes.split(X, mesh)),
  )
  assert_close(flow.fuse(fn, mesh=mesh)(*args)[0], flow.fuse(fn)(ws, X)[0])


def test_a_stage_is_one_equation_of_the_jaxpr():
  jaxpr = jax.make_jaxpr(lambda w, x: act(w, x))(weights(), X)
  assert [e.primitive.name for e in jaxpr.eqns] == ["stage"]
  assert jaxpr.eqns[0].params["call"].spec.name == "act"


def test_fusing_compiles_once_for_equal_shapes():
  count = 0

  @flow.stage
  def counted(x):
    nonlocal count
    count += 1
    return x + 1.0

  run = flow.fuse(lambda x: counted(x))
  run(X)
  run(X * 2.0)
  counted(X)
  first = count
  counted(X * 3.0)
  assert count == first


def test_loop_returns_what_scan_does():
  body = lambda c, x: (c + x, c * x)
  xs = jnp.arange(4.0)
  assert_same(
    flow.loop(body, jnp.float32(1.0), xs),
    jax.lax.scan(body, jnp.float32(1.0), xs),
  )


def test_loop_without_one_number_of_turns_is_refused():
  with pytest.raises(ValueError, match=r"one number of turns, got \[2, 3\]"):
    flow.loop(lambda c, x: (c, x), jnp.zeros(2), jnp.zeros(2), length=3)


def test_gradient_through_a_stage_is_refused_with_its_name():
  with pytest.raises(TypeError, match="gradient was taken through stage 'act'"):
    jax.grad(lambda w: jnp.sum(act(w, X)[0]))(weights())


def test_a_traced_value_from_outside_is_refused_with_the_stage_name():
  @jax.jit
  def outer(x):
    @flow.stage
    def inner(y):
      return y * x

    return inner(x)

  with pytest.raises(ValueError, match="stage 'inner' closes over a traced"):
    outer(X)


def test_items_of_unequal_number_are_refused():
  with pytest.raises(ValueError, match=r"'grad' got arguments with \[4, 16\]"):
    grad(weights(), X, X[:4])


def test_a_quantum_that_does_not_divide_is_refused():
  with pytest.raises(ValueError, match="3 items in quanta of 2; use a quantum"):
    grad(weights(), X[:3], X[:3])


def test_devices_that_do_not_divide_the_items_are_refused():
  mesh = meshes.items_mesh(4)
  x_b = jnp.zeros((6, 3))
  with pytest.raises(ValueError, match="6 items, which 4 devices do not"):
    flow.fuse(lambda w, x_b: act(w, x_b), mesh=mesh)(weights(), x_b)


def test_a_reduction_that_does_not_exist_is_refused_with_the_choices():
  with pytest.raises(
    ValueError, match=r"reduces='max'; choose from \('sum',\)"
  ):
    flow.stage(lambda x: x, items={0: 0}, reduces="max", name="f")


@pytest.mark.parametrize("place", ["host", "process"])
def test_a_reduction_on_the_host_is_refused(place):
  with pytest.raises(ValueError, match="sum them in a stage on a mesh"):
    flow.stage(
      lambda x: x,
      items={0: 0},
      reduces="sum",
      place=place,
      out_fn=lambda x: x,
      name="f",
    )


def test_more_devices_than_there_are_is_refused():
  with pytest.raises(ValueError, match="num_devices is 9, but 8 cpu devices"):
    meshes.items_mesh(9)
