"""The order in which prompts are asked, as a function of a position.

The n-th prompt of a run is that of index `index_at(n)`: every epoch goes
through the whole data set in an order of its own, computed from the seed, so
that all there is to save is a number. Prompts may be under way when a run is
saved (asked for and not yet learnt from, in whatever order they are done with);
a `Cursor` knows which, and gives those first after a resume.

A position identifies a prompt's one turn in the run: keys and seeds of its
samples are derived from it, and are the same after a resume.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Any

_NUM_ROUNDS = 6


def index_at(position: int, *, size: int, seed: int | None) -> int:
  """Returns which prompt of a data set is the one at a position.

  Positions e size, ..., (e + 1) size - 1, of epoch e, are a permutation of the
  data set, which depends on the seed and on e.

  Args:
    position: counted from the start of the run, from 0.
    size: of the data set.
    seed: None keeps the data set's own order.

  Raises:
    ValueError: position is negative, or size less than 1.
  """
  if position < 0 or size < 1:
    raise ValueError(
      f"Given position={position}, size={size}; expected position >= 0 and a "
      "data set of at least one prompt."
    )
  epoch, place = divmod(position, size)
  if seed is None:
    return place
  # A permutation of [0, 4^n) of which the places past `size` are passed over.
  half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
  key = hashlib.blake2b(f"{seed} {epoch}".encode(), digest_size=16).digest()
  while True:
    place = _permuted(place, half_bits, key)
    if place < size:
      return place


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Cursor:
  """How far a run has come. JSON by `dataclasses.asdict`, back by `from_json`.

  Attributes:
    next_position: the first position that was never taken.
    waiting: positions to be taken before that, after a resume.
    under_way: positions taken and not finished.
  """

  next_position: int = 0
  waiting: tuple[int, ...] = ()
  under_way: tuple[int, ...] = ()

  @classmethod
  def from_json(cls, saved: dict[str, Any]) -> Cursor:
    """Returns the cursor that was saved, as it was."""
    return cls(
      next_position=saved["next_position"],
      waiting=tuple(saved["waiting"]),
      under_way=tuple(saved["under_way"]),
    )


def take(cursor: Cursor, num: int) -> tuple[tuple[int, ...], Cursor]:
  """Returns the next positions, and the cursor with them under way."""
  taken = cursor.waiting[:num]
  end = cursor.next_position + num - len(taken)
  taken += tuple(range(cursor.next_position, end))
  return taken, Cursor(
    next_position=end,
    waiting=cursor.waiting[num:],
    under_way=cursor.under_way + taken,
  )


def finish(cursor: Cursor, positions: Sequence[int]) -> Cursor:
  """Returns the cursor after an update has learnt from (or dropped) some.

  Raises:
    ValueError: a position is not under way.
  """
  done = set(positions)
  strange = done - set(cursor.under_way)
  if strange or len(done) != len(positions):
    raise ValueError(
      f"Given positions {sorted(positions)} as finished, expected each once "
      f"and of those under way, {sorted(cursor.under_way)}."
    )
  under_way = tuple(p for p in cursor.under_way if p not in done)
  return dataclasses.replace(cursor, under_way=under_way)


def reopen(cursor: Cursor) -> Cursor:
  """Returns the cursor of a run that begins where this one was saved.

  What was under way is to be taken again, in the order of positions.
  """
  waiting = tuple(sorted(cursor.waiting + cursor.under_way))
  return dataclasses.replace(cursor, waiting=waiting, under_way=())


def _permuted(x: int, half_bits: int, key: bytes) -> int:
  """Returns a permutation's value on [0, 4^half_bits): a Feistel network.

  Source: Luby and Rackoff, "How to Construct Pseudorandom Permutations from
    Pseudorandom Functions", 1988.
  """
  mask = (1 << half_bits) - 1
  left, right = x >> half_bits, x & mask
  for i in range(_NUM_ROUNDS):
    mixed = hashlib.blake2b(b"%d %d" % (i, right), key=key, digest_size=8)
    mix = int.from_bytes(mixed.digest(), "little") & mask
    left, right = right, left ^ mix
  return left << half_bits | right
