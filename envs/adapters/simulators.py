"""Gymnasium environments in one thread or process, stepped on request.

`Simulators` holds numbered environments. `Child` offers the same in a process
of its own, which runs this file as a program: it imports gymnasium and what the
environment needs, not JAX. A child ends when its standard input does, however
its parent ended.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple

import gymnasium
import numpy as np

# The infos that say whether a task is solved, in order of preference.
_SUCCESS_KEYS = ("success", "is_success")
_SILENCE = threading.Lock()


class Command(NamedTuple):
  """What one environment shall do: reset, step, or first one, then the other.

  Attributes:
    number: which environment; it is made when it is first asked for.
    seed: reset with this seed first; None does not reset.
    action: then step with this action; None does not step.
  """

  number: int
  seed: int | None
  action: np.ndarray | None


class Results(NamedTuple):
  """What a list of commands gave. N commands, O the observation's shape."""

  obs: np.ndarray  # [N, O] float32
  reward: np.ndarray  # [N] float32
  terminated: np.ndarray  # [N] bool
  truncated: np.ndarray  # [N] bool
  success: np.ndarray  # [N] float32; 0 where the environment does not say


class Summary(NamedTuple):
  """What one must know of an environment to describe it.

  Attributes:
    obs_shape: of an observation, once it is an array.
    action_space: as gymnasium describes it.
    control_dt_s: simulated seconds per step; 1 where it has none.
    has_success: whether infos say that the task is solved.
  """

  obs_shape: tuple[int, ...]
  action_space: Any
  control_dt_s: float
  has_success: bool


class Simulators:
  """Numbered environments, made with `gymnasium.make(name, **arguments)`."""

  def __init__(self, name: str, arguments: Mapping[str, Any]):
    self._name = name
    self._arguments = dict(arguments)
    self._envs: dict[int, gymnasium.Env] = {}

  def summary(self, number: int) -> Summary:
    """Returns the environment's description; resets and steps one of them."""
    env = self._env(number)
    obs, _ = env.reset(seed=0)
    env.action_space.seed(0)
    *_, info = env.step(env.action_space.sample())
    fps = env.metadata.get("render_fps") or 1.0
    return Summary(
      obs_shape=_array(env.observation_space, obs).shape,
      action_space=env.action_space,
      control_dt_s=float(getattr(env.unwrapped, "dt", 1.0 / fps)),
      has_success=_success_key(info) is not None,
    )

  def run(self, commands: Sequence[Command]) -> Results:
    """Returns what the commands gave, carried out in turn."""
    rows = [self._run(*command) for command in commands]
    columns: list[Any] = [list(column) for column in zip(*rows)]
    types = (np.float32, np.float32, bool, bool, np.float32)
    return Results(*(np.asarray(x, t) for x, t in zip(columns, types)))

  def frames(self, seed: int, actions: Sequence[np.ndarray | None]) -> Any:
    """Returns uint8 [N, height, width, 3]: one frame after each action.

    Args:
      seed: of the episode.
      actions: [N] of it, from its first; None in the first place draws the
        state before it.
    """
    env = self._env(0)
    env.reset(seed=seed)
    frames: list[Any] = []
    for action in actions:
      if action is not None:
        env.step(_action(env.action_space, action))
      frames.append(env.render())
    return np.asarray(frames)

  def _run(
    self, number: int, seed: int | None, action: np.ndarray | None
  ) -> tuple[Any, ...]:
    env = self._env(number)
    info: Mapping[str, Any] = {}
    reward: Any = 0.0
    terminated = truncated = False
    if seed is not None:
      obs, _ = env.reset(seed=seed)
    if action is not None:
      obs, reward, terminated, truncated, info = env.step(
        _action(env.action_space, action)
      )
    key = _success_key(info)
    return (
      _array(env.observation_space, obs),
      reward,
      terminated,
      truncated,
      0.0 if key is None else float(info[key]),
    )

  def _env(self, number: int) -> gymnasium.Env:
    if number not in self._envs:
      # What MuJoCo has to say of a model it says once, not for each copy.
      with _silence() if self._envs else contextlib.nullcontext():
        self._envs[number] = gymnasium.make(
          self._name, disable_env_checker=True, **self._arguments
        )
    return self._envs[number]


