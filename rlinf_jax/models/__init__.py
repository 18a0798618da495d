"""Policies: networks at the definition, plain functions and arrays in use."""

from rlinf_jax.models import normaliser
from rlinf_jax.models.cnn import cnn_policy
from rlinf_jax.models.gru import gru_policy
from rlinf_jax.models.heads import (
  Head,
  categorical,
  clipped_gaussian,
  tanh_gaussian,
  with_shared_std,
)
from rlinf_jax.models.mlp import mlp_policy
from rlinf_jax.models.policy import Policy, actor_critic

__all__ = [
  "Head",
  "Policy",
  "actor_critic",
  "categorical",
  "clipped_gaussian",
  "cnn_policy",
  "gru_policy",
  "mlp_policy",
  "normaliser",
  "tanh_gaussian",
  "with_shared_std",
]
