"""What every native environment promises, tested over all of them."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
from envs import rendering, validation

NUM_ENVS = 4
NUM_STEPS = 50


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Run:
  """An environment, and 50 steps of 4 simulations under random actions."""

  env: envs.Env
  reset_fn: Any
  step_fn: Any
  num_traces: list[None]
  first: envs.State
  last: envs.State
  rewards: np.ndarray  # [NUM_STEPS, NUM_ENVS]
  are_finite: np.ndarray  # [NUM_STEPS]


def keys() -> jax.Array:
  return jax.random.split(jax.random.key(7), NUM_ENVS)


def draw_actions(env: envs.Env, seed: int) -> jax.Array:
  key = jax.random.key(seed)
  if isinstance(env.action, envs.Discrete):
    return jax.random.randint(key, (NUM_ENVS,), 0, env.action.num)
  shape = (NUM_ENVS, env.action.size)
  return jax.random.uniform(key, shape, minval=-1.0, maxval=1.0)


def roll(env: envs.Env) -> Run:
  num_traces: list[None] = []

  def step(state: envs.State, action: jax.Array) -> envs.State:
    num_traces.append(None)
    return jax.vmap(env.step)(state, action)

  reset_fn, step_fn = jax.jit(jax.vmap(env.reset)), jax.jit(step)
  state = first = reset_fn(keys())
  rewards, are_finite = [], []
  for t in range(NUM_STEPS):
    state = step_fn(state, draw_actions(env, t))
    rewards.append(np.asarray(state.reward))
    seen = (state.obs, state.reward, state.metrics)
    are_finite.append(all(np.isfinite(x).all() for x in jax.tree.leaves(seen)))
  return Run(
    env=env,
    reset_fn=reset_fn,
    step_fn=step_fn,
    num_traces=num_traces,
    first=first,
    last=state,
    rewards=np.stack(rewards),
    are_finite=np.asarray(are_finite),
  )


# The others are compiled for seconds: in the slow tier.
FAST = ("pendulum", "cartpole_swingup", "cheetah_run", "arm_reach")
NAMES = [
  name if name in FAST else pytest.param(name, marks=pytest.mark.slow)
  for name in envs.names()
]


@pytest.fixture(scope="module", params=NAMES)
def run(request: pytest.FixtureRequest) -> Run:
  return roll(envs.make(request.param))


def types(tree: Any) -> Any:
  return jax.tree.map(lambda x: (x.shape, x.dtype, x.weak_type), tree)


def assert_same_bits(left: Any, right: Any) -> None:
  for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
    np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def test_is_a_proper_env_of_the_name_it_was_made_by(run):
  validation.check(run.env, source=run.env.name)
  assert run.env.name in envs.names()


def test_fifty_random_steps_stay_finite(run):
  assert run.are_finite.all()


def test_shapes_and_types_never_change_and_none_is_weak(run):
  assert types(run.first) == types(run.last)
  assert not any(x.weak_type for x in jax.tree.leaves(run.first))


def test_step_is_traced_once(run):
  assert len(run.num_traces) == 1


def test_episodes_begin_differently_under_different_keys(run):
  obs = jnp.concatenate(
    [x.reshape(NUM_ENVS, -1) for x in jax.tree.leaves(run.first.obs)], axis=1
  )
  assert len(np.unique(np.asarray(obs), axis=0)) == NUM_ENVS


def test_the_same_key_and_actions_give_the_same_bits(run):
  state = run.reset_fn(keys())
  assert_same_bits(state, run.first)
  for t in range(NUM_STEPS):
    state = run.step_fn(state, draw_actions(run.env, t))
  assert_same_bits(state, run.last)


def test_actions_are_clipped_to_their_range(run):
  if isinstance(run.env.action, envs.Discrete):
    pytest.skip("Discrete actions have no range.")
  at_the_edge = jnp.ones((NUM_ENVS, run.env.action.size))
  for sign in (-1.0, 1.0):
    inside = run.step_fn(run.first, sign * at_the_edge)
    outside = run.step_fn(run.first, 7.0 * sign * at_the_edge)
    assert_same_bits(outside, inside)


def test_rewards_lie_in_zero_to_one(run):
  assert run.rewards.min() >= 0.0
  assert run.rewards.max() <= 1.0


def test_metrics_keep_their_names_and_hold_the_success_metric(run):
  assert run.first.metrics.keys() == run.last.metrics.keys()
  assert run.env.success_metric in (None, *run.last.metrics)


def test_step_leaves_resetting_and_truncating_to_its_callers(run):
  assert not np.asarray(run.last.truncated).any()
  assert_same_bits(run.last.final_obs, run.last.obs)


def test_randomising_changes_model_values_but_no_shapes(run):
  env = envs.make(run.env.name, randomise=True)
  state = jax.jit(jax.vmap(env.reset))(keys())
  values = state.physics.model_values
  assert values, "randomise=True drew nothing"
  assert any(np.ptp(np.asarray(x), axis=0).any() for x in values.values())
  after = jax.eval_shape(jax.vmap(env.step), state, draw_actions(env, 0))
  assert types(after) == types(state)
  assert types(after.obs) == types(run.first.obs)


def test_render_gives_a_picture_of_each_state(run):
  state = jax.tree.map(np.asarray, run.last)
  states = [jax.tree.map(lambda x, i=i: x[i], state) for i in range(2)]
  try:
    frames = run.env.render(states)
  except rendering.RenderingUnavailableError as error:
    pytest.skip(str(error))
  assert frames.dtype == np.uint8
  assert frames.ndim == 4 and frames.shape[::3] == (2, 3)
  assert (frames.std(axis=(1, 2, 3)) > 1).all()  # no even surface
  assert (frames[0] != frames[1]).any()
