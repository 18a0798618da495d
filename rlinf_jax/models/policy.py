"""What a policy is: pure functions over plain parameters, and how to build one.

A network is a `flax.nnx` module only while it is traced. Outside, parameters
are nested dicts of arrays, which any optimizer, checkpointer or user can read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
from flax import nnx

from rlinf_jax.models import heads, initialisation

Obs = Any  # an array, or a dict with entries "policy" and perhaps "critic"
Params = dict[str, Any]  # nested, of float32 arrays
Carry = Any  # a pytree of arrays, () where there is no memory
NetworkFn = Callable[..., nnx.Module]


class Policy(NamedTuple):
  """An actor and a critic, for one sequence of one environment.

  Callers vmap: over environments with shared parameters, over seeds with
  parameters that have a leading axis.

  Attributes:
    head: what the outputs mean.
    init: key -> params; the key is consumed.
    initial_carry: () -> one environment's memory before its first step; () of a
      policy without memory.
    apply: (params, obs_t, carry, is_first_t) -> (outputs_t float32 [T,
      head.num_outputs], value_t float32 [T], carry). obs_t has leaves [T, ...],
      T = 1 when acting; carry is what is remembered before the first step and,
      returned, after the last; it is forgotten before each step at which
      is_first_t, bool [T], says that an episode begins.
  """

  head: heads.Head
  init: Callable[[chex.PRNGKey], Params]
  initial_carry: Callable[[], Carry]
  apply: Callable[
    [Params, Obs, Carry, jax.Array], tuple[jax.Array, jax.Array, Carry]
  ]


def actor_critic(obs: Obs, head: heads.Head, network_fn: NetworkFn) -> Policy:
  """Returns a policy of two separate networks, of which one gives the value.

  Args:
    obs: one observation, or `jax.ShapeDtypeStruct`s of one. Of a dict, entry
      "policy" goes to the policy, and "critic", if there is one, to the value
      function: it may know what the robot cannot.
    head: the distribution over actions.
    network_fn: (obs, num_outputs, *, is_policy, rngs) -> nnx.Module with
      methods `initial_carry()` and `__call__(obs_t, carry, is_first_t) ->
      (outputs_t float32 [T, num_outputs], carry)`. Parameters come from rngs or
      are made by `initialisation.orthogonal`.

  Raises:
    ValueError: obs is a dict without an entry "policy".
    AssertionError: from `apply`, when shapes are not those of obs.
  """
  obs = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x)), obs
  )
  module_fn = lambda key: _ActorCritic(obs, head, network_fn, nnx.Rngs(key))
  # Built once, without arrays; merging costs 0.4 ms, so only while tracing.
  abstract = nnx.eval_shape(module_fn, jax.random.key(0))
  graphdef, _ = nnx.split(abstract, nnx.Param)

  def init(key):
    key, fill_key = jax.random.split(key)
    module = module_fn(key)
    initialisation.fill(module, fill_key)
    return nnx.to_pure_dict(nnx.state(module, nnx.Param))

  def initial_carry():
    return abstract.initial_carry()

  def apply(params, obs_t, carry, is_first_t):
    chex.assert_rank(is_first_t, 1)
    chex.assert_type(is_first_t, bool)
    jax.tree.map(
      lambda spec, x: chex.assert_shape(x, is_first_t.shape + spec.shape),
      obs,
      obs_t,
    )
    return nnx.merge(graphdef, params)(obs_t, carry, is_first_t)

  return Policy(head, init, initial_carry, apply)


class _ActorCritic(nnx.Module):
  """Two networks, and the outputs that all states share."""

  def __init__(self, obs, head, network_fn, rngs):
    self.num_shared = head.num_shared
    self.policy = network_fn(
      _policy_obs(obs),
      head.num_outputs - head.num_shared,
      is_policy=True,
      rngs=rngs,
    )
    self.value = network_fn(_critic_obs(obs), 1, is_policy=False, rngs=rngs)
    if head.num_shared:
      self.shared = nnx.Param(jnp.zeros(head.num_shared))

  def initial_carry(self):
    carry = (self.policy.initial_carry(), self.value.initial_carry())
    return carry if jax.tree.leaves(carry) else ()

  def __call__(self, obs_t, carry, is_first_t):
    policy_carry, value_carry = carry or ((), ())
    outputs_t, policy_carry = self.policy(
      _policy_obs(obs_t), policy_carry, is_first_t
    )
    value_t, value_carry = self.value(
      _critic_obs(obs_t), value_carry, is_first_t
    )
    if self.num_shared:
      shape = (is_first_t.shape[0], self.num_shared)
      shared_t = jnp.broadcast_to(self.shared[None], shape)
      outputs_t = jnp.concatenate([outputs_t, shared_t], axis=-1)
    carry = (policy_carry, value_carry) if carry else ()
    return outputs_t, value_t[:, 0], carry


def _policy_obs(obs: Obs) -> Obs:
  if not isinstance(obs, Mapping):
    return obs
  if "policy" not in obs:
    raise ValueError(
      f"Given observations {sorted(obs)}, expected an array or a dict with an "
      'entry "policy" and perhaps one "critic". Name what the policy sees '
      '"policy".'
    )
  return obs["policy"]


def _critic_obs(obs: Obs) -> Obs:
  if not isinstance(obs, Mapping):
    return obs
  return obs["critic"] if "critic" in obs else _policy_obs(obs)
