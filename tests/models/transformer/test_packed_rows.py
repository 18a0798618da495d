"""Laws of reading texts of unlike lengths in few rows, inside a program."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf_jax.models import transformer
from rlinf_jax.models.transformer import packed_rows

ROW_SIZE = 12
TABLE = jnp.linspace(-1.0, 1.0, 8 * 5).reshape(8, 5)


def sums_so_far(params, token, position, segment):
  """Says of each token the sum over its text up to it, times its position."""
  value = params[token, position % 5]
  is_seen = (segment[:, :, None] == segment[:, None]) & (
    position[:, :, None] >= position[:, None]
  )
  return jnp.einsum("bts,bs->bt", is_seen.astype(value.dtype), value)


def by_itself(params, token_ns):
  place = jnp.broadcast_to(jnp.arange(ROW_SIZE), token_ns.shape)
  return sums_so_far(params, token_ns, place, jnp.ones_like(token_ns))


def texts(lengths):
  rng = np.random.default_rng(len(lengths))
  token = rng.integers(0, 8, (len(lengths), ROW_SIZE)).astype(np.int32)
  return jnp.array(token), jnp.array(lengths, jnp.int32)


@pytest.mark.slow
@given(
  lengths=st.lists(st.integers(0, ROW_SIZE), min_size=7, max_size=7),
  rows_at_once=st.sampled_from([1, 3, 9]),
)
@settings(deadline=None, max_examples=8)
def test_packed_texts_and_gradients_are_those_of_texts_by_themselves(
  lengths, rows_at_once
):
  token, length = texts(lengths)
  is_there = jnp.arange(ROW_SIZE)[None] < length[:, None]

  def packed(params):
    said = packed_rows.read(
      sums_so_far, params, token, length, rows_at_once=rows_at_once
    )
    return jnp.where(is_there, said, 0.0)

  def apart(params):
    return jnp.where(is_there, by_itself(params, token), 0.0)

  weight = jnp.sin(jnp.arange(token.size * 1.0)).reshape(token.shape)
  for fn in (lambda f: f, lambda f: jax.grad(lambda p: (weight * f(p)).sum())):
    np.testing.assert_allclose(fn(packed)(TABLE), fn(apart)(TABLE), atol=1e-5)


@pytest.mark.slow
@given(lengths=st.lists(st.integers(1, ROW_SIZE), min_size=9, max_size=9))
@settings(deadline=None, max_examples=30)
def test_texts_lie_where_the_host_would_put_them(lengths):
  found = packed_rows.layout(jnp.array(lengths, jnp.int32), ROW_SIZE)
  expected = transformer.pack([np.ones(n, int) for n in lengths], ROW_SIZE)
  np.testing.assert_array_equal(found.row, expected.row)
  np.testing.assert_array_equal(found.start, expected.start)
  assert found.num_rows == expected.token.shape[0]


@pytest.mark.parametrize(
  ("lengths", "num_turns"),
  [([6, 6, 6, 6], 1), ([12, 6, 6, 1], 2), ([0, 0, 0, 0], 0)],
)
def test_rows_without_a_text_are_not_read(lengths, num_turns):
  read = []

  def noted(params, token, position, segment):
    jax.debug.callback(lambda: read.append(1))
    return sums_so_far(params, token, position, segment)

  token, length = texts(lengths)
  said = packed_rows.read(noted, TABLE, token, length, rows_at_once=2)
  jax.block_until_ready(said)
  jax.effects_barrier()
  assert len(read) == num_turns


@pytest.mark.slow
def test_seeds_can_be_mapped_over():
  token, length = texts([3, 12, 5])
  read = lambda params, length: packed_rows.read(
    sums_so_far, params, token, length, rows_at_once=1
  )
  params_2 = jnp.stack([TABLE, 2 * TABLE])
  length_2 = jnp.stack([length, jnp.full_like(length, ROW_SIZE)])
  mapped = jax.vmap(read)(params_2, length_2)
  for i in range(2):
    np.testing.assert_allclose(
      mapped[i], read(params_2[i], length_2[i]), atol=1e-6
    )
