"""An update: a loss of one sequence and an optax optimizer, as two stages."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax
from flax import struct

from rlinf_jax import flow, losses, types


@struct.dataclass
class Learner:
  """What an update changes."""

  params: types.Params
  opt_state: Any


class Update(NamedTuple):
  """The stages of an update.

  Attributes:
    init: params -> Learner.
    grad: stage (params, batch_b, key_b) -> (sum of gradients, sums of metrics
      and loss, number of valid steps), summed over the B sequences.
    apply_update: stage (Learner, *sums) -> (Learner, metrics).
    step: (Learner, batch_b, key) -> (Learner, metrics): the two in turn.
  """

  init: Any
  grad: flow.Stage
  apply_update: flow.Stage
  step: Any


def make(
  loss_fn: types.LossFn,
  optimizer: optax.GradientTransformation,
  *,
  quantum: int | None = None,
) -> Update:
  """Returns the update that a loss and an optimizer make.

  Args:
    loss_fn: (params, sequence, key) -> (loss, metrics), see `types.LossFn`.
    optimizer: any optax transformation; it sees the mean gradient over the
      valid steps of a batch.
    quantum: sequences whose gradients are summed at once, see `flow.Spec`.
  """

  @flow.stage(items={1: 0, 2: 0}, reduces="sum", quantum=quantum)
  def grad(params: types.Params, batch_b: types.Sequence, key_b: Any) -> Any:
    def total(params: types.Params) -> Any:
      loss_b, metrics_b = jax.vmap(loss_fn, in_axes=(None, 0, 0))(
        params, batch_b, key_b
      )
      sums = {k: _sum_valid(v, batch_b.mask) for k, v in metrics_b.items()}
      return _sum_valid(loss_b, batch_b.mask), sums

    (loss, sums), grads = jax.value_and_grad(total, has_aux=True)(params)
    num_valid = jnp.sum(batch_b.mask, dtype=jnp.float32)
    return grads, {**sums, "loss": loss}, num_valid

  @flow.stage
  def apply_update(
    learner: Learner, grad_sum: Any, metric_sum: Any, num_valid: jax.Array
  ) -> tuple[Learner, types.Metrics]:
    scale = 1.0 / jnp.maximum(num_valid, 1.0)
    grads = jax.tree.map(lambda g: g * scale, grad_sum)
    with _as_optax_promotes():
      updates, opt_state = optimizer.update(
        grads, learner.opt_state, learner.params
      )
      params = optax.apply_updates(learner.params, updates)
      grad_norm = optax.global_norm(grads)
    metrics = {k: v * scale for k, v in metric_sum.items()}
    return Learner(params, opt_state), {**metrics, "grad_norm": grad_norm}

  def init(params: types.Params) -> Learner:
    with _as_optax_promotes():
      return Learner(params, optimizer.init(params))

  def step(
    learner: Learner, batch_b: types.Sequence, key: chex.PRNGKey
  ) -> tuple[Learner, types.Metrics]:
    key_b = jax.random.split(key, batch_b.mask.shape[0])
    return apply_update(learner, *grad(learner.params, batch_b, key_b))

  return Update(init, grad, apply_update, step)


def _sum_valid(x_b: jax.Array, mask_bt: jax.Array) -> jax.Array:
  """Returns the sum over valid steps of a loss or metric, [B, T] or [B]."""
  if x_b.ndim == 1:
    x_b = jnp.broadcast_to(x_b[:, None], mask_bt.shape)
  sum_b, _ = jax.vmap(losses.masked_sum)(x_b, mask_bt)
  return jnp.sum(sum_b)


@contextlib.contextmanager
def _as_optax_promotes() -> Iterator[None]:
  # optax's Adam raises under strict promotion (DESIGN.md, section 6).
  with (
    jax.numpy_dtype_promotion("standard"),
    jax.numpy_rank_promotion("allow"),
  ):
    yield
