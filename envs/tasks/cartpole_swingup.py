"""Swing a pole up by pushing the cart it hangs from, and balance it.

Observation: float32 [5], (cart position in m, cos theta, sin theta, cart
velocity in m/s, pole velocity in rad/s); theta = 0 is upright.
Action: [1], the force on the cart as a share of 10 N.
Reward: the product of four numbers, 1 upright, centred and at rest, 0 hanging:
(1 + cos theta) / 2, and three that fall to a part of 1 as the cart leaves the
centre, the action grows and the pole turns.
Termination: never; the rail ends at +-1.8 m.

Source: Tassa et al. 2018, "DeepMind Control Suite" (arXiv 1801.00690), task
cartpole swingup: its masses, lengths and reward. Ours steps every 20 ms instead
of 10, so an episode of 10 s has 500 steps.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import mujoco

from envs import physics as physics_lib
from envs import randomisation, rendering, rewards
from envs import state as state_lib
from envs.tasks import models


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Config:
  """Settings of the task."""

  episode_length: int = 500
  num_substeps: int = 2  # of 10 ms
  reset_noise: float = 0.1  # deviation, in rad and rad/s, m and m/s


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
  """Returns the task; arguments as in `envs.make`.

  Raises:
    ValueError: if there is no such backend.
  """
  config = config or default_config()
  mj_model = models.load("cartpole_swingup")
  sim = physics_lib.make(
    mj_model,
    backend=physics,
    num_substeps=config.num_substeps,
    num_threads=num_threads,
  )

  def reset(key: jax.Array) -> state_lib.State:
    key_model, key_qpos, key_qvel = jax.random.split(key, 3)
    noise = config.reset_noise
    qpos = noise * jax.random.normal(key_qpos, (2,))
    simulation = sim.reset(
      qpos + jnp.asarray([0.0, jnp.pi]),
      qvel=noise * jax.random.normal(key_qvel, (2,)),
      model_values=randomise_model(key_model, mj_model) if randomise else {},
    )
    return state_lib.initial_state(
      observe(simulation), physics=simulation, metrics={"upright": 0.0}
    )

  def step(state: state_lib.State, action: jax.Array) -> state_lib.State:
    action = jnp.clip(action, -1.0, 1.0)
    simulation = sim.step(state.physics, action)
    return state_lib.next_state(
      state,
      observe(simulation),
      reward=reward(simulation, action),
      physics=simulation,
      metrics={"upright": jnp.cos(simulation.data["qpos"][1]) > 0.95},
    )

  return state_lib.Env(
    name="cartpole_swingup",
    reset=reset,
    step=step,
    action=state_lib.Box(size=1),
    episode_length=config.episode_length,
    control_dt_s=config.num_substeps * mj_model.opt.timestep,
    backend=sim.backend,
    success_metric="upright",
    render=rendering.mujoco_render_fn(mj_model),
  )


def randomise_model(
  key: jax.Array, mj_model: mujoco.MjModel
) -> dict[str, jax.Array]:
  """Returns masses within 30 %, the strength within 20 %; consumes the key."""
  return randomisation.scaled(
    key, mj_model, mass=(0.7, 1.3), strength=(0.8, 1.2)
  )


def observe(simulation: physics_lib.PhysicsState) -> jax.Array:
  """Returns what this module's docstring says: [5]."""
  position, theta = simulation.data["qpos"]
  turn = jnp.stack([position, jnp.cos(theta), jnp.sin(theta)])
  return jnp.concatenate([turn, simulation.data["qvel"]])


def reward(
  simulation: physics_lib.PhysicsState, action: jax.Array
) -> jax.Array:
  """Returns the reward for arriving in this state by `action` [1]: []."""
  position, theta = simulation.data["qpos"]
  speed = simulation.data["qvel"][1]
  upright = (1.0 + jnp.cos(theta)) / 2.0
  centred = (1.0 + rewards.tolerance(position, margin=2.0)) / 2.0
  gentle = rewards.tolerance(
    action[0], margin=1.0, falloff_fn=rewards.quadratic, value_at_margin=0.0
  )
  still = (1.0 + rewards.tolerance(speed, margin=5.0)) / 2.0
  return upright * centred * (4.0 + gentle) / 5.0 * still
