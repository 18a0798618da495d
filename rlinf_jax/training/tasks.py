"""A task for a language model: prompts as tokens, and answers as rewards.

Letters: B prompts, G answers to each, T tokens of a padded prompt, N of a
padded answer.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from absl import logging

from rlinf_jax import data, rewards, types
from rlinf_jax.reporting import statistics

_NUM_AT_ONCE = 10_000  # texts, in memory as tokens


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
  """Prompts in the order in which they are asked, and what answers are worth.

  Attributes:
    prompts: the data set.
    tokenizer: of the model.
    score_fn: completions -> their rewards.
    max_prompt_tokens: T; a longer prompt is an error.
    system: a message before each chat, or None.
    order_seed: of the order; None keeps the data set's own.
  """

  prompts: Sequence[types.Prompt]
  tokenizer: types.Tokenizer
  score_fn: rewards.ScoreFn
  max_prompt_tokens: int
  system: str | None = None
  order_seed: int | None = 0

  def prompt_at(self, position: int) -> types.Prompt:
    """Returns the prompt whose turn it is at a position of the run."""
    size = len(self.prompts)
    index = data.index_at(int(position), size=size, seed=self.order_seed)
    return self.prompts[index]

  def encode(self, prompt: types.Prompt) -> list[int]:
    """Returns a prompt's tokens.

    Raises:
      ValueError: there are none, or more than max_prompt_tokens.
    """
    text = self._render(prompt)
    tokens = self.tokenizer.encode(text)
    if not 1 <= len(tokens) <= self.max_prompt_tokens:
      raise ValueError(_refusal(self, text, len(tokens)))
    return tokens

  def ask(self, position_b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns tokens int32 [B, T], padded on the right, and lengths int32 [B].

    Raises:
      ValueError: as `encode` says.
    """
    texts = [self.encode(self.prompt_at(p)) for p in position_b]
    shape = (len(texts), self.max_prompt_tokens)
    token = np.full(shape, self.tokenizer.pad_id, np.int32)
    for row, text in zip(token, texts):
      row[: len(text)] = text
    return token, np.array([len(text) for text in texts], np.int32)

  def lengths(self, num: int | None = None) -> np.ndarray:
    """Returns how many tokens the prompts have, int64 [num]; None is all."""
    size = len(self.prompts) if num is None else min(num, len(self.prompts))
    found: list[int] = []
    for start in range(0, size, _NUM_AT_ONCE):
      part = range(start, min(start + _NUM_AT_ONCE, size))
      texts = [self._render(self.prompts[i]) for i in part]
      found += [len(tokens) for tokens in self.tokenizer.encode_all(texts)]
    return np.array(found, np.int64)

  def score(
    self, position_b: np.ndarray, completions: types.Completions
  ) -> np.ndarray:
    """Returns rewards float32 [B, G]; 0 where the reward function failed."""
    found = self.scores(self.read(position_b, completions))
    return found.reward_b.reshape(completions.length.shape)

  def scores(self, texts: Sequence[types.Completion]) -> rewards.Scores:
    """Returns rewards of B answers; warns of the first that have none."""
    found = self.score_fn(texts)
    if found.num_failed:
      logging.log_first_n(
        logging.WARNING,
        "of %d answers %d have no reward, and are worth 0: of %d it was late"
        " (--score_deadline_s), of %d its process ended, of %d it raised an"
        " error. failed_rewards counts them from now on. %s",
        1,
        len(texts),
        found.num_failed,
        found.num_hung,
        found.num_crashed,
        found.num_raised,
        found.first_error,
      )
    return found

  def read(
    self, position_b: np.ndarray, completions: types.Completions
  ) -> list[types.Completion]:
    """Returns answers as text, prompt by prompt."""
    texts = []
    for b, position in enumerate(position_b):
      prompt = self.prompt_at(position)
      for g in range(completions.length.shape[1]):
        length = int(completions.length[b, g])
        texts.append(
          types.Completion(
            prompt=prompt.text,
            response=self.tokenizer.decode(
              completions.token[b, g, :length].tolist()
            ),
            answer=prompt.answer,
            metadata=prompt.metadata,
            num_tokens=length,
            is_cut=not bool(completions.is_stopped[b, g]),
          )
        )
    return texts

  def _render(self, prompt: types.Prompt) -> str:
    return data.render(prompt, self.tokenizer.template_fn, system=self.system)


