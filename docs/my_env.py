"""A complete environment of your own: `--env=docs/my_env.py:MyEnv`.

A cart on an endless rail has to stop at a flag that stands elsewhere in every
episode. Observation: float32 [3] (distance to the flag in m, velocity in m/s,
1). Action: [1], the force as a share of 5 N. Reward: 1 at the flag, less the
farther away. An episode has 200 steps of 0.02 s and does not end before.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import mujoco

import envs
from envs import physics as physics_lib
from envs import rendering

MJCF = """
<mujoco>
  <option timestep="0.01"/>
  <worldbody>
    <light pos="0 -2 3" dir="0 1 -1.5"/>
    <camera name="main" pos="0 -6 2" xyaxes="1 0 0 0 0.3 1"/>
    <body>
      <joint name="rail" type="slide" axis="1 0 0" damping="0.5"/>
      <geom type="box" size="0.2 0.1 0.1" mass="1" rgba="0.2 0.5 0.8 1"/>
    </body>
    <body name="flag" mocap="true">
      <geom type="cylinder" size="0.02 0.4" rgba="0.8 0.2 0.2 1"
            contype="0" conaffinity="0"/>
    </body>
  </worldbody>
  <actuator>
    <motor joint="rail" gear="5" ctrlrange="-1 1" ctrllimited="true"/>
  </actuator>
</mujoco>
"""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Config:
  """Settings, with defaults."""

  max_distance: float = 3.0  # metres between start and flag


def MyEnv(
  *, config: Config | None = None, physics: str = "auto", num_threads: int = 0
) -> envs.Env:
  """Returns the environment; each argument is one that `envs.make` passes on.

  What it leaves out (here `randomise`) is refused when somebody asks for it.
  """
  config = config or Config()
  mj_model = mujoco.MjModel.from_xml_string(MJCF)
  sim = physics_lib.make(
    mj_model, backend=physics, num_substeps=2, num_threads=num_threads
  )

  def observe(simulation: physics_lib.PhysicsState, flag: jax.Array):
    position, velocity = simulation.data["qpos"][0], simulation.data["qvel"][0]
    return jnp.stack([flag - position, velocity, jnp.float32(1.0)])

  def reset(key: jax.Array) -> envs.State:
    flag = config.max_distance * jax.random.uniform(key, (), minval=-1.0)
    simulation = sim.reset(jnp.zeros(1))
    return envs.initial_state(
      observe(simulation, flag),
      physics=simulation,
      metrics={"is_there": 0.0},
      info={"flag": flag},
    )

  def step(state: envs.State, action: jax.Array) -> envs.State:
    simulation = sim.step(state.physics, jnp.clip(action, -1.0, 1.0))
    obs = observe(simulation, state.info["flag"])
    return envs.next_state(
      state,
      obs,
      reward=1.0 / (1.0 + jnp.square(obs[0])),
      physics=simulation,
      metrics={"is_there": (jnp.abs(obs[:2]) < 0.1).all()},
    )

  def mocap(state: envs.State) -> tuple[jax.Array, jax.Array]:
    flag = jnp.zeros((1, 3)).at[0, 0].set(state.info["flag"])
    return flag, jnp.asarray([[1.0, 0.0, 0.0, 0.0]])

  return envs.Env(
    name="my_env",
    reset=reset,
    step=step,
    action=envs.Box(size=1),
    episode_length=200,
    control_dt_s=0.02,
    backend=sim.backend,
    success_metric="is_there",
    render=rendering.mujoco_render_fn(mj_model, mocap_fn=mocap),
  )
