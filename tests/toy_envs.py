"""Environments small enough to be worked by hand."""

import jax
import jax.numpy as jnp

import envs


def counter(*, terminates_at=None, nan_at=None, episode_length=4):
  """Observes t, pays t for step t (from 1); its start is drawn from {0, 10}.

  With a start of 10 the observation is 10 + t; nothing else changes.
  """

  def reset(key):
    start = 10.0 * jax.random.bernoulli(key).astype(jnp.float32)
    return envs.initial_state(
      start[None], physics={"t": jnp.float32(0.0), "start": start}
    )

  def step(state, action):
    del action
    t = state.physics["t"] + 1.0
    reward = t
    if nan_at is not None:
      reward = jnp.where(t == nan_at, jnp.nan, t)
    return envs.next_state(
      state,
      (state.physics["start"] + t)[None],
      reward=reward,
      terminated=False if terminates_at is None else t >= terminates_at,
      physics={"t": t, "start": state.physics["start"]},
    )

  return envs.Env(
    name="counter",
    reset=reset,
    step=step,
    action=envs.Box(size=1),
    episode_length=episode_length,
    control_dt_s=1.0,
    backend="jax",
  )


def target(*, at=0.5):
  """Pays 1 - (action - at)^2 every step; the observation says nothing."""

  def reset(key):
    del key
    return envs.initial_state(
      jnp.zeros(1), physics=(), metrics={"success": 0.0}
    )

  def step(state, action):
    error = jnp.square(action[0] - at)
    return envs.next_state(
      state,
      jnp.zeros(1),
      reward=1.0 - error,
      physics=(),
      metrics={"success": (error < 0.01).astype(jnp.float32)},
    )

  return envs.Env(
    name="target",
    reset=reset,
    step=step,
    action=envs.Box(size=1),
    episode_length=8,
    control_dt_s=1.0,
    backend="jax",
    success_metric="success",
  )
