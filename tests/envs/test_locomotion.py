"""The three runners: rewards by hand, and laws that their bodies keep."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import envs
from envs import physics as physics_lib
from envs.tasks import cheetah_run, hopper_hop, humanoid_walk, models

TASKS = {
  "cheetah_run": cheetah_run,
  "hopper_hop": hopper_hop,
  "humanoid_walk": humanoid_walk,
}
QUARTER_TURN = (math.cos(math.pi / 4), 0.0, 0.0, math.sin(math.pi / 4))


@pytest.fixture(scope="module")
def made() -> dict[str, envs.Env]:
  return {name: jitted(envs.make(name, physics="mujoco")) for name in TASKS}


def jitted(env: envs.Env) -> envs.Env:
  return env._replace(reset=jax.jit(env.reset), step=jax.jit(env.step))


def drawn_values(name: str, seed: int) -> dict[str, np.ndarray]:
  mj_model = models.load(name)
  draw_fn = jax.jit(lambda key: TASKS[name].randomise_model(key, mj_model))
  return jax.tree.map(np.asarray, draw_fn(jax.random.key(seed)))


@functools.cache
def one_substep(name: str) -> envs.Env:
  """Returns an env whose reward is of the state before its step."""
  config = TASKS[name].default_config()
  if name != "cheetah_run":
    config = dataclasses.replace(config, num_substeps=1)
  return jitted(TASKS[name].make(config, physics="mujoco"))


@functools.cache
def place_fn(name: str) -> Callable[[np.ndarray, np.ndarray], Any]:
  """Returns (qpos, qvel) -> PhysicsState of a task's model."""
  sim = physics_lib.make(
    models.load(name),
    backend="mujoco",
    num_substeps=1,
    fields=("sensordata",),
  )
  return jax.jit(lambda qpos, qvel: sim.reset(qpos, qvel=qvel))


def rest(name: str) -> np.ndarray:
  return models.load(name).qpos0.astype(np.float32)


def state_of(
  env: envs.Env, qpos: np.ndarray, qvel: dict[int, float] | np.ndarray = ()
) -> envs.State:
  """Returns a State of `env` at a pose; `qvel` may be {index: value}."""
  velocity = np.zeros(models.load(env.name).nv, np.float32)
  if isinstance(qvel, dict):
    for index, value in qvel.items():
      velocity[index] = value
  elif len(qvel):
    velocity[:] = qvel
  physics = place_fn(env.name)(qpos, velocity)
  return env.reset(jax.random.key(0)).replace(physics=physics)


def zeros(env: envs.Env) -> jax.Array:
  return jnp.zeros(env.action.size)


def roll(env: envs.Env, state: envs.State, actions: jax.Array) -> envs.State:
  """Returns the states [T, ...] after each of `actions` [T, size]."""

  def body(state, action):
    state = env.step(state, action)
    return state, state

  return jax.jit(lambda s, a: jax.lax.scan(body, s, a))(state, actions)[1]


# Rewards by hand.


@pytest.mark.parametrize(
  "speed, expected", [(-3, 0), (0, 0), (2.5, 0.25), (10, 1), (12, 1)]
)
def test_cheetah_reward_is_speed_over_ten(speed, expected):
  config = cheetah_run.default_config()
  reward = cheetah_run.reward(jnp.float32(speed), config=config)
  np.testing.assert_allclose(reward, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
  "height, speed, expected",
  [
    (0.9, 2.0, 1.0),
    (0.6, 1.0, 0.6),  # standing 1, hopping 1 / 2
    (0.3, 2.0, 0.1),  # at the margin standing is 0.1
    (0.9, 0.0, 0.2),
    (0.9, -1.0, 0.2),
  ],
)
def test_hopper_reward_is_standing_times_a_fifth_and_four_fifths_of_hopping(
  height, speed, expected
):
  reward = hopper_hop.reward(
    jnp.float32(height), jnp.float32(speed), config=hopper_hop.default_config()
  )
  np.testing.assert_allclose(reward, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
  "height, upright, speed, action, expected",
  [
    (1.5, 1.0, 1.0, 0.0, 1.0),
    (1.5, 1.0, 0.0, 0.0, 1 / 6),
    (1.5, 1.0, -2.0, 0.0, 1 / 6),
    (1.5, 1.0, 0.5, 0.0, 3.5 / 6),  # (1 + 5 / 2) / 6
    (1.5, 1.0, 1.0, 1.0, 0.8),
    (1.5, 1.0, 1.0, 0.5, 0.95),  # 0.8 + 0.2 (1 - 1 / 4)
    (1.35 * 0.75, 1.0, 1.0, 0.0, 0.1),
    (1.5, -1.0, 1.0, 0.0, 0.0),
    (1.5, -0.05, 1.0, 0.0, 0.5),  # half of the way from 0.9 to -1
  ],
)
def test_humanoid_reward_is_the_product_of_its_four_parts(
  height, upright, speed, action, expected
):
  reward = humanoid_walk.reward(
    jnp.float32(height),
    jnp.float32(upright),
    jnp.float32(speed),
    jnp.full(21, action),
    config=humanoid_walk.default_config(),
  )
  np.testing.assert_allclose(reward, expected, rtol=1e-5, atol=1e-6)


