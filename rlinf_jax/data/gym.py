"""The procedural tasks of the package reasoning-gym."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlinf_jax import types
from rlinf_jax.data import procedural


def reasoning_gym(
  name: str,
  *,
  size: int,
  seed: int = 0,
  config: Mapping[str, Any] | None = None,
) -> Sequence[types.Prompt]:
  """Returns a data set of reasoning-gym, by its name there.

  `rewards.GYM` scores it, in `rewards.Scorers`: many of its tasks have several
  right answers.

  Args:
    name: such as "chain_sum".
    size: how many prompts.
    seed: of all of them.
    config: other settings of that task, as JSON knows them.

  Returns:
    Prompts with "gym" in their metadata: the task's name, its config and what
    the package itself needs to know to score a response. A few of its tasks
    (such as "polynomial_multiplication") depend on PYTHONHASHSEED besides the
    seed; set that to see their prompts again.

  Raises:
    ImportError: reasoning-gym is not installed.
    ValueError: there is no such task, it refuses the config, or its metadata
      is more than literals.
  """
  try:
    import reasoning_gym as gym
  except ModuleNotFoundError as error:
    if error.name != "reasoning_gym":
      raise
    raise ImportError(
      f"The task {name!r} is of reasoning-gym, which is not installed: pip "
      "install -e '.[reasoning-gym]'."
    ) from error
  settings = dict(config or {})
  try:
    tasks = gym.create_dataset(name, size=size, seed=seed, **settings)
  except (ValueError, TypeError, AssertionError) as error:
    raise ValueError(
      f"reasoning-gym has no task {name!r} with the settings {settings}: "
      f"{error}"
    ) from error

  def task(index: int, seed: int) -> types.Prompt:
    del seed  # the package's data set has it
    entry = tasks[index]
    answer = entry["answer"]
    return types.Prompt(
      text=entry["question"],
      answer="" if answer is None else str(answer),
      metadata={
        "gym": {
          "name": name,
          "config": settings,
          "entry": _literal(name, entry["metadata"]),
        }
      },
    )

  return procedural.Procedural(task, size=size, seed=seed)


def _literal(name: str, metadata: Any) -> str:
  """Returns metadata as a Python literal: JSON lacks tuples and int keys."""
  literal = repr(_plain(metadata))
  try:
    ast.literal_eval(literal)
  except (ValueError, SyntaxError) as error:
    raise ValueError(
      f"The metadata of reasoning-gym's task {name!r} is {literal:.60}, which "
      "cannot be sent to the process that scores. Use another task."
    ) from error
  return literal


def _plain(value: Any) -> Any:
  """Returns a value with Python's own scalars for NumPy's."""
  if isinstance(value, Mapping):
    return {_plain(k): _plain(v) for k, v in value.items()}
  if type(value) in (list, tuple, set):
    return type(value)(_plain(v) for v in value)
  return value.item() if isinstance(value, np.generic) else value
