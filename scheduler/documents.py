"""Frozen dataclasses as JSON and back, with errors that name the place.

One mechanism for workflows, profiles, clusters, plans and timelines: the type
annotations are the format. A union of dataclasses is told apart by the key
"type"; `Devices` is written as "0-7,12"; a field with a default may be left
out.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import pathlib
import types
import typing
from typing import Any, TypeVar

from scheduler import errors
from scheduler.devices import Devices

T = TypeVar("T")
VERSION = 1
# Larger numbers count nothing, and overflow where they meet a float.
_MAX_INT = 2**63 - 1


def to_json(value: Any) -> str:
  """Returns a dataclass of the scheduler as JSON, with its type and version."""
  document = {
    "format": type(value).__name__.lower(),
    "version": VERSION,
    **encode(value),
  }
  return json.dumps(document, indent=1) + "\n"


def from_json(cls: type[T], text: str, *, source: str = "document") -> T:
  """Returns the `cls` that `to_json` wrote.

  Args:
    cls: a dataclass of the scheduler.
    text: JSON.
    source: how error messages call the text, such as a file's path.

  Raises:
    DocumentError: naming the place, for anything that is not such a document;
      what contradicts itself raises the class's own `SchedulerError`.
  """
  try:
    data = json.loads(text)
  except (ValueError, RecursionError) as error:  # also of numbers too long
    raise errors.DocumentError(f"{source} is not JSON: {error}") from None
  name = cls.__name__.lower()
  if not isinstance(data, dict):
    raise errors.DocumentError(
      f"{source} is {_kind(data)}; a {name} is a JSON object"
    )
  if data.get("format", name) != name:
    raise errors.DocumentError(
      f"{source} has format {_kind(data['format'])}; expected {name!r}"
    )
  if data.get("version", VERSION) != VERSION:
    raise errors.DocumentError(
      f"{source} has version {_kind(data['version'])}; this release reads"
      f" {VERSION}"
    )
  body = {k: v for k, v in data.items() if k not in ("format", "version")}
  try:
    return decode(cls, body, path=source)
  except RecursionError:
    raise errors.DocumentError(
      f"{source} nests too deeply; a plan's tree needs a level for each"
      " division of devices or of time"
    ) from None


def read(cls: type[T], path: str | pathlib.Path) -> T:
  """Returns the document in a file.

  Raises:
    DocumentError: as `from_json`, or where the file cannot be read.
  """
  try:
    text = pathlib.Path(path).read_text(encoding="utf-8")
  except (OSError, UnicodeDecodeError) as error:
    raise errors.DocumentError(f"cannot read {path}: {error}") from None
  return from_json(cls, text, source=str(path))


def write(value: Any, path: str | pathlib.Path) -> None:
  """Writes a dataclass of the scheduler as JSON."""
  pathlib.Path(path).write_text(to_json(value), encoding="utf-8")


def encode(value: Any) -> Any:
  """Returns plain JSON data; fields that hold their default are left out."""
  if isinstance(value, Devices):
    return str(value)
  if dataclasses.is_dataclass(value) and not isinstance(value, type):
    data = {}
    for field in dataclasses.fields(value):
      entry = getattr(value, field.name)
      if _is_default(field, entry):
        continue
      encoded = encode(entry)
      hint = _hints(type(value))[field.name]
      data[field.name] = _tagged(hint, entry, encoded)
    return data
  if isinstance(value, (tuple, list)):
    return [encode(item) for item in value]
  if isinstance(value, dict):
    return {str(key): encode(item) for key, item in value.items()}
  return value


def decode(hint: Any, data: Any, *, path: str) -> Any:
  """Returns `data` as the type `hint` says; see `from_json`."""
  origin, arguments = typing.get_origin(hint), typing.get_args(hint)
  if origin in (typing.Union, types.UnionType):
    return _decode_union(arguments, data, path)
  if origin is typing.Literal:
    if data not in arguments or isinstance(data, bool):
      raise _mismatch(path, data, f"one of {sorted(map(str, arguments))}")
    return data
  if origin is tuple:
    return _decode_tuple(arguments, data, path)
  if origin is dict:
    if not isinstance(data, dict):
      raise _mismatch(path, data, "an object")
    return {
      key: decode(arguments[1], item, path=f"{path}.{key}")
      for key, item in data.items()
    }
  if hint is Devices:
    if not isinstance(data, str):
      raise _mismatch(path, data, "devices such as '0-7,12'")
    return Devices.parse(data)
  if dataclasses.is_dataclass(hint):
    return _decode_dataclass(hint, data, path)
  return _decode_scalar(hint, data, path)


def _decode_scalar(hint: Any, data: Any, path: str) -> Any:
  is_bool = isinstance(data, bool)
  if hint is Any:
    return data
  if hint is bool and is_bool:
    return data
  if hint is int and isinstance(data, int) and not is_bool:
    if abs(data) > _MAX_INT:
      raise _mismatch(path, data, f"a whole number up to {_MAX_INT}")
    return data
  if hint is float and isinstance(data, (int, float)) and not is_bool:
    try:
      number = float(data)
    except OverflowError:
      raise _mismatch(path, data, "a finite number") from None
    if not math.isfinite(number):
      raise _mismatch(path, data, "a finite number")
    return number
  if hint is str and isinstance(data, str):
    return data
  if hint is type(None) and data is None:
    return None
  expected = {int: "a whole number", float: "a number", str: "a string",
              bool: "true or false"}  # fmt: skip
  raise _mismatch(path, data, expected.get(hint, "null"))


def _decode_tuple(arguments: tuple[Any, ...], data: Any, path: str) -> Any:
  if not isinstance(data, list):
    raise _mismatch(path, data, "a list")
  if len(arguments) == 2 and arguments[1] is Ellipsis:
    hints = (arguments[0],) * len(data)
  else:
    hints = arguments
  if len(hints) != len(data):
    raise _mismatch(path, data, f"a list of {len(hints)}")
  return tuple(
    decode(hint, item, path=f"{path}[{i}]")
    for i, (hint, item) in enumerate(zip(hints, data))
  )


def _decode_union(hints: tuple[Any, ...], data: Any, path: str) -> Any:
  if data is None and type(None) in hints:
    return None
  hints = tuple(hint for hint in hints if hint is not type(None))
  if len(hints) == 1:
    return decode(hints[0], data, path=path)
  by_name = {hint.__name__: hint for hint in hints}
  if not isinstance(data, dict) or "type" not in data:
    raise _mismatch(path, data, f"an object with 'type' in {sorted(by_name)}")
  if not isinstance(data["type"], str) or data["type"] not in by_name:
    raise errors.DocumentError(
      f"{path}.type is {_kind(data['type'])}; expected one of {sorted(by_name)}"
    )
  body = {key: item for key, item in data.items() if key != "type"}
  return decode(by_name[data["type"]], body, path=path)


def _decode_dataclass(cls: Any, data: Any, path: str) -> Any:
  if not isinstance(data, dict):
    raise _mismatch(path, data, f"an object ({cls.__name__})")
  fields = {field.name: field for field in dataclasses.fields(cls)}
  if unknown := sorted(set(data) - set(fields)):
    raise errors.DocumentError(
      f"{path} has the unknown field {unknown[0]!r}; {cls.__name__} has"
      f" {sorted(fields)}"
    )
  hints = _hints(cls)
  values = {}
  for name, field in fields.items():
    if name in data:
      values[name] = decode(hints[name], data[name], path=f"{path}.{name}")
    elif _has_no_default(field):
      raise errors.DocumentError(f"{path} lacks the field {name!r}")
  try:
    return cls(**values)
  except errors.SchedulerError as error:
    raise type(error)(f"{path}: {error}") from None


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
  return typing.get_type_hints(cls)


def _tagged(hint: Any, value: Any, encoded: Any) -> Any:
  """Adds the class's name where the annotation leaves a choice of classes."""
  origin, arguments = typing.get_origin(hint), typing.get_args(hint)
  if origin is tuple and isinstance(value, tuple):
    inner = arguments[0]
    return [_tagged(inner, v, e) for v, e in zip(value, encoded)]
  if origin in (typing.Union, types.UnionType):
    classes = [h for h in arguments if dataclasses.is_dataclass(h)]
    if len(classes) > 1 and isinstance(encoded, dict):
      return {"type": type(value).__name__, **encoded}
  return encoded


def _has_no_default(field: dataclasses.Field[Any]) -> bool:
  missing = dataclasses.MISSING
  return field.default is missing and field.default_factory is missing


def _is_default(field: dataclasses.Field[Any], value: Any) -> bool:
  if field.default is not dataclasses.MISSING:
    return bool(value == field.default)
  if field.default_factory is not dataclasses.MISSING:
    return bool(value == field.default_factory())
  return False


def _mismatch(path: str, data: Any, expected: str) -> errors.DocumentError:
  return errors.DocumentError(f"{path} is {_kind(data)}; expected {expected}")


def _kind(data: Any) -> str:
  try:
    text = json.dumps(data, default=str)
  except RecursionError:
    text = "nested data"
  return text if len(text) <= 60 else f"{text[:57]}..."
