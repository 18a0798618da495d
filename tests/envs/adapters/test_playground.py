"""Playground's tasks over our physics are Playground's tasks."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mujoco import mjx
from mujoco_playground._src import dm_control_suite, locomotion, mjx_env
from mujoco_playground._src.dm_control_suite import cartpole

import envs
from envs import validation
from envs.adapters import foreign

pytestmark = pytest.mark.slow

NUM_ENVS = 3


@pytest.mark.parametrize("name", dm_control_suite.ALL_ENVS)
def test_every_dm_control_task_keeps_the_promises_of_an_env(name):
  env = envs.make(f"playground:{name}", physics="mujoco", num_threads=1)
  validation.check(env, source=name)
  task = dm_control_suite.load(name, config_overrides={"impl": "jax"})
  state = jax.eval_shape(env.reset, jax.random.key(0))
  assert env.action == envs.Box(size=task.action_size)
  assert env.control_dt_s == pytest.approx(task.dt)
  assert env.episode_length == 1000
  assert env.backend == "mujoco"
  assert state.obs.shape[0] == env.reset(jax.random.key(0)).obs.size


# A mocap target that moves after the forward pass; contacts and touch sensors.
# Measured by hand over 20 tasks (2026-11-30), 5 steps, relative to the largest
# entry: 1e-6, but CheetahRun 5e-6, WalkerWalk 7e-6, SwimmerSwimmer6 1.4e-5.
@pytest.mark.timeout(900)  # MJX takes a minute to compile, on a quiet machine
@pytest.mark.parametrize(
  "name", ["ReacherEasy", pytest.param("FingerSpin", marks=pytest.mark.long)]
)
def test_the_c_engine_agrees_with_playground_on_mjx(name):
  env = envs.make(f"playground:{name}", physics="mujoco", num_threads=1)
  task = dm_control_suite.load(name, config_overrides={"impl": "jax"})
  ours = roll(env.reset, env.step, task.action_size)
  theirs = roll(task.reset, task.step, task.action_size)
  for a, b in zip(ours, theirs):
    scale = max(np.abs(b.obs).max(), 1.0)
    np.testing.assert_allclose(a.obs / scale, b.obs / scale, atol=1e-5)
    np.testing.assert_allclose(a.reward, b.reward, atol=1e-5)
    assert sorted(a.metrics) == sorted(b.metrics)
    for key, value in a.metrics.items():
      np.testing.assert_allclose(value, b.metrics[key], atol=1e-5)


def test_mjx_is_what_playground_runs_to_the_last_bits():
  name = "PendulumSwingup"
  env = envs.make(f"playground:{name}", physics="mjx")
  assert env.backend == "mjx"
  task = dm_control_suite.load(name, config_overrides={"impl": "jax"})
  for a, b in zip(roll(env.reset, env.step, 1), roll(task.reset, task.step, 1)):
    np.testing.assert_allclose(a.obs, b.obs, atol=1e-6)
    np.testing.assert_allclose(a.reward, b.reward, atol=1e-6)


def roll(reset, step, action_size):
  """Returns the states of three steps of three simulations."""
  reset, step = jax.jit(jax.vmap(reset)), jax.jit(jax.vmap(step))
  with foreign.promotion():
    states = [reset(jax.random.split(jax.random.key(0), NUM_ENVS))]
    for t in range(3):
      action = jax.random.uniform(
        jax.random.key(t), (NUM_ENVS, action_size), minval=-1, maxval=1
      )
      states.append(step(states[-1], action))
  return states


def test_playground_itself_is_left_as_it_was():
  before = {name: dict(vars(m)) for name, m in modules().items()}
  envs.make("playground:CartpoleBalance", physics="mujoco")
  for name, module in modules().items():
    assert all(vars(module)[k] is v for k, v in before[name].items())
  task = dm_control_suite.load("CartpoleBalance", None, {"impl": "jax"})
  with foreign.promotion():
    state = jax.eval_shape(task.reset, jax.random.key(0))
  assert isinstance(state.data, mjx.Data)


def modules():
  return {"mjx": mjx, "mjx_env": mjx_env, "cartpole": cartpole}


def test_step_compiles_once_and_leaves_its_argument_alone():
  env = envs.make("playground:WalkerWalk", physics="mujoco", num_threads=1)
  step = jax.jit(jax.vmap(env.step))
  first = state = jax.vmap(env.reset)(jax.random.split(jax.random.key(0), 2))
  for _ in range(3):
    state = step(state, jnp.ones((2, 6)))
  assert step._cache_size() == 1
  np.testing.assert_array_equal(first.metrics["reward/upright"], np.zeros(2))
  assert np.all(state.metrics["reward/upright"] != 0.0)


def test_terminated_is_what_playground_calls_done():
  env = envs.make("playground:PendulumSwingup", physics="mujoco")
  state = env.reset(jax.random.key(0))
  assert not env.step(state, jnp.zeros(1)).terminated
  # Playground ends an episode in which the simulation has become NaN.
  assert env.step(state, jnp.full(1, jnp.nan)).terminated


def test_config_replaces_playgrounds_values():
  env = envs.make(
    "playground:CartpoleBalance", physics="mujoco", config={"ctrl_dt": 0.02}
  )
  assert env.control_dt_s == pytest.approx(0.02)  # instead of 0.01


def test_an_unknown_config_entry_is_told_which_there_are():
  with pytest.raises(ValueError, match="'ctrl_d'.*ctrl_dt"):
    envs.make("playground:CartpoleBalance", config={"ctrl_d": 0.02})


def test_an_unknown_name_is_told_the_names():
  with pytest.raises(ValueError, match="Did you mean 'CheetahRun'.*WalkerWalk"):
    envs.make("playground:CheetaRun")


def test_domain_randomisation_is_refused():
  with pytest.raises(ValueError, match="no domain randomisation"):
    envs.make("playground:CheetahRun", randomise=True)


def test_a_task_that_would_download_says_so_and_does_not(monkeypatch):
  if mjx_env.MENAGERIE_PATH.exists():
    pytest.skip("mujoco_menagerie is installed")
  refuse = lambda *a: pytest.fail("tried to download")
  monkeypatch.setattr(mjx_env, "ensure_menagerie_exists", refuse)
  for name in (locomotion.ALL_ENVS[0], "PandaPickCube"):
    with pytest.raises(ValueError, match="mujoco_menagerie") as raised:
      envs.make(f"playground:{name}")
    assert str(mjx_env.MENAGERIE_PATH) in str(raised.value)


class ReadsContacts(cartpole.Balance):
  """Wants what our physics does not carry."""

  def step(self, state, action):
    data = mjx_env.step(self.mjx_model, state.data, action, self.n_substeps)
    return state.replace(data=data, reward=data.contact.dist.sum())


class StepsMjx(cartpole.Balance):
  """Goes past Playground's own step."""

  def step(self, state, action):
    data = mjx.step(self.mjx_model, state.data.replace(ctrl=action))
    return state.replace(data=data)


@pytest.mark.parametrize(
  ("task", "message"),
  [
    (ReadsContacts, "reads mjx.Data.contact"),
    (StepsMjx, "calls mjx.step|sets mjx.Data.ctrl"),
  ],
)
def test_a_task_that_needs_more_of_mjx_is_refused(task, message, monkeypatch):
  make = lambda config, config_overrides: task(
    swing_up=False,
    sparse=False,
    config=config,
    config_overrides=config_overrides,
  )
  monkeypatch.setitem(dm_control_suite._envs, "Mine", make)
  monkeypatch.setitem(dm_control_suite._cfgs, "Mine", cartpole.default_config)
  with pytest.raises(ValueError, match=message):
    envs.make("playground:Mine", physics="mujoco")
