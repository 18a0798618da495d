"""Advantages: how much better an action did than was expected of it.

T time. Sequences are of one environment, in order; an episode may end anywhere
inside, by termination (its future is worth 0) or by truncation (its future is
worth the value of the state it was cut off in).
"""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp


def gae(
  reward_t: jax.Array,
  value_t: jax.Array,
  next_value_t: jax.Array,
  terminated_t: jax.Array,
  truncated_t: jax.Array,
  *,
  discount: chex.Numeric,
  gae_lambda: chex.Numeric,
  mask_t: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
  """Returns generalised advantage estimates and the returns they imply.

    delta_t = r_t + discount (1 - terminated_t) V(s'_t) - V(s_t)
    A_t = delta_t + discount lambda A_{t+1}     within an episode
    target_t = A_t + V(s_t)

  Gradients do not flow through either result.

  Args:
    reward_t: float [T], what step t paid.
    value_t: float [T], V(s_t) of the state that step t started from.
    next_value_t: float [T], V(s'_t) of the state that step t really led to:
      where the episode ended, the final state and not the one after the reset.
    terminated_t: bool [T], step t ended the episode for good.
    truncated_t: bool [T], step t was the last one before a cut-off.
    discount: in [0, 1].
    gae_lambda: in [0, 1]; 0 trusts the value function, 1 the rewards.
    mask_t: bool [T], False where step t failed and carries no information. Its
      advantage is 0, its target V(s_t), whatever (NaN) reward and next value
      say, and no advantage is carried across it. Default: all True.

  Returns:
    advantage_t [T] and target_t [T], float.

  Raises:
    AssertionError: an argument is not of shape [T] or of the wrong dtype.

  Source: Schulman et al., "High-Dimensional Continuous Control Using
    Generalized Advantage Estimation", arXiv 1506.02438, eqs. 11-16.
  """
  mask_t = _check_steps(
    reward_t, value_t, next_value_t, terminated_t, truncated_t, mask_t
  )
  next_value_t = jnp.where(terminated_t, 0.0, next_value_t)
  delta_t = reward_t + discount * next_value_t - value_t
  delta_t = jnp.where(mask_t, delta_t, 0.0)
  is_last_t = terminated_t | truncated_t | ~mask_t
  decay_t = jnp.where(is_last_t, 0.0, discount * gae_lambda)
  advantage_t = _decayed_sum(delta_t, decay_t)
  return jax.lax.stop_gradient((advantage_t, advantage_t + value_t))


def vtrace(
  reward_t: jax.Array,
  value_t: jax.Array,
  next_value_t: jax.Array,
  log_ratio_t: jax.Array,
  terminated_t: jax.Array,
  truncated_t: jax.Array,
  *,
  discount: chex.Numeric,
  vtrace_lambda: chex.Numeric = 1.0,
  rho_bar: chex.Numeric = 1.0,
  c_bar: chex.Numeric = 1.0,
  mask_t: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
  """Returns off-policy advantages and value targets by V-trace.

    rho_t = min(rho_bar, pi / mu)      c_t = lambda min(c_bar, pi / mu)
    delta_t = rho_t (r_t + discount (1 - terminated_t) V(s'_t) - V(s_t))
    e_t = delta_t + discount c_t e_{t+1}        within an episode
    target_t = V(s_t) + e_t
    A_t = rho_t (r_t + discount (V(s'_t) + lambda e_{t+1}) - V(s_t))

  With pi = mu and both bars at least 1 this is `gae` for every lambda; with
  lambda = 1 it is the paper's. Gradients do not flow through either result.

  Args:
    reward_t: float [T], what step t paid.
    value_t: float [T], V(s_t) of the state that step t started from.
    next_value_t: float [T], V(s'_t) of the state that step t really led to.
    log_ratio_t: float [T], log pi(a_t|s_t) - log mu(a_t|s_t), where mu acted
      and pi learns.
    terminated_t: bool [T], step t ended the episode for good.
    truncated_t: bool [T], step t was the last one before a cut-off.
    discount: in [0, 1].
    vtrace_lambda: in [0, 1], as in Remark 2 of the paper.
    rho_bar: bounds the weight of a step; decides which policy is evaluated.
    c_bar: bounds how far errors travel back; decides the speed.
    mask_t: bool [T], False where step t failed, as in `gae`.

  Returns:
    advantage_t [T] and target_t [T], float.

  Raises:
    AssertionError: an argument is not of shape [T] or of the wrong dtype.

  Source: Espeholt et al., "IMPALA", arXiv 1802.01561, eq. 1 and section 4.2.
    The lambda in A_t is not there; it makes the on-policy case agree with GAE.
  """
  chex.assert_type(log_ratio_t, float)
  chex.assert_equal_shape([reward_t, log_ratio_t])
  mask_t = _check_steps(
    reward_t, value_t, next_value_t, terminated_t, truncated_t, mask_t
  )
  # min before exp: a ratio that overflows is clipped all the same.
  rho_t = jnp.exp(jnp.minimum(log_ratio_t, jnp.log(rho_bar)))
  c_t = vtrace_lambda * jnp.exp(jnp.minimum(log_ratio_t, jnp.log(c_bar)))
  next_value_t = jnp.where(terminated_t, 0.0, next_value_t)
  delta_t = rho_t * (reward_t + discount * next_value_t - value_t)
  delta_t = jnp.where(mask_t, delta_t, 0.0)
  is_last_t = terminated_t | truncated_t | ~mask_t
  error_t = _decayed_sum(delta_t, jnp.where(is_last_t, 0.0, discount * c_t))
  next_error_t = jnp.append(error_t[1:], 0.0)
  decay_t = jnp.where(is_last_t, 0.0, discount * vtrace_lambda * rho_t)
  advantage_t = delta_t + decay_t * next_error_t
  return jax.lax.stop_gradient((advantage_t, value_t + error_t))


def _check_steps(
  reward_t: jax.Array,
  value_t: jax.Array,
  next_value_t: jax.Array,
  terminated_t: jax.Array,
  truncated_t: jax.Array,
  mask_t: jax.Array | None,
) -> jax.Array:
  """Checks the arguments that all estimators share; returns the mask."""
  if mask_t is None:
    mask_t = jnp.ones_like(terminated_t)
  floats = [reward_t, value_t, next_value_t]
  bools = [terminated_t, truncated_t, mask_t]
  chex.assert_rank(floats + bools, 1)
  chex.assert_equal_shape(floats + bools)
  chex.assert_type(floats, float)
  chex.assert_type(bools, bool)
  return mask_t


def _decayed_sum(x_t: jax.Array, decay_t: jax.Array) -> jax.Array:
  """Returns y_t = x_t + decay_t y_{t+1}, with y_T = 0; all [T]."""

  def step(later, now):
    x, decay = now
    y = x + decay * later
    return y, y

  # A plain scan: on CPU, over 1,024 environments, 2.5 times as fast as an
  # associative scan or an unrolled one at T = 16, and 4 to 13 times at T = 64
  # (measured 2026-11).
  zero = jnp.zeros_like(x_t[0])  # not zeros(()): under shard_map it varies
  return jax.lax.scan(step, zero, (x_t, decay_t), reverse=True)[1]
