"""Which tensor of a checkpoint is which parameter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from rlinf_jax.models import transformer

Params = dict[str, Any]

# path of a parameter -> name of a tensor
_OUTER: dict[tuple[str, ...], str] = {
  ("embedding",): "model.embed_tokens.weight",
  ("norm", "scale"): "model.norm.weight",
  ("head",): "lm_head.weight",
  ("value",): "score.weight",
}
# The same inside a block, whose parameters are stacked and tensors are not.
_BLOCK: dict[tuple[str, ...], str] = {
  ("attention_norm", "scale"): "input_layernorm.weight",
  ("query", "kernel"): "self_attn.q_proj.weight",
  ("query", "bias"): "self_attn.q_proj.bias",
  ("key", "kernel"): "self_attn.k_proj.weight",
  ("key", "bias"): "self_attn.k_proj.bias",
  ("value", "kernel"): "self_attn.v_proj.weight",
  ("value", "bias"): "self_attn.v_proj.bias",
  ("output", "kernel"): "self_attn.o_proj.weight",
  ("mlp_norm", "scale"): "post_attention_layernorm.weight",
  ("gate", "kernel"): "mlp.gate_proj.weight",
  ("up", "kernel"): "mlp.up_proj.weight",
  ("down", "kernel"): "mlp.down_proj.weight",
}


def named_tensors(params: Params) -> Iterator[tuple[str, Any]]:
  """Yields each tensor of a checkpoint, block by block, with its name.

  Args:
    params: of a language model or critic, of jax or numpy. Of numpy, the
      tensors are views.
  """
  for name, path, layer in _places(params):
    leaf = _at(params, path)
    yield name, leaf if layer is None else leaf[layer]


def shapes(params: Params) -> dict[str, tuple[int, ...]]:
  """Returns the shape of each tensor that `named_tensors` would yield.

  Args:
    params: of anything with shapes.
  """
  found = {}
  for name, path, layer in _places(params):
    shape = tuple(_at(params, path).shape)
    found[name] = shape if layer is None else shape[1:]
  return found


def abstract_params(config: transformer.Config, *, is_critic: bool) -> Params:
  """Returns the shapes of a network's parameters, float32."""
  constructor = transformer.critic if is_critic else transformer.language_model
  return jax.eval_shape(constructor(config).init, jax.random.key(0))


def read_params(
  abstract: Params,
  read_fn: Callable[[str], np.ndarray],
  dtype: np.typing.DTypeLike | None,
) -> Params:
  """Returns parameters from tensors, each of which is read once.

  Args:
    abstract: `abstract_params` of the network.
    read_fn: from a tensor's name to the tensor.
    dtype: of the parameters; None is that of the first of the tensors that a
      parameter is stacked from.
  """
  found: Params = {}
  for name, path, layer in _places(abstract):
    tensor = read_fn(name)
    *parents, last = path
    node = found
    for parent in parents:
      node = node.setdefault(parent, {})
    if layer is None:
      node[last] = tensor.astype(dtype or tensor.dtype, copy=False)
      continue
    if layer == 0:
      shape = _at(abstract, path).shape
      node[last] = np.empty(shape, dtype or tensor.dtype)
    node[last][layer] = tensor
  return found


def _places(params):
  """Yields (name, path, layer or None), in the order of a forward pass."""
  is_there = lambda path: _at(params, path) is not None
  outer = {path: name for path, name in _OUTER.items() if is_there(path)}
  yield outer[("embedding",)], ("embedding",), None
  paths = [path for path in _BLOCK if is_there(("blocks", *path))]
  num_layers = params["blocks"]["attention_norm"]["scale"].shape[0]
  for layer in range(num_layers):
    for path in paths:
      name = f"model.layers.{layer}.{_BLOCK[path]}"
      yield name, ("blocks", *path), layer
  for path, name in outer.items():
    if path != ("embedding",):
      yield name, path, None


def _at(params, path):
  for key in path:
    params = params.get(key)
    if params is None:
      return None
  return params
