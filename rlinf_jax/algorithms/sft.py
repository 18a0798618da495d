"""Supervised fine-tuning: an update that makes given answers likelier.

Letters: R rows, T tokens of a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
from flax import struct

from rlinf_jax import types
from rlinf_jax.algorithms import updates
from rlinf_jax.models import transformer


@struct.dataclass
class Examples:
  """Texts in rows, several to a row: see `transformer.pack`."""

  token: types.AnyArray  # [R, T] int32
  position: types.AnyArray  # [R, T] int32, in its text
  segment: types.AnyArray  # [R, T] int32, from 1; 0 is padding
  is_target: types.AnyArray  # [R, T] bool: a token to be learnt


def pack(
  pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
  row_size: int,
  *,
  num_rows: int | None = None,
) -> Examples:
  """Returns prompts with their answers, packed into rows.

  Args:
    pairs: tokens of a prompt, and those of its answer, which are learnt.
    row_size: T.
    num_rows: R; None is as many as are needed.

  Raises:
    ValueError: a text is empty or longer than a row, or there are too few rows.
  """
  texts = [np.array([*prompt, *answer], np.int32) for prompt, answer in pairs]
  packed = transformer.pack(texts, row_size, num_rows=num_rows)
  is_target = np.zeros(packed.token.shape, bool)
  for (prompt, _), row, start, length in zip(
    pairs, packed.row, packed.start, packed.length
  ):
    is_target[row, start + len(prompt) : start + length] = True
  return Examples(packed.token, packed.position, packed.segment, is_target)


def make(
  model: transformer.Transformer,
  optimizer: optax.GradientTransformation,
  *,
  quantum: int | None = None,
) -> updates.Update:
  """Returns the update of a language model by examples.

  Its loss is the mean negative log-likelihood of the tokens to be learnt.

  Args:
    model: a language model.
    optimizer: any optax transformation.
    quantum: rows whose gradients are summed at once, see `flow.Spec`.
  """

  def total_fn(params: types.Params, rows: Examples, key_r: Any) -> Any:
    del key_r
    hidden = model.encode(params, rows.token, rows.position, rows.segment)
    # A row's first token has none before it that could foretell it.
    is_target = rows.is_target[:, 1:]
    said = transformer.token_statistics(
      model.head(params),
      hidden[:, :-1],
      rows.token[:, 1:],
      mask_bt=is_target,
    )
    total = jnp.sum(jnp.where(is_target, -said.log_prob, 0.0))
    entropy = jnp.sum(jnp.where(is_target, said.entropy, 0.0))
    weight = jnp.sum(is_target, dtype=jnp.float32)
    return (total, weight), {"entropy": (entropy, weight)}

  return updates.from_totals(total_fn, optimizer, quantum=quantum)
