"""Environments by name: our tasks, adapters, a user's own.

A name is one of
  "cartpole_swingup"          a task of ours, or one that `register` added
  "playground:CheetahRun"     a package's environment, through its adapter
  "path/to/my_env.py:MyEnv"   what a file calls MyEnv (see `envs.user_file`)
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable
from typing import Any

from envs import state as state_lib
from envs import user_file, validation

# (*, config, physics, randomise, num_threads) -> Env
MakeFn = Callable[..., state_lib.Env]

# A task's module is imported when it is made.
_TASKS = {
  "pendulum": "envs.tasks.pendulum",
  "pendulum_pixels": "envs.tasks.pendulum_pixels",
  "cartpole_swingup": "envs.tasks.cartpole_swingup",
  "reacher": "envs.tasks.reacher",
  "cheetah_run": "envs.tasks.cheetah_run",
  "hopper_hop": "envs.tasks.hopper_hop",
  "humanoid_walk": "envs.tasks.humanoid_walk",
  "arm_reach": "envs.tasks.arm_reach",
  "arm_push": "envs.tasks.arm_push",
  "arm_pick": "envs.tasks.arm_pick",
}
_ADAPTERS = {
  "playground": "envs.adapters.playground",
  "brax": "envs.adapters.brax",
  "gymnasium": "envs.adapters.gymnasium",
}
# The one thing in this package that a call changes, so that a user's program
# can add a name before it hands over to ours.
_REGISTERED: dict[str, MakeFn] = {}


def make(
  name: str,
  *,
  physics: str = "auto",
  config: Any = None,
  randomise: bool = False,
  num_threads: int = 0,
) -> state_lib.Env:
  """Returns the environment called `name`.

  Args:
    name: see this module's docstring.
    physics: "auto", "mujoco", "mjx" or "warp". "auto" takes warp or mjx on an
      accelerator and mujoco on a CPU-only machine.
    config: the task's own `Config`; None takes its defaults.
    randomise: draw model values (masses, friction, ...) anew at every reset.
    num_threads: of the mujoco backend; 0 takes all cores.

  Raises:
    ValueError: if there is no such name, or if what a user's function or file
      returns is no proper Env; the message says what is wrong with it.
  """
  settings = dict(
    physics=physics,
    config=config,
    randomise=randomise,
    num_threads=num_threads,
  )
  prefix, colon, rest = name.rpartition(":")
  if colon and prefix.endswith(".py"):
    return user_file.make(prefix, rest, **settings)
  if name in _REGISTERED:
    env = _REGISTERED[name](**settings)
    validation.check(env, source=f"The env registered as {name!r}")
    return env
  if name in _TASKS:
    return importlib.import_module(_TASKS[name]).make(**settings)
  prefix, colon, rest = name.partition(":")
  if prefix in _ADAPTERS and rest:
    return importlib.import_module(_ADAPTERS[prefix]).make(rest, **settings)
  raise ValueError(_unknown(name))


def register(name: str, make_fn: MakeFn) -> None:
  """Makes `make_fn` known to `make` as `name`, for the life of the process.

  Args:
    name: a new name, without a colon.
    make_fn: (*, config, physics, randomise, num_threads) -> Env, where each has
      the meaning that `make` gives it.

  Raises:
    ValueError: if the name is taken or has a colon, or `make_fn` is not
      callable.
  """
  if not name or ":" in name:
    raise ValueError(
      f"Cannot register {name!r}: a name has at least one character, and no "
      "colon (colons are for adapters and files)."
    )
  if name in names():
    raise ValueError(f"{name!r} is already registered; choose another name.")
  if not callable(make_fn):
    raise ValueError(
      f"make_fn of {name!r} must be a function that returns an Env, not "
      f"{make_fn!r}. Wrap an Env as `lambda **_: env`."
    )
  _REGISTERED[name] = make_fn


def names() -> tuple[str, ...]:
  """Returns the names of all tasks, ours first, then the registered ones."""
  return (*_TASKS, *_REGISTERED)


def _unknown(name: str) -> str:
  """Returns the message for a name that leads nowhere."""
  near = difflib.get_close_matches(name, names(), n=1, cutoff=0.5)
  hint = f" Did you mean {near[0]!r}?" if near else ""
  return (
    f"No environment is called {name!r}.{hint} There are "
    f"{', '.join(names())}; an adapter's name is "
    + " or ".join(f"'{prefix}:NAME'" for prefix in _ADAPTERS)
    + "; a file's is 'path/to/my_env.py:MyEnv'."
  )