def check_prompts(task: Task, *, num: int | None = None) -> None:
  """Raises ValueError where prompts are empty or too long.

  Args:
    task: whose prompts.
    num: how many of the first ones to look at; None is all.
  """
  length_b = task.lengths(num)
  is_wrong_b = ~_fits(task, length_b)
  if is_wrong_b.any():
    longest = int(np.argmax(np.where(is_wrong_b, length_b, -1)))
    refusal = _refusal(task, task.prompts[longest].text, length_b[longest])
    raise ValueError(
      f"{is_wrong_b.sum():,} of {len(length_b):,} prompts do not fit; the"
      f" longest: {refusal}"
    )


def drop_long_prompts(task: Task) -> tuple[Task, int]:
  """Returns a task without prompts that do not fit, and how many there were.

  Raises:
    ValueError: none fits.
  """
  is_fit_b = _fits(task, task.lengths())
  kept = [task.prompts[i] for i in np.flatnonzero(is_fit_b).tolist()]
  if not kept:
    check_prompts(task)
  return dataclasses.replace(task, prompts=kept), int(np.sum(~is_fit_b))


def hold_out(task: Task, num: int) -> tuple[Task, Task]:
  """Returns a task without its last prompts, and one of these, in their order.

  Args:
    task: whose prompts are divided.
    num: at most a tenth of them are held out, and at least one.

  Raises:
    ValueError: there is one prompt only.
  """
  size = len(task.prompts)
  if size < 2:
    raise ValueError(
      "Given a single prompt, expected at least two: one to learn from and one"
      " to judge by. Judge by another file, by --eval_task."
    )
  first = size - max(1, min(num, size // 10))
  return (
    dataclasses.replace(task, prompts=task.prompts[:first]),
    dataclasses.replace(task, prompts=task.prompts[first:], order_seed=None),
  )


def _refusal(task: Task, text: str, num_tokens: int) -> str:
  return (
    f"Given the prompt {text!r:.80} of {num_tokens:,} tokens, expected 1 to"
    f" max_prompt_tokens = {task.max_prompt_tokens:,}. Raise"
    " --max_prompt_tokens (prompt and answer must fit the model's context), or"
    " leave such prompts of a file out by --drop_long_prompts."
  )


def _fits(task: Task, length_b: np.ndarray) -> np.ndarray:
  return (length_b >= 1) & (length_b <= task.max_prompt_tokens)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
  """What a model's likeliest answers are worth.

  Attributes:
    rewards: over all prompts.
    accuracy: the share of answers with at least the reward of a right one; of
      several rewards the first alone counts.
    samples: the first answers, with their rewards.
    digest: of the prompts that were asked and their answers: only judgements of
      the same can be compared.
  """

  rewards: statistics.Summary
  accuracy: statistics.Interval
  samples: tuple[tuple[types.Completion, float], ...]
  digest: str


def judge(
  task: Task,
  generate_fn: Callable[[types.Request], types.Completions],
  *,
  num_prompts: int,
  batch_size: int,
  right_reward: float = 1.0,
  num_samples: int = 16,
) -> Judgement:
  """Returns what the answers to the first prompts of a task are worth.

  Args:
    task: of evaluation.
    generate_fn: request -> completions, one per prompt.
    num_prompts: to ask; all where the task has fewer.
    batch_size: asked at once.
    right_reward: the least of a right answer.
    num_samples: answers to keep.
  """
  num_prompts = min(num_prompts, len(task.prompts))
  found: list[float] = []
  num_right = 0
  samples: list[tuple[types.Completion, float]] = []
  digest = hashlib.sha256()
  for start in range(0, num_prompts, batch_size):
    position_b = start + np.arange(batch_size)
    is_asked = position_b < num_prompts
    position_b = np.where(is_asked, position_b, start)
    prompt, length = task.ask(position_b)
    request = types.Request(
      prompt=prompt,
      length=length,
      seed=np.zeros((batch_size, 1), np.uint32),
      is_asked=is_asked,
    )
    completions: Any = jax.device_get(generate_fn(request))
    texts = task.read(position_b, completions)[: int(is_asked.sum())]
    scored = task.scores(texts)
    found += scored.reward_b.tolist()
    first_b = scored.reward_b if scored.first_b is None else scored.first_b
    num_right += int(np.sum(first_b >= right_reward))
    pairs = list(zip(texts, scored.reward_b.tolist()))
    for text in texts:
      digest.update(repr((text.prompt, text.answer)).encode())
    samples += pairs[: num_samples - len(samples)]
  return Judgement(
    rewards=statistics.summarise(np.array(found)),
    accuracy=statistics.wilson_interval(num_right, len(found)),
    samples=tuple(samples),
    digest=digest.hexdigest(),
  )
