"""Swing a pendulum up and hold it, with a torque too weak to lift it directly.

Written in JAX alone: no MuJoCo, no contacts, and a step costs about as much as
the arithmetic below.

Observation: float32 [3], (cos theta, sin theta, speed / 8 rad/s); theta = 0 is
upright, the speed in rad/s.
Action: [1], the torque as a share of `max_torque_nm`.
Reward: ((1 + cos theta) / 2)^2 (1 + still) / 2, where still is
exp(-(speed / 2)^2): 1 at rest upright, 0 hanging.
Termination: never.

Source: the classic task; a point mass on a massless rod with viscous friction.
Ours starts anywhere, and its reward lies in [0, 1].
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from envs import state as state_lib

_BACKGROUND = (0.92, 0.94, 0.96)
_ROD = (0.98, 0.45, 0.13)
_PIVOT = (0.10, 0.12, 0.15)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Config:
  """Settings of the task."""

  mass_kg: float = 1.0
  length_m: float = 1.0
  friction_nms: float = 0.05  # N m per rad/s
  gravity_m_per_s2: float = 9.81
  max_torque_nm: float = 4.0
  control_dt_s: float = 0.05
  episode_length: int = 200


@struct.dataclass
class PendulumState:
  """A pendulum and what it is made of."""

  theta: jax.Array  # [] rad, 0 is upright, in (-pi, pi]
  speed: jax.Array  # [] rad/s
  model_values: dict[str, jax.Array]  # mass, length, friction: [] each


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
  """Returns the task.

  Args:
    config: see `Config`.
    physics: "auto"; this task has equations of its own.
    randomise: draw mass, length and friction anew at every reset.
    num_threads: not used.

  Raises:
    ValueError: if `physics` names a MuJoCo backend.
  """
  del num_threads
  require_jax(physics, task="pendulum")
  config = config or default_config()

  def reset(key: jax.Array) -> state_lib.State:
    pendulum = draw_state(key, config, randomise=randomise)
    return state_lib.initial_state(
      observe(pendulum), physics=pendulum, metrics={"upright": 0.0}
    )

  def step(state: state_lib.State, action: jax.Array) -> state_lib.State:
    pendulum = swing(state.physics, action, config)
    return state_lib.next_state(
      state,
      observe(pendulum),
      reward=reward(pendulum),
      physics=pendulum,
      metrics={"upright": is_upright(pendulum)},
    )

  return state_lib.Env(
    name="pendulum",
    reset=reset,
    step=step,
    action=state_lib.Box(size=1),
    episode_length=config.episode_length,
    control_dt_s=config.control_dt_s,
    backend="jax",
    success_metric="upright",
    render=render,
  )


def randomise_model(key: jax.Array, config: Config) -> dict[str, jax.Array]:
  """Returns a mass, a length and a friction: [] each. Consumes the key.

  Mass and length within 20 %, friction by a factor of up to 2 either way.
  """
  mass, length, friction = jax.random.uniform(key, (3,), minval=-1.0)
  return {
    "mass": config.mass_kg * (1.0 + 0.2 * mass),
    "length": config.length_m * (1.0 + 0.2 * length),
    "friction": config.friction_nms * jnp.exp2(friction),
  }


def draw_state(
  key: jax.Array, config: Config, *, randomise: bool
) -> PendulumState:
  """Returns a pendulum at any angle, with a speed of at most 1 rad/s."""
  key_model, key_theta, key_speed = jax.random.split(key, 3)
  if randomise:
    model_values = randomise_model(key_model, config)
  else:
    model_values = {
      "mass": jnp.float32(config.mass_kg),
      "length": jnp.float32(config.length_m),
      "friction": jnp.float32(config.friction_nms),
    }
  return PendulumState(
    theta=jax.random.uniform(key_theta, minval=-jnp.pi, maxval=jnp.pi),
    speed=jax.random.uniform(key_speed, minval=-1.0, maxval=1.0),
    model_values=model_values,
  )


def swing(
  pendulum: PendulumState, action: jax.Array, config: Config
) -> PendulumState:
  """Returns the pendulum one control step later, by one Runge-Kutta step.

  Solves m l^2 theta'' = m g l sin theta - b theta' + torque. At 0.05 s the
  classic fourth-order step loses less than 1e-5 of 2 m g l in a second.
  """
  values = pendulum.model_values
  torque = config.max_torque_nm * jnp.clip(action[0], -1.0, 1.0)
  inertia = values["mass"] * values["length"] ** 2

  def derivative(y: jax.Array) -> jax.Array:
    theta, speed = y
    push = torque - values["friction"] * speed
    lift = config.gravity_m_per_s2 / values["length"] * jnp.sin(theta)
    return jnp.stack([speed, lift + push / inertia])

  dt_s = config.control_dt_s
  y = jnp.stack([pendulum.theta, pendulum.speed])
  k1 = derivative(y)
  k2 = derivative(y + 0.5 * dt_s * k1)
  k3 = derivative(y + 0.5 * dt_s * k2)
  k4 = derivative(y + dt_s * k3)
  theta, speed = y + dt_s / 6.0 * (k1 + 2.0 * k2 + 2.0 * k3 + k4)
  # A float32 angle that grows with every turn would lose its digits.
  turns = jnp.round(theta / (2.0 * jnp.pi))
  return PendulumState(
    theta=theta - 2.0 * jnp.pi * turns, speed=speed, model_values=values
  )


def observe(pendulum: PendulumState) -> jax.Array:
  """Returns (cos theta, sin theta, speed / 8 rad/s): [3]."""
  theta, speed = pendulum.theta, pendulum.speed
  return jnp.stack([jnp.cos(theta), jnp.sin(theta), speed / 8.0])


def reward(pendulum: PendulumState) -> jax.Array:
  """Returns the reward of being in this state: [] in [0, 1]."""
  upright = jnp.square((1.0 + jnp.cos(pendulum.theta)) / 2.0)
  still = jnp.exp(-jnp.square(pendulum.speed / 2.0))
  return upright * (1.0 + still) / 2.0


def is_upright(pendulum: PendulumState) -> jax.Array:
  """Returns whether it stands within 18 degrees, slower than 1 rad/s: []."""
  is_up = jnp.cos(pendulum.theta) > 0.95
  return is_up & (jnp.abs(pendulum.speed) < 1.0)


def draw_rod(theta: jax.Array, *, size: int) -> jax.Array:
  """Returns how much of each pixel the rod covers: float32 [size, size].

  Edges are smooth. Upright points to row 0, and positive angles lean right.
  """
  x, y, pixel = _grid(size)
  tip_x, tip_y = 0.75 * jnp.sin(theta), 0.75 * jnp.cos(theta)
  # The nearest point of the segment from the pivot to the tip.
  along = jnp.clip((x * tip_x + y * tip_y) / 0.75**2, 0.0, 1.0)
  distance = jnp.hypot(x - along * tip_x, y - along * tip_y)
  return jnp.clip((0.09 - distance) / pixel + 0.5, 0.0, 1.0)


def render(states: Sequence[Any]) -> np.ndarray:
  """Returns frames of states whose `physics` is a PendulumState.

  uint8 [N, 320, 320, 3].
  """
  size = 320
  theta_n = np.stack([np.asarray(s.physics.theta) for s in states])
  rods_fn = jax.jit(jax.vmap(functools.partial(draw_rod, size=size)))
  x, y, pixel = _grid(size)
  disc = np.clip((0.05 - np.hypot(x, y)) / pixel + 0.5, 0.0, 1.0)
  image = np.full((len(states), size, size, 3), _BACKGROUND, np.float32)
  for cover, colour in ((rods_fn(theta_n), _ROD), (disc, _PIVOT)):
    image += np.asarray(cover)[..., None] * (
      np.asarray(colour, np.float32) - image
    )
  return np.round(255.0 * image).astype(np.uint8)


def require_jax(physics: str, *, task: str) -> None:
  """Raises ValueError if `physics` asks for a MuJoCo backend."""
  if physics not in ("auto", "jax"):
    raise ValueError(
      f"{task} has equations of its own and no MuJoCo model: physics must be "
      f"'auto', not {physics!r}."
    )


def _grid(size: int) -> tuple[np.ndarray, np.ndarray, float]:
  """Returns x [1, size] to the right, y [size, 1] up, and a pixel's width."""
  at = (np.arange(size, dtype=np.float32) + 0.5) * (2.0 / size) - 1.0
  return at[None, :], -at[:, None], 2.0 / size
