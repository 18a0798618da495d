"""The versions of the weights that are at hand for processes to load."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from rlinf_jax.runtime import transport


@dataclasses.dataclass(kw_only=True, eq=False)
class Published:
  """A version of the weights, which stays where it is while it is held.

  Attributes:
    version: how many updates made it.
    shared: where it lies.
    publish_s: what it took.
    num_holders: who must find it unchanged.
    is_ready: whether it has been written.
  """

  version: int
  shared: transport.SharedMemory
  publish_s: float = 0.0
  num_holders: int = 0
  is_ready: bool = False


class Versions:
  """A few versions, the last of which are kept.

  With two, one is written while processes still load the other.

  Args:
    num_kept: versions.
    num_threads: that copy at once.
  """

  def __init__(self, *, num_kept: int = 2, num_threads: int) -> None:
    self._changed = threading.Condition()
    self._num_kept = num_kept
    self._num_threads = num_threads
    self._published: list[Published] = []  # the longest unused first

  def hold(
    self, version: int, tensors_fn: Callable[[], Mapping[str, Any]]
  ) -> Published:
    """Returns a version that is held; publishes it where it is not at hand.

    It waits where all memory is held by other versions.

    Args:
      version: how many updates made it.
      tensors_fn: gives its tensors by name.
    """
    with self._changed:
      while True:
        found = [x for x in self._published if x.version == version]
        if found and found[0].is_ready:
          published = found[0]
          self._published.remove(published)
          self._published.append(published)
          published.num_holders += 1
          return published
        if not found and (shared := self._free()) is not None:
          break
        self._changed.wait()
      published = Published(version=version, shared=shared, num_holders=1)
      self._published.append(published)
    begin_s = time.monotonic()
    try:
      transport.send(dict(tensors_fn()), shared)
    except BaseException:
      with self._changed:
        self._published.remove(published)
        self._changed.notify_all()
      shared.close()
      raise
    published.publish_s = time.monotonic() - begin_s
    with self._changed:
      published.is_ready = True
      self._changed.notify_all()
    return published

  def hold_again(self, published: Published) -> None:
    """Holds a version that is held."""
    with self._changed:
      published.num_holders += 1

  def release(self, published: Published) -> None:
    """Ends what `hold` began."""
    with self._changed:
      published.num_holders -= 1
      self._changed.notify_all()

  def close(self) -> None:
    """Lets go of the memory."""
    with self._changed:
      for published in self._published:
        published.shared.close()
      self._published.clear()

  def _free(self) -> transport.SharedMemory | None:
    if len(self._published) < self._num_kept:
      return transport.SharedMemory(self._num_threads)
    for published in self._published:
      if published.num_holders == 0 and published.is_ready:
        self._published.remove(published)
        return published.shared
    return None
