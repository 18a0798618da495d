"""The procedural tasks of the package reasoning-gym."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

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

  `rewards/gym_score.py:score` scores it, in `rewards.Workers`: many of its
  tasks have several right answers.

  Args:
    name: such as "chain_sum".
    size: how many prompts.
    seed: of all of them.
    config: other settings of that task.

  Returns:
    Prompts with "gym" in their metadata: the task's name, its config and its
    own metadata.

  Raises:
    ImportError: reasoning-gym is not installed.
    ValueError: there is no such task, it refuses the config, or its metadata
      is not JSON.
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
    known = {"name": name, "config": settings, "metadata": entry["metadata"]}
    try:
      metadata = json.loads(json.dumps({"gym": known}))
    except TypeError as error:
      raise ValueError(
        f"The metadata of reasoning-gym's task {name!r} is not JSON, and "
        f"cannot be sent to the process that scores: {error}."
      ) from error
    return types.Prompt(
      text=entry["question"],
      answer="" if answer is None else str(answer),
      metadata=metadata,
    )

  return procedural.Procedural(task, size=size, seed=seed)
