"""Shaping functions that turn a measured quantity into a reward in [0, 1].

A falloff is a function (distance, value_at_margin) -> reward that is 1 at
distance 0 and `value_at_margin` at distance 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

FalloffFn = Callable[[jax.Array, float], jax.Array]


def gaussian(distance: jax.Array, value_at_margin: float) -> jax.Array:
  """Returns exp(-k distance^2): smooth, never quite 0."""
  return jnp.exp(math.log(value_at_margin) * jnp.square(distance))


def long_tail(distance: jax.Array, value_at_margin: float) -> jax.Array:
  """Returns 1 / (1 + k distance^2): still has a slope from far away."""
  return 1.0 / (1.0 + (1.0 / value_at_margin - 1.0) * jnp.square(distance))


def linear(distance: jax.Array, value_at_margin: float) -> jax.Array:
  """Returns 1 - k distance, at least 0: an even slope."""
  return jnp.maximum(1.0 - (1.0 - value_at_margin) * distance, 0.0)


def quadratic(distance: jax.Array, value_at_margin: float) -> jax.Array:
  """Returns 1 - k distance^2, at least 0: flat at first, then steep."""
  fall = (1.0 - value_at_margin) * jnp.square(distance)
  return jnp.maximum(1.0 - fall, 0.0)


def tolerance(
  x: jax.Array,
  *,
  bounds: tuple[float, float] = (0.0, 0.0),
  margin: float = 0.0,
  falloff_fn: FalloffFn = gaussian,
  value_at_margin: float = 0.1,
) -> jax.Array:
  """Returns 1 where `x` lies within `bounds`, less the further it is outside.

  Args:
    x: the measured quantity, any shape.
    bounds: (lower, upper), both inclusive; either may be infinite.
    margin: how far outside the bounds the reward is `value_at_margin`, in the
      unit of `x`. With 0 the reward is 1 inside and 0 outside.
    falloff_fn: `gaussian`, `long_tail`, `linear`, `quadratic`, or your own.
    value_at_margin: reward at distance `margin`: in (0, 1) for `gaussian` and
      `long_tail`, in [0, 1) for `linear` and `quadratic`.

  Returns:
    float32 in [0, 1], of the shape of `x`.

  Raises:
    ValueError: if the bounds are not in order, the margin is negative, or
      `value_at_margin` is out of its range.

  Source: Tassa et al. 2018, "DeepMind Control Suite" (arXiv 1801.00690),
  section 2. Theirs picks the falloff by a string, ours takes the function.

  Example: `tolerance(speed, bounds=(10, math.inf), margin=10,
  falloff_fn=linear, value_at_margin=0)` is speed / 10, cut off at 0 and 1.
  """
  lower, upper = bounds
  if not lower <= upper:
    raise ValueError(f"bounds must be (lower, upper) in order, not {bounds}.")
  if margin < 0:
    raise ValueError(f"margin must be at least 0, not {margin}.")
  is_zero_allowed = falloff_fn not in (gaussian, long_tail)
  if not 0 <= value_at_margin < 1 or (
    value_at_margin == 0 and not is_zero_allowed
  ):
    interval = "[0, 1)" if is_zero_allowed else "(0, 1)"
    raise ValueError(
      f"value_at_margin must lie in {interval} for this falloff_fn, not "
      f"{value_at_margin}."
    )
  x = jnp.asarray(x, jnp.float32)
  distance = jnp.maximum(jnp.maximum(lower - x, x - upper), 0.0)
  if margin == 0:
    return (distance == 0).astype(jnp.float32)
  return falloff_fn(distance / margin, value_at_margin)