class Child:
  """`Simulators` in a process of their own.

  Args:
    name: as in `Simulators`.
    arguments: likewise; anything that can be pickled.
    variables: environment variables of the process, besides this one's.
  """

  def __init__(
    self,
    name: str,
    arguments: Mapping[str, Any],
    *,
    variables: Mapping[str, str] | None = None,
  ):
    self._lock = threading.Lock()
    # -P: the program's folder must not be searched for modules.
    self._process: Any = subprocess.Popen(
      [sys.executable, "-P", __file__],
      env=os.environ | dict(variables or {}),
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
    )
    self._stdin: Any = self._process.stdin
    self._stdout: Any = self._process.stdout
    self._call("__init__", name, dict(arguments))

  def summary(self, number: int) -> Summary:
    """As `Simulators.summary`."""
    return Summary(*self._call("summary", number))

  def run(self, commands: Sequence[Command]) -> Results:
    """As `Simulators.run`."""
    # Plain tuples: a child knows these classes by another module's name.
    return Results(*self._call("run", [tuple(c) for c in commands]))

  def frames(self, seed: int, actions: Sequence[np.ndarray | None]) -> Any:
    """As `Simulators.frames`."""
    return self._call("frames", seed, actions)

  def close(self) -> None:
    """Ends the process."""
    self._stdin.close()
    self._process.wait()

  def _call(self, method: str, *arguments: Any) -> Any:
    with self._lock:
      try:
        pickle.dump((method, arguments), self._stdin, protocol=5)
        self._stdin.flush()
        error, result = pickle.load(self._stdout)
      except (EOFError, BrokenPipeError) as broken:
        raise RuntimeError(
          "A process that runs gymnasium environments ended by itself, with "
          f"exit status {self._process.wait()}; what it said is on stderr."
        ) from broken
    if error is not None:
      raise error
    return result


@contextlib.contextmanager
def _silence() -> Iterator[None]:
  """Drops the warnings of MuJoCo, if that is what runs here."""
  mujoco = sys.modules.get("mujoco")
  if mujoco is None:
    yield
    return
  with _SILENCE:  # the handler is one for the process
    handler = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda message: None)
    try:
      yield
    finally:
      mujoco.set_mju_user_warning(handler)


def _success_key(info: Mapping[str, Any]) -> str | None:
  return next((key for key in _SUCCESS_KEYS if key in info), None)


def _array(space: gymnasium.Space, obs: Any) -> np.ndarray:
  """Returns `obs` as float32: a Box's as it is, any other space's flat."""
  if not isinstance(space, gymnasium.spaces.Box):
    obs = gymnasium.spaces.flatten(space, obs)
  return np.asarray(obs, np.float32)


def _action(space: Any, action: np.ndarray) -> Any:
  """Returns a float32 [size] in [-1, 1], or an int32 [], as `space` has it."""
  if isinstance(space, gymnasium.spaces.Discrete):
    return space.start + action.astype(space.dtype)
  middle, half = (space.high + space.low) / 2, (space.high - space.low) / 2
  unit = np.clip(action, -1.0, 1.0).reshape(space.shape)
  return (middle + half * unit).astype(space.dtype)


def _portable(error: Exception) -> Exception:
  """Returns an error that can be pickled, with the traceback as a note."""
  note = "".join(traceback.format_exception(error))
  try:
    pickle.loads(pickle.dumps(error))
  except Exception:  # noqa: BLE001  whatever keeps it from being pickled
    return RuntimeError(f"In a process that runs gymnasium: {note}")
  error.add_note(f"In a process that runs gymnasium:\n{note}")
  return error


def _serve(requests: BinaryIO, answers: BinaryIO) -> None:
  """Answers the calls of a `Child` until there are no more."""
  simulators = None
  while True:
    try:
      method, arguments = pickle.load(requests)
    except EOFError:
      return
    error, result = None, None
    try:
      if method == "__init__":
        simulators = Simulators(*arguments)
      else:
        result = getattr(simulators, method)(*arguments)
    except Exception as raised:  # noqa: BLE001  the parent raises it
      error = _portable(raised)
    if isinstance(result, tuple):
      result = tuple(result)
    pickle.dump((error, result), answers, protocol=5)
    answers.flush()


if __name__ == "__main__":
  # What environments print must not come between the answers.
  with os.fdopen(os.dup(1), "wb") as out:
    os.dup2(2, 1)
    _serve(sys.stdin.buffer, out)
