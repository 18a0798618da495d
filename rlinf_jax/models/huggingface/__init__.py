"""Checkpoints as Hugging Face's libraries and vLLM read and write them."""

from rlinf_jax.models.huggingface.folders import Checkpoint, load, save
from rlinf_jax.models.huggingface.names import named_tensors
from rlinf_jax.models.huggingface.settings import read_config

__all__ = ["Checkpoint", "load", "named_tensors", "read_config", "save"]
