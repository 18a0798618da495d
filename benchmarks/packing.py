"""What packing answers into rows saves an update, padded and packed in turn.

    python -m benchmarks.packing

A language model of 2 blocks and width 128 takes a step on the log-probabilities
of 8 prompts' 8 answers, whose lengths are log-normal with a mean of a quarter
of the limit. Each way of reading them is called in turn, so that all share the
machine's load. Prints JSON: median seconds, times over those of padded rows,
and what is to be expected of them. A minute or two.
"""

from __future__ import annotations

import json
import math
import os
import statistics
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import app, flags

from benchmarks import timing
from rlinf_jax.algorithms import answers, grpo_config, grpo_readers, updates
from rlinf_jax.models import transformer

FLAGS = flags.FLAGS
_MAX_NEW_TOKENS = flags.DEFINE_integer("max_new_tokens", 512, "The limit.")
_PROMPT_TOKENS = flags.DEFINE_integer("prompt_tokens", 16, "Of each prompt.")
_VOCABULARY = flags.DEFINE_integer("vocabulary", 1024, "Tokens known.")
_NUM_ROUNDS = flags.DEFINE_integer("num_rounds", 5, "Calls of each way.", 1)
_ROWS_AT_ONCE = flags.DEFINE_multi_integer(
  "packed_rows", [1, 2, 4], "Rows read at once."
)

NUM_PROMPTS, GROUP_SIZE = 8, 8


def main(argv: list[str]) -> None:
  """Measures and prints."""
  del argv
  model = transformer.language_model(_sizes())
  params = jax.jit(model.init)(jax.random.key(0))
  given = _draw(np.random.default_rng(0))
  ways = {
    f"{name}, {of_what}": (rows, quantum)
    for of_what, quantum in (("all at once", None), ("by prompt", 1))
    for name, rows in (
      ("padded", None),
      *((f"packed, {rows} rows", rows) for rows in _ROWS_AT_ONCE.value),
    )
  }
  calls = {
    name: _update(model, params, given, packed_rows=rows, quantum=quantum)
    for name, (rows, quantum) in ways.items()
  }
  rates = timing.in_turn(
    calls,
    num_steps=int(given.length.sum()),
    min_seconds=0.0,
    min_rounds=_NUM_ROUNDS.value,
  )
  call_s = {name: rate.call_s for name, rate in rates.items()}
  shares = {name: _share(given, *way) for name, way in ways.items()}
  print(json.dumps({
    "load_average": os.getloadavg()[0],
    "mean_tokens": float(given.length.mean()),
    "ways": {
      name: {
        "median_s": statistics.median(call_s[name]),
        "over_padded": _ratio(call_s, name),
        # Its backward pass begins with the forward pass: 4 parts, not 3.
        "rows_times_4/3": shares[name] * (1 if "padded" in name else 4 / 3),
      }
      for name in ways
    },
  }, indent=2))  # fmt: skip


def _sizes() -> transformer.Config:
  return transformer.Config(
    vocabulary_size=_VOCABULARY.value,
    width=128,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_size=32,
    mlp_size=512,
    context_size=_PROMPT_TOKENS.value + _MAX_NEW_TOKENS.value,
    rope=transformer.rope.Rope(base=10_000.0),
    norm_epsilon=1e-6,
    has_bias=True,
    is_tied=True,
  )


def _draw(rng: np.random.Generator) -> answers.Answers:
  """Returns answers of random tokens, of log-normal lengths."""
  shape = (NUM_PROMPTS, GROUP_SIZE)
  limit, sigma = _MAX_NEW_TOKENS.value, 0.8
  mu = math.log(limit / 4) - sigma**2 / 2
  length = np.clip(rng.lognormal(mu, sigma, shape), 1, limit)
  token = lambda *shape: jnp.asarray(
    rng.integers(0, _VOCABULARY.value, shape), jnp.int32
  )
  return answers.Answers(
    prompt=token(NUM_PROMPTS, _PROMPT_TOKENS.value),
    prompt_length=jnp.full(NUM_PROMPTS, _PROMPT_TOKENS.value, jnp.int32),
    token=token(*shape, limit),
    length=jnp.asarray(length, jnp.int32),
    is_stopped=jnp.ones(shape, bool),
    log_prob=jnp.zeros((*shape, limit)),
    version=jnp.zeros((*shape, limit), jnp.int32),
    is_used=jnp.ones(NUM_PROMPTS, bool),
  )


def _update(
  model: transformer.Transformer,
  params: Any,
  given: answers.Answers,
  *,
  packed_rows: int | None,
  quantum: int | None,
) -> Any:
  """Returns a call that takes a step, and waits for it."""
  config = grpo_config.Config(group_size=GROUP_SIZE, packed_rows=packed_rows)
  readers = grpo_readers.make(model, config)

  def total_fn(params: Any, answers_b: answers.Answers, key_b: Any) -> Any:
    del key_b
    log_prob = readers.read(params, answers_b).log_prob
    mask = answers.mask(answers_b).reshape(log_prob.shape)
    count = jnp.sum(mask, dtype=jnp.float32)
    return (-jnp.sum(jnp.where(mask, log_prob, 0.0)), count), {}

  update = updates.from_totals(total_fn, optax.sgd(1e-3), quantum=quantum)
  learner, key = update.init(params), jax.random.key(0)
  step = jax.jit(update.step)
  return lambda: jax.block_until_ready(step(learner, given, key))


def _ratio(call_s: dict[str, tuple[float, ...]], name: str) -> float:
  """Returns the median over rounds of a way's time over padded rows'."""
  padded_s = call_s["padded, all at once"]
  return statistics.median(
    x / y for x, y in zip(call_s[name], padded_s, strict=True)
  )


def _share(
  given: answers.Answers, packed_rows: int | None, quantum: int | None
) -> float:
  """Returns rows read over answers."""
  if packed_rows is None:
    return 1.0
  length = np.asarray(given.length + given.prompt_length[:, None])
  groups = [length.reshape(-1)] if quantum is None else list(length)
  row_size = _PROMPT_TOKENS.value + _MAX_NEW_TOKENS.value
  num_rows = [
    int(transformer.packed_rows.layout(jnp.asarray(x), row_size).num_rows)
    for x in groups
  ]
  turns = sum(-(-n // packed_rows) for n in num_rows)
  return turns * packed_rows / length.size


if __name__ == "__main__":
  app.run(main)
