"""Supervised fine-tuning on a task's own answers, before rewards take over."""

from __future__ import annotations

import math

import jax
import optax

from rlinf_jax import flow, types
from rlinf_jax.algorithms import sft
from rlinf_jax.models import transformer
from rlinf_jax.reporting import progress
from rlinf_jax.training import tasks


def fine_tune(
  model: transformer.Transformer,
  params: types.Params,
  task: tasks.Task,
  *,
  num_updates: int,
  batch_size: int,
  learning_rate: float,
  max_answer_tokens: int,
  display: progress.Progress,
  rows_at_once: int | None = None,
) -> types.Params:
  """Returns parameters after supervised fine-tuning on a task's answers.

  Args:
    model: a language model.
    params: where it begins.
    task: whose prompts have answers.
    num_updates: of AdamW; the step size rises over the first 50.
    batch_size: examples of an update.
    learning_rate: at its greatest.
    max_answer_tokens: of an answer and its end.
    display: shows how it goes.
    rows_at_once: of packed examples: bounds memory; None is all of an update.

  Raises:
    ValueError: a prompt has no answer, or one that is too long.
  """
  # Not annealed: what is left of its noise is what rewards remove first.
  schedule = optax.linear_schedule(0.0, learning_rate, min(50, num_updates))
  optimizer = optax.chain(
    optax.clip_by_global_norm(1.0), optax.adamw(schedule, b2=0.99)
  )
  # It has to divide the rows of an update.
  quantum = rows_at_once and math.gcd(rows_at_once, batch_size)
  update = sft.make(model, optimizer, quantum=quantum)
  step = flow.fuse(update.step, donate=(0,))
  row_size = task.max_prompt_tokens + max_answer_tokens
  learner = update.init(jax.tree.map(jax.numpy.array, params))
  key = jax.random.key(0)
  with display.phase(f"warm start of {num_updates:,} updates"):
    for i in range(num_updates):
      positions = range(i * batch_size, (i + 1) * batch_size)
      pairs = [_example(task, p, max_answer_tokens) for p in positions]
      # As many rows as the longest examples would need: one shape for all.
      rows = sft.pack(pairs, row_size, num_rows=batch_size)
      learner, row = step(learner, rows, key)
      if (i + 1) % max(1, num_updates // 5) == 0:
        display.print(
          f"  warm start: update {i + 1:,}, loss {float(row['loss']):.3f} nats"
          " per token"
        )
  return learner.params


def _example(
  task: tasks.Task, position: int, max_answer_tokens: int
) -> tuple[list[int], list[int]]:
  prompt = task.prompt_at(position)
  if not prompt.answer:
    raise ValueError(
      f"Given the prompt {prompt.text!r:.60} without an answer, expected one to"
      " learn from. Start from a trained model without --sft_updates."
    )
  answer = [
    *task.tokenizer.encode_answer(prompt.answer),
    task.tokenizer.eos_id,
  ]
  if len(answer) > max_answer_tokens:
    raise ValueError(
      f"Given the answer {prompt.answer!r:.60} of {len(answer)} tokens with its"
      f" end, expected at most max_new_tokens = {max_answer_tokens}. Raise it."
    )
  return task.encode(prompt), answer
