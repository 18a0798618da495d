"""Values of one iteration, which come in pieces as granules finish."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rlinf_jax.flow import granules
from rlinf_jax.runtime import ledgers, transport


class Stopped(Exception):
  """The flow has been stopped: another part of it failed."""


class Board:
  """Where readers wait for values, and what ends their waiting.

  One condition for all values of an executor: a piece wakes its readers, and a
  stop wakes everyone. It also counts the bytes that each thread moves.
  """

  def __init__(self) -> None:
    self.changed = threading.Condition()
    self.is_stopped = False
    self._of_thread = threading.local()

  def add_moved(self, num_bytes: int) -> None:
    """Counts bytes that the calling thread has moved between devices."""
    self._of_thread.moved = getattr(self._of_thread, "moved", 0) + num_bytes

  def take_moved(self) -> int:
    """Returns the bytes that the calling thread has moved since last asked."""
    moved = getattr(self._of_thread, "moved", 0)
    self._of_thread.moved = 0
    return moved

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

  What was brought whole to other devices is kept there, and so are pieces that
  were sent ahead of their reader.

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
    self._copies: dict[Any, Any] = {}  # of the whole, by sharding
    self._ahead: dict[tuple[int, int, int], tuple[Any, Any]] = {}
    self.is_released = False

  def put(self, array: Any) -> None:
    """Gives the whole value."""
    with self._board.changed:
      if self.is_released:
        return
      self._whole = array
      self._ledger.add(array, self.what)
      self._board.changed.notify_all()

  def add(self, start: int, stop: int, piece: Any) -> None:
    """Gives the items [start, stop), or the sums over them."""
    with self._board.changed:
      if self.is_released:
        return
      self._pieces[start, stop] = piece
      self._ledger.add(piece, self.what)
      self._board.changed.notify_all()

  def read(self, start: int, stop: int, axis: int, sharding: Any) -> Any:
    """Returns the items [start, stop) where `sharding` says.

    Waits until they have come.

    Raises:
      Stopped: the flow was stopped before.
    """
    there, found = self._ahead.get((start, stop, axis), (None, None))
    if found is not None and there == sharding:
      return found
    if self._whole is None and self._comes_in_pieces(axis):
      with self._board.changed:
        self._board.wait_for(
          lambda: self._whole is not None or self._covers(start, stop)
        )
        pieces = [] if self._whole is not None else sorted(self._pieces.items())
      if pieces:
        return self._gather(pieces, start, stop, sharding)
    whole = self._get()
    if start == 0 and stop == whole.shape[axis]:
      return self._send(whole, sharding)
    return self._send(_cut(whole, start, stop, axis, sharding), sharding)

  def whole(self, sharding: Any) -> Any:
    """Returns all of it where `sharding` says; waits until it is complete."""
    whole = self._get()
    with self._making:
      found = self._copies.get(sharding)
      if found is None:
        found = self._send(whole, sharding)
        if found is not whole and not self.is_released:
          self._keep(whole, sharding, found)
    return found

  def give_up(self, array: Any) -> bool:
    """Forgets the value, for its last reader has it.

    Args:
      array: what `whole` has given to the last reader.

    Returns:
      Whether nobody else holds it, so that the reader may write over it.
    """
    is_alone = self._ledger.num_holders(array) == 1
    self.release()
    return is_alone

  def given_to_caller(self, sharding: Any) -> Any:
    """Returns all of it where `sharding` says; None is on the host, but keys.

    What is brought there is the caller's: it is neither kept nor counted.
    """
    whole = self._get()
    if sharding is None and isinstance(whole, jax.Array):
      if jax.dtypes.issubdtype(whole.dtype, jax.dtypes.prng_key):
        return whole
    return transport.send(whole, sharding)

  def is_complete(
    self, start: int = 0, stop: int | None = None, axis: int | None = None
  ) -> bool:
    """Returns whether the items [start, stop) can be read without waiting."""
    if stop is None or not self._comes_in_pieces(axis):
      start, stop = 0, self._num_items
    with self._board.changed:
      return self._whole is not None or self._covers(start, stop)

  def send_ahead(self, start: int, stop: int, axis: int, sharding: Any) -> Any:
    """Brings the items [start, stop) to where they will be read; returns them.

    Waits until they have come.
    """
    found = self.read(start, stop, axis, sharding)
    with self._board.changed:
      # Each of a reader's transfers may find all of it here.
      _, before = self._ahead.get((start, stop, axis), (None, None))
      if found is not before and not self.is_released:
        self._ahead[start, stop, axis] = (sharding, found)
        self._ledger.add(found, self.what)
        self._ledger.remove(before)
    return found

  @property
  def held(self) -> Any:
    """The whole value, if it has come and is in memory; else None."""
    return self._whole

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

  def drop_copies(self, devices: frozenset[Any]) -> None:
    """Lets go of copies of the whole value on devices."""
    with self._making:
      for sharding in [s for s in self._copies if _is_on(s, devices)]:
        self._ledger.remove(self._copies.pop(sharding))

  def release(self) -> None:
    """Forgets the arrays; whoever still holds them keeps them."""
    with self._board.changed:
      ahead = [array for _, array in self._ahead.values()]
      held = [self._whole, *self._pieces.values(), *self._copies.values()]
      for array in (*held, *ahead):
        self._ledger.remove(array)
      self._whole, self._pieces, self._copies, self._ahead = None, {}, {}, {}
      self.is_released = True

  def _keep(self, whole: Any, sharding: Any, copy: Any) -> None:
    if isinstance(whole, jax.Array) and whole.sharding == sharding:
      # The same memory: what might still go anywhere now belongs there.
      self._ledger.remove(whole)
      self._whole = copy
    else:
      self._copies[sharding] = copy
    self._ledger.add(copy, self.what)

  def _send(self, array: Any, sharding: Any) -> Any:
    if transport.is_there(array, sharding):
      return array
    self._board.add_moved(transport.moved_bytes(array, sharding))
    return transport.send(array, sharding)

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

  def _comes_in_pieces(self, axis: int | None) -> bool:
    """Whether items along an axis can be read before all have come."""
    return self._make_fn is None and not self._is_sum and axis == self._axis

  def _gather(
    self,
    pieces: Sequence[tuple[tuple[int, int], Any]],
    start: int,
    stop: int,
    sharding: Any,
  ) -> Any:
    assert self._axis is not None
    parts = []
    for (a, b), piece in pieces:
      low, high = max(a, start), min(b, stop)
      if low < high:
        cut = piece
        if (low, high) != (a, b):
          # A part of what is read may not divide as the whole of it does.
          layout = sharding if (low, high) == (start, stop) else None
          cut = _cut(piece, low - a, high - a, self._axis, layout)
        parts.append(cut)
    if len(parts) == 1:
      return self._send(parts[0], sharding)
    return self._send(_concatenate(parts, self._axis), sharding)


def swap(
  values: Sequence[Value],
  devices: frozenset[Any],
  memory_kind: str,
  *,
  wait: bool = True,
) -> int:
  """Moves what lies on devices to another memory of theirs, in one copy.

  Args:
    values: of which those that are not whole, or lie elsewhere, stay.
    devices: JAX devices; further copies that lie on them are let go of.
    memory_kind: to which.
    wait: whether to return when all is there, not as soon as it is under way.

  Returns:
    Bytes moved.
  """
  found = []
  for value in values:
    value.drop_copies(devices)
    old = value.held
    if not isinstance(old, jax.Array) or old.is_deleted():
      continue
    if _is_on(old.sharding, devices) and (
      old.sharding.memory_kind != memory_kind
    ):
      target = old.sharding.with_memory_kind(memory_kind)
      found.append((value, old, target))
  moved = transport.send([x for _, x, _ in found], [to for _, _, to in found])
  if wait:
    jax.block_until_ready(moved)
  for (value, old, _), new in zip(found, moved):
    value.replace(old, new)
  return sum(int(new.nbytes) for new in moved)


def _is_on(sharding: Any, devices: frozenset[Any]) -> bool:
  return sharding is not None and not devices.isdisjoint(sharding.device_set)


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
  return granules.sum_quanta(stacked)
