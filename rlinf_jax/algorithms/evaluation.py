"""How good a policy is: whole episodes, apart from training."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp
from flax import struct

from rlinf_jax import types

ActFn = Callable[[Any, Any, jax.Array], tuple[jax.Array, Any]]
"""(obs, carry, is_first) -> (action, carry), for one environment."""


@struct.dataclass
class Episodes:
  """What N evaluation episodes came to."""

  returns: jax.Array  # [N] float32
  lengths: jax.Array  # [N] int32
  is_solved: jax.Array  # [N] bool: the success metric reached 1 at some step
  is_whole: jax.Array  # [N] bool: False where max_steps came first, or a NaN


def evaluate(
  env: types.Environment,
  act: ActFn,
  carry: Any,
  key: chex.PRNGKey,
  *,
  num_episodes: int,
  max_steps: int,
) -> Episodes:
  """Returns the outcomes of N episodes, run side by side.

  Args:
    env: the environment; its own time limit is `max_steps`.
    act: what to do. Sample inside it, or take the mode.
    carry: the recurrent state before the first step, of one environment.
    key: consumed by the resets.
    num_episodes: N.
    max_steps: an episode still running after so many steps is cut off.
  """
  state_n = jax.vmap(env.reset)(jax.random.split(key, num_episodes))
  carry_n = jax.tree.map(
    lambda x: jnp.broadcast_to(x, (num_episodes, *x.shape)), carry
  )
  start = Episodes(
    returns=jnp.zeros(num_episodes, jnp.float32),
    lengths=jnp.zeros(num_episodes, jnp.int32),
    is_solved=jnp.zeros(num_episodes, bool),
    is_whole=jnp.ones(num_episodes, bool),
  )

  def is_running(held: Any) -> jax.Array:
    _, _, _, alive_n, step = held
    return jnp.any(alive_n) & (step < max_steps)

  def advance(held: Any) -> Any:
    state_n, carry_n, total, alive_n, step = held
    is_first_n = jnp.broadcast_to(step == 0, (num_episodes,))
    action_n, carry_n = jax.vmap(act)(state_n.obs, carry_n, is_first_n)
    state_n = jax.vmap(env.step)(state_n, action_n)
    is_number_n = jnp.isfinite(state_n.reward)
    solved_n = jnp.zeros(num_episodes, bool)
    if env.success_metric is not None:
      solved_n = state_n.metrics[env.success_metric] > 0.5
    total = Episodes(
      returns=total.returns
      + jnp.where(alive_n & is_number_n, state_n.reward, 0.0),
      lengths=total.lengths + alive_n.astype(jnp.int32),
      is_solved=total.is_solved | (alive_n & solved_n),
      is_whole=total.is_whole & (is_number_n | ~alive_n),
    )
    alive_n &= ~(state_n.terminated | state_n.truncated) & is_number_n
    return state_n, carry_n, total, alive_n, step + 1

  alive_n = jnp.ones(num_episodes, bool)
  held = (state_n, carry_n, start, alive_n, jnp.zeros((), jnp.int32))
  _, _, total, alive_n, _ = jax.lax.while_loop(is_running, advance, held)
  if env.episode_length is None or max_steps < env.episode_length:
    total = dataclasses.replace(total, is_whole=total.is_whole & ~alive_n)
  return total


def record(
  env: types.Environment,
  act: ActFn,
  carry: Any,
  key: chex.PRNGKey,
  *,
  num_steps: int,
) -> tuple[Any, jax.Array]:
  """Returns the states of one episode, to be rendered.

  Returns:
    The states that followed each step, leaves [num_steps, ...], and int32 [],
    the number of them that belong to the episode.
  """

  def advance(held: Any, step: jax.Array) -> Any:
    state, carry = held
    action, carry = act(state.obs, carry, step == 0)
    state = env.step(state, action)
    return (state, carry), state

  steps = jnp.arange(num_steps)
  _, states_t = jax.lax.scan(advance, (env.reset(key), carry), steps)
  is_done_t = states_t.terminated | states_t.truncated
  length = jnp.where(jnp.any(is_done_t), jnp.argmax(is_done_t) + 1, num_steps)
  return states_t, length
