"""Values of one iteration, which come in pieces as granules finish."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rlinf_jax.flow import stages
from rlinf_jax.runtime import ledgers, transport


class Stopped(Exception):
  """The flow has been stopped: another part of it failed."""


class Board:
  """Where readers wait for values, and what ends their waiting.

  One condition for all values of an executor: a piece wakes its readers, and a
  stop wakes everyone.
  """

  def __init__(self) -> None:
    self.changed = threading.Condition()
    self.is_stopped = False

  def stop(self) -> None:
    """Ends every wait with `Stopped`."""
    with self.changed:
      self.is_stopped = True
      self.changed.notify_all()

  def wait_for(self, is_true: Callable[[], bool]) -> None:
    """Waits, with the condition held, until something is true."""
    while not is_true():
      if self.is_stopped:
        raise Stopped
      self.changed.wait()


class Value:
  """One array of one iteration, whole or in pieces along its items.

  Args:
    board: where it announces pieces.
    ledger: where its bytes are counted.
    what: for messages.
    axis: of its items; None: it comes whole.
    num_items: along that axis.
    is_sum: whether pieces are sums of quanta, stacked along axis 0, which have
      to be added in order.
    make_fn: for values that no node makes: computes it when it is first read.
  """

  def __init__(
    self,
    board: Board,
    ledger: ledgers.Ledger,
    *,
    what: str,
    axis: int | None = None,
    num_items: int = 1,
    is_sum: bool = False,
    make_fn: Callable[[], Any] | None = None,
  ) -> None:
    self._board, self._ledger, self.what = board, ledger, what
    self._axis = 0 if is_sum else axis
    self._num_items = num_items
    self._is_sum = is_sum
    self._make_fn = make_fn
    self._making = threading.Lock()
    self._pieces: dict[tuple[int, int], Any] = {}
    self._whole: Any = None
    self.is_released = False

  def put(self, array: Any) -> None:
    """Gives the whole value."""
    with self._board.changed:
      self._whole = array
      self._ledger.add(array, self.what)
      self._board.changed.notify_all()

  def add(self, start: int, stop: int, piece: Any) -> None:
    """Gives the items [start, stop), or the sums over them."""
    with self._board.changed:
      self._pieces[start, stop] = piece
      self._ledger.add(piece, self.what)
      self._board.changed.notify_all()

  def read(self, start: int, stop: int, axis: int, sharding: Any) -> Any:
    """Returns the items [start, stop) where `sharding` says.

    Waits until they have come.

    Raises:
      Stopped: the flow was stopped before.
    """
    if self._whole is None and self._make_fn is None and not self._is_sum:
      with self._board.changed:
        self._board.wait_for(
          lambda: self._whole is not None or self._covers(start, stop)
        )
        is_whole = self._whole is not None
      if not is_whole:
        return self._gather(start, stop, sharding)
    whole = self._get()
    if start == 0 and stop == whole.shape[axis]:
      return transport.send(whole, sharding)
    return transport.send(_cut(whole, start, stop, axis, sharding), sharding)

  def whole(self, sharding: Any) -> Any:
    """Returns all of it where `sharding` says; waits until it is complete."""
    return transport.send(self._get(), sharding)

  def replace(self, old: Any, new: Any) -> None:
    """Holds another copy of what it holds whole.

    The old one is let go of, not deleted: a stage on other devices may still
    be reading it, and of the first state the caller holds it too.
    """
    with self._board.changed:
      if self._whole is not old:
        return  # it was released meanwhile
      self._whole = new
      self._ledger.remove(old)
      self._ledger.add(new, self.what)

  @property
  def held(self) -> Any:
    """The whole value, if it has come and is in memory; else None."""
    return self._whole

  def release(self) -> None:
    """Forgets the arrays; whoever still holds them keeps them."""
    with self._board.changed:
      for array in [self._whole, *self._pieces.values()]:
        self._ledger.remove(array)
      self._whole, self._pieces, self.is_released = None, {}, True

  def _get(self) -> Any:
    if self._make_fn is not None:
      with self._making:
        if self._whole is None:
          self.put(self._make_fn())
      return self._whole
    with self._board.changed:
      self._board.wait_for(
        lambda: self._whole is not None or self._covers(0, self._num_items)
      )
      if self._whole is not None:
        return self._whole
    with self._making:
      if self._whole is None:
        self._join()
      return self._whole

  def _covers(self, start: int, stop: int) -> bool:
    at = start
    for a, b in sorted(self._pieces):
      if a <= at < b:
        at = b
    return at >= stop

  def _join(self) -> None:
    pieces = [piece for _, piece in sorted(self._pieces.items())]
    if self._axis is None:
      whole = pieces[0]
    else:
      whole = _concatenate(pieces, self._axis)
    if self._is_sum:
      whole = _sum_quanta(whole)
    with self._board.changed:
      for piece in self._pieces.values():
        self._ledger.remove(piece)
      self._pieces = {}
      self._whole = whole
      self._ledger.add(whole, self.what)

  def _gather(self, start: int, stop: int, sharding: Any) -> Any:
    assert self._axis is not None
    with self._board.changed:
      pieces = sorted(self._pieces.items())
    parts = []
    for (a, b), piece in pieces:
      low, high = max(a, start), min(b, stop)
      if low < high:
        cut = piece
        if (low, high) != (a, b):
          cut = _cut(piece, low - a, high - a, self._axis, sharding)
        parts.append(cut)
    if len(parts) == 1:
      return transport.send(parts[0], sharding)
    return transport.send(_concatenate(parts, self._axis), sharding)


def move(values: Sequence[Value], sharding_fn: Callable[[Any], Any]) -> int:
  """Moves whole values, all of them in one copy; returns the bytes moved.

  Args:
    values: of which those that have not come stay as they are.
    sharding_fn: from where an array lies to where it shall lie.
  """
  found = []
  for value in values:
    old = value.held
    if not isinstance(old, jax.Array) or old.is_deleted():
      continue
    if (target := sharding_fn(old.sharding)) != old.sharding:
      found.append((value, old, target))
  moved = transport.send([x for _, x, _ in found], [to for _, _, to in found])
  jax.block_until_ready(moved)
  for (value, old, _), new in zip(found, moved):
    value.replace(old, new)
  return sum(int(new.nbytes) for new in moved)


def _cut(piece: Any, start: int, stop: int, axis: int, sharding: Any) -> Any:
  """Returns items [start, stop); as `sharding` says if that is where they are.

  Elsewhere they stay on the piece's devices.
  """
  if isinstance(piece, np.ndarray):
    return piece[(slice(None),) * axis + (slice(start, stop),)]
  if sharding is None or sharding.device_set != piece.sharding.device_set:
    sharding = None
  return _slicer(sharding)(piece, np.int32(start), size=stop - start, axis=axis)


@functools.lru_cache(maxsize=4096)
def _slicer(sharding: Any) -> Any:
  # The start is an argument: one program cuts all granules of a size.
  def run(piece: Any, start: Any, *, size: int, axis: int) -> Any:
    return jax.lax.dynamic_slice_in_dim(piece, start, size, axis=axis)

  return jax.jit(run, static_argnames=("size", "axis"), out_shardings=sharding)


def _concatenate(pieces: list[Any], axis: int) -> Any:
  if len(pieces) == 1:
    return pieces[0]
  if all(isinstance(piece, np.ndarray) for piece in pieces):
    return np.concatenate(pieces, axis=axis)
  target = next(p.sharding for p in pieces if isinstance(p, jax.Array))
  if len(target.device_set) > 1 and not target.is_fully_replicated:
    first: Any = sorted(target.device_set, key=str)[0]
    target = jax.sharding.SingleDeviceSharding(first)
  here = [transport.send(piece, target) for piece in pieces]
  return jnp.concatenate(here, axis=axis)


@jax.jit
def _sum_quanta(stacked: Any) -> Any:
  return stages.sum_quanta(stacked)
