"""The arm and its tasks: arm_reach, arm_push, arm_pick."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

from envs.tasks import arm, arm_pick, arm_push, arm_reach

TASKS = {"arm_reach": arm_reach, "arm_push": arm_push, "arm_pick": arm_pick}


@functools.cache
def _env(name):
  """The task, its jitted reset and its jitted step, compiled once."""
  env = TASKS[name].make(physics="mujoco")
  return env, jax.jit(env.reset), jax.jit(env.step)


@functools.cache
def _starts(name):
  """200 states at the start of an episode."""
  _, reset, _ = _env(name)
  return jax.jit(jax.vmap(reset))(jax.random.split(jax.random.key(0), 200))


def _model(name):
  return arm.load(name, has_gripper=name == "arm_pick")


def _solve_ik(mj_model, position, *, start, yaw=0.0):
  """Joint angles that bring the gripper to `position`, pointing down.

  Damped least squares on the six-dimensional error.
  """
  cos, sin = math.cos(yaw), math.sin(yaw)
  turn = np.array([[cos, -sin, 0], [sin, cos, 0], [0, 0, 1]])
  wanted = turn @ np.diag([-1.0, 1.0, -1.0])
  mj_data = mujoco.MjData(mj_model)
  site = mj_model.site("gripper").id
  jacobian = np.zeros((6, mj_model.nv))
  joints = np.array(start[: arm.NUM_JOINTS], float)
  for _ in range(100):
    mj_data.qpos[: arm.NUM_JOINTS] = joints
    mujoco.mj_kinematics(mj_model, mj_data)
    mujoco.mj_comPos(mj_model, mj_data)
    mujoco.mj_jacSite(mj_model, mj_data, jacobian[:3], jacobian[3:], site)
    axes = mj_data.site_xmat[site].reshape(3, 3)
    twist = 0.5 * np.cross(axes.T, wanted.T).sum(0)
    error = np.concatenate([position - mj_data.site_xpos[site], twist])
    part = jacobian[:, : arm.NUM_JOINTS]
    damped = part @ part.T + 1e-4 * np.eye(6)
    joints += np.clip(part.T @ np.linalg.solve(damped, error), -0.2, 0.2)
  assert np.abs(error).max() < 1e-3
  return joints


def _toward(wanted, state):
  """The action that moves the targets to `wanted` as fast as allowed."""
  target = np.asarray(state.info["target"])
  step = arm._STEP[: len(target)]
  return jnp.asarray(np.clip((wanted - target) / step, -1, 1), jnp.float32)


def _cube(mj_model, state):
  position, axes = arm.cube(mj_model, state.physics)
  return np.asarray(position), np.asarray(axes)


class TestModel:
  @pytest.mark.parametrize("name", TASKS)
  def test_home_holds_still_against_gravity(self, name):
    mj_model = _model(name)
    mj_data = mujoco.MjData(mj_model)
    home = np.array(TASKS[name]._HOME)
    mj_data.qpos[:7] = mj_data.ctrl[:7] = home
    for _ in range(100):
      mujoco.mj_step(mj_model, mj_data)
    np.testing.assert_allclose(mj_data.qpos[:7], home, atol=1e-4)

  @pytest.mark.parametrize(
    "name, where",
    [
      ("arm_reach", (0.45, 0, 0.35)),
      ("arm_push", (0.38, 0, 0.05)),
      ("arm_pick", (0.45, 0, 0.15)),
    ],
  )
  def test_home_is_where_the_docstring_says(self, name, where):
    mj_model = _model(name)
    mj_data = mujoco.MjData(mj_model)
    mj_data.qpos[:7] = TASKS[name]._HOME
    mujoco.mj_forward(mj_model, mj_data)
    site = mj_data.site("gripper")
    np.testing.assert_allclose(site.xpos, where, atol=2e-3)
    np.testing.assert_allclose(site.xmat[[2, 5, 8]], [0, 0, -1], atol=2e-3)

  def test_fingers_move_together_and_meet_in_the_middle(self):
    mj_model = _model("arm_pick")
    mj_data = mujoco.MjData(mj_model)
    mj_data.qpos[:7] = mj_data.ctrl[:7] = arm_pick._HOME
    mj_data.ctrl[7] = arm.OPEN_M
    for _ in range(100):
      mujoco.mj_step(mj_model, mj_data)
    np.testing.assert_allclose(mj_data.qpos[7:9], arm.OPEN_M, atol=2e-3)
    pads = [mj_data.geom(f"{side}_pad").xpos for side in ("left", "right")]
    np.testing.assert_allclose(
      np.mean(pads, axis=0)[:2], mj_data.site("gripper").xpos[:2], atol=1e-3
    )

  def test_gains_are_below_the_bound_of_explicit_damping(self):
    # Largest eigenvalue of timestep * M^-1 D, wherever the arm may stand and
    # with gains and damping at the top of their ranges; 2 is the bound of an
    # explicit step.
    mj_model = _model("arm_pick")
    mj_data = mujoco.MjData(mj_model)
    damping = np.diag(
      1.5 * mj_model.dof_damping[:7] - 1.2 * mj_model.actuator_biasprm[:7, 2]
    )
    low, high = mj_model.jnt_range[:7].T
    inertia = np.zeros((mj_model.nv, mj_model.nv))
    rng = np.random.default_rng(0)
    for _ in range(50):
      mj_data.qpos[:7] = rng.uniform(low, high)
      mujoco.mj_forward(mj_model, mj_data)
      mujoco.mj_fullM(mj_model, mj_data, inertia)
      rates = np.linalg.eigvals(np.linalg.solve(inertia[:7, :7], damping))
      assert mj_model.opt.timestep * rates.real.max() < 1.4

  def test_a_fixed_gripper_has_neither_fingers_nor_actuator(self):
    mj_model = _model("arm_reach")
    assert (mj_model.nq, mj_model.nu, mj_model.neq, mj_model.ntendon) == (
      7,
      7,
      0,
      0,
    )


class TestControl:
  def test_an_action_moves_targets_by_its_share_of_a_step(self):
    mj_model = _model("arm_pick")
    target = jnp.asarray([*arm_pick._HOME, 0.02], jnp.float32)
    action = jnp.asarray([1.0, 0, 0, 0, 0, 0, -0.5, -1.0], jnp.float32)
    moved = arm.move_targets(mj_model, target, action, position=target)
    # 0.06 rad for joint 1, half of 0.08 rad for joint 7, 1 cm for the gripper.
    by = [0.06, 0, 0, 0, 0, 0, -0.04, -0.01]
    np.testing.assert_allclose(moved - target, by, atol=1e-6)

  def test_actions_beyond_one_are_clipped(self):
    mj_model = _model("arm_reach")
    target = jnp.asarray(arm_reach._HOME, jnp.float32)
    by_one, by_nine = [
      arm.move_targets(mj_model, target, jnp.full(7, x), position=target)
      for x in (1.0, 9.0)
    ]
    np.testing.assert_array_equal(by_one, by_nine)

  def test_a_target_stays_within_the_actuators_range(self):
    mj_model = _model("arm_pick")
    target = jnp.asarray([*arm_pick._HOME, 0.035], jnp.float32)
    moved = arm.move_targets(mj_model, target, jnp.ones(8), position=target)
    np.testing.assert_allclose(moved[7], 0.04)

  def test_a_target_does_not_run_ahead_of_a_blocked_joint(self):
    mj_model = _model("arm_reach")
    joints = jnp.asarray(arm_reach._HOME, jnp.float32)
    target = joints
    for _ in range(10):  # 10 * 0.06 rad > 0.12 rad
      target = arm.move_targets(mj_model, target, jnp.ones(7), position=joints)
    np.testing.assert_allclose(target - joints, 0.12, atol=1e-6)

  @pytest.mark.parametrize("name", TASKS)
  def test_no_action_leaves_the_arm_where_it_is(self, name):
    env, reset, step = _env(name)
    state = reset(jax.random.key(0))
    before = state.physics.data["qpos"][:7]
    for _ in range(20):
      state = step(state, jnp.zeros(env.action.size))
    np.testing.assert_allclose(
      state.physics.data["qpos"][:7], before, atol=1e-3
    )


class TestReset:
  @pytest.mark.parametrize("name", TASKS)
  def test_nothing_penetrates_and_all_lies_in_the_workspace(self, name):
    states = _starts(name)
    mj_model = _model(name)
    mj_data = mujoco.MjData(mj_model)
    fingers = [mj_model.geom(f"{side}_pad").id for side in ("left", "right")]
    for qpos, goal in zip(
      np.asarray(states.physics.data["qpos"], float),
      np.asarray(states.info["goal"]),
    ):
      mj_data.qpos = qpos
      mujoco.mj_forward(mj_model, mj_data)
      # The cube rests on the floor, 0.1 mm deep; the gripper touches nothing.
      assert not set(mj_data.contact.geom.ravel()) & set(fingers)
      assert (mj_data.contact.dist > -1.1e-4).all()
      low, high = mj_model.jnt_range[:7].T
      assert (qpos[:7] > low).all() and (qpos[:7] < high).all()
      assert mj_data.site("gripper").xpos[2] > 0.025
      assert 0.3 <= goal[0] <= 0.75 and abs(goal[1]) <= 0.3

  @pytest.mark.parametrize("name", TASKS)
  def test_no_episode_begins_solved(self, name):
    env, _, step = _env(name)
    action = jnp.zeros((200, env.action.size))
    state = jax.jit(jax.vmap(step))(_starts(name), action)
    assert state.metrics["success"].mean() < 0.02

  @pytest.mark.parametrize("name", TASKS)
  def test_randomised_models_differ_and_are_as_drawn(self, name):
    env = TASKS[name].make(physics="mujoco", randomise=True)
    states = jax.jit(jax.vmap(env.reset))(
      jax.random.split(jax.random.key(0), 2)
    )
    mass = states.physics.model_values["body_mass"]
    hand = _model(name).body("link7").id
    assert mass[0, hand] != mass[1, hand]
    # Link 7 has 1 kg and masses vary by 30 %.
    assert ((mass[:, hand] > 0.7) & (mass[:, hand] < 1.3)).all()


class TestRewards:
  def test_reach_at_the_goal_and_at_ten_centimetres(self):
    np.testing.assert_allclose(arm_reach.reward(jnp.float32(0)), 1.0)
    # (1 - tanh(1/3)) / 2 + 0.1 / 2 = 0.339244 + 0.05
    np.testing.assert_allclose(
      arm_reach.reward(jnp.float32(0.1)), 0.389244, atol=1e-5
    )

  def test_push_adds_reaching_and_placing(self):
    # Reach 0.2 m: 1 - tanh 1 = 0.238406; place (0.17 - 0.02) / 0.15 m: same.
    value = arm_push.reward(jnp.float32(0.2), jnp.float32(0.17), success_m=0.04)
    np.testing.assert_allclose(value, 0.238406, atol=1e-5)

  @pytest.mark.parametrize("reach", (0.0, 0.5))
  def test_push_no_longer_asks_where_the_gripper_is_once_it_is_done(
    self, reach
  ):
    reach = jnp.float32(reach)
    value = arm_push.reward(reach, jnp.float32(0.02), success_m=0.04)
    np.testing.assert_allclose(value, 1.0)
    # 0.3 + 0.7 (1 - tanh(0.015 / 0.15)) = 0.930232
    value = arm_push.reward(reach, jnp.float32(0.035), success_m=0.04)
    np.testing.assert_allclose(value, 0.930232, atol=1e-5)

  def test_push_wants_the_gripper_behind_the_cube(self):
    spot = arm_push.pushing_spot(
      jnp.asarray([0.5, 0.1, 0.025]), jnp.asarray([0.5, 0.3, 0.0])
    )
    # The goal lies to the left (+y), so 5 cm to the right.
    np.testing.assert_allclose(spot, [0.5, 0.05, 0.025], atol=1e-6)

  def test_push_has_a_finite_spot_at_the_goal(self):
    there = jnp.asarray([0.5, 0.1, 0.0])
    np.testing.assert_allclose(arm_push.pushing_spot(there, there), there)

  def test_pick_pays_for_lifting_and_placing_only_what_is_held(self):
    def reward(reach, grip, distance, height, down=1.0):
      parts = [jnp.float32(x) for x in (reach, grip, distance)]
      return arm_pick.reward(
        *parts, height=jnp.float32(height), down=jnp.float32(down)
      )

    # At the goal but not held: 0.2 (1 - tanh 0.5) = 0.107577.
    np.testing.assert_allclose(reward(0.1, 0, 0, 0.2), 0.107577, atol=1e-5)
    # Half lifted: 0.2 + 0.2 + 0.2 / 2 + 0.4 (1 - tanh 1) = 0.595362
    np.testing.assert_allclose(reward(0, 1, 0.2, 0.025), 0.595362, atol=1e-5)
    np.testing.assert_allclose(reward(0, 1, 0, 0.3), 1.0)
    # Tilted by 60 degrees it is worth half, upside down nothing.
    np.testing.assert_allclose(reward(0, 1, 0, 0.3, down=0.5), 0.5)
    np.testing.assert_allclose(reward(0, 1, 0, 0.3, down=-1.0), 0.0)

  def test_held_needs_the_cube_between_fingers_that_press(self):
    def held(reach, opening, squeeze):
      return arm_pick.held(
        jnp.float32(reach),
        opening=jnp.float32(opening),
        squeeze=jnp.float32(squeeze),
      )

    np.testing.assert_allclose(held(0.004, 0.02, 0.02), 1.0)
    np.testing.assert_allclose(held(0.004, 0.02, 0.005), 0.5, atol=1e-6)
    np.testing.assert_allclose(held(0.004, 0.02, -0.01), 0.0)
    # 2.5 cm is one margin outside, where 0.1 is left; so is 3.2 cm open.
    np.testing.assert_allclose(held(0.025, 0.02, 0.02), 0.1, atol=1e-5)
    np.testing.assert_allclose(held(0.0, 0.032, 0.02), 0.1, atol=1e-5)


class TestScripted:
  """What a policy can do: a script does it, with inverse kinematics."""

  def test_reach_succeeds_all_over_the_goals(self):
    _, reset, step = _env("arm_reach")
    mj_model = _model("arm_reach")
    for seed in range(4):
      state = reset(jax.random.key(seed))
      goal = np.asarray(state.info["goal"])
      joints = _solve_ik(mj_model, goal, start=arm_reach._HOME)
      for _ in range(50):
        state = step(state, _toward(joints, state))
      assert state.metrics["success"] == 1
      assert state.reward > 0.95

  @pytest.mark.parametrize("seed", range(4))
  def test_pick_lifts_the_cube_by_friction_and_keeps_it(self, seed):
    _, reset, step = _env("arm_pick")
    mj_model = _model("arm_pick")
    state = reset(jax.random.key(seed))
    cube, axes = _cube(mj_model, state)
    goal = np.asarray(state.info["goal"])
    yaw = math.atan2(axes[1, 0], axes[0, 0])
    above = _solve_ik(
      mj_model, cube + [0, 0, 0.1], start=arm_pick._HOME, yaw=yaw
    )
    grasp = cube + arm_pick._ABOVE_M
    around = _solve_ik(mj_model, grasp, start=above, yaw=yaw)
    lifted = _solve_ik(mj_model, goal, start=around, yaw=yaw)
    heights = []
    for joints, opening, num in (
      (above, arm.OPEN_M, 20),
      (around, arm.OPEN_M, 15),
      (around, 0.0, 10),
      (lifted, 0.0, 25),
      (lifted, 0.0, 50),
    ):
      for _ in range(num):
        state = step(state, _toward(np.append(joints, opening), state))
      heights.append(_cube(mj_model, state)[0][2])
    assert abs(heights[2] - 0.02) < 2e-3  # not before it is gripped
    assert heights[3] > goal[2] - 0.02
    assert abs(heights[4] - heights[3]) < 2e-3  # it does not slip
    assert state.metrics["held"] > 0.95
    assert state.metrics["success"] == 1
    assert state.reward > 0.9

  def test_an_open_gripper_lifts_nothing(self):
    _, reset, step = _env("arm_pick")
    mj_model = _model("arm_pick")
    state = reset(jax.random.key(0))
    cube, axes = _cube(mj_model, state)
    yaw = math.atan2(axes[1, 0], axes[0, 0])
    for height, num in ((0.1, 20), (0.0, 15), (0.2, 20)):
      joints = _solve_ik(
        mj_model, cube + [0, 0, height], start=arm_pick._HOME, yaw=yaw
      )
      for _ in range(num):
        state = step(state, _toward(np.append(joints, arm.OPEN_M), state))
    assert abs(_cube(mj_model, state)[0][2] - 0.02) < 1e-3
    assert state.metrics["held"] == 0

  @pytest.mark.parametrize("seed", range(4))
  def test_push_brings_the_cube_to_the_goal(self, seed):
    env, reset, step = _env("arm_push")
    mj_model = _model("arm_push")
    state = reset(jax.random.key(seed))
    goal = np.asarray(state.info["goal"])
    joints = np.array(arm_push._HOME)
    is_solved = False
    for _ in range(env.episode_length):
      cube, _ = _cube(mj_model, state)
      gripper = np.asarray(arm.gripper(mj_model, state.physics))
      spot = np.asarray(arm_push.pushing_spot(jnp.asarray(cube), goal))
      ahead = (cube - spot) / np.linalg.norm(cube - spot)
      off = (spot - gripper)[:2]
      aside = abs(off @ [-ahead[1], ahead[0]])
      aim = spot + (0.03 if aside < 0.008 else -0.01) * ahead
      joints = _solve_ik(mj_model, aim, start=joints)
      state = step(state, _toward(joints, state))
      if state.metrics["success"]:
        is_solved = True
        break
    assert is_solved
    assert state.reward > 0.9


class TestConfig:
  def test_success_is_measured_against_the_configured_distance(self):
    config = dataclasses.replace(arm_reach.default_config(), success_m=10.0)
    env = arm_reach.make(config, physics="mujoco")
    state = env.step(env.reset(jax.random.key(0)), jnp.zeros(7))
    assert state.metrics["success"] == 1


@pytest.mark.slow
def test_reach_steps_alike_on_mjx_and_on_the_c_engine():
  states = []
  for backend in ("mujoco", "mjx"):
    env = arm_reach.make(physics=backend)
    state = jax.jit(env.reset)(jax.random.key(0))
    step = jax.jit(env.step)
    for _ in range(3):
      state = step(state, jnp.linspace(-1, 1, 7))
    states.append(state)
  np.testing.assert_allclose(states[0].obs, states[1].obs, atol=1e-4)
  np.testing.assert_allclose(states[0].reward, states[1].reward, atol=1e-5)
