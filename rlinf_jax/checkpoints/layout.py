"""Where a checkpoint's files lie, and whether they are as they were written.

One directory per step::

  DIRECTORY/000000001200/state/         the leaves, written by orbax
  DIRECTORY/000000001200/metadata.json  step, caller's metadata, versions,
                                        the leaves' shapes, the files' SHA-256

A directory in the making has the suffix `.unfinished`; it is renamed when it
is whole. One that is about to be replaced has the suffix `.replaced`.
"""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import shutil
from collections.abc import Mapping
from typing import Any

METADATA = "metadata.json"
STATE = "state"
_REPLACED = ".replaced"
_UNFINISHED = ".unfinished"

Path = str | os.PathLike[str]


class CheckpointError(ValueError):
  """A checkpoint is missing, damaged, or not of this run."""


def steps(directory: Path) -> list[int]:
  """Returns the steps of the finished checkpoints, ascending."""
  directory = pathlib.Path(directory)
  if not directory.is_dir():
    return []
  names = {p.name.removesuffix(_REPLACED) for p in directory.iterdir()}
  return sorted(int(name) for name in names if name.isdigit())


def latest(directory: Path) -> int | None:
  """Returns the greatest step with a checkpoint, or None without one."""
  found = steps(directory)
  return found[-1] if found else None


def find(directory: Path, step: int | None) -> pathlib.Path:
  """Returns the path of the checkpoint of `step`, or of the latest one.

  Raises:
    CheckpointError: there is none.
  """
  directory = pathlib.Path(directory).absolute()
  if not directory.is_dir():
    raise CheckpointError(
      f"There is no directory {directory}. Give the directory in which a run"
      " saved its checkpoints."
    )
  found = steps(directory)
  if not found:
    raise CheckpointError(
      f"{directory} holds no finished checkpoint. Give the directory in which"
      " a run saved its checkpoints, or start anew."
    )
  if step is not None and step not in found:
    raise CheckpointError(
      f"{directory} holds no checkpoint of step {step}; it has {found}."
    )
  return _locate(directory, found[-1] if step is None else step)


def begin(directory: Path, step: int) -> pathlib.Path:
  """Returns an empty directory in which to write the checkpoint of `step`.

  Also removes what a killed process left behind.
  """
  directory = pathlib.Path(directory).absolute()
  directory.mkdir(parents=True, exist_ok=True)
  for replaced in directory.glob("*" + _REPLACED):
    final = replaced.with_name(replaced.name.removesuffix(_REPLACED))
    if final.exists():
      shutil.rmtree(replaced)
    else:
      replaced.rename(final)
  for unfinished in directory.glob("*" + _UNFINISHED):
    shutil.rmtree(unfinished)
  unfinished = directory / f"{step:012d}{_UNFINISHED}"
  unfinished.mkdir()
  return unfinished


def commit(unfinished: pathlib.Path) -> pathlib.Path:
  """Renames a whole checkpoint to its final path, which it returns."""
  final = unfinished.with_name(unfinished.name.removesuffix(_UNFINISHED))
  replaced = final.with_name(final.name + _REPLACED)
  if final.exists():
    final.rename(replaced)
  unfinished.rename(final)
  _sync(final.parent)
  shutil.rmtree(replaced, ignore_errors=True)
  return final


def delete(directory: Path, step: int) -> None:
  """Deletes the checkpoint of `step`; killed amid it, no half is left."""
  path = _locate(pathlib.Path(directory).absolute(), step)
  doomed = path.with_name(f"{step:012d}{_UNFINISHED}")
  path.rename(doomed)
  shutil.rmtree(doomed)


def hash_files(directory: pathlib.Path) -> dict[str, str]:
  """Returns the SHA-256 of each file below `directory`, by relative path."""
  hashes = {}
  for path in sorted(p for p in directory.rglob("*") if p.is_file()):
    with path.open("rb") as file:
      digest = hashlib.file_digest(file, "sha256").hexdigest()
    hashes[path.relative_to(directory).as_posix()] = digest
  return hashes


def check_files(path: pathlib.Path, expected: Mapping[str, str]) -> None:
  """Checks that a checkpoint's files are those that were written.

  Orbax does not notice a flipped bit, and names no file when one is cut off.

  Raises:
    CheckpointError: a file is missing or changed.
  """
  found = hash_files(path / STATE)
  bad = [f for f, digest in expected.items() if found.get(f) != digest]
  if bad:
    num_missing = sum(f not in found for f in bad)
    raise CheckpointError(
      f"The checkpoint {path} is damaged: {num_missing} of its files are"
      f" missing and {len(bad) - num_missing} are not as they were written,"
      f" among them {STATE}/{bad[0]}. {_alternatives(path)}"
    )


def write_record(path: pathlib.Path, record: Mapping[str, Any]) -> None:
  """Writes a checkpoint's metadata.json through to the disk."""
  with (path / METADATA).open("w") as file:
    json.dump(record, file, indent=1)
    file.flush()
    os.fsync(file.fileno())
  _sync(path)


def read_record(path: pathlib.Path) -> dict[str, Any]:
  """Returns a checkpoint's metadata.json.

  Raises:
    CheckpointError: it is missing, cut off, or another program's.
  """
  try:
    record = json.loads((path / METADATA).read_text())
  except (OSError, ValueError):
    record = {}
  if not {"metadata", "leaves", "files"} <= set(record):
    raise CheckpointError(
      f"{path / METADATA} is missing or damaged. {_alternatives(path)}"
    )
  return record


def _locate(directory: pathlib.Path, step: int) -> pathlib.Path:
  final = directory / f"{step:012d}"
  # A kill between the two renames of `commit` leaves the replaced one.
  return final if final.exists() else final.with_name(final.name + _REPLACED)


def _alternatives(path: pathlib.Path) -> str:
  step = int(path.name.removesuffix(_REPLACED))
  others = [s for s in steps(path.parent) if s != step]
  if not others:
    return "There is no other checkpoint beside it: start anew."
  return f"Restore another step: {others}."


def _sync(directory: pathlib.Path) -> None:
  descriptor = os.open(directory, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)
