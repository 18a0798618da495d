"""Generation: what continues prompts, and with which probabilities."""

from rlinf_jax.rollout.distributions import log_distribution
from rlinf_jax.rollout.engines import Engine, JaxEngine, Request, Weights
from rlinf_jax.rollout.sampler import (
  Completions,
  Decoder,
  Sampler,
  Sampling,
  State,
  from_left_padded,
  sampler,
)

__all__ = [
  "Completions",
  "Decoder",
  "Engine",
  "JaxEngine",
  "Request",
  "Sampler",
  "Sampling",
  "State",
  "Weights",
  "from_left_padded",
  "log_distribution",
  "sampler",
]
