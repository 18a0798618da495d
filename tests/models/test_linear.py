"""The product under every transformation is `@` under it."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlinf_jax.models import linear

B, N, S = 5, 2, 3  # sequences, rows, seeds
KEYS = jax.random.split(jax.random.key(0), 4)
X = jax.random.normal(KEYS[0], (B, N, 3))
XS = jax.random.normal(KEYS[1], (S, B, N, 3))
W = jax.random.normal(KEYS[2], (3, 4))
WS = jax.random.normal(KEYS[3], (S, 3, 4))


def batched(dot):
  return jax.vmap(dot, in_axes=(0, None))


def gradients(dot):
  """Returns those of a sum over `dot`, by x and by the kernel."""
  return jax.grad(lambda x, w: jnp.sum(jnp.sin(dot(x, w))), argnums=(0, 1))


TRANSFORMATIONS = {
  "none": lambda dot: dot(X[0], W),
  "jit": lambda dot: jax.jit(dot)(X[0], W),
  "vmap": lambda dot: batched(dot)(X, W),
  "vmap of another axis": lambda dot: jax.vmap(dot, (1, None), 1)(
    jnp.moveaxis(X, 0, 1), W
  ),
  "vmap of the kernel": lambda dot: jax.vmap(dot, (None, 0))(X[0], WS),
  "grad": lambda dot: gradients(dot)(X[0], W),
  "grad of vmap": lambda dot: gradients(batched(dot))(X, W),
  "vmap of grad": lambda dot: jax.vmap(gradients(dot), (0, None))(X, W),
  "vmap of grad of vmap": lambda dot: jax.vmap(gradients(batched(dot)))(XS, WS),
  "grad of checkpoint": lambda dot: gradients(jax.checkpoint(dot))(X[0], W),
  "jvp": lambda dot: jax.jvp(dot, (X[0], W), (X[1], WS[0])),
  "hessian": lambda dot: jax.hessian(lambda w: jnp.sum(jnp.sin(dot(X[0], w))))(
    W
  ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_product_is_matmul_under(name):
  transformed = TRANSFORMATIONS[name]
  chex.assert_trees_all_close(
    transformed(linear.product), transformed(jnp.matmul), rtol=1e-5, atol=1e-5
  )


def test_vmap_makes_one_product_of_all_rows():
  jaxpr = jax.make_jaxpr(gradients(batched(linear.product)))(X, W)
  shapes = sorted(
    [v.aval.shape for v in e.invars]
    for e in jaxpr.jaxpr.eqns
    if e.primitive.name in ("product", "dot_general")
  )
  # B N = 10 rows and no third axis: forward, by the kernel, by x.
  forward, by_kernel, by_x = (
    [(10, 3), (3, 4)],
    [(10, 3), (10, 4)],
    [(10, 4), (4, 3)],
  )
  assert shapes == [forward, by_kernel, by_x]


def test_precision_is_that_of_the_scope_in_which_the_product_was_traced():
  def scoped(x, w):
    with jax.default_matmul_precision("highest"):
      return linear.product(x, w)

  assert "HIGHEST" in jax.jit(scoped).lower(X[0], W).as_text()
  assert "HIGHEST" not in jax.jit(linear.product).lower(X[0], W).as_text()


@pytest.mark.parametrize("check_vma", [False, True])
def test_gradients_over_a_mesh_are_those_of_one_device(check_vma):
  mesh = jax.make_mesh(
    (4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,)
  )
  rows, everywhere = jax.P("data"), jax.P()
  x = jnp.concatenate([X, XS[0], XS[1], XS[2]])[:16]

  def local(x, w):
    total = lambda w: jnp.sum(jnp.sin(batched(linear.product)(x, w)))
    if check_vma:  # the sum over devices comes with the type of w
      return jax.grad(total)(w)
    return jax.lax.psum(jax.grad(total)(w), "data")

  sharded = jax.shard_map(
    local,
    mesh=mesh,
    in_specs=(rows, everywhere),
    out_specs=everywhere,
    check_vma=check_vma,
  )
  np.testing.assert_allclose(
    jax.jit(sharded)(x, W), gradients(batched(jnp.matmul))(x, W)[1], rtol=1e-5
  )


def test_explicit_shardings_are_followed():
  mesh = jax.make_mesh(
    (2,), ("data",), axis_types=(jax.sharding.AxisType.Explicit,)
  )
  sharding = jax.NamedSharding(mesh, jax.P("data"))
  with jax.set_mesh(mesh):
    y = jax.jit(linear.product)(jax.device_put(X[0], sharding), W)
  np.testing.assert_allclose(y, X[0] @ W, rtol=1e-5)