# The same rewards out of hand-set states: sensors, names and signs.


@pytest.mark.parametrize(
  "name, target, standing",
  [("cheetah_run", 10.0, 0.0), ("hopper_hop", 2.0, 0.2)],
)
@pytest.mark.parametrize("share", [-1.0, 0.0, 0.5, 1.0])
def test_planar_runner_in_rest_pose_earns_its_share_of_the_target_speed(
  name, target, standing, share
):
  env = one_substep(name)
  state = env.step(state_of(env, rest(name), {0: share * target}), zeros(env))
  expected = standing + (1.0 - standing) * max(share, 0.0)
  np.testing.assert_allclose(state.reward, expected, atol=1e-5)
  np.testing.assert_allclose(
    state.metrics["speed_m_per_s"], share * target, atol=1e-4
  )


def test_a_hopper_on_its_back_earns_nothing_and_its_episode_ends(made):
  env = made["hopper_hop"]
  lying = rest("hopper_hop")
  lying[1:3] = -0.85, -math.pi / 2  # a negative pitch: face up
  ended = env.step(state_of(env, lying, {0: 2.0}), zeros(env))
  assert ended.terminated and ended.reward < 1e-3
  assert (
    not hopper_hop.make(
      hopper_hop.Config(fallen_height_m=-math.inf), physics="mujoco"
    )
    .step(state_of(env, lying), zeros(env))
    .terminated
  )
  assert not env.step(state_of(env, rest("hopper_hop")), zeros(env)).terminated


@pytest.mark.parametrize(
  "quaternion, velocity, expected",
  [
    ((1.0, 0.0, 0.0, 0.0), {0: 1.0}, 1.0),
    ((1.0, 0.0, 0.0, 0.0), {0: -1.0}, 1 / 6),
    ((1.0, 0.0, 0.0, 0.0), {1: 1.0}, 1 / 6),
    (QUARTER_TURN, {1: 1.0}, 1.0),  # it faces +y
  ],
)
def test_humanoid_is_paid_for_speed_towards_where_it_faces(
  quaternion, velocity, expected
):
  env = one_substep("humanoid_walk")
  qpos = rest("humanoid_walk")
  qpos[3:7] = quaternion
  state = env.step(state_of(env, qpos, velocity), zeros(env))
  np.testing.assert_allclose(state.reward, expected, atol=1e-5)


def test_a_humanoid_on_its_face_ends_its_episode_only_where_configured(made):
  env = made["humanoid_walk"]
  lying = rest("humanoid_walk")
  lying[2:7] = 0.15, math.cos(math.pi / 4), 0.0, math.sin(math.pi / 4), 0.0
  ended = env.step(state_of(env, lying), zeros(env))
  assert ended.terminated and ended.reward < 1e-3
  assert (
    not humanoid_walk.make(
      humanoid_walk.Config(fallen_height_m=-math.inf), physics="mujoco"
    )
    .step(state_of(env, lying), zeros(env))
    .terminated
  )


# Laws.


@pytest.mark.parametrize("name", TASKS)
def test_where_a_robot_is_along_x_changes_nothing(made, name):
  env = made[name]
  action = jnp.linspace(-1.0, 1.0, env.action.size)
  far = rest(name)
  far[0] += 16.0
  here, there = (
    env.step(state_of(env, qpos, {0: 0.5}), action)
    for qpos in (rest(name), far)
  )
  np.testing.assert_allclose(here.obs, there.obs, atol=1e-4)
  np.testing.assert_allclose(here.reward, there.reward, atol=1e-5)


