"""A task for a language model: prompts as tokens, and answers as rewards.

Letters: B prompts, G answers to each, T tokens of a padded prompt, N of a
padded answer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from absl import logging

from rlinf_jax import data, rewards, types
from rlinf_jax.reporting import statistics


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
  score_fn: Callable[[Sequence[types.Completion]], rewards.Scores]
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
    text = data.render(prompt, self.tokenizer.template_fn, system=self.system)
    tokens = self.tokenizer.encode(text)
    if not 1 <= len(tokens) <= self.max_prompt_tokens:
      raise ValueError(
        f"Given the prompt {text!r:.80} of {len(tokens)} tokens, expected 1 to"
        f" max_prompt_tokens = {self.max_prompt_tokens}. Leave it out, or raise"
        " --max_prompt_tokens (prompt and answer must fit the model's context)."
      )
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

  def score(
    self, position_b: np.ndarray, completions: types.Completions
  ) -> np.ndarray:
    """Returns rewards float32 [B, G]; 0 where the reward function failed."""
    found = self.score_fn(self.read(position_b, completions))
    if found.first_error:
      logging.log_first_n(
        logging.WARNING,
        "the reward function failed on an answer, which is worth 0: %s",
        1,
        found.first_error,
      )
    return found.reward_b.reshape(completions.length.shape)

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


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
  """What a model's likeliest answers are worth.

  Attributes:
    rewards: over all prompts.
    accuracy: the share of answers with at least the reward of a right one.
    samples: the first answers, with their rewards.
  """

  rewards: statistics.Summary
  accuracy: statistics.Interval
  samples: tuple[tuple[types.Completion, float], ...]


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
  samples: list[tuple[types.Completion, float]] = []
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
    reward_b = task.score(position_b, completions)[:, 0]
    texts = task.read(position_b, completions)
    pairs = [(t, float(r)) for t, r, ok in zip(texts, reward_b, is_asked) if ok]
    found += [reward for _, reward in pairs]
    samples += pairs[: num_samples - len(samples)]
  num_right = sum(reward >= right_reward for reward in found)
  return Judgement(
    rewards=statistics.summarise(np.array(found)),
    accuracy=statistics.wilson_interval(num_right, len(found)),
    samples=tuple(samples),
  )
