"""Prompts: where they come from, in which order, and as which tokens.

A data set is a `collections.abc.Sequence` of `types.Prompt`; a list will do.
`arithmetic`, `sorting` and `countdown` make the prompts of `procedural` data
sets.
"""

from rlinf_jax.data.arithmetic import arithmetic
from rlinf_jax.data.chats import render
from rlinf_jax.data.countdown import countdown
from rlinf_jax.data.files import read, read_jsonl, read_parquet
from rlinf_jax.data.gym import reasoning_gym
from rlinf_jax.data.order import (
  Cursor,
  finish,
  index_at,
  reopen,
  take,
)
from rlinf_jax.data.procedural import Procedural
from rlinf_jax.data.sorting import sorting
from rlinf_jax.data.tokenizers import CharTokenizer, HuggingFaceTokenizer

__all__ = [
  "CharTokenizer",
  "Cursor",
  "HuggingFaceTokenizer",
  "Procedural",
  "arithmetic",
  "countdown",
  "finish",
  "index_at",
  "read",
  "read_jsonl",
  "read_parquet",
  "reasoning_gym",
  "render",
  "reopen",
  "sorting",
  "take",
]
