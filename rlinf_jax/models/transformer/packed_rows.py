"""Reading texts of unlike lengths in few rows, inside a program.

How long texts are is known only as the program runs, and its shapes are those
of the longest ones. So texts are put together into rows, as `pack` does on the
host, and rows are read a few at a time, until none with a text is left: time
goes by the tokens that there are, not by those that there could be.

Letters: N texts, S tokens of the longest possible one and of a row, R rows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from rlinf_jax import types

ReadFn = Callable[..., Any]
"""(params, token, position, segment, *more), int32 [B, S] -> arrays [B, S]."""


class Layout(NamedTuple):
  """Where texts lie in rows."""

  row: jax.Array  # [N] int32
  start: jax.Array  # [N] int32, where in its row a text begins
  num_rows: jax.Array  # [] int32: rows with a text; they come first


def layout(length_n: jax.Array, row_size: int) -> Layout:
  """Returns where texts go: the longest first, each where it fits.

  Args:
    length_n: int32 [N], tokens of each text, at most row_size. A text of none
      is nowhere.
    row_size: tokens of a row.

  Source: first-fit decreasing, see `pack`.
  """
  order_n = jnp.argsort(-length_n, stable=True)

  def put(filled_r: jax.Array, length: jax.Array) -> Any:
    row = jnp.argmax(filled_r + length <= row_size).astype(jnp.int32)
    return filled_r.at[row].add(length), (row, filled_r[row])

  filled_r, (row_n, start_n) = jax.lax.scan(
    put, jnp.zeros_like(length_n), length_n[order_n]
  )
  place = jnp.zeros_like(length_n)
  return Layout(
    row=place.at[order_n].set(row_n),
    start=place.at[order_n].set(start_n),
    num_rows=jnp.sum(filled_r > 0, dtype=jnp.int32),
  )


def read(
  read_fn: ReadFn,
  params: types.Params,
  token_ns: jax.Array,
  length_n: jax.Array,
  *more_ns: jax.Array,
  rows_at_once: int,
) -> Any:
  """Returns what a network says of each token of some texts.

  Time goes by the rows that texts fill. The backward pass reads them again, and
  holds what `rows_at_once` rows need.

  Args:
    read_fn: reads rows. It may close over nothing that is being traced.
    params: what it differentiates by; the only thing here that it can be.
    token_ns: int32 [N, S]; what is beyond a text's length means nothing.
    length_n: int32 [N], at most S.
    *more_ns: int32 [N, S], what else `read_fn` is to know of each token; where
      there is none, it is told 0.
    rows_at_once: rows given to `read_fn`.

  Returns:
    What `read_fn` says, [N, S] for each text; beyond its length any numbers.
  """
  chex.assert_rank([token_ns, length_n], [2, 1])
  num_texts, row_size = token_ns.shape
  rows_at_once = min(rows_at_once, num_texts)
  num_rows = -(-num_texts // rows_at_once) * rows_at_once
  where = layout(length_n, row_size)
  place_s = jnp.arange(row_size, dtype=jnp.int32)[None]
  is_there = place_s < length_n[:, None]
  # What is not there goes beyond the last row, and is dropped.
  at = (
    jnp.where(is_there, where.row[:, None], num_rows),
    where.start[:, None] + place_s,
  )
  empty = jnp.zeros((num_rows, row_size), jnp.int32)
  put = lambda x_ns: empty.at[at].set(
    jnp.broadcast_to(x_ns, token_ns.shape), mode="drop"
  )
  text_n1 = jnp.arange(1, num_texts + 1, dtype=jnp.int32)[:, None]
  rows = (put(token_ns), put(place_s), put(text_n1), *map(put, more_ns))
  num_turns = -(-where.num_rows // rows_at_once)
  said_rs = _read_rows(read_fn, rows_at_once, params, rows, num_turns)
  column = jnp.clip(at[1], 0, row_size - 1)
  return jax.tree.map(lambda x_rs: x_rs[where.row[:, None], column], said_rs)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _read_rows(
  read_fn: ReadFn,
  rows_at_once: int,
  params: types.Params,
  rows: Any,
  num_turns: jax.Array,
) -> Any:
  """Returns what `read_fn` says of the rows of so many turns, then zeros."""

  def turn(i: jax.Array, said: Any) -> Any:
    now = read_fn(params, *_slice(rows, i, rows_at_once))
    put = lambda x, y: jax.lax.dynamic_update_slice_in_dim(
      x, y, i * rows_at_once, axis=0
    )
    return jax.tree.map(put, said, now)

  shapes = jax.eval_shape(read_fn, params, *rows)
  empty = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
  return jax.lax.fori_loop(0, num_turns, turn, empty)


def _read_forward(
  read_fn: ReadFn,
  rows_at_once: int,
  params: types.Params,
  rows: Any,
  num_turns: jax.Array,
) -> Any:
  said = _read_rows(read_fn, rows_at_once, params, rows, num_turns)
  return said, (params, rows, num_turns)


def _read_backward(
  read_fn: ReadFn, rows_at_once: int, known: Any, cotangent: Any
) -> Any:
  params, rows, num_turns = known

  def turn(i: jax.Array, total: Any) -> Any:
    now = _slice(rows, i, rows_at_once)
    _, pull = jax.vjp(lambda params: read_fn(params, *now), params)
    (grads,) = pull(_slice(cotangent, i, rows_at_once))
    return jax.tree.map(jnp.add, total, grads)

  zeros = jax.tree.map(jnp.zeros_like, params)
  return jax.lax.fori_loop(0, num_turns, turn, zeros), None, None


_read_rows.defvjp(_read_forward, _read_backward)


def _slice(tree: Any, i: jax.Array, size: int) -> Any:
  return jax.tree.map(
    lambda x: jax.lax.dynamic_slice_in_dim(x, i * size, size), tree
  )
