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

from rlinf_jax.models import heads

Obs = Any  # an array, or a dict with entries "policy" and perhaps "critic"
Params = dict[str, Any]  # nested, of float32 arrays
Carry = Any  # a pytree of arrays, () where there is no memory
NetworkFn = Callable[..., nnx.Module]


class Policy(NamedTuple):
  """An actor and a critic, over sequences of steps of environments.

  `apply` takes one sequence [T, ...], or many at once under any leading axes
  [*batch, T, ...]. Results are those of `vmap`, but all steps of all sequences
  go through a layer in one matrix product, forward and backward; gradients
  through `vmap` took 1.7 to 1.9 times as long (256 x 16 steps, 64 and 256 wide
  layers, 2 CPU cores, 2026-11). To vmap over seeds, whose parameters differ, is
  right and fast.

  Attributes:
    head: what the outputs mean.
    init: key -> params; the key is consumed.
    initial_carry: () -> one environment's memory before its first step, without
      batch axes; () where there is no memory.
    apply: (params, obs_t, carry, is_first_t) -> (outputs_t, value_t, carry),
      where obs_t has leaves [*batch, T, ...], T = 1 when acting; carry, leaves
      [*batch, ...], is what is remembered before the first step and, returned,
      after the last; it is forgotten before each step at which is_first_t, bool
      [*batch, T], says that an episode begins; outputs_t is float32 [*batch, T,
      head.num_outputs], value_t float32 [*batch, T].
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
      methods `initial_carry()`, of one environment, and `__call__(obs_bt,
      carry_b, is_first_bt) -> (outputs_bt float32 [B, T, num_outputs],
      carry_b)`, always with one batch axis B.

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
    return nnx.to_pure_dict(nnx.state(module_fn(key), nnx.Param))

  def initial_carry():
    return abstract.initial_carry()

  def apply(params, obs_t, carry, is_first_t):
    chex.assert_type(is_first_t, bool)
    batch_shape = is_first_t.shape[:-1]
    jax.tree.map(
      lambda spec, x: chex.assert_shape(x, is_first_t.shape + spec.shape),
      obs,
      obs_t,
    )
    chex.assert_tree_shape_prefix(carry, batch_shape)
    flat = lambda x: x.reshape(-1, *x.shape[len(batch_shape) :])
    restored = lambda x: x.reshape(*batch_shape, *x.shape[1:])
    module = nnx.merge(graphdef, params)
    results = module(*jax.tree.map(flat, (obs_t, carry, is_first_t)))
    return jax.tree.map(restored, results)

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

  def __call__(self, obs_bt, carry, is_first_bt):
    policy_carry, value_carry = carry or ((), ())
    outputs_bt, policy_carry = self.policy(
      _policy_obs(obs_bt), policy_carry, is_first_bt
    )
    value_bt, value_carry = self.value(
      _critic_obs(obs_bt), value_carry, is_first_bt
    )
    if self.num_shared:
      shape = (*is_first_bt.shape, self.num_shared)
      shared_bt = jnp.broadcast_to(self.shared[None, None], shape)
      outputs_bt = jnp.concatenate([outputs_bt, shared_bt], axis=-1)
    carry = (policy_carry, value_carry) if carry else ()
    return outputs_bt, value_bt[..., 0], carry


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
