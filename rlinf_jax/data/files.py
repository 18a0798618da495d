"""Prompts from files: JSON Lines and Parquet.

A row has a prompt, which is a string or a chat (a list of messages with "role"
and "content"), perhaps an answer, and perhaps metadata, an object. Columns that
are none of these join the metadata. The layouts of GSM8K, MATH, DAPO-Math-17k
and of veRL's files are among those that are known.
"""

from __future__ import annotations

import json
import math
import os
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from rlinf_jax import types

Path = str | os.PathLike[str]

# Where nobody names a column, the first of these that a row has; "a.b" is the
# entry "b" of the object "a".
PROMPTS = ("prompt", "question", "problem")
ANSWERS = ("answer", "reward_model.ground_truth", "solution")

# GSM8K's answers are prose that ends so.
_FINAL = re.compile(r"^#### *([^\n]+?)\s*\Z", re.MULTILINE)


def read(
  path: Path,
  *,
  prompt: str | None = None,
  answer: str | None = None,
  metadata: str = "metadata",
) -> list[types.Prompt]:
  """Returns the prompts of a file, by its suffix: .jsonl or .parquet.

  Args:
    path: of the file.
    prompt: the name of the column with prompts; None is one of `PROMPTS`.
    answer: of the column with answers, which may be missing; None is one of
      `ANSWERS`. Of prose that ends in a line "#### 72", 72 is the answer.
    metadata: of the column with metadata; it may be missing.

  Raises:
    ValueError: another suffix, or as `read_jsonl` and `read_parquet` say.
    ImportError: Parquet, without pyarrow.
  """
  readers: dict[str, Callable[..., list[types.Prompt]]] = {
    ".jsonl": read_jsonl,
    ".parquet": read_parquet,
  }
  suffix = pathlib.Path(path).suffix
  if suffix not in readers:
    raise ValueError(
      f"Given {os.fspath(path)!r}, expected a file with prompts that ends in "
      f"{' or '.join(readers)}."
    )
  return readers[suffix](path, prompt=prompt, answer=answer, metadata=metadata)


def read_jsonl(
  path: Path,
  *,
  prompt: str | None = None,
  answer: str | None = None,
  metadata: str = "metadata",
) -> list[types.Prompt]:
  """Returns the prompts of a file with a JSON object on each line.

  Args:
    path: as in `read`.
    prompt: as in `read`.
    answer: as in `read`.
    metadata: as in `read`.

  Raises:
    ValueError: no such file, no rows, or a row that is no prompt; the message
      has its line.
  """

  def rows() -> Iterator[tuple[str, Any]]:
    with _existing(path).open(encoding="utf-8") as file:
      for number, line in enumerate(file, start=1):
        where = f"{os.fspath(path)}:{number}"
        if not line.strip():
          continue
        try:
          yield where, json.loads(line)
        except json.JSONDecodeError as error:
          raise ValueError(f"{where} is no JSON: {error}.") from error

  return _prompts(path, rows(), prompt, answer, metadata)


def read_parquet(
  path: Path,
  *,
  prompt: str | None = None,
  answer: str | None = None,
  metadata: str = "metadata",
) -> list[types.Prompt]:
  """Returns the prompts of a Parquet file.

  Args:
    path: as in `read`.
    prompt: as in `read`.
    answer: as in `read`.
    metadata: as in `read`.

  Raises:
    ValueError: no such file, no rows, or a row that is no prompt; the message
      has its number, from 1.
    ImportError: pyarrow is not installed.
  """
  file = _existing(path)
  try:
    from pyarrow import parquet
  except ModuleNotFoundError as error:
    raise ImportError(
      f"Reading {file} needs pyarrow, which is not installed: pip install "
      "-e '.[reasoning]'. Or give the prompts as JSON Lines."
    ) from error
  table = parquet.read_table(file).to_pylist()
  rows = (
    (f"{os.fspath(path)}, row {number}", row)
    for number, row in enumerate(table, start=1)
  )
  return _prompts(path, rows, prompt, answer, metadata)


def _existing(path: Path) -> pathlib.Path:
  file = pathlib.Path(path)
  if not file.is_file():
    raise ValueError(
      f"There is no file {os.fspath(path)!r}, expected one with prompts."
    )
  return file


def _prompts(
  path: Path,
  rows: Iterable[tuple[str, Any]],
  prompt: str | None,
  answer: str | None,
  metadata: str,
) -> list[types.Prompt]:
  prompts = [
    _prompt(where, row, prompt, answer, metadata) for where, row in rows
  ]
  if not prompts:
    raise ValueError(f"{os.fspath(path)} has no rows, expected prompts.")
  return prompts


def _prompt(
  where: str,
  row: Any,
  prompt: str | None,
  answer: str | None,
  metadata: str,
) -> types.Prompt:
  if not isinstance(row, Mapping):
    raise ValueError(f"{where} is {row!r:.60}, expected an object.")
  names = PROMPTS if prompt is None else (prompt,)
  prompt, asked = _find(row, names)
  if asked is None:
    raise ValueError(
      f"{where} has no {' or '.join(map(repr, names))}; it has "
      f"{', '.join(map(repr, row))}. Name the column with prompts, by "
      "--task_arg=prompt=NAME."
    )
  answer, known_answer = _find(row, ANSWERS if answer is None else (answer,))
  others = {k: v for k, v in row.items() if k not in (prompt, answer, metadata)}
  known = row.get(metadata)
  if known is None:
    known = {}
  elif not isinstance(known, Mapping):
    raise ValueError(
      f"{where}: {metadata} is {known!r:.60}, expected an object."
    )
  text, messages = _question(where, asked)
  return types.Prompt(
    text=text,
    answer=_answer(where, known_answer),
    metadata={**others, **known},
    messages=messages,
  )


def _find(row: Mapping[str, Any], names: Sequence[str]) -> tuple[str, Any]:
  """Returns the first column that a row has, and what stands there, or None."""
  for name in names:
    found: Any = row
    for part in [name] if name in row else name.split("."):
      found = found.get(part) if isinstance(found, Mapping) else None
    if found is not None:
      return name, found
  return names[0], None


def _question(
  where: str, given: Any
) -> tuple[str, tuple[Mapping[str, str], ...]]:
  if isinstance(given, str) and given:
    return given, ()
  if isinstance(given, list) and given:
    is_chat = all(
      isinstance(message, Mapping)
      and isinstance(message.get("role"), str)
      and isinstance(message.get("content"), str)
      for message in given
    )
    if is_chat:
      messages = tuple(
        {"role": m["role"], "content": m["content"]} for m in given
      )
      return messages[-1]["content"], messages
  raise ValueError(
    f"{where}: the prompt is {given!r:.60}, expected some text, or a list of "
    'messages {"role": ..., "content": ...}.'
  )


def _answer(where: str, given: Any) -> str:
  if given is None:
    return ""
  if isinstance(given, str):
    final = _FINAL.search(given)
    # Thousands have commas there.
    return given if final is None else final[1].replace(",", "")
  if isinstance(given, int) and not isinstance(given, bool):
    return str(given)
  if isinstance(given, float) and math.isfinite(given):
    return repr(given)
  raise ValueError(
    f"{where}: the answer is {given!r:.60}, expected text or a number. What a "
    "reward of your own needs besides belongs to the metadata."
  )
