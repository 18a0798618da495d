"""Arrays in memory that other processes map.

They lie in one anonymous file in memory. It has no name that could be
left behind, and no mount bounds its size: it is gone with the last process that
maps it. Others open it by the path under /proc of whoever made it.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from concurrent import futures
from typing import Any, NamedTuple

import numpy as np

# Where a tensor begins: a line of a processor's cache.
_ALIGNMENT = 64
# What one thread copies at a time.
_PIECE_BYTES = 1 << 24


class Place(NamedTuple):
  """Where a tensor lies, as JSON knows it."""

  name: str
  dtype: str
  shape: list[int]
  begin: int  # its first byte


class SharedMemory:
  """Memory for arrays by name, written many times.

  Args:
    num_threads: that copy at once.
  """

  def __init__(self, num_threads: int) -> None:
    self._num_threads = num_threads
    self._file = os.memfd_create("shared")
    self._map: mmap.mmap | None = None
    self.places: list[Place] = []
    self.num_bytes = 0

  @property
  def path(self) -> str:
    """By which another process of this user opens it."""
    return f"/proc/{os.getpid()}/fd/{self._file}"

  def write(self, tensors: Mapping[str, Any]) -> None:
    """Writes arrays over the last ones.

    Args:
      tensors: arrays of NumPy or JAX, by name.
    """
    arrays = {name: np.asarray(x, order="C") for name, x in tensors.items()}
    places, end = [], 0
    for name, x in arrays.items():
      begin = -(-end // _ALIGNMENT) * _ALIGNMENT
      places.append(Place(name, x.dtype.name, list(x.shape), begin))
      end = begin + x.nbytes
    if self._map is None or len(self._map) < end:
      os.ftruncate(self._file, end)
      self._map = mmap.mmap(self._file, end)
    target = np.frombuffer(self._map, np.uint8)
    pieces = []
    for place, x in zip(places, arrays.values()):
      source = x.reshape(-1).view(np.uint8)
      for i in range(0, source.size, _PIECE_BYTES):
        piece = source[i : i + _PIECE_BYTES]
        at = place.begin + i
        pieces.append((target[at : at + piece.size], piece))
    with futures.ThreadPoolExecutor(self._num_threads) as pool:
      list(pool.map(lambda piece: np.copyto(*piece), pieces))
    self.places = places
    self.num_bytes = sum(x.nbytes for x in arrays.values())

  def close(self) -> None:
    """Lets go of it; where others map it, it stays until they have."""
    self._map = None
    os.close(self._file)
