"""Convolutional networks: the policy of a robot that sees through cameras."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from rlinf_jax.models import heads, initialisation, mlp, policy


def cnn_policy(
  obs: policy.Obs,
  head: heads.Head,
  *,
  channels: Sequence[int] = (32, 64, 64),
  kernel_sizes: Sequence[int] = (8, 4, 3),
  strides: Sequence[int] = (4, 2, 1),
  hidden_sizes: Sequence[int] = (512,),
  activation: mlp.ActivationFn = jax.nn.relu,
  compute_dtype: jax.typing.DTypeLike = jnp.float32,
) -> policy.Policy:
  """Returns a policy without memory of two networks that convolve images.

  Leaves of the observation of rank 3 are images, float [height, width,
  channels] in [0, 1]; each has layers of its own. What they see is flattened,
  joined by all other leaves and given to a perceptron. A critic that sees no
  image is a perceptron.

  Args:
    obs: one observation, as for `policy.actor_critic`.
    head: the distribution over actions.
    channels: of each convolution.
    kernel_sizes: pixels, of each convolution.
    strides: pixels, of each convolution.
    hidden_sizes: widths of the perceptron's hidden layers.
    activation: after each hidden layer.
    compute_dtype: of all layers but the last, float32 or bfloat16. Parameters,
      the last layer and the outputs are float32.

  Raises:
    ValueError: no leaf is an image, an image is not of floats, the three
      sequences differ in length, or obs is a dict without an entry "policy".

  Source: Mnih et al., "Human-level control through deep reinforcement
    learning", 2015, methods: the defaults, made for 84 x 84 pixels. Padding,
    which is not there, lets them see smaller images too.
  """
  if not len(channels) == len(kernel_sizes) == len(strides):
    raise ValueError(
      f"Given {len(channels)} channels, {len(kernel_sizes)} kernel_sizes and "
      f"{len(strides)} strides, expected one of each per convolution."
    )
  if not any(map(_is_image, jax.tree.leaves(obs))):
    shapes = [x.shape for x in jax.tree.leaves(obs)]
    raise ValueError(
      f"Given observations of shapes {shapes}, expected an image [height, "
      "width, channels] among them. Use mlp_policy or gru_policy without."
    )

  def network_fn(obs, num_outputs, *, is_policy, rngs):
    return _Cnn(
      obs,
      list(zip(channels, kernel_sizes, strides)),
      hidden_sizes,
      num_outputs,
      output_scale=mlp.POLICY_SCALE if is_policy else 1.0,
      activation=activation,
      compute_dtype=compute_dtype,
      rngs=rngs,
    )

  return policy.actor_critic(obs, head, network_fn)


class _Cnn(nnx.Module):
  """Convolutions of each image, then a perceptron of all there is."""

  def __init__(
    self,
    obs,
    convolutions,
    hidden_sizes,
    num_outputs,
    *,
    output_scale,
    activation,
    compute_dtype,
    rngs,
  ):
    self.num_convolutions = len(convolutions)
    self.activation = activation
    size = 0
    for i, leaf in enumerate(jax.tree.leaves(obs)):
      if not _is_image(leaf):
        size += mlp.obs_size(leaf)
        continue
      if not jnp.issubdtype(leaf.dtype, jnp.floating):
        raise ValueError(
          f"Given an image of {leaf.dtype}, expected floats in [0, 1]. Divide "
          "by 255 where the observation is made."
        )
      height, width, num_in = leaf.shape
      for j, (num_out, kernel_size, stride) in enumerate(convolutions):
        layer = nnx.Conv(
          num_in,
          num_out,
          (kernel_size, kernel_size),
          strides=(stride, stride),
          padding="SAME",
          dtype=compute_dtype,
          kernel_init=nnx.initializers.zeros,
          rngs=rngs,
        )
        shape = (kernel_size, kernel_size, num_in, num_out)
        layer.kernel = initialisation.orthogonal(shape, scale=math.sqrt(2))
        setattr(self, f"image_{i}_convolution_{j}", layer)
        height, width = -(-height // stride), -(-width // stride)
        num_in = num_out
      size += height * width * num_in
    self.mlp = mlp.Mlp(
      size,
      hidden_sizes,
      num_outputs,
      output_scale=output_scale,
      activation=activation,
      compute_dtype=compute_dtype,
    )

  def initial_carry(self):
    return ()

  def __call__(self, obs_t, carry, is_first_t):
    del is_first_t  # nothing to forget
    features = []
    for i, x in enumerate(jax.tree.leaves(obs_t)):
      if _is_image(x[0]):
        for j in range(self.num_convolutions):
          convolution = getattr(self, f"image_{i}_convolution_{j}")
          x = self.activation(convolution(x))
      features.append(mlp.flatten(x))
    return self.mlp(jnp.concatenate(features, axis=-1)), carry


def _is_image(x: Any) -> bool:
  return len(x.shape) == 3
