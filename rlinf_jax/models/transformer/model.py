"""Language models and critics: a network of blocks as pure functions.

Parameters are nested dicts of arrays; those of the L blocks are stacked, and
one scan runs through them, so that a program's size does not grow with depth.

Letters: B rows, T tokens of a row, W width, V vocabulary, L layers, S slots.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
from flax import nnx

from rlinf_jax.models.transformer import attention, block, rope
from rlinf_jax.models.transformer import config as config_lib

Params = dict[str, Any]  # nested, of arrays
RematPolicy = Callable[..., bool]
GatherFn = Callable[[Any], Any]


class Transformer(NamedTuple):
  """A network as pure functions of its parameters.

  Positions count from 0 in each text. Segments number the texts that share a
  row, in any order; 0 is padding. A token sees those of its own segment at
  positions up to its own.

  Attributes:
    config: sizes and choices.
    init: key -> params float32; the key is consumed.
    apply: (params, token_bt, position_bt, segment_bt) -> outputs float32: of a
      language model logits [B, T, V], of a critic values [B, T].
    encode: as `apply`, but -> hidden [B, T, W] before the last layer, in the
      compute dtype. What a long text's log-probabilities are made from.
    head: params -> the last layer [V, W] (of a critic, [1, W]), gathered:
      what `token_statistics` asks for. A tied one is the embedding.
    read: (params, hidden [..., W]) -> outputs float32 [..., V] or [...].
    cache: (num_rows, num_slots) -> an empty cache. ValueError if a row is
      longer than the context.
    extend: (params, token_bt, position_bt, cache) -> (hidden [B, T, W], cache).
      Each row is one text; its tokens are written to the slots of their
      positions and see those up to their own. So a row of right padding
      does no harm, if what follows is written from the padding's place on.
  """

  config: config_lib.Config
  init: Callable[[chex.PRNGKey], Params]
  apply: Callable[[Params, jax.Array, jax.Array, jax.Array], jax.Array]
  encode: Callable[[Params, jax.Array, jax.Array, jax.Array], jax.Array]
  head: Callable[[Params], jax.Array]
  read: Callable[[Params, jax.Array], jax.Array]
  cache: Callable[[int, int], attention.Cache]
  extend: Callable[
    [Params, jax.Array, jax.Array, attention.Cache],
    tuple[jax.Array, attention.Cache],
  ]


def language_model(
  config: config_lib.Config,
  *,
  compute_dtype: jax.typing.DTypeLike = jnp.float32,
  remat_policy: RematPolicy | None = None,
  attention_block_size: int | None = None,
  gather_fn: GatherFn = lambda params: params,
) -> Transformer:
  """Returns the network whose outputs are logits of the next token.

  Its parameters are "embedding" [V, W], "blocks", "norm" and, unless tied,
  "head" [V, W].

  Args:
    config: sizes and choices.
    compute_dtype: float32 or bfloat16: of products and the residual stream.
      Softmaxes, normalisations and outputs are float32, and so may parameters
      be: each block's are cast as it is run.
    remat_policy: which intermediate results of a block the backward pass finds
      kept (of `jax.checkpoint_policies`); what is not kept is computed again.
      None keeps all.
    attention_block_size: queries attended to at once; None is all.
    gather_fn: applied to a block's (and any other) parameters, cast, just
      before their use; `shardings.gather_fn` makes one.
  """
  body = _body(
    config, compute_dtype, remat_policy, attention_block_size, gather_fn
  )

  def head(params):
    return gather_fn(params["embedding" if config.is_tied else "head"])

  def read(params, hidden):
    kernel = head(params).astype(hidden.dtype)
    return block.multiply(hidden, kernel, jnp.float32)

  sizes = {} if config.is_tied else {"head": config.vocabulary_size}
  return _assemble(config, body, sizes, head, read)


def critic(
  config: config_lib.Config,
  *,
  compute_dtype: jax.typing.DTypeLike = jnp.float32,
  remat_policy: RematPolicy | None = None,
  attention_block_size: int | None = None,
  gather_fn: GatherFn = lambda params: params,
) -> Transformer:
  """Returns the network whose output is one value per token.

  It is also what reward models are, which are read at a text's last token. Its
  parameters are a language model's with "value" [1, W] instead of "head".
  Arguments as those of `language_model`.
  """
  body = _body(
    config, compute_dtype, remat_policy, attention_block_size, gather_fn
  )

  def head(params):
    return gather_fn(params["value"])

  def read(params, hidden):
    # In float32: bfloat16 would round values to 1 part in 256.
    kernel = head(params).astype(jnp.float32)
    return block.multiply(hidden.astype(jnp.float32), kernel)[..., 0]

  return _assemble(config, body, {"value": 1}, head, read)


def critic_params(params: Params) -> Params:
  """Returns a critic's parameters that start from a language model's.

  All values are 0 at first, whatever the text.
  """
  body = {k: v for k, v in params.items() if k not in ("head", "value")}
  return {**body, "value": jnp.zeros((1, params["embedding"].shape[1]))}


class _Body(NamedTuple):
  """A network without its last layer."""

  encode: Callable[..., jax.Array]
  extend: Callable[..., Any]
  cache: Callable[..., attention.Cache]


def _body(config, compute_dtype, remat_policy, block_size, gather_fn):
  # Built once, without arrays; merging is done only while tracing.
  block_def = _graphdef(lambda: block.Block(config))
  norm_def = _graphdef(
    lambda: block.RmsNorm(config.width, epsilon=config.norm_epsilon)
  )

  def prepare(params):
    return gather_fn(jax.tree.map(lambda x: x.astype(compute_dtype), params))

  def embed(params, token_bt):
    return prepare(params["embedding"])[token_bt]

  def run_block(params, x, rotation, attend_fn):
    return nnx.merge(block_def, prepare(params))(x, rotation, attend_fn)

  def finish(params, x):
    return nnx.merge(norm_def, prepare(params["norm"]))(x)

  def encode(params, token_bt, position_bt, segment_bt):
    _check_tokens(token_bt, position_bt, segment_bt)
    place = attention.Place(position_bt, segment_bt)
    rotation = rope.rotation(
      config.rope, config.head_size, position_bt, _num_contexts(config, place)
    )

    def attend_fn(query, key, value):
      gathered = attention.attend(
        query, key, value, place, place, block_size=block_size
      )
      return gathered, None

    def step(x, block_params):
      return run_block(block_params, x, rotation, attend_fn)

    if remat_policy is not None:
      step = jax.checkpoint(step, policy=remat_policy, prevent_cse=False)
    x, _ = jax.lax.scan(step, embed(params, token_bt), params["blocks"])
    return finish(params, x)

  def extend(params, token_bt, position_bt, cache):
    _check_tokens(token_bt, position_bt)
    place = attention.Place(position_bt, jnp.zeros_like(position_bt))
    rotation = rope.rotation(config.rope, config.head_size, position_bt)

    def step(carry, inputs):
      x, cache = carry
      layer, block_params = inputs

      def attend_fn(query, key, value):
        written = attention.write(cache, layer, place, key, value)
        gathered = attention.attend_to_cache(
          query, written, layer, place, block_size=block_size
        )
        return gathered, written

      return run_block(block_params, x, rotation, attend_fn), None

    (x, cache), _ = jax.lax.scan(
      step,
      (embed(params, token_bt), cache),
      (jnp.arange(config.num_layers), params["blocks"]),
    )
    return finish(params, x), cache

  def cache(num_rows, num_slots):
    # `DynamicNtk` goes further, but turns the keys before a token anew.
    if num_slots > config.context_size:
      raise ValueError(
        f"Given texts of up to {num_slots} tokens, expected at most the"
        f" context of {config.context_size}. Shorten prompts or answers, or"
        " take a model with a longer context."
      )
    heads = (config.num_kv_heads, config.head_size)
    shape = (config.num_layers, num_rows, num_slots, *heads)
    empty = jnp.zeros(shape, compute_dtype)
    return attention.Cache(key=empty, value=empty)

  return _Body(encode, extend, cache)


def _assemble(config, body, head_sizes, head, read):
  def init(key):
    key, block_key = jax.random.split(key)
    sizes = {"embedding": config.vocabulary_size, **head_sizes}
    outer = {k: jnp.zeros((size, config.width)) for k, size in sizes.items()}
    norm = block.RmsNorm(config.width, epsilon=config.norm_epsilon)
    draw_block = lambda key: _draw(
      _to_dict(block.Block(config)), key, config.initial_std
    )
    return {
      **_draw(outer, key, config.initial_std),
      "norm": _to_dict(norm),
      "blocks": jax.lax.map(
        draw_block, jax.random.split(block_key, config.num_layers)
      ),
    }

  def apply(params, token_bt, position_bt, segment_bt):
    return read(params, body.encode(params, token_bt, position_bt, segment_bt))

  return Transformer(
    config=config,
    init=init,
    apply=apply,
    encode=body.encode,
    head=head,
    read=read,
    cache=body.cache,
    extend=body.extend,
  )


def _draw(params, key, std):
  """Returns params whose matrices come from one draw: see `initialisation`."""
  leaves, treedef = jax.tree.flatten(params)
  normal = std * jax.random.normal(
    key, (sum(x.size for x in leaves if x.ndim == 2),)
  )
  drawn, start = [], 0
  for x in leaves:
    if x.ndim == 2:
      x, start = normal[start : start + x.size].reshape(x.shape), start + x.size
    drawn.append(x)
  return jax.tree.unflatten(treedef, drawn)


def _to_dict(module):
  return nnx.to_pure_dict(nnx.state(module, nnx.Param))


def _graphdef(module_fn):
  return nnx.split(nnx.eval_shape(module_fn), nnx.Param)[0]


def _check_tokens(token_bt, *places):
  chex.assert_rank(token_bt, 2)
  chex.assert_equal_shape([token_bt, *places])
  chex.assert_type([token_bt, *places], int)


def _num_contexts(config, place):
  """Returns the length of each token's text in contexts, if it matters."""
  if not isinstance(config.rope.scaling, rope.DynamicNtk):
    return None
  position_bt, segment_bt = place
  is_same = segment_bt[:, :, None] == segment_bt[:, None]
  last_bt = jnp.max(jnp.where(is_same, position_bt[:, None], 0), axis=-1)
  return (last_bt + 1).astype(jnp.float32) / config.context_size
