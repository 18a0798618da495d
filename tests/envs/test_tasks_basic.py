"""Pendulum, cartpole and reacher against numbers worked by hand.

Each is also solved by a controller worked out by hand: what a policy is asked
to learn can be done.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import envs
from envs import physics as physics_lib
from envs.tasks import cartpole_swingup, models, pendulum, reacher

G = 9.81
ControlFn = Callable[[envs.State], jax.Array]


def play(env: envs.Env, control_fn: ControlFn, *, num: int) -> dict:
  """Returns rewards [num, T] and successes [num, T] of whole episodes."""

  def episode(key):
    def body(state, _):
      state = env.step(state, control_fn(state))
      return state, (state.reward, state.metrics[env.success_metric])

    return jax.lax.scan(body, env.reset(key), length=env.episode_length)[1]

  keys = jax.random.split(jax.random.key(3), num)
  rewards, success = jax.jit(jax.vmap(episode))(keys)
  return {"rewards": np.asarray(rewards), "success": np.asarray(success)}


# Pendulum.


def hung(theta: float, speed: float, **config) -> pendulum.PendulumState:
  settings = pendulum.Config(**config)
  return pendulum.PendulumState(
    theta=jnp.float32(theta),
    speed=jnp.float32(speed),
    model_values={
      "mass": jnp.float32(settings.mass_kg),
      "length": jnp.float32(settings.length_m),
      "friction": jnp.float32(settings.friction_nms),
    },
  )


def swing_for(state, num_steps: int, *, action: float = 0.0, **config):
  """Returns theta and speed, [num_steps] each."""
  settings = pendulum.Config(**config)

  def body(state, _):
    state = pendulum.swing(state, jnp.full((1,), action), settings)
    return state, (state.theta, state.speed)

  return jax.jit(lambda s: jax.lax.scan(body, s, length=num_steps)[1])(state)


@pytest.mark.parametrize(
  ("theta", "speed", "expected"),
  [
    (0.0, 0.0, 1.0),
    (math.pi, 0.0, 0.0),
    # cos = 0: (1 / 2)^2, and still = 1.
    (math.pi / 2, 0.0, 0.25),
    # Upright at 2 rad/s: (1 + exp(-1)) / 2.
    (0.0, 2.0, 0.68393972),
    # cos = 1/2: (3 / 4)^2 (1 + exp(-4)) / 2.
    (math.pi / 3, -4.0, 0.28640127),
  ],
)
def test_pendulum_reward(theta, speed, expected):
  got = pendulum.reward(hung(theta, speed))
  np.testing.assert_allclose(got, expected, atol=1e-6)


def test_pendulum_keeps_its_energy_without_torque_and_friction():
  theta, speed = swing_for(
    hung(0.5, 0.0, friction_nms=0.0), 200, friction_nms=0.0
  )
  energy = 0.5 * np.square(speed) + G * np.cos(theta)  # m = l = 1
  # In units of the 2 m g l between hanging and upright.
  assert np.abs(energy - G * math.cos(0.5)).max() / (2 * G) < 2e-4


def test_pendulum_swings_with_the_period_of_its_length():
  # Small swings about hanging: 2 pi sqrt(l / g) = 2.00607 s; a step of a 40th.
  dt_s = 2 * math.pi * math.sqrt(1 / G) / 40
  theta, _ = swing_for(
    hung(math.pi - 0.02, 0.0, friction_nms=0.0),
    40,
    control_dt_s=dt_s,
    friction_nms=0.0,
  )
  swing = np.mod(np.asarray(theta), 2 * math.pi) - math.pi
  np.testing.assert_allclose(
    swing[[9, 19, 29, 39]], [0, 0.02, 0, -0.02], atol=2e-5
  )


@pytest.mark.parametrize("side", ["hanging", "lifted"])
def test_pendulum_rests_where_torque_balances_weight(side):
  # m g l sin(theta) + torque = 0 at theta = -asin(4 / 9.81), and at its mirror
  # image below the pivot.
  lifted = -math.asin(4 / G)
  theta_0 = lifted if side == "lifted" else -math.pi - lifted
  theta, _ = swing_for(hung(theta_0, 0.0), 10, action=1.0)
  np.testing.assert_allclose(theta, theta_0, atol=1e-4)


def test_pendulum_friction_slows_it_exponentially():
  # Without gravity speed falls by exp(-b t / (m l^2)) = exp(-0.5 x 2) in 2 s.
  config = dict(friction_nms=0.5, gravity_m_per_s2=0.0)
  _, speed = swing_for(hung(0.0, 3.0, **config), 40, **config)
  np.testing.assert_allclose(speed[-1], 3 * math.exp(-1), rtol=1e-5)


def test_pendulum_angle_stays_within_a_turn():
  theta, _ = swing_for(hung(0.0, 30.0, friction_nms=0.0), 100)
  assert np.abs(theta).max() <= math.pi + 1e-5


def test_pendulum_refuses_a_mujoco_backend():
  with pytest.raises(ValueError, match=r"no MuJoCo model.*not 'mjx'"):
    envs.make("pendulum", physics="mjx")


def test_pendulum_can_be_swung_up():
  def control(state):
    cos, sin, speed = state.obs[0], state.obs[1], 8.0 * state.obs[2]
    theta = jnp.arctan2(sin, cos)
    energy = 0.5 * speed**2 + G * (cos - 1.0)
    pump = jnp.where((speed >= 0) == (energy < 0), 1.0, -1.0)
    balance = -(25.0 * theta + 8.0 * speed) / 4.0
    return jnp.where(jnp.abs(theta) < 0.35, balance, pump)[None]

  got = play(envs.make("pendulum"), control, num=16)
  assert got["success"][:, -1].all()
  assert got["rewards"][:, -1].min() > 0.99


def test_pendulum_pixels_show_this_step_and_the_one_before():
  env = envs.make("pendulum_pixels")
  before = jax.jit(env.reset)(jax.random.key(0))
  after = jax.jit(env.step)(before, jnp.ones((1,)))
  assert after.obs.shape == (32, 32, 2)
  np.testing.assert_allclose(after.obs[..., 1], before.obs[..., 0], atol=1e-6)
  assert np.abs(after.obs[..., 0] - before.obs[..., 0]).max() > 0.1


def test_pendulum_picture_has_the_rod_where_it_points():
  up = np.asarray(pendulum.draw_rod(jnp.float32(0.0), size=32))
  right = np.asarray(pendulum.draw_rod(jnp.float32(math.pi / 2), size=32))
  np.testing.assert_allclose(up, up[:, ::-1], atol=1e-6)
  # A quarter turn to the right is a quarter turn of the picture.
  np.testing.assert_allclose(np.rot90(up, -1), right, atol=1e-5)
  # Rows from -1 to 1: all but the pivot's round end lies above the middle.
  # The rod covers 0.75 x 0.18 and two half discs: 0.1604 of 4.
  np.testing.assert_allclose(up.mean(), 0.1604 / 4, rtol=0.02)
  assert up[16:].sum() < 0.1 * up.sum()


# Cartpole.


def cart(position=0.0, theta=0.0, velocity=0.0, spin=0.0):
  return physics_lib.PhysicsState(
    internal=(),
    data={
      "qpos": jnp.asarray([position, theta], jnp.float32),
      "qvel": jnp.asarray([velocity, spin], jnp.float32),
    },
    model_values={},
    overflow=jnp.zeros((), jnp.int32),
  )


@pytest.mark.parametrize(
  ("state", "action", "expected"),
  [
    (dict(), 0.0, 1.0),
    (dict(theta=math.pi), 0.0, 0.0),
    (dict(theta=math.pi / 2), 0.0, 0.5),
    # 2 m off leaves 0.1 of the bell: (1 + 0.1) / 2.
    (dict(position=2.0), 0.0, 0.55),
    # Full force: (4 + 0) / 5; half: (4 + 1 - 0.25) / 5.
    (dict(), -1.0, 0.8),
    (dict(), 0.5, 0.95),
    # 5 rad/s leaves 0.1: (1 + 0.1) / 2.
    (dict(spin=-5.0), 0.0, 0.55),
    # All at once: 0.5 x 0.55 x 0.8 x 0.55.
    (dict(position=-2.0, theta=math.pi / 2, spin=5.0), 1.0, 0.121),
  ],
)
def test_cartpole_reward(state, action, expected):
  got = cartpole_swingup.reward(cart(**state), jnp.full((1,), action))
  np.testing.assert_allclose(got, expected, atol=1e-6)


def test_cartpole_observation_is_cart_and_turning_pole():
  got = cartpole_swingup.observe(cart(0.3, math.pi / 2, -1.0, 2.0))
  np.testing.assert_allclose(got, [0.3, 0.0, 1.0, -1.0, 2.0], atol=1e-6)


def test_cartpole_hanging_still_earns_nothing():
  config = cartpole_swingup.Config(reset_noise=0.0)
  env = cartpole_swingup.make(config, physics="mujoco")
  state = env.reset(jax.random.key(0))
  for _ in range(3):
    state = env.step(state, jnp.zeros((1,)))
  np.testing.assert_allclose(state.reward, 0.0, atol=1e-6)
  np.testing.assert_allclose(state.obs, [0, -1, 0, 0, 0], atol=1e-5)


def test_cartpole_accelerates_as_newton_says():
  # Under a hanging thin rod of mass m, x'' = F / (M + m / 4): 10 / 1.025 N/kg,
  # so 0.02 s give 0.1951 m/s. Our rod is 7 cm thick, and turns a little.
  config = cartpole_swingup.Config(reset_noise=0.0)
  env = cartpole_swingup.make(config, physics="mujoco")
  state = env.step(env.reset(jax.random.key(0)), jnp.ones((1,)))
  np.testing.assert_allclose(state.obs[3], 0.1951, rtol=0.01)


def test_cartpole_pole_swings_with_constant_energy():
  env = cartpole_swingup.make(physics="mujoco")
  mj_model = models.load("cartpole_swingup")
  data = mujoco.MjData(mj_model)
  state = env.reset(jax.random.key(1))
  step_fn = jax.jit(env.step)
  energies = []
  for _ in range(100):
    state = step_fn(state, jnp.zeros((1,)))
    data.qpos[:] = state.physics.data["qpos"]
    data.qvel[:] = state.physics.data["qvel"]
    mujoco.mj_forward(mj_model, data)
    mujoco.mj_energyPos(mj_model, data)
    mujoco.mj_energyVel(mj_model, data)
    energies.append(sum(data.energy))
  # Of the 2 m g l / 2 = 0.98 J between hanging and upright.
  assert np.ptp(energies) < 0.01 * 0.98


def test_cartpole_can_be_swung_up_and_earns_three_quarters_of_the_most():
  mass, pole, half, inertia = 1.0, 0.1, 0.5, 0.1 / 3
  # Linear-quadratic gains for (position, angle, velocity, spin) upright.
  gains = jnp.asarray([-0.86, -6.46, -1.01, -1.61])

  def control(state):
    position, theta = state.physics.data["qpos"]
    velocity, spin = state.physics.data["qvel"]
    theta = jnp.arctan2(jnp.sin(theta), jnp.cos(theta))
    lean = jnp.stack([position, theta, velocity, spin])
    weight = pole * half * G
    energy = 0.5 * inertia * spin**2 + weight * (jnp.cos(theta) - 1.0)
    # The energy grows as -m l spin cos(theta) x''.
    pump = jnp.clip(energy / 0.2, -1.0, 1.0) * jnp.sign(spin * jnp.cos(theta))
    push = 6.0 * pump - 1.5 * position - 1.0 * velocity
    push *= (mass + pole) / 10.0
    return jnp.where(jnp.abs(theta) < 0.4, -jnp.dot(gains, lean), push)[None]

  env = envs.make("cartpole_swingup", physics="mujoco")
  got = play(env, control, num=8)
  assert got["success"][:, -1].all()
  assert got["rewards"][:, -1].min() > 0.99
  assert got["rewards"].sum(axis=1).min() > 0.7 * env.episode_length


# Reacher.


@pytest.mark.parametrize(
  ("distance_m", "expected"),
  # Half of 1 - d / 0.8 and half of 0.1^((d / 0.1)^2).
  [(0.0, 1.0), (0.1, 0.4875), (0.2, 0.37505), (0.8, 0.0)],
)
def test_reacher_reward(distance_m, expected):
  got = reacher.reward(jnp.float32(distance_m))
  np.testing.assert_allclose(got, expected, atol=1e-6)


def test_reacher_succeeds_where_the_target_is_at_the_fingertip():
  env = envs.make("reacher", physics="mujoco")
  state = env.reset(jax.random.key(0))
  away = env.step(state, jnp.zeros((2,)))
  tip = state.physics.data["site_xpos"][0]
  there = env.step(state.replace(info={"target": tip}), jnp.zeros((2,)))
  assert away.metrics["success"] == 0.0
  assert there.metrics["success"] == 1.0
  np.testing.assert_allclose(there.reward, 1.0, atol=1e-5)
  np.testing.assert_allclose(there.obs[6:], 0.0, atol=1e-5)


def test_reacher_fingertip_is_where_the_angles_put_it():
  env = envs.make("reacher", physics="mujoco")
  state = jax.jit(env.reset)(jax.random.key(5))
  shoulder, elbow = np.asarray(state.physics.data["qpos"])
  both = shoulder + elbow
  tip = 0.2 * np.asarray(
    [math.cos(shoulder) + math.cos(both), math.sin(shoulder) + math.sin(both)]
  )
  target = np.asarray(state.info["target"][:2])
  np.testing.assert_allclose(state.obs[6:], target - tip, atol=1e-6)
  np.testing.assert_allclose(
    state.obs[:4],
    [math.cos(shoulder), math.sin(shoulder), math.cos(elbow), math.sin(elbow)],
    atol=1e-6,
  )


def test_reacher_targets_fill_the_ring_evenly():
  keys = jax.random.split(jax.random.key(0), 4000)
  config = reacher.Config(nearest_target_m=0.1, farthest_target_m=0.3)
  draw_fn = jax.vmap(lambda key: reacher.draw_target(key, config))
  target = np.asarray(draw_fn(keys))
  radius = np.hypot(target[:, 0], target[:, 1])
  assert radius.min() >= 0.1 and radius.max() <= 0.3
  # Half of the area between 0.1 and 0.3 lies within sqrt(0.05) = 0.2236;
  # 4 standard deviations of a share of 4,000 are 0.032.
  assert abs(np.mean(radius < 0.2236) - 0.5) < 0.032
  assert np.abs(np.mean(target[:, :2], axis=0)).max() < 0.01


def test_reacher_reaches_every_target_with_the_angles_worked_out():
  def control(state):
    x, y, _ = state.info["target"]
    # Of the triangle with two sides of 0.2 m.
    cos = (x**2 + y**2 - 0.08) / 0.08
    elbow = jnp.arccos(jnp.clip(cos, -1.0, 1.0))
    shoulder = jnp.arctan2(y, x) - elbow / 2.0
    at, speed = state.physics.data["qpos"], state.physics.data["qvel"]
    turn = shoulder - at[0]
    turn = jnp.arctan2(jnp.sin(turn), jnp.cos(turn))
    return jnp.stack(
      [
        (0.6 * turn - 0.1 * speed[0]) / 0.25,
        (0.3 * (elbow - at[1]) - 0.03 * speed[1]) / 0.12,
      ]
    )

  got = play(envs.make("reacher", physics="mujoco"), control, num=32)
  assert got["success"][:, -1].all()
  assert got["rewards"][:, -1].min() > 0.95
