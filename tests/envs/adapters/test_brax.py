"""Brax's environments, as `Env`s, are Brax's environments."""

from __future__ import annotations

import brax.fluid
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from brax import envs as brax_envs

import envs
from envs import validation
from envs.adapters import foreign

pytestmark = pytest.mark.slow

NUM_ENVS = 2


def test_steps_equal_braxs_own():
  env = envs.make("brax:inverted_pendulum")
  task = brax_envs.get_environment("inverted_pendulum")
  assert env.action == envs.Box(size=task.action_size)
  assert env.episode_length == 1000 and env.backend == "brax"
  ours, num_compiled = roll(env.reset, env.step)
  theirs, _ = roll(task.reset, task.step)
  assert num_compiled == 1  # Brax's own step compiles twice: weak types
  for a, b in zip(ours, theirs):
    np.testing.assert_allclose(a.obs, b.obs, atol=1e-6)
    np.testing.assert_array_equal(a.reward, b.reward)
    np.testing.assert_array_equal(a.terminated, b.done > 0)
  # Pushed to one side for 30 steps the pole falls over.
  assert ours[-1].terminated.all()


def roll(reset, step):
  """Returns the states of 30 steps of two simulations, and compiles of step."""
  reset, step = jax.jit(jax.vmap(reset)), jax.jit(jax.vmap(step))
  with foreign.promotion():
    states = [reset(jax.random.split(jax.random.key(0), NUM_ENVS))]
    for _ in range(30):
      states.append(step(states[-1], jnp.ones((NUM_ENVS, 1))))
  return states, step._cache_size()


@pytest.mark.parametrize(
  ("name", "settings"),
  [
    ("ant", {}),
    ("ant", {"config": {"backend": "spring"}}),
    ("ant", {"config": {"backend": "positional"}}),
    ("halfcheetah", {"physics": "mjx"}),
    ("humanoid", {"config": {"backend": "spring"}}),
  ],
)
def test_an_environment_keeps_the_promises_of_an_env(name, settings):
  env = envs.make(f"brax:{name}", **settings)
  validation.check(env, source=name)


def test_the_swimmer_swims_although_jax_dropped_an_argument():
  with foreign.promotion(), pytest.raises(TypeError, match="a_min"):
    task = brax_envs.get_environment("swimmer")
    state = jax.eval_shape(task.reset, jax.random.key(0))
    jax.eval_shape(task.step, state, jnp.zeros(2))
  validation.check(envs.make("brax:swimmer"), source="swimmer")
  assert brax.fluid.jp is jnp  # the repair is in the environment's own copy


def test_an_unknown_name_is_told_the_names():
  with pytest.raises(ValueError, match="Did you mean 'ant'.*walker2d"):
    envs.make("brax:antt")


@pytest.mark.parametrize(
  ("settings", "message"),
  [
    ({"physics": "mujoco"}, "Brax's physics, not on 'mujoco'"),
    ({"randomise": True}, "no domain randomisation"),
    ({"config": {"backend": "bullet"}}, "cannot be made with .*bullet"),
    ({"config": {"no_such": 1}}, "cannot be made with .*no_such"),
    (
      {"physics": "mjx", "config": {"backend": "spring"}},
      "give one of the two",
    ),
  ],
)
def test_a_setting_that_brax_does_not_have_is_refused(settings, message):
  with pytest.raises(ValueError, match=message):
    envs.make("brax:ant", **settings)
