"""An environment from a user's file, "path/to/my_env.py:MyEnv".

`MyEnv` is one of
  an `envs.Env`;
  a function or class that returns an Env when called;
  a class with methods `reset(key)` and `step(state, action)` and attributes
  `action`, `episode_length` and `control_dt_s`, as in `envs.Env`.

Of `config`, `physics`, `randomise` and `num_threads` a function or class is
given those that it names. The file is imported by itself: what it imports must
be installed.
"""

from __future__ import annotations

import importlib.util
import inspect
import pathlib
import sys
import types
from collections.abc import Callable
from typing import Any

from envs import state as state_lib
from envs import validation


def make(
  path: str,
  attribute: str,
  *,
  physics: str,
  config: Any,
  randomise: bool,
  num_threads: int,
) -> state_lib.Env:
  """Returns the Env that the file at `path` calls `attribute`.

  Raises:
    ValueError: if there is no such file or attribute, if the attribute cannot
      take a setting that was asked for, or if it is no proper Env.
  """
  source = f"{path}:{attribute}"
  made = load(source)
  # (given, whether it differs from the default)
  settings = {
    "config": (config, config is not None),
    "physics": (physics, physics != "auto"),
    "randomise": (randomise, randomise),
    "num_threads": (num_threads, num_threads != 0),
  }
  if isinstance(made, state_lib.Env):
    _refuse(source, settings, accepted=())
  elif callable(made):
    accepted = _parameters(source, made, settings)
    _refuse(source, settings, accepted)
    made = made(**{name: settings[name][0] for name in accepted})
  env = made if isinstance(made, state_lib.Env) else _from_object(source, made)
  validation.check(env, source=source)
  return env


def load(source: str) -> Any:
  """Returns what the file of "path/to/file.py:NAME" calls NAME.

  Raises:
    ValueError: if `source` is not of that form, or there is no such file or
      name in it.
  """
  path, colon, attribute = source.rpartition(":")
  if not colon or not path.endswith(".py"):
    raise ValueError(
      f"Given {source!r}, expected 'path/to/file.py:NAME': a Python file and a"
      " name that it defines."
    )
  module = _load(path)
  if not hasattr(module, attribute):
    found = [name for name in vars(module) if not name.startswith("_")]
    raise ValueError(
      f"{path} has no {attribute!r}; it has {', '.join(found) or 'nothing'}."
    )
  return getattr(module, attribute)


def _load(path: str) -> types.ModuleType:
  file = pathlib.Path(path).expanduser().resolve()
  if not file.is_file():
    raise ValueError(
      f"There is no file {file}; the part before the colon of "
      "'path/to/my_env.py:MyEnv' is a path from the current folder."
    )
  name = f"envs_user_file_{file.stem}"
  spec = importlib.util.spec_from_file_location(name, file)
  if spec is None or spec.loader is None:
    raise ValueError(f"{file} cannot be imported as Python source.")
  module = importlib.util.module_from_spec(spec)
  # Dataclasses look their module up by name while they are being defined.
  sys.modules[name] = module
  spec.loader.exec_module(module)
  return module


def _parameters(
  source: str, made: Callable[..., Any], settings: dict[str, Any]
) -> tuple[str, ...]:
  """Returns which of the settings `made` can be called with."""
  parameters = inspect.signature(made).parameters.values()
  for p in parameters:
    is_required = p.default is p.empty and p.kind not in (
      p.VAR_POSITIONAL,
      p.VAR_KEYWORD,
    )
    if is_required and (p.name not in settings or p.kind is p.POSITIONAL_ONLY):
      raise ValueError(
        f"{source} needs an argument {p.name!r}; it may name "
        f"{', '.join(settings)}, and others only with defaults."
      )
  if any(p.kind is p.VAR_KEYWORD for p in parameters):
    return tuple(settings)
  return tuple(p.name for p in parameters if p.name in settings)


def _refuse(
  source: str, settings: dict[str, Any], accepted: tuple[str, ...]
) -> None:
  """Raises if a setting was asked for that would be ignored."""
  for name, (value, is_set) in settings.items():
    if is_set and name not in accepted:
      raise ValueError(
        f"{source} takes no argument {name!r}, so {name}={value!r} would be "
        "ignored; leave it out, or write a function that takes it."
      )


def _from_object(source: str, made: Any) -> state_lib.Env:
  """Returns an Env with the attributes of `made` that Env names."""
  for field in state_lib.Env._fields:
    has_default = field in state_lib.Env._field_defaults
    if field in ("name", "backend") or has_default or hasattr(made, field):
      continue
    raise ValueError(
      f"{source} gives {type(made).__name__}, which is no envs.Env and has no "
      f"{field!r}; return an Env, or an object with reset, step, action, "
      "episode_length and control_dt_s."
    )
  defaults = state_lib.Env._field_defaults
  optional: dict[str, Any] = {
    field: getattr(made, field, default) for field, default in defaults.items()
  }
  return state_lib.Env(
    name=getattr(made, "name", source),
    reset=made.reset,
    step=made.step,
    action=made.action,
    episode_length=made.episode_length,
    control_dt_s=made.control_dt_s,
    backend=getattr(made, "backend", "jax"),
    **optional,
  )