def test_where_a_humanoid_faces_changes_neither_observation_nor_reward(made):
  env = made["humanoid_walk"]
  action = jnp.linspace(-1.0, 1.0, env.action.size)
  turned = rest("humanoid_walk")
  turned[3:7] = QUARTER_TURN
  along_x = state_of(env, rest("humanoid_walk"), {0: 0.7, 1: 0.3, 4: 0.5})
  along_y = state_of(env, turned, {1: 0.7, 0: -0.3, 4: 0.5})
  here, there = env.step(along_x, action), env.step(along_y, action)
  np.testing.assert_allclose(here.obs, there.obs, atol=1e-4)
  np.testing.assert_allclose(here.reward, there.reward, atol=1e-5)


def test_a_mirrored_humanoid_does_the_mirrored_step(made):
  """Left and right of the model are the same numbers."""
  env = made["humanoid_walk"]
  mj_model = models.load("humanoid_walk")
  rng = np.random.default_rng(0)
  qpos = rest("humanoid_walk")
  qpos[2] += 0.1
  qpos[7:] += rng.uniform(-0.03, 0.03, 21)
  qvel = rng.uniform(-0.5, 0.5, mj_model.nv).astype(np.float32)
  action = rng.uniform(-1, 1, 21).astype(np.float32)
  one = env.step(state_of(env, qpos, qvel), jnp.asarray(action))
  two = env.step(
    state_of(env, mirrored(qpos, 7), mirrored(qvel, 6)),
    jnp.asarray(mirrored(action, 0)),
  )
  for field, begin in (("qpos", 7), ("qvel", 6)):
    np.testing.assert_allclose(
      mirrored(np.asarray(one.physics.data[field]), begin),
      two.physics.data[field],
      atol=2e-4,
    )
  np.testing.assert_allclose(one.reward, two.reward, atol=1e-5)


def mirrored(values: np.ndarray, begin: int) -> np.ndarray:
  """Returns qpos, qvel or controls with left and right exchanged.

  Joints begin at `begin`: 3 of the waist (turns about z and x change sign), 6
  of each leg, 3 of each arm. Before them lies the root.
  """
  values = values.copy()
  joints = values[begin:]
  joints[[0, 2]] *= -1
  joints[3:9], joints[9:15] = joints[9:15].copy(), joints[3:9].copy()
  joints[15:18], joints[18:21] = joints[18:21].copy(), joints[15:18].copy()
  signs = {
    7: [1, -1, 1, 1, -1, 1, -1],  # x y z, quaternion w x y z
    6: [1, -1, 1, -1, 1, -1],  # linear, angular velocity
    0: [],
  }[begin]
  values[:begin] *= np.asarray(signs, values.dtype)
  return values


def test_a_cheetah_at_rest_stands_still_without_torque(made):
  env = made["cheetah_run"]
  state = env.reset(jax.random.key(1))
  states = roll(env, state, jnp.zeros((400, env.action.size)))
  qpos = states.physics.data["qpos"]
  assert np.abs(qpos[-1, 1:3]).max() < 0.1  # neither sunk nor toppled
  assert np.abs(states.physics.data["qvel"][-1]).max() < 0.02
  assert states.reward[-1] < 0.002


def test_a_sine_gait_carries_the_cheetah_forward_as_far_as_its_rewards_say(
  made,
):
  env = made["cheetah_run"]
  t_s = np.arange(500)[:, None] * env.control_dt_s
  amplitude = np.array([2.2, 0.9, 1.3, 0.3, 2.0, 1.6])
  phase = np.array([-0.7, -1.5, -1.3, -1.9, 1.4, 1.2])
  bias = np.array([0.0, 0.5, 0.0, 0.8, -0.2, 0.5])
  actions = bias + amplitude * np.sin(30.0 * t_s + phase)
  actions = jnp.asarray(actions, jnp.float32)
  states = roll(env, state_of(env, rest("cheetah_run")), actions)
  distance_m = float(states.physics.data["qpos"][-1, 0])
  assert distance_m > 10.0
  paid_m = 10.0 * float(states.reward.sum()) * env.control_dt_s
  np.testing.assert_allclose(paid_m, distance_m, rtol=0.05)


