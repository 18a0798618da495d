"""Episodes: time limit, statistics, NaN handling and auto-reset for any `Env`.

An ended episode is replaced by a state drawn from a *pool* of fresh reset
states, which the caller refills as often as it likes (once per iteration in
training). So a reset costs a gather rather than a simulation, and still no two
iterations start from the same states.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
from flax import struct

from envs import state as env_state


@struct.dataclass
class Sim:
  """An environment with its running episode."""

  env: env_state.State
  num_steps: jax.Array  # [] int32, of the running episode
  episode_return: jax.Array  # [] float32, so far
  is_solved: jax.Array  # [] bool: the success metric reached 1 at some step
  is_partial: jax.Array  # [] bool: the episode did not begin at its beginning
  is_first: jax.Array  # [] bool: no step was taken yet

  @property
  def obs(self) -> env_state.Obs:
    """What the policy acts on next."""
    return self.env.obs


@struct.dataclass
class Outcome:
  """What one step gave, with the terminal observation where one ended."""

  reward: jax.Array  # [] float32
  terminated: jax.Array  # [] bool
  truncated: jax.Array  # [] bool
  final_obs: env_state.Obs  # the observation that followed, before any reset
  is_valid: jax.Array  # [] bool: False for a step that went NaN
  has_finished: jax.Array  # [] bool: a whole episode ended in this step
  episode_return: jax.Array  # [] float32, of the episode that ended, else 0
  episode_length: jax.Array  # [] float32, likewise
  is_solved: jax.Array  # [] float32, likewise
  overflow: jax.Array  # [] int32: contacts or constraints dropped


class Episodes(NamedTuple):
  """An `Env` that never ends.

  Attributes:
    env: the environment underneath.
    reset: key -> Sim.
    step: (Sim, action, pool, key) -> (Sim, Outcome). `pool` is a batch of
      `State` from `vmap(env.reset)`; the key chooses from it.
  """

  env: env_state.Env
  reset: Any
  step: Any


def episodes(env: env_state.Env, *, stagger: bool = False) -> Episodes:
  """Returns `env` with a time limit, statistics and auto-reset.

  A state with a NaN or an infinity in its observation, reward or physics is
  reset like an ended one, its step marked invalid (its reward is 0, it counts
  as terminated) and its episode left out of the statistics.

  Args:
    env: the environment.
    stagger: whether the first episode of each simulation is already some
      random number of steps old, so that a batch does not end all at once.
      Such episodes are left out of the statistics.
  """

  def reset(key: chex.PRNGKey) -> Sim:
    reset_key, age_key = jax.random.split(key)
    sim = _begin(env.reset(reset_key))
    if not stagger or env.episode_length is None:
      return sim
    age = jax.random.randint(age_key, (), 0, env.episode_length)
    return dataclasses.replace(sim, num_steps=age, is_partial=age > 0)

  def step(
    sim: Sim, action: jax.Array, pool: env_state.State, key: chex.PRNGKey
  ) -> tuple[Sim, Outcome]:
    state = env.step(sim.env, action)
    is_valid = _is_finite((state.obs, state.reward, state.physics))
    reward = jnp.where(is_valid, state.reward, 0.0)
    num_steps = sim.num_steps + 1
    terminated = state.terminated | ~is_valid
    truncated = state.truncated & ~terminated
    if env.episode_length is not None:
      truncated |= (num_steps >= env.episode_length) & ~terminated
    is_done = terminated | truncated
    is_solved = sim.is_solved | _is_solved(env, state)
    episode_return = sim.episode_return + reward
    has_finished = is_done & is_valid & ~sim.is_partial
    outcome = Outcome(
      reward=reward,
      terminated=terminated,
      truncated=truncated,
      final_obs=jax.tree.map(
        lambda new, old: jnp.where(is_valid, new, old), state.obs, sim.env.obs
      ),
      is_valid=is_valid,
      has_finished=has_finished,
      episode_return=jnp.where(has_finished, episode_return, 0.0),
      episode_length=jnp.where(has_finished, num_steps, 0).astype(jnp.float32),
      is_solved=(has_finished & is_solved).astype(jnp.float32),
      overflow=jnp.asarray(getattr(state.physics, "overflow", 0), jnp.int32),
    )
    running = Sim(
      env=dataclasses.replace(
        state, terminated=terminated, truncated=truncated
      ),
      num_steps=num_steps,
      episode_return=episode_return,
      is_solved=is_solved,
      is_partial=sim.is_partial,
      is_first=jnp.zeros((), bool),
    )
    return _where(is_done, _begin(_draw(pool, key)), running), outcome

  return Episodes(env, reset, step)


def _begin(state: env_state.State) -> Sim:
  return Sim(
    env=state,
    num_steps=jnp.zeros((), jnp.int32),
    episode_return=jnp.zeros((), jnp.float32),
    is_solved=jnp.zeros((), bool),
    is_partial=jnp.zeros((), bool),
    is_first=jnp.ones((), bool),
  )


def _draw(pool: env_state.State, key: chex.PRNGKey) -> env_state.State:
  # Drawn once, not per leaf: a draw costs 0.3 s to compile.
  index = jax.random.randint(key, (), 0, pool.reward.shape[0])
  return jax.tree.map(lambda x: x[index], pool)


def _is_solved(env: env_state.Env, state: env_state.State) -> jax.Array:
  if env.success_metric is None:
    return jnp.zeros((), bool)
  return state.metrics[env.success_metric] > 0.5


def _is_finite(tree: Any) -> jax.Array:
  return jnp.all(
    jnp.stack(
      [
        jnp.all(jnp.isfinite(x))
        for x in jax.tree.leaves(tree)
        if jnp.issubdtype(x.dtype, jnp.floating)
      ]
    )
  )


def _where(condition: jax.Array, yes: Any, no: Any) -> Any:
  def choose(y: jax.Array, n: jax.Array) -> jax.Array:
    if jnp.issubdtype(y.dtype, jax.dtypes.prng_key):
      data = jnp.where(
        condition, jax.random.key_data(y), jax.random.key_data(n)
      )
      return jax.random.wrap_key_data(data, impl=jax.random.key_impl(y))
    return jnp.where(condition, y, n)

  return jax.tree.map(choose, yes, no)
