"""What `reasoning` asks and what answers are worth, by the names of flags."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rlinf_jax import data, rewards, types
from rlinf_jax.training import tasks

GYM = "gym:"

PROCEDURAL: dict[str, Callable[..., types.Prompt]] = {
  "arithmetic": data.arithmetic,
  "sorting": data.sorting,
  "countdown": data.countdown,
}
REWARDS: dict[str, Callable[[], types.RewardFn] | str] = {
  "exact": lambda: rewards.exact_match(),
  "last_number": lambda: rewards.exact_match(rewards.last_number),
  "boxed": lambda: rewards.exact_match(rewards.boxed),
  "tagged": lambda: rewards.exact_match(rewards.tagged),
  "countdown": lambda: rewards.countdown(),
  "tagged_countdown": lambda: rewards.countdown(rewards.tagged),
  "math": rewards.MATH,
  "gym": rewards.GYM,
  "format": lambda: rewards.matches(),
  "finished": lambda: rewards.finished,
}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
  """Settings that suit a task and a model.

  Attributes:
    reward: a key of `REWARDS`.
    max_prompt_tokens: of the longest prompt.
    max_new_tokens: of the longest answer, with its end.
  """

  reward: str
  max_prompt_tokens: int
  max_new_tokens: int


# Of the tiny model, which knows characters and is taught to answer at once.
RECIPES = {
  "arithmetic": Recipe(reward="exact", max_prompt_tokens=6, max_new_tokens=4),
  "sorting": Recipe(reward="exact", max_prompt_tokens=24, max_new_tokens=20),
  "countdown": Recipe(
    reward="countdown", max_prompt_tokens=28, max_new_tokens=24
  ),
}
# Of checkpoints with a chat template, whose answers are long.
OTHER = Recipe(reward="math", max_prompt_tokens=512, max_new_tokens=1024)


def recipe(
  task: str,
  *,
  context_size: int,
  is_tiny: bool = False,
  max_prompt_tokens: int | None = None,
  max_new_tokens: int | None = None,
) -> Recipe:
  """Returns the settings that suit a task and a model.

  Args:
    task: as in `prompts`.
    context_size: of the model. A length that is not given is at most what the
      other leaves of it; of neither, a prompt's is at most a third.
    is_tiny: whether it is the tiny model.
    max_prompt_tokens: if given.
    max_new_tokens: likewise.
  """
  found = RECIPES.get(task, OTHER)
  if task.startswith(GYM):
    found = dataclasses.replace(OTHER, reward="gym")
  usual = found if is_tiny else OTHER
  if max_prompt_tokens is None:
    room = context_size // 3
    if max_new_tokens is not None:
      room = context_size - max_new_tokens
    max_prompt_tokens = max(1, min(usual.max_prompt_tokens, room))
  if max_new_tokens is None:
    room = context_size - max_prompt_tokens
    max_new_tokens = max(1, min(usual.max_new_tokens, room))
  return Recipe(
    reward=found.reward,
    max_prompt_tokens=max_prompt_tokens,
    max_new_tokens=max_new_tokens,
  )


def is_file(task: str) -> bool:
  """Whether a task is a file with prompts."""
  return pathlib.Path(task).suffix in (".jsonl", ".parquet")


def prompts(
  task: str, task_args: Mapping[str, Any], *, size: int, seed: int
) -> Sequence[types.Prompt]:
  """Returns a data set by its name.

  Args:
    task: a key of `PROCEDURAL`, gym:NAME of reasoning-gym, or a file.
    task_args: of the task's function; of a file, names of its columns.
    size: of a data set that is computed.
    seed: likewise.

  Raises:
    ValueError: there is no such task or file, or it takes no such argument.
    ImportError: what it needs is not installed.
  """
  if task in PROCEDURAL:
    task_fn = functools.partial(PROCEDURAL[task], **task_args)
    try:
      task_fn(0, seed)
    except TypeError as error:
      raise ValueError(f"--task_arg of {task}: {error}") from error
    return data.Procedural(task_fn, size=size, seed=seed)
  if task.startswith(GYM):
    return data.reasoning_gym(
      task.removeprefix(GYM), size=size, seed=seed, config=task_args
    )
  if is_file(task):
    columns = ("prompt", "answer", "metadata")
    for name, column in task_args.items():
      if name not in columns or not isinstance(column, str):
        raise ValueError(
          f"--task_arg={name}={column} is no column of a file; give"
          f" {', '.join(f'{column}=NAME' for column in columns)}"
        )
    return data.read(task, **task_args)
  raise ValueError(
    f"--task={task} is not known; give one of {', '.join(PROCEDURAL)},"
    " gym:NAME of reasoning-gym, or the path of a .jsonl or .parquet file"
  )


def fit(task: tasks.Task, name: str, *, drop_long: bool) -> tasks.Task:
  """Returns a task of which all prompts fit; of a computed one, the first.

  Args:
    task: as it is.
    name: of the data set.
    drop_long: whether prompts of a file that are too long are left out.

  Raises:
    ValueError: some are too long, or none is left.
  """
  if not is_file(name):
    tasks.check_prompts(task, num=1000)
    return task
  if not drop_long:
    tasks.check_prompts(task)
    return task
  kept, num_dropped = tasks.drop_long_prompts(task)
  print(
    f"{name}: {num_dropped:,} of {len(task.prompts):,} prompts are too long,"
    " and left out"
  )
  return kept


def check_resume(saved: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
  """Raises ValueError where a resumed run would learn from other prompts.

  Args:
    saved: what the checkpoint remembers: sizes, and flags.
    sizes: how many prompts there are now, by name.
  """
  if all(saved[name] == size for name, size in sizes.items()):
    return
  before, now = (
    ", ".join(f"{name} {record[name]:,}" for name in sizes)
    for record in (saved, sizes)
  )
  given = "".join(
    f" --{name}={saved[name]}"
    for name in ("num_eval_prompts", "eval_task")
    if saved[name] is not None
  )
  raise ValueError(
    f"the run would learn from other prompts: it had {before}, and now there"
    f" are {now}. Leave --task's file as it was, and --num_eval_prompts and"
    f" --eval_task too:{given}"
  )


@contextlib.contextmanager
def scorer(
  given: Sequence[str], *, num_processes: int, deadline_s: float
) -> Iterator[rewards.ScoreFn]:
  """Yields what computes the sum of rewards.

  Args:
    given: of each its name, or "path/to/file.py:NAME", perhaps with a weight:
      "format*0.2".
    num_processes: for each that is called in processes.
    deadline_s: for one answer there.

  Raises:
    ValueError: there is no such reward.
    ImportError: what it needs is not installed.
  """
  with contextlib.ExitStack() as stack:
    parts = []
    for text in given:
      name, weight = _weighted(text)
      one = _scorer(name, num_processes=num_processes, deadline_s=deadline_s)
      parts.append((stack.enter_context(one), weight))
    if len(parts) == 1 and parts[0][1] == 1.0:
      yield parts[0][0]
    else:
      yield functools.partial(rewards.weighted_sum, parts)


@contextlib.contextmanager
def _scorer(
  name: str, *, num_processes: int, deadline_s: float
) -> Iterator[rewards.ScoreFn]:
  source = REWARDS.get(name, name)
  if not isinstance(source, str):
    yield functools.partial(rewards.score, source())
    return
  if ":" not in source:
    raise ValueError(
      f"--reward={name} is not known; give one of {', '.join(REWARDS)}, or"
      " path/to/file.py:NAME, perhaps with a weight: format*0.2"
    )
  with rewards.Scorers(
    source, num_processes=num_processes, deadline_s=deadline_s
  ) as scorers:
    yield scorers.score


def _weighted(text: str) -> tuple[str, float]:
  """Returns ("format", 0.2) of "format*0.2"; without a weight it is 1."""
  name, star, weight = text.rpartition("*")
  try:
    return (name, float(weight)) if star else (text, 1.0)
  except ValueError:
    return text, 1.0  # a path with a star, or what is not known
