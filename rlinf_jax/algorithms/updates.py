"""An update: a loss and an optax optimizer, as two stages."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
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


Total = tuple[jax.Array, jax.Array]
TotalFn = Callable[
  [types.Params, Any, jax.Array], tuple[Total, dict[str, Total]]
]


class Update(NamedTuple):
  """The stages of an update.

  Attributes:
    init: params -> Learner.
    grad: stage (params, batch_b, key_b) -> (sum of gradients, totals of metrics
      and loss, weight of the loss), summed over the B items.
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

  def total_fn(
    params: types.Params, batch_b: types.Sequence, key_b: Any
  ) -> Any:
    loss_b, metrics_b = jax.vmap(loss_fn, in_axes=(None, 0, 0))(
      params, batch_b, key_b
    )
    num_valid = jnp.sum(batch_b.mask, dtype=jnp.float32)
    sums = {k: _sum_valid(v, batch_b.mask) for k, v in metrics_b.items()}
    return (_sum_valid(loss_b, batch_b.mask), num_valid), {
      k: (v, num_valid) for k, v in sums.items()
    }

  return from_totals(total_fn, optimizer, quantum=quantum)


def from_totals(
  total_fn: TotalFn,
  optimizer: optax.GradientTransformation,
  *,
  quantum: int | None = None,
) -> Update:
  """Returns the update of a loss that says itself what it is to be divided by.

  Args:
    total_fn: (params, batch_b, key_b) -> (total, totals of metrics by name); a
      total is a pair ([] sum, [] weight), over some items of a batch. Sums and
      weights add up over the others, and are divided in the end.
    optimizer: any optax transformation; it sees the gradient of the sum of the
      losses over the sum of their weights (or over 1, where that is less).
    quantum: items whose gradients are summed at once, see `flow.Spec`.
  """

  @flow.stage(items={1: 0, 2: 0}, reduces="sum", quantum=quantum)
  def grad(params: types.Params, batch_b: Any, key_b: Any) -> Any:
    def total(params: types.Params) -> Any:
      (loss, weight), metrics = total_fn(params, batch_b, key_b)
      return loss, (weight, metrics)

    (loss, (weight, metrics)), grads = jax.value_and_grad(total, has_aux=True)(
      params
    )
    return grads, {**metrics, "loss": (loss, weight)}, weight

  @flow.stage
  def apply_update(
    learner: Learner, grad_sum: Any, totals: Any, weight: jax.Array
  ) -> tuple[Learner, types.Metrics]:
    scale = 1.0 / jnp.maximum(weight, 1.0)
    grads = jax.tree.map(lambda g: g * scale, grad_sum)
    with _as_optax_promotes():
      updates, opt_state = optimizer.update(
        grads, learner.opt_state, learner.params
      )
      params = optax.apply_updates(learner.params, updates)
      grad_norm = optax.global_norm(grads)
    metrics = {k: x / jnp.maximum(w, 1.0) for k, (x, w) in totals.items()}
    return Learner(params, opt_state), {**metrics, "grad_norm": grad_norm}

  def init(params: types.Params) -> Learner:
    with _as_optax_promotes():
      return Learner(params, optimizer.init(params))

  def step(
    learner: Learner, batch_b: Any, key: chex.PRNGKey
  ) -> tuple[Learner, types.Metrics]:
    num_items = jax.tree.leaves(batch_b)[0].shape[0]
    key_b = jax.random.split(key, num_items)
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
