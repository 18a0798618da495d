"""The distribution that a token is sampled from."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def log_distribution(
  logits: jax.Array,
  *,
  temperature: float = 1.0,
  top_k: int | None = None,
  top_p: float = 1.0,
) -> jax.Array:
  """Returns the log-probabilities of tokens as they are sampled.

  In this order: logits are divided by the temperature, then only the `top_k`
  likeliest tokens are left, then of these the fewest likeliest ones whose
  probabilities sum to at least `top_p`; what is left is normalised. Tokens as
  likely as the last one that is left are left too.

  Args:
    logits: float32 [..., V].
    temperature: above 0.
    top_k: at least 1; None leaves all.
    top_p: above 0, at most 1, which leaves all.

  Returns:
    float32 [..., V], nats; -inf where a token cannot be sampled.
  """
  logits = logits / temperature
  if top_k is not None and top_k < logits.shape[-1]:
    logits = _keep(logits, jax.lax.top_k(logits, top_k)[0][..., -1:])
  if top_p < 1.0:
    falling = jnp.flip(jnp.sort(logits, axis=-1), axis=-1)
    probability = jax.nn.softmax(falling, axis=-1)
    before = jnp.cumsum(probability, axis=-1) - probability
    # The first has nothing before it, so one at least is left.
    left = jnp.where(before < top_p, falling, jnp.inf)
    logits = _keep(logits, jnp.min(left, axis=-1, keepdims=True))
  return jax.nn.log_softmax(logits, axis=-1)


def _keep(logits, least):
  return jnp.where(logits >= least, logits, -jnp.inf)
