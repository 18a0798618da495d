"""Value losses: how far the value function is from its target."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp


def value_loss(
  value_t: jax.Array,
  target_t: jax.Array,
  *,
  old_value_t: jax.Array | None = None,
  clip: chex.Numeric | None = None,
  huber_delta: chex.Numeric | None = None,
) -> jax.Array:
  """Returns half the squared error, or Huber's, perhaps of a clipped value.

    loss_t = h(value_t - target_t)
    h(e) = e^2 / 2                          or, with huber_delta d,
    h(e) = e^2 / 2 if |e| <= d, else d (|e| - d / 2)

  and with `clip` c, so that one update moves the value by no more than c,

    near_t = old_value_t + clip(value_t - old_value_t, -c, c)
    loss_t = max(h(value_t - target_t), h(near_t - target_t))

  Args:
    value_t: float [T], of the value function that learns.
    target_t: float [T]; no gradient flows to it.
    old_value_t: float [T], from before the update; no gradient flows to it.
    clip: in units of value; goes with old_value_t.
    huber_delta: in units of value.

  Returns:
    loss_t [T], float.

  Raises:
    ValueError: one of old_value_t and clip is given without the other.
    AssertionError: an array is not a float array [T].

  Source: Huber, "Robust Estimation of a Location Parameter", 1964. Clipping
    comes from the PPO code of OpenAI Baselines, not from the paper;
    Andrychowicz et al., arXiv 2006.05990, found that it did not help.
  """
  _check(value_t, target_t)
  target_t = jax.lax.stop_gradient(target_t)
  loss_t = _penalty(value_t - target_t, huber_delta)
  if old_value_t is None and clip is None:
    return loss_t
  if old_value_t is None or clip is None:
    given, missing = "old_value_t", "clip"
    if old_value_t is None:
      given, missing = missing, given
    raise ValueError(
      f"Given {given} without {missing}, expected both or neither: the value "
      "is clipped to within clip of old_value_t."
    )
  _check(value_t, old_value_t)
  old_value_t = jax.lax.stop_gradient(old_value_t)
  near_t = old_value_t + jnp.clip(value_t - old_value_t, -clip, clip)
  return jnp.maximum(loss_t, _penalty(near_t - target_t, huber_delta))


def _check(*arrays: jax.Array) -> None:
  chex.assert_rank(arrays, 1)
  chex.assert_equal_shape(arrays)
  chex.assert_type(arrays, float)


def _penalty(error_t: jax.Array, delta: chex.Numeric | None) -> jax.Array:
  if delta is None:
    return 0.5 * jnp.square(error_t)
  # One form for both branches: their gradients never meet in a `where`.
  inner_t = jnp.minimum(jnp.abs(error_t), delta)
  return inner_t * (jnp.abs(error_t) - 0.5 * inner_t)
