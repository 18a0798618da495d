"""Generation: what continues prompts, and with which probabilities."""

from rlinf_jax.rollout.distributions import log_distribution
from rlinf_jax.rollout.engines import Engine, EngineError, JaxEngine
from rlinf_jax.rollout.sampler import (
  Decoder,
  Sampler,
  Sampling,
  State,
  from_left_padded,
  sampler,
)
from rlinf_jax.rollout.vllm import VllmEngine, WeightSync
from rlinf_jax.types import Completions, Request, Weights

__all__ = [
  "Completions",
  "Decoder",
  "Engine",
  "EngineError",
  "JaxEngine",
  "Request",
  "Sampler",
  "Sampling",
  "State",
  "VllmEngine",
  "WeightSync",
  "Weights",
  "from_left_padded",
  "log_distribution",
  "sampler",
]
