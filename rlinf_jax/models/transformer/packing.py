"""Texts of unlike lengths, put together into rows of one length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Packed(NamedTuple):
  """Texts in rows; where each is, is known by its index.

  Letters: R rows, T tokens of a row, N texts.
  """

  token: np.ndarray  # [R, T] int32, 0 in padding
  position: np.ndarray  # [R, T] int32, from 0 in each text
  segment: np.ndarray  # [R, T] int32, from 1 in each row; 0 is padding
  row: np.ndarray  # [N] int32, where text n is
  start: np.ndarray  # [N] int32, where in the row it begins
  length: np.ndarray  # [N] int32


def pack(
  texts: Sequence[np.ndarray], row_size: int, *, num_rows: int | None = None
) -> Packed:
  """Returns texts packed into few rows: the longest first, each where it fits.

  First-fit decreasing needs at most 11/9 of the fewest rows possible, and one
  more. The same texts give the same rows.

  Args:
    texts: each int [length], of at least one token.
    row_size: tokens of a row.
    num_rows: rows to make, so that programs are compiled for few shapes; None
      is as many as are needed.

  Raises:
    ValueError: a text is empty or longer than a row, or there are too few rows.

  Source: Johnson, "Near-optimal bin packing algorithms", 1973.
  """
  length = np.array([len(text) for text in texts], np.int32)
  for n in np.flatnonzero((length < 1) | (length > row_size)).tolist():
    raise ValueError(
      f"Given text {n} of {length[n]} tokens, expected 1 to row_size ="
      f" {row_size}. Drop it, cut it, or make rows longer."
    )
  row, start = np.zeros_like(length), np.zeros_like(length)
  filled: list[int] = []
  for n in np.argsort(-length, kind="stable").tolist():
    fits = (r for r, used in enumerate(filled) if used + length[n] <= row_size)
    row[n] = next(fits, len(filled))
    if row[n] == len(filled):
      filled.append(0)
    start[n] = filled[row[n]]
    filled[row[n]] += int(length[n])
  if num_rows is not None and num_rows < len(filled):
    raise ValueError(
      f"Given num_rows {num_rows}, expected at least the {len(filled)} that"
      f" {len(texts)} texts of {length.sum()} tokens fill."
    )
  shape = (len(filled) if num_rows is None else num_rows, row_size)
  token, position, segment = (np.zeros(shape, np.int32) for _ in range(3))
  for n, text in enumerate(texts):
    at = (row[n], slice(start[n], start[n] + length[n]))
    token[at] = text
    position[at] = np.arange(length[n])
    segment[at] = segment[row[n]].max() + 1
  return Packed(token, position, segment, row, start, length)


def unpack(values: np.ndarray, packed: Packed) -> list[np.ndarray]:
  """Returns each text's own part of values [R, T, ...], as [length, ...]."""
  ends = packed.start + packed.length
  return [values[r, a:b] for r, a, b in zip(packed.row, packed.start, ends)]
