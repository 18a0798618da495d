"""A linear layer whose product stays one product under `vmap`.

Policies are written for one sequence, and a weight's gradient sums over all the
sequences of a batch. As `vmap` leaves it, that sum runs over two axes, for
which XLA first transposes what went into the layer. Here `vmap` makes more rows
of more rows instead, and there is one axis to sum over.

Measured on 2 CPU cores (2026-11), gradient of a policy and a value network over
256 sequences of 16 steps: 64 x 64 wide, 4.7 ms instead of 7.7 ms with
`jax.lax.dot_general`; 256 x 256 wide, 46 ms instead of 61 ms of CPU time.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.extend import core as jex_core
from jax.interpreters import ad, batching, mlir

from rlinf_jax.models import initialisation


class Linear(nnx.Module):
  """y = x W + b, with W [in, out] and b [out] float32."""

  def __init__(
    self,
    input_size: int,
    output_size: int,
    *,
    scale: float,
    compute_dtype: jax.typing.DTypeLike,
  ):
    """Builds the layer.

    Args:
      input_size: features of the input.
      output_size: features of the output.
      scale: gain of W's orthogonal initialisation; b starts at 0.
      compute_dtype: of the product and of the output.
    """
    self.kernel = initialisation.orthogonal(
      (input_size, output_size), scale=scale
    )
    self.bias = nnx.Param(jnp.zeros(output_size))
    self.compute_dtype = compute_dtype

  def __call__(self, x: jax.Array) -> jax.Array:
    """Returns y [N, out] of x, float [N, in]."""
    kernel, bias, x = (
      a.astype(self.compute_dtype) for a in (self.kernel, self.bias, x)
    )
    y = product(x, kernel)
    return y + jnp.broadcast_to(bias, y.shape)


def product(x: jax.Array, kernel: jax.Array) -> jax.Array:
  """Returns x @ kernel, in the scope's `jax.default_matmul_precision`.

  Args:
    x: float [N, in].
    kernel: float [in, out], of the same dtype.

  Returns:
    float [N, out].
  """
  # Read now, not when the program is lowered: the scope may have ended by then.
  precision = jax.default_matmul_precision.value
  if _is_ordinary(x) and _is_ordinary(kernel):
    return product_p.bind(x, kernel, precision=precision)
  return _dot(x, kernel, precision=precision)


product_p = jex_core.Primitive("product")


def _is_ordinary(x: jax.Array) -> bool:
  """False where a type says more than shape and dtype.

  Explicit shardings, and in a checked shard_map which mesh axes a value varies
  over, follow rules that JAX knows for its own primitives only.
  """
  aval = jax.typeof(x)
  bare = jax.core.ShapedArray(
    aval.shape, aval.dtype, aval.weak_type, sharding=aval.sharding
  )
  return aval == bare and not any(aval.sharding.spec)


def _dot(x: jax.Array, kernel: jax.Array, *, precision: Any) -> jax.Array:
  return jax.lax.dot_general(x, kernel, (((1,), (0,)), ((), ())), precision)


def _abstract_eval(x: Any, kernel: Any, *, precision: Any) -> Any:
  del precision
  return x.update(shape=(x.shape[0], kernel.shape[1]))


def _batch(args: Any, axes: Any, *, precision: Any) -> tuple[jax.Array, int]:
  x, kernel = args
  x_axis, kernel_axis = axes
  if kernel_axis is not None:  # over seeds: other rows, other weights
    dot = lambda x, kernel: _dot(x, kernel, precision=precision)
    return jax.vmap(dot, in_axes=(x_axis, kernel_axis))(x, kernel), 0
  x = jnp.moveaxis(x, x_axis, 0)
  rows = x.reshape(-1, x.shape[-1])
  y = product_p.bind(rows, kernel, precision=precision)
  return y.reshape(*x.shape[:-1], -1), 0


def _transpose_x(ct: Any, x: Any, kernel: Any, *, precision: Any) -> jax.Array:
  del x
  return product_p.bind(ct, kernel.T, precision=precision)


def _transpose_kernel(
  ct: Any, x: Any, kernel: Any, *, precision: Any
) -> jax.Array:
  del kernel
  return jax.lax.dot_general(x, ct, (((0,), (0,)), ((), ())), precision)


product_p.def_impl(jax.jit(_dot, static_argnames="precision"))
product_p.def_abstract_eval(_abstract_eval)
mlir.register_lowering(product_p, mlir.lower_fun(_dot, multiple_results=False))
batching.primitive_batchers[product_p] = _batch
ad.defbilinear(product_p, _transpose_x, _transpose_kernel)
