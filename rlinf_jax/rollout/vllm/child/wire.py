"""Messages between an engine and its process: JSON, and arrays as they are.

A message is a dict that JSON knows and arrays by name. It begins with the
number of bytes of a header, four bytes, little-endian; the header is JSON; then
each array's bytes follow, in the header's order. Neither side unpickles what
the other sent, for their versions of Python and numpy may differ.

Weights are not sent: they lie in memory that both map, and a message says where
in it each tensor begins.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

_PREFIX = struct.Struct("<I")


class Message(NamedTuple):
  """What one side tells the other."""

  content: dict[str, Any]  # "kind" says which
  arrays: dict[str, np.ndarray]


def send(
  channel: socket.socket,
  content: Mapping[str, Any],
  arrays: Mapping[str, np.ndarray] | None = None,
) -> None:
  """Sends a message.

  Raises:
    OSError: the other side is gone; a TimeoutError, that it does not read.
  """
  arrays = {k: np.ascontiguousarray(x) for k, x in (arrays or {}).items()}
  listed = [[name, x.dtype.name, x.shape] for name, x in arrays.items()]
  header = json.dumps([content, listed]).encode()
  parts = [_PREFIX.pack(len(header)), header]
  parts += [x.tobytes() for x in arrays.values()]
  channel.sendall(b"".join(parts))


def receive(channel: socket.socket) -> Message | None:
  """Returns the next message, or None where the other side is gone.

  Raises:
    OSError: likewise; a TimeoutError, that it says nothing.
  """
  prefix = _read(channel, _PREFIX.size)
  if prefix is None:
    return None
  header = _read(channel, _PREFIX.unpack(prefix)[0])
  if header is None:
    return None
  content, listed = json.loads(header)
  arrays = {}
  for name, dtype, shape in listed:
    array = np.empty(shape, dtype)
    data = _read(channel, array.nbytes)
    if data is None:
      return None
    arrays[name] = np.frombuffer(data, dtype).reshape(shape)
  return Message(content, arrays)


def _read(channel: socket.socket, num_bytes: int) -> bytearray | None:
  data = bytearray(num_bytes)
  view, num_read = memoryview(data), 0
  while num_read < num_bytes:
    got = channel.recv_into(view[num_read:])
    if got == 0:
      return None
    num_read += got
  return data
