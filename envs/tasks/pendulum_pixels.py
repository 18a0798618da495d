"""The pendulum, seen only as a picture: for policies with a vision network.

Observation: float32 [32, 32, 2] in [0, 1]: how much of each pixel the rod
covers, now and one step ago, so that the speed shows.
Action, reward, termination: those of `envs.tasks.pendulum`.

Source: ours. The picture is drawn in jnp, so it runs on the accelerator.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from envs import state as state_lib
from envs.tasks import pendulum


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Config:
  """Settings of the task."""

  pendulum: pendulum.Config = pendulum.Config()
  size: int = 32  # pixels on a side


def default_config() -> Config:
  """Returns the settings that `make` takes when given none."""
  return Config()


def make(
  config: Config | None = None,
  *,
  physics: str = "auto",
  randomise: bool = False,
  num_threads: int = 0,
) -> state_lib.Env:
  """Returns the task; arguments as in `envs.tasks.pendulum.make`.

  Raises:
    ValueError: if `physics` names a MuJoCo backend.
  """
  del num_threads
  pendulum.require_jax(physics, task="pendulum_pixels")
  config = config or default_config()

  def reset(key: jax.Array) -> state_lib.State:
    now = pendulum.draw_state(key, config.pendulum, randomise=randomise)
    # Where it was a step ago, had it kept its speed.
    before = now.theta - config.pendulum.control_dt_s * now.speed
    return state_lib.initial_state(
      look(now.theta, before), physics=now, metrics={"upright": 0.0}
    )

  def step(state: state_lib.State, action: jax.Array) -> state_lib.State:
    now = pendulum.swing(state.physics, action, config.pendulum)
    return state_lib.next_state(
      state,
      look(now.theta, state.physics.theta),
      reward=pendulum.reward(now),
      physics=now,
      metrics={"upright": pendulum.is_upright(now)},
    )

  def look(*thetas: jax.Array) -> jax.Array:
    rods = [pendulum.draw_rod(theta, size=config.size) for theta in thetas]
    return jnp.stack(rods, axis=-1)

  return state_lib.Env(
    name="pendulum_pixels",
    reset=reset,
    step=step,
    action=state_lib.Box(size=1),
    episode_length=config.pendulum.episode_length,
    control_dt_s=config.pendulum.control_dt_s,
    backend="jax",
    success_metric="upright",
    render=pendulum.render,
  )


def randomise_model(
  key: jax.Array, config: pendulum.Config
) -> dict[str, jax.Array]:
  """Returns a mass, a length and a friction, as `envs.tasks.pendulum` does."""
  return pendulum.randomise_model(key, config)
