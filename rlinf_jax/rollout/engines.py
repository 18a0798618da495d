"""What generates: one interface, whatever is behind it.

An engine continues prompts as a pure function of weights and requests: each
sample has a seed of its own, so that it does not depend on what else is
generated beside it, by whom, or in how many calls.

Letters as in `types.Request`.
"""

from __future__ import annotations

from typing import Any, Protocol

import jax
import jax.numpy as jnp

from rlinf_jax.rollout import sampler as sampler_lib
from rlinf_jax.types import Completions, Request, Weights


class EngineError(RuntimeError):
  """What generates cannot go on: it did not start, ended, or was closed."""


class Engine(Protocol):
  """Continues prompts."""

  @property
  def place(self) -> str:
    """Where it runs, as `flow.stage` knows places."""

  def generate(
    self,
    weights: Weights,
    request: Request,
    *,
    sampling: sampler_lib.Sampling | None = None,
  ) -> Completions:
    """Returns completions of every prompt.

    Args:
      weights: those of a known version may come without arrays that are used.
      request: arrays of JAX where `place` is "mesh", of NumPy elsewhere.
      sampling: how, where not as the engine was made for.
    """


class JaxEngine:
  """Generates in JAX, on the devices of whoever calls it.

  It is the reference for log-probabilities, and what generates where vLLM
  cannot be installed.

  Args:
    model: a language model's functions.
    sampling: how prompts are continued.
  """

  place = "mesh"

  def __init__(
    self, model: sampler_lib.Decoder, sampling: sampler_lib.Sampling
  ) -> None:
    self._model = model
    self._sampling = sampling
    self._samplers: dict[sampler_lib.Sampling, sampler_lib.Sampler] = {}

  def generate(
    self,
    weights: Weights,
    request: Request,
    *,
    sampling: sampler_lib.Sampling | None = None,
  ) -> Completions:
    """See `Engine.generate`; traceable."""
    sampling = sampling or self._sampling
    if sampling not in self._samplers:
      self._samplers[sampling] = sampler_lib.sampler(self._model, sampling)
    sampler = self._samplers[sampling]
    key_bn = jax.vmap(jax.vmap(jax.random.key))(request.seed)
    state: Any = sampler.begin(
      weights.params, request.prompt, request.length, key_bn
    )
    is_idle_r = jnp.repeat(~request.is_asked, request.seed.shape[1])
    state = state.replace(is_stopped=state.is_stopped | is_idle_r)
    state = sampler.advance(weights.params, state, sampling.max_new_tokens)
    completions: Any = sampler.finish(state, request.prompt.shape[0])
    version_bnt = jnp.broadcast_to(weights.version, completions.token.shape)
    return completions.replace(
      is_stopped=completions.is_stopped & request.is_asked[:, None],
      version=version_bnt,
    )
