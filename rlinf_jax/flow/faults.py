"""What goes wrong while a flow is traced, said with stage, line and remedy."""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import traceback
import types
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import jaxlib
import numpy as np

# What JAX raises where Python needs the value of something that is traced, with
# what the program did and what to do instead; the first that fits is taken.
_REMEDIES = (
  (
    jax.errors.TracerBoolConversionError,
    "branches in Python on",
    "use jnp.where, or jax.lax.cond inside a stage",
  ),
  (
    jax.errors.TracerArrayConversionError,
    "makes a NumPy array of",
    "use jax.numpy, or do it in a stage with place='host'",
  ),
  (
    jax.errors.TracerIntegerConversionError,
    "makes a Python index, or a size, of",
    "use jnp.take or jax.lax.dynamic_slice; sizes have to be known before",
  ),
  (
    jax.errors.NonConcreteBooleanIndexError,
    "selects as many elements as are true in",
    "keep all of them and use jnp.where, as shapes have to be known before",
  ),
  (
    jax.errors.ConcretizationTypeError,
    "makes a Python number of",
    "keep it a JAX array",
  ),
)
# Folders whose code is no user's.
_STANDARD = pathlib.Path(os.__file__).parent
_OTHERS = (
  *(pathlib.Path(m.__path__[0]) for m in (jax, jaxlib, np)),
  pathlib.Path(__file__).parent,
  pathlib.Path(__file__).parents[1] / "runtime",
)


@contextlib.contextmanager
def named(what: str) -> Iterator[None]:
  """Lets what cannot be traced be one error that says where, and what to do.

  Args:
    what: is traced, for the message: "stage 'act'".

  Raises:
    TypeError: in place of JAX's own errors.
  """
  kinds = tuple(kind for kind, _, _ in _REMEDIES)
  try:
    yield
  except kinds as error:
    did, remedy = next(
      (did, remedy)
      for kind, did, remedy in _REMEDIES
      if isinstance(error, kind)
    )
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    raise TypeError(
      f"{what} {did} a value that is known only when it runs, at"
      f" {_last(frames)}; {remedy}"
    ) from error


def line_now() -> str:
  """Returns the line of the user's that is being run."""
  stack = [frame for frame, _ in traceback.walk_stack(None)]
  return _last(reversed(stack))


def line_of(eqn: Any) -> str:
  """Returns the user's line that an equation of a jaxpr comes from."""
  found = eqn.source_info.traceback
  for frame in found.frames if found else ():  # innermost first
    if _is_users(frame.file_name):
      return f"{frame.file_name}:{frame.line_num}"
  return "an unknown line"


def _last(frames: Iterable[types.FrameType]) -> str:
  """Returns the innermost of the user's frames, the last of those given."""
  found = "an unknown line"
  for frame in frames:
    if _is_users(frame.f_code.co_filename):
      found = f"{frame.f_code.co_filename}:{frame.f_lineno}"
  return found


@functools.lru_cache(maxsize=1024)
def _is_users(file_name: str) -> bool:
  parents = pathlib.PurePath(file_name).parents
  if _STANDARD in parents and "site-packages" not in file_name:
    return False
  is_file = not file_name.startswith("<frozen")
  return is_file and not any(folder in parents for folder in _OTHERS)