@pytest.mark.parametrize("name", TASKS)
def test_a_robot_touches_the_floor_and_nothing_else(name):
  mj_model = models.load(name)
  mj_data = mujoco.MjData(mj_model)
  floor = mj_model.geom("floor").id
  rng = np.random.default_rng(0)
  touched = 0
  for _ in range(600):
    mj_data.ctrl[:] = rng.choice([-1.0, 1.0], mj_model.nu)
    mujoco.mj_step(mj_model, mj_data, 3)
    geoms = mj_data.contact.geom
    touched += len(geoms)
    assert (geoms == floor).any(axis=1).all()
  assert touched and np.isfinite(mj_data.qpos).all()


@pytest.mark.parametrize("name", TASKS)
def test_full_torque_never_throws_a_robot_about(made, name):
  """Bang-bang torque for 5 s keeps joint speeds within 80 rad/s."""
  env = made[name]
  key = jax.random.key(3)
  num_steps = round(5.0 / env.control_dt_s)
  actions = jax.random.rademacher(
    key, (num_steps, env.action.size), jnp.float32
  )
  states = roll(env, env.reset(key), actions)
  assert np.abs(states.physics.data["qvel"]).max() < 80.0


@pytest.mark.parametrize("name", TASKS)
def test_episodes_begin_above_the_floor_and_differ(made, name):
  env = made[name]
  keys = jax.random.split(jax.random.key(0), 64)
  qpos = np.asarray(jax.jit(jax.vmap(env.reset))(keys).physics.data["qpos"])
  assert (qpos.std(axis=0)[-env.action.size :] > 0.005).all()
  mj_model = models.load(name)
  mj_data = mujoco.MjData(mj_model)
  for row in qpos:
    mj_data.qpos[:] = row
    mujoco.mj_kinematics(mj_model, mj_data)
    mujoco.mj_collision(mj_model, mj_data)
    assert (mj_data.contact.dist > -0.02).all()


@pytest.mark.parametrize("name", TASKS)
def test_an_action_beyond_one_is_one(made, name):
  env = made[name]
  state = env.reset(jax.random.key(0))
  one = env.step(state, jnp.ones(env.action.size))
  five = env.step(state, 5.0 * jnp.ones(env.action.size))
  jax.tree.map(np.testing.assert_array_equal, one, five)


@pytest.mark.parametrize(
  "name, size",
  [("cheetah_run", 17), ("hopper_hop", 15), ("humanoid_walk", 67)],
)
def test_observation_has_the_documented_size(made, name, size):
  state = jax.eval_shape(made[name].reset, jax.random.key(0))
  assert state.obs.shape == (size,)


@pytest.mark.parametrize("name", TASKS)
def test_randomise_scales_mass_and_inertia_of_a_body_alike(name):
  mj_model = models.load(name)
  values = drawn_values(name, 0)
  mass = values["body_mass"][1:] / mj_model.body_mass[1:]
  inertia = values["body_inertia"][1:] / mj_model.body_inertia[1:]
  np.testing.assert_allclose(inertia, np.tile(mass[:, None], 3), rtol=1e-5)
  assert mass.std() > 0.01 and (abs(mass - 1) <= 0.15 + 1e-6).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_randomise_is_a_function_of_its_key_alone(name):
  first, again, other = (drawn_values(name, seed) for seed in (0, 0, 1))
  jax.tree.map(np.testing.assert_array_equal, first, again)
  for field, value in first.items():
    is_zero = not value.any()  # as the bias of a motor is
    assert is_zero or (value != other[field]).any()


@pytest.mark.slow
def test_a_randomised_env_draws_another_body_at_every_reset():
  env = envs.make("hopper_hop", physics="mujoco", randomise=True)
  keys = jax.random.split(jax.random.key(0), 2)
  state = jax.jit(jax.vmap(env.reset))(keys)
  mass_b = np.asarray(state.physics.model_values["body_mass"]).sum(axis=1)
  assert mass_b[0] != mass_b[1]
  state = jax.jit(jax.vmap(env.step))(state, jnp.zeros((2, env.action.size)))
  np.testing.assert_array_equal(
    mass_b, state.physics.model_values["body_mass"].sum(axis=1)
  )


def test_configs_are_frozen(made):
  with pytest.raises(dataclasses.FrozenInstanceError):
    cheetah_run.default_config().episode_length = 3
