"""Texts in rows, by hand and by law."""

from __future__ import annotations

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from rlinf_jax.models import transformer


def texts(*lengths):
  """Returns texts whose tokens say which text they are of, from 1."""
  return [np.full(length, n + 1) for n, length in enumerate(lengths)]


def test_long_texts_first_each_where_it_fits():
  # Lengths 2, 3, 5 and 1 in rows of 6: 5 opens row 0 and 3 row 1, 2 goes
  # after the 3, and 1 fills row 0.
  packed = transformer.pack(texts(2, 3, 5, 1), 6)
  np.testing.assert_array_equal(
    packed.token, [[3, 3, 3, 3, 3, 4], [2, 2, 2, 1, 1, 0]]
  )
  np.testing.assert_array_equal(
    packed.position, [[0, 1, 2, 3, 4, 0], [0, 1, 2, 0, 1, 0]]
  )
  np.testing.assert_array_equal(packed.row, [1, 1, 0, 0])
  np.testing.assert_array_equal(packed.start, [3, 0, 0, 5])
  # Segments count the texts of a row; 0 is padding alone.
  np.testing.assert_array_equal(
    packed.segment, [[1, 1, 1, 1, 1, 2], [2, 2, 2, 1, 1, 0]]
  )


@hypothesis.given(st.lists(st.integers(1, 9), min_size=1, max_size=20))
def test_each_text_is_found_again_and_rows_are_few(lengths):
  given = texts(*lengths)
  packed = transformer.pack(given, 9)
  for text, found in zip(given, transformer.unpack(packed.token, packed)):
    np.testing.assert_array_equal(found, text)
  assert np.count_nonzero(packed.segment) == sum(lengths)
  fewest = -(-sum(lengths) // 9)
  # No two rows are half empty at once, else one would have gone to the other.
  assert len(packed.token) <= 2 * fewest


def test_rows_may_be_given_in_advance():
  packed = transformer.pack(texts(2), 4, num_rows=3)
  assert packed.token.shape == (3, 4)
  assert np.count_nonzero(packed.segment) == 2


@pytest.mark.parametrize(
  ("lengths", "num_rows", "words"),
  [
    ((7,), None, "text 0 of 7 tokens"),
    ((1, 0), None, "text 1 of 0 tokens"),
    ((6, 6), 1, "at least the 2"),
  ],
)
def test_what_does_not_fit_is_refused(lengths, num_rows, words):
  with pytest.raises(ValueError, match=words):
    transformer.pack(texts(*lengths), 6, num_rows=num_rows)
