"""From one layout of an array to another, moving the fewest bytes.

A device that is to hold a box of an array keeps what it holds of it, and gets
the rest from devices that hold it: no byte crosses that need not, and none
passes through the host, as all of them do in `jax.device_put` between layouts
that divide an array differently (jax 0.10.2). Where device memory is the host's
that is no loss, and `transport` leaves such arrays to it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

# An array's indices by axis, each a half-open interval.
Box = tuple[tuple[int, int], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
  """What one device gets of what another one holds.

  Attributes:
    source: the device that holds it.
    target: the device that is to hold it; the source where it stays.
    box: which indices of the array.
    held: the source's box, of which it is a part.
  """

  source: jax.Device
  target: jax.Device
  box: Box
  held: Box

  @property
  def num_items(self) -> int:
    """Entries of the array."""
    return math.prod(stop - start for start, stop in self.box)


def pieces(
  shape: Sequence[int],
  source: jax.sharding.Sharding,
  target: jax.sharding.Sharding,
) -> tuple[Piece, ...]:
  """Returns what every target device is to get, by device, then by index.

  What several devices hold is taken from the one that has sent least so far.

  Args:
    shape: of the array.
    source: how it is laid out.
    target: how it shall be.
  """
  held = boxes(shape, source)
  holders: dict[Box, list[jax.Device]] = {}
  for device, box in held.items():
    holders.setdefault(box, []).append(device)
  sent = dict.fromkeys(held, 0)
  found = []
  for device, wanted in boxes(shape, target).items():
    for tile in sorted(holders):
      part = _overlap(wanted, tile)
      if part is None:
        continue
      giver = device
      if held.get(device) != tile:
        giver = min(holders[tile], key=sent.__getitem__)
      piece = Piece(source=giver, target=device, box=part, held=tile)
      if giver != device:
        sent[giver] += piece.num_items
      found.append(piece)
  return tuple(found)


def moved_items(
  shape: Sequence[int],
  source: jax.sharding.Sharding,
  target: jax.sharding.Sharding,
) -> int:
  """Returns how many entries cross from one device to another."""
  return sum(
    piece.num_items
    for piece in pieces(shape, source, target)
    if piece.source != piece.target
  )


def is_needed(
  shape: Sequence[int],
  source: jax.sharding.Sharding,
  target: jax.sharding.Sharding,
) -> bool:
  """Returns whether the target's devices hold other boxes than the source's."""
  held, wanted = boxes(shape, source), boxes(shape, target)
  return list(held.values()) != list(wanted.values())


def boxes(
  shape: Sequence[int], sharding: jax.sharding.Sharding
) -> dict[jax.Device, Box]:
  """Returns what each device holds of an array."""
  return {
    device: tuple(
      s.indices(size)[:2] for s, size in zip(index or (), shape, strict=True)
    )
    for device, index in sharding.devices_indices_map(tuple(shape)).items()
  }


def redistribute(x: jax.Array, target: jax.sharding.Sharding) -> jax.Array:
  """Returns an array in another layout.

  All pieces cross at once, in one batched call.

  Args:
    x: whose devices are all this process's.
    target: on any of its devices; it divides the array evenly.
  """
  shards = {shard.device: shard.data for shard in x.addressable_shards}
  found = pieces(x.shape, x.sharding, target)
  cuts = [_cut(shards[piece.source], piece) for piece in found]
  kind = target.memory_kind
  places = {
    device: jax.sharding.SingleDeviceSharding(device, memory_kind=kind)
    for device in target.addressable_devices
  }
  arrived = jax.device_put(cuts, [places[piece.target] for piece in found])
  by_device: dict[jax.Device, dict[Box, jax.Array]] = {}
  for piece, array in zip(found, arrived):
    by_device.setdefault(piece.target, {})[piece.box] = array
  return jax.make_array_from_single_device_arrays(
    x.shape, target, [_joined(parts, 0) for parts in by_device.values()]
  )


def _overlap(a: Box, b: Box) -> Box | None:
  found = tuple(
    (max(start, other), min(stop, end))
    for (start, stop), (other, end) in zip(a, b)
  )
  return None if any(start >= stop for start, stop in found) else found


def _cut(shard: jax.Array, piece: Piece) -> jax.Array:
  if piece.box == piece.held:
    return shard
  starts = [a - first for (a, _), (first, _) in zip(piece.box, piece.held)]
  stops = [b - first for (_, b), (first, _) in zip(piece.box, piece.held)]
  return jax.lax.slice(shard, starts, stops)


def _joined(parts: dict[Box, Any], axis: int) -> Any:
  """Puts pieces together along `axis` and those after it; they form a grid."""
  if len(parts) == 1:
    return next(iter(parts.values()))
  rows: dict[tuple[int, int], dict[Box, Any]] = {}
  for box, array in parts.items():
    rows.setdefault(box[axis], {})[box] = array
  joined = [_joined(rows[key], axis + 1) for key in sorted(rows)]
  return joined[0] if len(joined) == 1 else jnp.concatenate(joined, axis=axis)
