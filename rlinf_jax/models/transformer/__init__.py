"""Decoder-only transformers: Qwen2 and Llama 3 as pure functions."""

from rlinf_jax.models.transformer import packed_rows, rope, shardings
from rlinf_jax.models.transformer.attention import Cache
from rlinf_jax.models.transformer.config import Config
from rlinf_jax.models.transformer.log_probs import (
  TokenStatistics,
  token_statistics,
)
from rlinf_jax.models.transformer.model import (
  Transformer,
  critic,
  critic_params,
  language_model,
)
from rlinf_jax.models.transformer.packing import Packed, pack, unpack

__all__ = [
  "Cache",
  "Config",
  "Packed",
  "TokenStatistics",
  "Transformer",
  "critic",
  "critic_params",
  "language_model",
  "pack",
  "packed_rows",
  "rope",
  "shardings",
  "token_statistics",
  "unpack",
]
