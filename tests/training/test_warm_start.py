"""The warm start: what is learnt from examples."""

from __future__ import annotations

import functools

import jax
import numpy as np
import pytest

from rlinf_jax import data, rewards, types
from rlinf_jax.reporting import progress
from rlinf_jax.training import tasks, warm_start


class Beginning(data.CharTokenizer):
  """Begins prompts with a token of its own, as Llama's does."""

  def encode(self, text):
    return [self.vocab_size, *super().encode(text)]

  def encode_answer(self, text):
    return data.CharTokenizer.encode(self, text)


class SeenError(Exception):
  """The examples were seen: there is no more to test."""


@pytest.mark.slow
def test_rows_are_read_a_few_at_once(monkeypatch):
  # Of 8 rows of an update 4 at once are the most that 12 allow: a divisor.
  seen = []
  make = warm_start.sft.make

  def spy(model, optimizer, *, quantum):
    seen.append(quantum)
    return make(model, optimizer, quantum=quantum)

  monkeypatch.setattr(warm_start.sft, "make", spy)
  model = warm_start.transformer.language_model(CONFIG)
  task = tasks.Task(
    prompts=[types.Prompt(text=f"{i}+1=", answer="2") for i in range(9)],
    tokenizer=data.CharTokenizer(),
    score_fn=functools.partial(rewards.score, rewards.exact_match()),
    max_prompt_tokens=5,
  )
  params = model.init(jax.random.key(0))
  learnt = []
  for rows_at_once in (None, 2, 12):
    with progress.open_progress(total_steps=1) as shown:
      learnt.append(
        warm_start.fine_tune(
          model,
          params,
          task,
          num_updates=2,
          batch_size=8,
          learning_rate=1e-3,
          max_answer_tokens=2,
          display=shown,
          rows_at_once=rows_at_once,
        )
      )
  assert seen == [None, 2, 4]
  for other in learnt[1:]:
    jax.tree.map(
      functools.partial(np.testing.assert_allclose, atol=1e-5), other, learnt[0]
    )


def test_only_a_prompt_has_a_beginning(monkeypatch):
  tokenizer = Beginning()
  task = tasks.Task(
    prompts=[types.Prompt(text="1+1=", answer="2")],
    tokenizer=tokenizer,
    score_fn=functools.partial(rewards.score, rewards.exact_match()),
    max_prompt_tokens=5,
  )
  seen = []

  def pack(pairs, *_, **__):
    seen.extend(pairs)
    raise SeenError

  monkeypatch.setattr(warm_start.sft, "pack", pack)
  model = warm_start.transformer.language_model(CONFIG)
  with pytest.raises(SeenError), progress.open_progress(total_steps=1) as shown:
    warm_start.fine_tune(
      model,
      {},
      task,
      num_updates=1,
      batch_size=1,
      learning_rate=1e-3,
      max_answer_tokens=2,
      display=shown,
    )
  plain = data.CharTokenizer()
  assert seen == [
    (
      [tokenizer.vocab_size, *plain.encode("1+1=")],
      [*plain.encode("2"), tokenizer.eos_id],
    )
  ]


CONFIG = warm_start.transformer.Config(
  vocabulary_size=100,
  width=8,
  num_layers=1,
  num_heads=1,
  num_kv_heads=1,
  head_size=8,
  mlp_size=8,
  context_size=16,
  rope=warm_start.transformer.rope.Rope(base=10_000.0),
  norm_epsilon=1e-6,
  has_bias=True,
  is_tied=True,
)
