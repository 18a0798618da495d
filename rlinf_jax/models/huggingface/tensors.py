"""Tensors in safetensors files: one, or several with an index."""

from __future__ import annotations

import contextlib
import json
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import safetensors
from safetensors import numpy as safetensors_numpy

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_DTYPES = ("F32", "F16", "BF16")


class Reader(NamedTuple):
  """The tensors of a folder, of which each is read when it is asked for."""

  file: dict[str, pathlib.Path]  # of each tensor
  shape: dict[str, tuple[int, ...]]  # of each tensor
  opened: dict[pathlib.Path, Any]

  def read(self, name: str) -> np.ndarray:
    return self.opened[self.file[name]].get_tensor(name)


@contextlib.contextmanager
def open_folder(folder: pathlib.Path) -> Iterator[Reader]:
  """Yields the tensors of a folder's safetensors files.

  Raises:
    ValueError: a file is missing or damaged, or a tensor is not of floats.
  """
  reader = Reader({}, {}, {})
  with contextlib.ExitStack() as stack:
    for path in _files(folder):
      try:
        opened = stack.enter_context(
          safetensors.safe_open(path, framework="numpy")
        )
      except (OSError, safetensors.SafetensorError) as error:
        raise ValueError(
          f"{path} cannot be read ({error}); fetch it again."
        ) from error
      reader.opened[path] = opened
      for name in opened.keys():
        part = opened.get_slice(name)
        if part.get_dtype() not in _DTYPES:
          raise ValueError(
            f"{path}: tensor {name} is {part.get_dtype()}, expected one of"
            f" {_DTYPES}; take a checkpoint that is not quantized."
          )
        reader.file[name] = path
        reader.shape[name] = tuple(part.get_shape())
    yield reader


def write(
  folder: pathlib.Path,
  tensors: Iterable[tuple[str, np.ndarray]],
  *,
  max_shard_bytes: int,
) -> None:
  """Writes tensors to one file, or where they are more, several and an index.

  Args:
    folder: exists.
    tensors: with their names; held in memory one file's worth at a time.
    max_shard_bytes: of one file; a greater tensor has a file of its own.
  """
  shards: list[list[str]] = []
  sizes: list[int] = []
  pending: dict[str, np.ndarray] = {}
  numbered = lambda i: folder / f"{i}.unnamed"

  def flush():
    safetensors_numpy.save_file(
      pending, numbered(len(shards)), metadata={"format": "pt"}
    )
    shards.append(list(pending))
    sizes.append(sum(x.nbytes for x in pending.values()))
    pending.clear()

  for name, tensor in tensors:
    held = sum(x.nbytes for x in pending.values())
    if pending and held + tensor.nbytes > max_shard_bytes:
      flush()
    pending[name] = np.ascontiguousarray(tensor)
  flush()
  if len(shards) == 1:
    numbered(0).rename(folder / SINGLE)
    return
  weight_map: dict[str, str] = {}
  for i, shard in enumerate(shards):
    file = f"model-{i + 1:05}-of-{len(shards):05}.safetensors"
    numbered(i).rename(folder / file)
    weight_map |= dict.fromkeys(shard, file)
  _write_json(
    folder / INDEX,
    {"metadata": {"total_size": sum(sizes)}, "weight_map": weight_map},
  )


def _files(folder):
  if (folder / SINGLE).is_file():
    return [folder / SINGLE]
  if not (folder / INDEX).is_file():
    found = sorted(path.name for path in folder.iterdir())
    raise ValueError(
      f"Given {folder} with {found}, expected {SINGLE} or {INDEX}; weights in"
      " another format must be saved as safetensors first."
    )
  index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
  return [folder / file for file in sorted(set(index["weight_map"].values()))]


def _write_json(path: pathlib.Path, content: Mapping[str, Any]) -> None:
  text = json.dumps(content, indent=2, sort_keys=True) + "\n"
  path.write_text(text, encoding="utf-8")
