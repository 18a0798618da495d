"""Heads: the distributions over actions that a policy network's outputs mean.

A head separates the *raw* action, which is sampled, stored and scored, from the
environment's action, into which `to_action` turns it: scoring a squashed action
would have to invert the squashing, and lose what saturated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

Outputs = jax.Array  # float32 [..., num_outputs]
Raw = jax.Array  # float32 [..., size], or int32 [...] where discrete


class Head(NamedTuple):
  """A distribution over actions, as functions of the network's outputs.

  Leading axes [...] are free: the functions broadcast over none and keep all.

  Attributes:
    num_outputs: how many numbers describe one distribution.
    sample: (outputs, key) -> raw; the key is consumed.
    log_prob: (outputs, raw) -> float32 [...], nats, of the environment's action
      for a squashing head and of the raw action for all others.
    entropy: (outputs, key) -> float32 [...], nats; where it has no closed form,
      an unbiased estimate from one sample drawn with the key.
    mode: outputs -> raw, the most likely raw action.
    to_action: raw -> the environment's action, of the same shape.
    num_shared: that many of the outputs, the last ones, are to be parameters
      shared by all states and not functions of the state.
  """

  num_outputs: int
  sample: Callable[[Outputs, chex.PRNGKey], Raw]
  log_prob: Callable[[Outputs, Raw], jax.Array]
  entropy: Callable[[Outputs, chex.PRNGKey], jax.Array]
  mode: Callable[[Outputs], Raw]
  to_action: Callable[[Raw], jax.Array]
  num_shared: int = 0


def tanh_gaussian(
  size: int, *, initial_std: float = 0.7, min_std: float = 1e-3
) -> Head:
  """Returns a Gaussian squashed into (-1, 1) by tanh, one per dimension.

  Outputs are the means and then what `softplus` makes the standard deviations;
  outputs of 0 mean a mean of 0 and a standard deviation of `initial_std`.

  Args:
    size: dimensions of the action.
    initial_std: where training starts, before squashing.
    min_std: the least standard deviation there is, before squashing.

  Raises:
    ValueError: unless size >= 1 and 0 <= min_std < initial_std.

  Source: Haarnoja et al., "Soft Actor-Critic", arXiv 1801.01290, appendix C.
  """
  split = _gaussian_outputs(size, initial_std, min_std)

  def log_prob(outputs, raw):
    mean, std = split(outputs)
    chex.assert_equal_shape([mean, raw])
    return jnp.sum(_normal_log_prob(mean, std, raw) - _log_slope(raw), axis=-1)

  def entropy(outputs, key):
    mean, std = split(outputs)
    raw = _normal_sample(mean, std, key)
    return jnp.sum(_normal_entropy(std) + _log_slope(raw), axis=-1)

  return Head(
    num_outputs=2 * size,
    sample=lambda outputs, key: _normal_sample(*split(outputs), key),
    log_prob=log_prob,
    entropy=entropy,
    mode=lambda outputs: split(outputs)[0],
    to_action=jnp.tanh,
  )


def clipped_gaussian(
  size: int, *, initial_std: float = 0.7, min_std: float = 1e-3
) -> Head:
  """Returns a Gaussian whose samples the environment sees clipped to [-1, 1].

  Outputs as those of `tanh_gaussian`. The density is that of the sample before
  clipping: clipping is, for the policy, a part of the environment.

  Args:
    size: dimensions of the action.
    initial_std: where training starts.
    min_std: the least standard deviation there is.

  Raises:
    ValueError: unless size >= 1 and 0 <= min_std < initial_std.

  Source: Schulman et al., "Proximal Policy Optimization Algorithms", arXiv
    1707.06347, section 6.1, where the environment clips.
  """
  split = _gaussian_outputs(size, initial_std, min_std)

  def log_prob(outputs, raw):
    mean, std = split(outputs)
    chex.assert_equal_shape([mean, raw])
    return jnp.sum(_normal_log_prob(mean, std, raw), axis=-1)

  return Head(
    num_outputs=2 * size,
    sample=lambda outputs, key: _normal_sample(*split(outputs), key),
    log_prob=log_prob,
    entropy=lambda outputs, key: jnp.sum(
      _normal_entropy(split(outputs)[1]), axis=-1
    ),
    mode=lambda outputs: split(outputs)[0],
    to_action=lambda raw: jnp.clip(raw, -1.0, 1.0),
  )


def with_shared_std(head: Head) -> Head:
  """Returns a Gaussian head whose standard deviations ignore the state.

  The policy then holds them as parameters, one per dimension of the action.

  Args:
    head: `tanh_gaussian(...)` or `clipped_gaussian(...)`.
  """
  return head._replace(num_shared=head.num_outputs // 2)


def categorical(num: int) -> Head:
  """Returns a choice of one of `num` actions; outputs are logits.

  Args:
    num: how many actions there are; raw actions are int32 in [0, num).

  Raises:
    ValueError: num < 1.
  """
  if num < 1:
    raise ValueError(
      f"A choice needs actions: given num={num}, expected at least 1."
    )

  def sample(logits, key):
    _check_outputs(logits, num)
    return jax.random.categorical(key, logits).astype(jnp.int32)

  def log_prob(logits, raw):
    _check_outputs(logits, num)
    chex.assert_type(raw, int)
    chex.assert_equal_shape_prefix([logits, raw], raw.ndim)
    log_p = jax.nn.log_softmax(logits)
    return jnp.take_along_axis(log_p, raw[..., None], axis=-1)[..., 0]

  def entropy(logits, key):
    del key  # exact
    _check_outputs(logits, num)
    log_p = jax.nn.log_softmax(logits)
    p = jnp.exp(log_p)
    # A logit of -inf forbids an action, which then contributes 0 and not NaN.
    return -jnp.sum(jnp.where(p > 0, p * log_p, 0.0), axis=-1)

  return Head(
    num_outputs=num,
    sample=sample,
    log_prob=log_prob,
    entropy=entropy,
    mode=lambda logits: jnp.argmax(logits, axis=-1).astype(jnp.int32),
    to_action=lambda raw: raw,
  )


def _gaussian_outputs(
  size: int, initial_std: float, min_std: float
) -> Callable[[Outputs], tuple[jax.Array, jax.Array]]:
  """Returns the function from outputs to (mean, std), each [..., size]."""
  if size < 1:
    raise ValueError(
      f"An action needs dimensions: given size={size}, expected at least 1."
    )
  if not 0 <= min_std < initial_std:
    raise ValueError(
      f"Given initial_std={initial_std} and min_std={min_std}, expected "
      "0 <= min_std < initial_std. Raise initial_std or lower min_std."
    )
  offset = math.log(math.expm1(initial_std - min_std))  # softplus's inverse

  def split(outputs):
    _check_outputs(outputs, 2 * size)
    mean, raw_std = jnp.split(outputs, 2, axis=-1)
    return mean, jax.nn.softplus(raw_std + offset) + min_std

  return split


def _check_outputs(outputs: Outputs, num_outputs: int) -> None:
  chex.assert_type(outputs, float)
  chex.assert_axis_dimension(outputs, -1, num_outputs)


def _normal_sample(mean, std, key):
  return mean + std * jax.random.normal(key, mean.shape, mean.dtype)


def _normal_log_prob(mean, std, x):
  z = (x - mean) / std
  return -0.5 * jnp.square(z) - jnp.log(std) - 0.5 * math.log(2 * math.pi)


def _normal_entropy(std):
  return 0.5 + 0.5 * math.log(2 * math.pi) + jnp.log(std)


def _log_slope(x):
  """Returns log d tanh(x) / dx, accurate where 1 - tanh(x)^2 rounds to 0."""
  return 2.0 * (math.log(2.0) - x - jax.nn.softplus(-2.0 * x))
