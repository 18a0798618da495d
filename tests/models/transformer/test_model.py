"""Laws of the network: what a token sees, and what may not change outputs."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlinf_jax.models import transformer
from rlinf_jax.models.huggingface import settings
from tests.models.transformer import variants

CONFIG = settings.to_config(variants.VARIANTS["qwen2"])
PARAMS = variants.params(variants.VARIANTS["qwen2"])
SIZE = 12


@functools.cache
def encode(**options):
  return jax.jit(transformer.language_model(CONFIG, **options).encode)


def draw_tokens(*shape, seed=0):
  noise = np.random.default_rng(seed)
  return noise.integers(0, CONFIG.vocabulary_size, shape, np.int32)


def alone(tokens, **options):
  """Returns hidden [T, W] of one text in a row of its own, unpadded."""
  token = jnp.asarray(tokens)[None]
  position = jnp.arange(token.shape[1])[None]
  return encode(**options)(PARAMS, token, position, jnp.ones_like(token))[0]


def test_parameters_are_nested_dicts_of_float32_by_name():
  params = jax.eval_shape(
    transformer.language_model(CONFIG).init, jax.random.key(0)
  )
  assert set(params) == {"embedding", "blocks", "norm", "head"}
  for path, leaf in jax.tree_util.tree_leaves_with_path(params):
    assert all(isinstance(entry.key, str) for entry in path)
    assert leaf.dtype == jnp.float32
  assert all(x.shape[0] == 2 for x in jax.tree.leaves(params["blocks"]))


def test_initial_weights_have_the_deviation_asked_for():
  config = dataclasses.replace(CONFIG, initial_std=0.3, is_tied=True)
  params = transformer.language_model(config).init(jax.random.key(1))
  assert "head" not in params
  kernels = params["blocks"]["gate"]["kernel"]  # [2, 48, 32]
  # A deviation of 3,072 draws is known to 1.3 %: 4 of its deviations.
  assert jnp.std(kernels) == pytest.approx(0.3, rel=0.05)
  assert jnp.std(params["embedding"]) == pytest.approx(0.3, rel=0.08)
  assert not np.array_equal(kernels[0], kernels[1])
  np.testing.assert_array_equal(params["norm"]["scale"], np.ones(32))
  np.testing.assert_array_equal(params["blocks"]["key"]["bias"], 0)


@pytest.mark.slow
def test_texts_in_one_row_are_as_if_alone():
  texts = [draw_tokens(n, seed=n) for n in (5, 3, 4, 7)]
  packed = transformer.pack(texts, SIZE)
  hidden = encode()(PARAMS, packed.token, packed.position, packed.segment)
  for text, found in zip(texts, transformer.unpack(hidden, packed)):
    np.testing.assert_allclose(found, alone(text), rtol=0, atol=1e-5)


def test_dynamic_scaling_knows_each_text_of_a_row():
  found = variants.VARIANTS["qwen2_dynamic"]
  params = variants.params(found)
  run = jax.jit(transformer.language_model(settings.to_config(found)).encode)
  texts = [draw_tokens(n, seed=n) for n in (20, 4)]  # the context is 16
  packed = transformer.pack(texts, 24)
  hidden = run(params, packed.token, packed.position, packed.segment)
  for text, inside in zip(texts, transformer.unpack(hidden, packed)):
    single = transformer.pack([text], 24)
    own = run(params, single.token, single.position, single.segment)
    np.testing.assert_allclose(inside, own[0, : len(text)], rtol=0, atol=1e-5)


def test_a_token_sees_its_own_text_up_to_itself_and_nothing_else():
  token = draw_tokens(1, SIZE)
  segment = np.repeat([[1, 2, 0]], 4, axis=1)
  position = np.tile(np.arange(4), 3)[None]

  def influence(token_embedding):
    # A gradient says who sees whom, exactly: 0 where nothing flows.
    params = PARAMS | {"embedding": token_embedding}
    index = jnp.arange(SIZE)[None]  # each token of its own row of the table
    return encode()(params, index, position, segment)[0].sum(axis=-1)

  jacobian = jax.jit(jax.jacrev(influence))(PARAMS["embedding"][token[0]])
  seen = np.abs(jacobian).sum(axis=-1) > 0
  expected = np.kron(np.eye(3), np.tril(np.ones((4, 4)))) > 0
  np.testing.assert_array_equal(seen, expected)


@pytest.mark.slow
def test_attention_in_blocks_changes_nothing():
  texts = [draw_tokens(n, seed=n) for n in (5, 3, 4, 7)]
  packed = transformer.pack(texts, SIZE)
  place = (packed.token, packed.position, packed.segment)

  def loss(params, **options):
    return jnp.sum(jnp.sin(encode(**options)(params, *place)))

  found = jax.jit(jax.grad(loss))(PARAMS)
  # The last of three blocks is half padding.
  in_blocks = functools.partial(loss, attention_block_size=5)
  blocked = jax.jit(jax.grad(in_blocks))(PARAMS)
  jax.tree.map(
    lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4),
    blocked,
    found,
  )


def gradient(policy):
  place = jnp.arange(256)[None] % 16, jnp.arange(256)[None] // 16 + 1
  token = draw_tokens(1, 256)
  model = transformer.language_model(CONFIG, remat_policy=policy)

  def loss(params):
    return jnp.sum(jnp.sin(model.encode(params, token, *place)))

  return jax.jit(jax.grad(loss)).lower(PARAMS).compile()


@pytest.mark.slow
@pytest.mark.optimised
def test_remat_keeps_less_and_computes_the_same():
  kept, dropped = (
    gradient(policy)
    for policy in (None, jax.checkpoint_policies.nothing_saveable)
  )
  jax.tree.map(
    lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4),
    dropped(PARAMS),
    kept(PARAMS),
  )
  # The scores alone, of both blocks: 2 * 4 heads * 256^2 * 4 bytes.
  scores_bytes = 2 * 4 * 256**2 * 4
  saved = (
    kept.memory_analysis().temp_size_in_bytes
    - dropped.memory_analysis().temp_size_in_bytes
  )
  assert saved > scores_bytes / 2


@pytest.mark.slow
def test_bfloat16_is_close_and_keeps_float32_gradients():
  text = draw_tokens(SIZE)
  low = alone(text, compute_dtype=jnp.bfloat16)
  assert low.dtype == jnp.bfloat16
  exact = alone(text)
  # Each rounding is by up to 2^-9; some tens of them add up.
  error = np.abs(low.astype(jnp.float32) - exact).max()
  assert error < 2**-4 * np.abs(exact).max()
  loss = lambda params: jnp.sum(
    encode(compute_dtype=jnp.bfloat16)(
      params, text[None], jnp.arange(SIZE)[None], jnp.ones((1, SIZE), int)
    ).astype(jnp.float32)
  )
  for leaf in jax.tree.leaves(jax.eval_shape(jax.grad(loss), PARAMS)):
    assert leaf.dtype == jnp.float32


def test_parameters_of_bfloat16_are_computed_with_in_float32():
  # Rounded weights, exact products: what a reference model stored small does.
  rounded = jax.tree.map(lambda x: x.astype(jnp.bfloat16), PARAMS)
  text = draw_tokens(1, SIZE)
  place = jnp.arange(SIZE)[None], jnp.ones((1, SIZE), int)
  low = encode()(rounded, text, *place)
  exact = encode()(
    jax.tree.map(lambda x: x.astype(jnp.float32), rounded), text, *place
  )
  assert low.dtype == jnp.float32
  np.testing.assert_allclose(low, exact, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_the_cache_gives_what_the_whole_text_gives():
  model = transformer.language_model(CONFIG)
  extend = jax.jit(model.extend)
  token = draw_tokens(2, SIZE)
  cache = model.cache(2, 16)
  position = jnp.broadcast_to(jnp.arange(SIZE)[None], (2, SIZE))
  # Rows of 5 and 3 tokens, both padded to 5 by tokens of another text; what
  # follows is written over the padding.
  prompt = np.array(token[:, :5])
  prompt[1, 3:] = 39
  hidden, cache = extend(PARAMS, prompt, position[:, :5], cache)
  found = [[*hidden[0]], [*hidden[1, :3]]]
  for step in range(7):
    at = jnp.array([[5 + step], [3 + step]])
    hidden, cache = extend(
      PARAMS, jnp.take_along_axis(jnp.asarray(token), at, axis=1), at, cache
    )
    for row in range(2):
      found[row].append(hidden[row, 0])
  np.testing.assert_allclose(found[0], alone(token[0]), rtol=0, atol=1e-5)
  np.testing.assert_allclose(
    found[1], alone(token[1])[: len(found[1])], rtol=0, atol=1e-5
  )


def test_a_cache_beyond_the_context_is_refused():
  with pytest.raises(ValueError, match="up to 17 tokens.*context of 16"):
    transformer.language_model(CONFIG).cache(1, 17)


@pytest.mark.slow
def test_a_critic_starts_from_a_language_model_with_values_of_zero():
  critic = transformer.critic(CONFIG)
  params = transformer.critic_params(PARAMS)
  assert jax.tree.structure(params) == jax.tree.structure(
    jax.eval_shape(critic.init, jax.random.key(0))
  )
  text = draw_tokens(2, SIZE)
  position = jnp.broadcast_to(jnp.arange(SIZE)[None], text.shape)
  place = position, jnp.ones_like(position)
  np.testing.assert_array_equal(
    critic.apply(params, text, *place), np.zeros((2, SIZE))
  )
  # A value is the product of the hidden state and the last layer.
  moved = params | {"value": jnp.ones((1, 32))}
  hidden = encode()(PARAMS, text, *place)
  np.testing.assert_allclose(
    critic.apply(moved, text, *place), hidden.sum(axis=-1), rtol=1e-4, atol=1e-4
  )


def test_a_tied_head_is_the_embedding():
  found = variants.VARIANTS["qwen2_tied"]
  params = variants.params(found)
  assert "head" not in params
  tied = transformer.language_model(settings.to_config(found))
  assert tied.head(params) is params["embedding"]
  assert transformer.language_model(CONFIG).head(PARAMS) is PARAMS["head"]


def test_depth_does_not_grow_the_program():
  def num_equations(num_layers):
    model = transformer.language_model(
      dataclasses.replace(CONFIG, num_layers=num_layers)
    )
    params = jax.eval_shape(model.init, jax.random.key(0))
    tokens = jax.ShapeDtypeStruct((1, 4), jnp.int32)
    return str(jax.make_jaxpr(model.apply)(params, *[tokens] * 3)).count("\n")

  assert num_equations(2) == num_equations(20)


@pytest.mark.parametrize(
  ("change", "words"),
  [
    (dict(num_layers=0), "num_layers is 0"),
    (dict(num_kv_heads=3), "give a divisor"),
    (dict(head_size=7), "even size"),
  ],
)
def test_impossible_sizes_are_refused(change, words):
  with pytest.raises(ValueError, match=words):
    dataclasses.replace(CONFIG, **change)


def test_tokens_of_another_shape_or_type_are_refused():
  model = transformer.language_model(CONFIG)
  token, place = jnp.zeros((1, 4), int), jnp.zeros((1, 4), int)
  with pytest.raises(AssertionError):
    model.apply(PARAMS, token[0], place, place)
  with pytest.raises(AssertionError):
    model.apply(PARAMS, token, place[:, :3], place)
  with pytest.raises(AssertionError):
    model.apply(PARAMS, token, place, place.astype(jnp.float32))
