"""Gated recurrent networks: a policy that remembers what it no longer sees."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from rlinf_jax.models import heads, linear, mlp, policy


def gru_policy(
  obs: policy.Obs,
  head: heads.Head,
  *,
  encoder_sizes: Sequence[int] = (64,),
  memory_size: int = 64,
  activation: mlp.ActivationFn = jnp.tanh,
  compute_dtype: jax.typing.DTypeLike = jnp.float32,
) -> policy.Policy:
  """Returns a policy of two recurrent networks, each with its own memory.

  Args:
    obs: one observation, as for `policy.actor_critic`. Its leaves are flattened
      and concatenated.
    head: the distribution over actions.
    encoder_sizes: widths of the hidden layers before the memory.
    memory_size: numbers that each network remembers.
    activation: after each layer of the encoder.
    compute_dtype: of the encoder and of the products with the memory, float32
      or bfloat16. Parameters, memory, gates and outputs are float32.

  Raises:
    ValueError: obs is a dict without an entry "policy".

  Source: Cho et al., "Learning Phrase Representations using RNN Encoder-Decoder
    for Statistical Machine Translation", arXiv 1406.1078, with the reset gate
    after the product, as in cuDNN.
  """

  def network_fn(obs, num_outputs, *, is_policy, rngs):
    del rngs  # filled by `initialisation`
    return _Gru(
      mlp.obs_size(obs),
      encoder_sizes,
      memory_size,
      num_outputs,
      output_scale=mlp.POLICY_SCALE if is_policy else 1.0,
      activation=activation,
      compute_dtype=compute_dtype,
    )

  return policy.actor_critic(obs, head, network_fn)


class _Gru(nnx.Module):
  """An encoder, a memory h that is 0 where an episode begins, a linear layer.

  r, z, n = W x + b             all steps at once, by the encoder's last layer
  u, v, w = U h + d
  m = tanh(n + sigmoid(r + u) w)
  h' = m + sigmoid(z + v) (h - m)
  """

  def __init__(
    self,
    input_size,
    encoder_sizes,
    memory_size,
    num_outputs,
    *,
    output_scale,
    activation,
    compute_dtype,
  ):
    self.memory_size = memory_size
    self.encoder = mlp.Mlp(
      input_size,
      encoder_sizes,
      3 * memory_size,
      output_scale=1.0,
      activation=activation,
      compute_dtype=compute_dtype,
    )
    self.recurrence = linear.Linear(
      memory_size,
      3 * memory_size,
      scale=1.0,
      compute_dtype=compute_dtype,
    )
    self.output = linear.Linear(
      memory_size,
      num_outputs,
      scale=output_scale,
      compute_dtype=jnp.float32,
    )

  def initial_carry(self):
    return jnp.zeros(self.memory_size)

  def __call__(self, obs_t, carry, is_first_t):
    gates_t = self.encoder(mlp.flatten(obs_t))

    def step(memory, inputs):
      gates, is_first = inputs
      memory = jnp.where(is_first, 0.0, memory)
      recurrent = self.recurrence(memory[None])[0].astype(jnp.float32)
      r, z, n = jnp.split(gates, 3)
      u, v, w = jnp.split(recurrent, 3)
      new = jnp.tanh(n + jax.nn.sigmoid(r + u) * w)
      memory = new + jax.nn.sigmoid(z + v) * (memory - new)
      return memory, memory

    carry, memory_t = jax.lax.scan(step, carry, (gates_t, is_first_t))
    return self.output(memory_t), carry
