"""Chunked log-probabilities equal plain ones and hold no [T, V]."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend import core as jex_core

from rlinf_jax.models import transformer


def draw(num_rows=2, size=10, width=8, vocabulary=20, seed=0):
  noise = np.random.default_rng(seed)
  kernel = noise.standard_normal((vocabulary, width), np.float32)
  hidden = noise.standard_normal((num_rows, size, width), np.float32)
  target = noise.integers(0, vocabulary, (num_rows, size), np.int32)
  return tuple(map(jnp.asarray, (kernel, hidden, target)))


def plain(kernel, hidden, target, *, temperature=1.0):
  logits = jnp.einsum("btw,vw->btv", hidden, kernel) / temperature
  log_prob = jax.nn.log_softmax(logits)
  chosen = jnp.take_along_axis(log_prob, target[..., None], axis=-1)[..., 0]
  return chosen, -jnp.sum(jnp.exp(log_prob) * log_prob, axis=-1)


def test_one_token_by_hand():
  # Logits 2 ln 3 and 0 at temperature 2 are ln 3 and 0: chances 3/4 and 1/4.
  statistics = transformer.token_statistics(
    jnp.array([[2 * np.log(3.0)], [0.0]]),
    jnp.ones((1, 1, 1)),
    jnp.ones((1, 1), int),
    temperature=2.0,
  )
  np.testing.assert_allclose(statistics.log_prob, [[np.log(1 / 4)]], rtol=1e-6)
  entropy = -(3 / 4) * np.log(3 / 4) - (1 / 4) * np.log(1 / 4)
  np.testing.assert_allclose(statistics.entropy, [[entropy]], rtol=1e-6)


@pytest.mark.parametrize("chunk_size", [1, 3, 7, 10, 20, 99])
def test_values_are_those_of_all_tokens_at_once(chunk_size):
  kernel, hidden, target = draw()
  found = jax.jit(
    lambda *a: transformer.token_statistics(
      *a, temperature=0.7, chunk_size=chunk_size
    )
  )(kernel, hidden, target)
  for x, y in zip(found, plain(kernel, hidden, target, temperature=0.7)):
    np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
  "num_asked",
  [
    *(pytest.param(n, marks=pytest.mark.slow) for n in (0, 1, 20)),
    7,
  ],
)
def test_only_tokens_that_are_asked_about_are_computed(num_asked):
  kernel, hidden, target = draw()
  asked = np.random.default_rng(1).permutation(20).reshape(2, 10) < num_asked
  target = jnp.where(asked, target, 0)

  def masked(kernel, hidden):
    return transformer.token_statistics(
      kernel, hidden, target, mask_bt=jnp.array(asked), chunk_size=5
    )

  expected = plain(kernel, hidden, target)
  for x, y in zip(jax.jit(masked)(kernel, hidden), expected):
    np.testing.assert_allclose(x, np.where(asked, y, 0.0), rtol=1e-5, atol=1e-6)

  def of_plain(kernel, hidden):
    return [jnp.where(asked, x, 0.0) for x in plain(kernel, hidden, target)]

  gradients = [
    jax.grad(lambda k, h, fn=fn: sum(map(jnp.sum, fn(k, h))), (0, 1))
    for fn in (masked, of_plain)
  ]
  for x, y in zip(*(gradient(kernel, hidden) for gradient in gradients)):
    np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("num_asked", "num_chunks"), [(0, 0), (5, 1), (6, 2)])
def test_chunks_that_nothing_asks_about_are_left_out(num_asked, num_chunks):
  computed = []
  kernel, hidden, target = draw()

  log_softmax = jax.nn.log_softmax

  def noted(x):
    jax.debug.callback(lambda: computed.append(1))
    return log_softmax(x)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(jax.nn, "log_softmax", noted)
    said = transformer.token_statistics(
      kernel,
      hidden,
      target,
      mask_bt=jnp.arange(20).reshape(2, 10) >= 20 - num_asked,
      chunk_size=5,
    )
    jax.block_until_ready(said)
    jax.effects_barrier()
  assert len(computed) == num_chunks


def loss_of(statistics_fn, target):
  def loss(kernel, hidden):
    log_prob, entropy = statistics_fn(kernel, hidden, target)
    weight = jnp.arange(target.size, dtype=jnp.float32).reshape(target.shape)
    return jnp.sum(weight * log_prob + entropy**2)

  return loss


def test_gradients_are_those_of_all_tokens_at_once():
  kernel, hidden, target = draw()
  chunked = lambda *a: transformer.token_statistics(*a, chunk_size=4)
  found, expected = (
    jax.jit(jax.grad(loss_of(fn, target), argnums=(0, 1)))(kernel, hidden)
    for fn in (chunked, plain)
  )
  for x, y in zip(found, expected):
    np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4)


def sizes_within(jaxpr):
  """Yields the size of each array that a program makes, loops included."""
  for eqn in jaxpr.eqns:
    yield from (x.aval.size for x in eqn.outvars)
    for inner in jex_core.jaxprs_in_params(eqn.params):
      yield from sizes_within(inner)


@pytest.mark.parametrize(("num_rows", "size"), [(64, 8), (1, 512)])
def test_no_array_is_larger_than_a_chunk_of_logits(num_rows, size):
  chunk_size, vocabulary = 16, 512  # of 512 tokens, in many rows or in one
  kernel, hidden, target = draw(num_rows, size, 4, vocabulary)

  def largest(statistics_fn):
    gradient = jax.value_and_grad(
      loss_of(statistics_fn, target), argnums=(0, 1)
    )
    return max(sizes_within(jax.make_jaxpr(gradient)(kernel, hidden).jaxpr))

  chunked = lambda *a: transformer.token_statistics(*a, chunk_size=chunk_size)
  assert largest(plain) == num_rows * size * vocabulary
  assert largest(chunked) == chunk_size * vocabulary


@pytest.mark.optimised
def test_no_array_of_tokens_times_vocabulary_is_held():
  vocabulary, size, chunk_size = 2048, 512, 16
  kernel, hidden, target = draw(8, size // 8, 8, vocabulary)

  def temporary_bytes(statistics_fn):
    gradient = jax.grad(loss_of(statistics_fn, target), argnums=(0, 1))
    compiled = jax.jit(gradient).lower(kernel, hidden).compile()
    return compiled.memory_analysis().temp_size_in_bytes

  chunked = lambda *a: transformer.token_statistics(*a, chunk_size=chunk_size)
  logits_bytes = 4 * size * vocabulary
  assert temporary_bytes(plain) >= logits_bytes
  # Some chunks' worth: logits, their exponentials, their gradients; and the
  # kernel's gradient, which is 1/64 of all logits.
  assert temporary_bytes(chunked) < logits_bytes * 6 * chunk_size / size


def test_a_gradient_of_bfloat16_products_is_summed_in_float32():
  # Each of 1,024 tokens adds about 2^-10 to the gradient of the bias-like
  # feature; a sum in bfloat16 would stop growing at 2^-2.
  size = 1024
  kernel = jnp.zeros((2, 1))
  hidden = jnp.full((1, size, 1), 2.0**-9, jnp.bfloat16)
  target = jnp.zeros((1, size), int)
  loss = lambda kernel: jnp.sum(
    transformer.token_statistics(kernel, hidden, target, chunk_size=1).log_prob
  )
  # d log p(0) / d kernel[0] = (1 - 1/2) * hidden, summed: 1024 * 2^-10 = 1.
  np.testing.assert_allclose(jax.grad(loss)(kernel), [[1.0], [-1.0]], rtol=1e-2)


@pytest.mark.parametrize("bad", [dict(temperature=0.0), dict(chunk_size=0)])
def test_nonsense_is_refused(bad):
  with pytest.raises(ValueError, match="both positive"):
    transformer.token_statistics(*draw(), **bad)
