"""What the sampler says it sampled is what the model would say of it."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlinf_jax import rollout
from rlinf_jax.models import transformer
from rlinf_jax.models.huggingface import settings
from tests.models.transformer import variants

FOUND = variants.VARIANTS["qwen2"] | {"max_position_embeddings": 32}
CONFIG = settings.to_config(FOUND)
PARAMS = variants.params(FOUND)
MODEL = transformer.language_model(CONFIG)
NUM_NEW = 10
NOISE = np.random.default_rng(0)
LENGTHS = np.array([3, 6, 1], np.int32)
PROMPTS = NOISE.integers(0, 40, (3, 6), np.int32)  # also beyond their lengths


@functools.cache
def sampler(**options):
  return rollout.sampler(
    MODEL, rollout.Sampling(**{"max_new_tokens": NUM_NEW, **options})
  )


def split(seed, num_prompts=3, num_samples=2):
  keys = jax.random.split(jax.random.key(seed), num_prompts * num_samples)
  return keys.reshape(num_prompts, num_samples)


@functools.cache
def sample(**options):
  return sampler(**options).sample(PARAMS, PROMPTS, LENGTHS, split(0))


@functools.cache
def whole_text():
  return jax.jit(MODEL.apply)


def logits_after(prompt, completion):
  """Returns logits [len(completion), V] of an uncached forward pass."""
  text = np.concatenate([prompt, completion])[None]
  text = np.pad(text, [(0, 0), (0, 16 - text.shape[1])])
  place = np.arange(16)[None]
  logits = whole_text()(PARAMS, text, place, np.ones_like(place))[0]
  return logits[len(prompt) - 1 : len(prompt) - 1 + len(completion)]


def samples_of(completions):
  """Yields (prompt, tokens, log_probs, is_stopped) of every sample."""
  for b, n in np.ndindex(completions.length.shape):
    length = completions.length[b, n]
    yield (
      PROMPTS[b, : LENGTHS[b]],
      np.asarray(completions.token[b, n, :length]),
      np.asarray(completions.log_prob[b, n, :length]),
      bool(completions.is_stopped[b, n]),
    )


OPTIONS = {
  "plain": {},
  "warm": dict(temperature=1.7),
  "cold": dict(temperature=0.3),
  "top_k": dict(top_k=5),
  "top_p": dict(top_p=0.6),
  "all": dict(temperature=1.4, top_k=9, top_p=0.8, stop_tokens=(7, 21)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIONS)
def test_log_probs_are_those_of_a_forward_pass_without_cache(name):
  options = OPTIONS[name]
  distribution = {k: v for k, v in options.items() if k != "stop_tokens"}
  for prompt, tokens, log_probs, _ in samples_of(sample(**options)):
    expected = rollout.log_distribution(
      logits_after(prompt, tokens), **distribution
    )
    expected = np.take_along_axis(np.asarray(expected), tokens[:, None], axis=1)
    np.testing.assert_allclose(log_probs, expected[:, 0], rtol=0, atol=1e-5)


def test_greedy_tokens_are_the_likeliest_with_log_probs_of_temperature_one():
  for prompt, tokens, log_probs, _ in samples_of(sample(temperature=0.0)):
    logits = np.asarray(logits_after(prompt, tokens))
    np.testing.assert_array_equal(tokens, logits.argmax(axis=-1))
    expected = np.asarray(jax.nn.log_softmax(logits)).max(axis=-1)
    np.testing.assert_allclose(log_probs, expected, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_samples_follow_the_distribution():
  # 2,000 first tokens of one prompt against their probabilities: chi-squared
  # over the k likeliest and the rest has k degrees of freedom.
  first = rollout.sampler(MODEL, rollout.Sampling(max_new_tokens=1))
  found = first.sample(PARAMS, PROMPTS[:1], LENGTHS[:1], split(3, 1, 2000))
  chance = np.asarray(
    jax.nn.softmax(logits_after(PROMPTS[0, :3], found.token[0, 0])[0])
  )
  top = np.argsort(-chance)[:8]
  counts = np.bincount(np.asarray(found.token).ravel(), minlength=40)
  groups = lambda x: np.append(x[top], x.sum() - x[top].sum())
  expected = 2000 * groups(chance)
  statistic = np.sum((groups(counts) - expected) ** 2 / expected)
  assert statistic < 26.1  # exceeded once in 1,000 times


@pytest.mark.slow
def test_a_sample_depends_on_its_prompt_and_key_alone():
  together = sample()
  keys = split(0)
  for b in range(3):
    alone = sampler().sample(
      PARAMS, PROMPTS[b : b + 1], LENGTHS[b : b + 1], keys[b : b + 1, 1:]
    )
    np.testing.assert_array_equal(alone.token[0, 0], together.token[b, 1])
    np.testing.assert_allclose(
      alone.log_prob[0, 0], together.log_prob[b, 1], rtol=0, atol=1e-5
    )
  order = np.array([2, 0, 1])
  turned = sampler().sample(PARAMS, PROMPTS[order], LENGTHS[order], keys[order])
  np.testing.assert_array_equal(turned.token, together.token[order])


def test_the_same_keys_give_the_same_bits_and_others_do_not():
  again = sampler().sample(PARAMS, PROMPTS, LENGTHS, split(0))
  jax.tree.map(np.testing.assert_array_equal, again, sample())
  token = np.asarray(sample().token)
  assert not np.array_equal(token[:, 0], token[:, 1])
  other = sampler().sample(PARAMS, PROMPTS, LENGTHS, split(1))
  assert not np.array_equal(other.token, token)


def test_what_pads_a_prompt_does_not_matter():
  padded = np.full((3, 6), 39, np.int32)
  for b, length in enumerate(LENGTHS):
    padded[b, :length] = PROMPTS[b, :length]
  found = sampler().sample(PARAMS, padded, LENGTHS, split(0))
  jax.tree.map(np.testing.assert_array_equal, found, sample())


def test_prompts_padded_on_the_left_are_turned():
  left = np.array([[9, 9, 1, 2], [9, 3, 4, 5], [6, 7, 8, 0]], np.int32)
  right = rollout.from_left_padded(left, np.array([2, 3, 4]))
  np.testing.assert_array_equal(
    right, [[1, 2, 9, 9], [3, 4, 5, 9], [6, 7, 8, 0]]
  )


def test_a_sample_ends_with_its_first_stop_token():
  stops = (7, 21)
  ended = 0
  for free, stopped in zip(
    samples_of(sample()), samples_of(sample(stop_tokens=stops))
  ):
    tokens = free[1]
    at = np.flatnonzero(np.isin(tokens, stops))
    ended += bool(at.size)
    length = at[0] + 1 if at.size else NUM_NEW
    assert stopped[3] == bool(at.size)
    np.testing.assert_array_equal(stopped[1], tokens[:length])
  assert ended  # or there was nothing to see
  completions = sample(stop_tokens=stops)
  beyond = np.arange(NUM_NEW) >= np.asarray(completions.length)[..., None]
  assert not np.asarray(completions.token)[beyond].any()
  assert not np.asarray(completions.log_prob)[beyond].any()


def test_a_stop_token_in_the_last_place_stops():
  tokens = np.asarray(sample().token[0, 0])
  last = int(tokens[-1])
  if last in tokens[:-1]:
    pytest.fail("choose another seed: the last token came before")
  found = sample(stop_tokens=(last,))
  assert found.length[0, 0] == NUM_NEW
  assert found.is_stopped[0, 0]


def test_few_tokens_at_a_time_give_the_same_as_all():
  state = sampler().start(PARAMS, PROMPTS, LENGTHS, split(0))
  rounds = 0
  while not sampler().is_done(state):
    state = sampler().advance(PARAMS, state, 3)
    rounds += 1
  assert rounds == 4  # of 10 tokens
  found = sampler().finish(state, 3)
  jax.tree.map(np.testing.assert_array_equal, found, sample())


@pytest.mark.slow
def test_a_sample_taken_up_as_a_longer_prompt_goes_on_as_it_would_have():
  tokens = np.asarray(sample().token[0, 1])
  prompt = np.concatenate([PROMPTS[0, :3], tokens[:4]])
  rest = sampler(max_new_tokens=6).sample(
    PARAMS, prompt[None], np.array([7], np.int32), split(0)[:1, 1:]
  )
  np.testing.assert_array_equal(rest.token[0, 0], tokens[4:])


def test_newer_parameters_speak_from_where_they_come_in():
  newer = jax.tree.map(lambda x: x * 1.1, PARAMS)
  state = sampler().start(PARAMS, PROMPTS, LENGTHS, split(0))
  state = sampler().advance(PARAMS, state, 4)
  found = sampler().finish(sampler().advance(newer, state, NUM_NEW), 3)
  np.testing.assert_array_equal(found.token[..., :4], sample().token[..., :4])
  assert not np.allclose(found.log_prob[..., 4], sample().log_prob[..., 4])


@pytest.mark.slow
def test_new_prompts_of_a_shape_trace_nothing():
  traced = []

  def extend(*args):
    traced.append(args)
    return MODEL.extend(*args)

  counted = rollout.sampler(
    MODEL._replace(extend=extend), rollout.Sampling(max_new_tokens=2)
  )
  counted.sample(PARAMS, PROMPTS, LENGTHS, split(0))
  before = len(traced)
  assert before >= 2  # for prompts, and for one token of each sample
  counted.sample(PARAMS, PROMPTS[::-1], LENGTHS[::-1], split(4))
  assert len(traced) == before


@pytest.mark.parametrize(
  ("lengths", "words"),
  [([0, 1, 1], "prompt 0 of 0 tokens"), ([1, 1, 7], "prompt 2 of 7 tokens")],
)
def test_impossible_prompts_are_refused(lengths, words):
  with pytest.raises(ValueError, match=words):
    sampler().sample(PARAMS, PROMPTS, np.array(lengths, np.int32), split(0))


def test_texts_beyond_the_context_are_refused():
  with pytest.raises(ValueError, match="up to 33 tokens.*context of 32"):
    sampler(max_new_tokens=27).sample(PARAMS, PROMPTS, LENGTHS, split(0))


@pytest.mark.parametrize(
  "bad",
  [
    dict(max_new_tokens=0),
    dict(temperature=-1.0),
    dict(top_k=0),
    dict(top_p=0.0),
    dict(top_p=1.5),
  ],
)
def test_nonsense_is_refused(bad):
  with pytest.raises(ValueError, match=next(iter(bad))):
    rollout.Sampling(**{"max_new_tokens": 1, **bad})


def test_the_cache_of_bfloat16_is_of_bfloat16():
  model = transformer.language_model(
    dataclasses.replace(CONFIG, num_layers=1), compute_dtype=jnp.bfloat16
  )
  assert model.cache(2, 4).key.dtype == jnp.bfloat16
  assert model.cache(2, 4).key.shape == (1, 2, 4, 2, 8)
