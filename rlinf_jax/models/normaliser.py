"""Running normalisation of observations, merged once per iteration.

`summarise` makes sums that can be added over granules and devices; `merge` is
where they meet the statistics. Leaves of rank 3 are images and stay as they
are.

A run has 1e9 steps and more, and float32 has 24 bits: a mean that moves by a
millionth of its error soon stops moving, and a count stops at 2^24 increments.
Each statistic is therefore kept as a float32 and the float32 of what rounding
left over, 48 bits together.
"""

from __future__ import annotations

from typing import Any

import chex
import jax
import jax.numpy as jnp
from flax import struct

Obs = Any  # a tree of arrays


@struct.dataclass
class Total:
  """A number in two parts: `value + residue`, |residue| <= ulp(value) / 2."""

  value: jax.Array  # float32
  residue: jax.Array  # float32, of the same shape


@struct.dataclass
class Stats:
  """Mean and variance of every observation so far.

  `mean` and `variance` are trees like the observation, of `Total`s; where the
  observation is an image, of size 0.
  """

  count: Total  # [], observations seen
  mean: Any
  variance: Any


@struct.dataclass
class Sums:
  """What a batch adds: sums over it, which may be added to other such sums."""

  count: jax.Array  # [], sum of weights
  shifted: Any  # tree like the observation: sum of weight (x - mean)
  squared: Any  # tree like the observation: sum of weight (x - mean)^2


def init(obs: Obs) -> Stats:
  """Returns the statistics of nothing: mean 0 and variance 1.

  Args:
    obs: one observation, or `jax.ShapeDtypeStruct`s of one.
  """

  def total(fill):
    def leaf(x):
      shape = (0,) if _is_image(x) else x.shape
      return Total(jnp.full(shape, fill, jnp.float32), jnp.zeros(shape))

    return leaf

  return Stats(
    count=Total(jnp.zeros(()), jnp.zeros(())),
    mean=jax.tree.map(total(0.0), obs),
    variance=jax.tree.map(total(1.0), obs),
  )


def summarise(
  stats: Stats, obs: Obs, *, weight: jax.Array | None = None
) -> Sums:
  """Returns what a batch of observations adds to the statistics.

  Args:
    stats: the statistics; their mean keeps the sums small, and so accurate.
    obs: a tree of float [*batch, ...].
    weight: float or bool [*batch]; observations of weight 0 are ignored, NaN
      or not. Default: all 1.

  Returns:
    Sums of which those of disjoint batches may be added leaf by leaf, as long
    as all were made with the same `stats`.

  Raises:
    AssertionError: the leaves have no common batch shape, or not weight's.
  """
  batch_shape = _batch_shape(stats, obs)
  weight = jnp.ones(batch_shape) if weight is None else weight
  weight = weight.astype(jnp.float32)
  chex.assert_shape(weight, batch_shape)
  axes = tuple(range(len(batch_shape)))

  def leaf(mean, x):
    if mean.value.size == 0:
      return mean.value, mean.value
    shape = batch_shape + (1,) * mean.value.ndim
    weight_x = weight.reshape(shape)
    shift = jnp.broadcast_to(mean.value, x.shape)
    shifted = jnp.where(weight_x > 0, x.astype(jnp.float32) - shift, 0.0)
    return (
      jnp.sum(weight_x * shifted, axis=axes),
      jnp.sum(weight_x * jnp.square(shifted), axis=axes),
    )

  pairs = jax.tree.map(leaf, stats.mean, obs, is_leaf=_is_total)
  is_pair = lambda x: isinstance(x, tuple)
  return Sums(
    count=jnp.sum(weight),
    shifted=jax.tree.map(lambda pair: pair[0], pairs, is_leaf=is_pair),
    squared=jax.tree.map(lambda pair: pair[1], pairs, is_leaf=is_pair),
  )


def merge(stats: Stats, sums: Sums) -> Stats:
  """Returns the statistics of what was seen before and the batch together.

    w = n_b / (n + n_b)            the batch's share of all observations
    mean' = mean + w d             d = shifted / n_b
    variance' = variance + w (squared / n_b - variance - w d^2)

  Sums of weight 0 change nothing.

  Args:
    stats: the statistics with which the sums were made.
    sums: of a batch, or the sum of those of its parts.

  Source: Chan, Golub, LeVeque, "Updating Formulae and a Pairwise Algorithm for
    Computing Sample Variances", 1979, eq. 2.1, with the batch taken about the
    mean and divided by the count.
  """
  count = _add(stats.count, sums.count)
  is_empty = sums.count == 0
  share = jnp.where(is_empty, 0.0, sums.count / count.value)
  batch_count = jnp.where(is_empty, 1.0, sums.count)

  def mean(total, shifted):
    return _add(total, share * (shifted / batch_count - total.residue))

  def variance(total, shifted, squared):
    drift = share * jnp.square(shifted / batch_count)
    return _add(total, share * (squared / batch_count - total.value - drift))

  return Stats(
    count=count,
    mean=jax.tree.map(mean, stats.mean, sums.shifted, is_leaf=_is_total),
    variance=jax.tree.map(
      variance, stats.variance, sums.shifted, sums.squared, is_leaf=_is_total
    ),
  )


def normalise(stats: Stats, obs: Obs, *, clip: float = 10.0) -> Obs:
  """Returns observations with mean 0 and variance 1, none beyond +-clip.

  Args:
    stats: the statistics.
    obs: a tree of float [*batch, ...]; images are returned unchanged.
    clip: in standard deviations.

  Raises:
    AssertionError: the leaves have no common batch shape.
  """
  _batch_shape(stats, obs)

  def leaf(mean, variance, x):
    if mean.value.size == 0:
      return x
    # The least standard deviation is 1e-4: a constant stays near 0.
    scale = jnp.broadcast_to(jax.lax.rsqrt(variance.value + 1e-8), x.shape)
    shift = jnp.broadcast_to(mean.value, x.shape)
    return jnp.clip((x.astype(jnp.float32) - shift) * scale, -clip, clip)

  return jax.tree.map(leaf, stats.mean, stats.variance, obs, is_leaf=_is_total)


def _add(total: Total, increment: jax.Array) -> Total:
  """Returns total + increment, with in `residue` what rounding left over."""
  increment = increment + total.residue
  value = total.value + increment
  # Knuth's two-sum. XLA keeps the order of float32 additions.
  added = value - total.value
  return Total(value, (total.value - (value - added)) + (increment - added))


def _is_total(x: Any) -> bool:
  return isinstance(x, Total)


def _is_image(x: Any) -> bool:
  return len(x.shape) == 3


def _batch_shape(stats: Stats, obs: Obs) -> tuple[int, ...]:
  """Returns the leading axes that all leaves of obs have in common."""

  def leaf(mean, x):
    rank = 3 if mean.value.size == 0 else mean.value.ndim
    if mean.value.size:
      chex.assert_shape(x, (..., *mean.value.shape))
    return x.shape[: x.ndim - rank]

  shapes = jax.tree.leaves(
    jax.tree.map(leaf, stats.mean, obs, is_leaf=_is_total),
    is_leaf=lambda x: isinstance(x, tuple),
  )
  if len(set(shapes)) != 1:
    raise AssertionError(
      f"Leaves of an observation have batch shapes {shapes}, expected one."
    )
  return shapes[0]
