"""The leaves of a state by name, and how two states' leaves differ."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_NUM_SHOWN = 12


def name_leaves(tree: Any) -> dict[str, Any]:
  """Returns the leaves of `tree` by path, like "learner/params/w".

  Raises:
    ValueError: two paths are the same, or a leaf is no array and no number.
  """
  leaves, _ = jax.tree.flatten_with_path(tree)
  named = {
    jax.tree_util.keystr(path, simple=True, separator="/") or "state": leaf
    for path, leaf in leaves
  }
  if len(named) != len(leaves):
    raise ValueError(
      "Two leaves of the state have the same path, like the keys 1 and '1' of"
      " one dict. Rename one."
    )
  for name, leaf in named.items():
    if not hasattr(leaf, "dtype") and not isinstance(leaf, bool | int | float):
      raise ValueError(
        f"{name} is of type {type(leaf).__name__}. A state's leaves are arrays"
        " and numbers: keep everything else in the metadata."
      )
  return named


def describe(leaf: Any) -> str:
  """Returns a leaf's dtype and shape, for instance "float32[8,3]"."""
  if not hasattr(leaf, "dtype"):
    return type(leaf).__name__
  return f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"


def to_storable(leaf: Any) -> jax.Array | np.ndarray:
  """Returns a leaf as an array."""
  return leaf if isinstance(leaf, jax.Array) else np.asarray(leaf)


def to_target(leaf: Any) -> jax.ShapeDtypeStruct | np.ndarray:
  """Returns what tells orbax a leaf's shape, dtype and devices."""
  if not isinstance(leaf, jax.Array | jax.ShapeDtypeStruct):
    return np.asarray(leaf)
  return jax.ShapeDtypeStruct(
    leaf.shape, leaf.dtype, sharding=_find_sharding(leaf)
  )


def from_stored(value: Any, like: Any) -> Any:
  """Returns a restored array as the kind of leaf that `like` is."""
  if isinstance(like, jax.Array | jax.ShapeDtypeStruct | np.ndarray):
    return value
  return type(like)(value)


def make_empty(like: Any) -> Any:
  """Returns the leaf of size 0 that `like` describes."""
  if isinstance(like, jax.ShapeDtypeStruct):
    return jnp.empty(like.shape, like.dtype, device=_find_sharding(like))
  return like


def find_differences(
  theirs: Mapping[str, Any], ours: Mapping[str, Any]
) -> list[str]:
  """Returns a line for each name whose values differ, the first dozen."""
  absent = "none"
  lines = [
    f"  {name}: checkpoint {theirs.get(name, absent)},"
    f" this run {ours.get(name, absent)}"
    for name in sorted(set(theirs) | set(ours))
    if name not in ours or name not in theirs or theirs[name] != ours[name]
  ]
  if len(lines) > _NUM_SHOWN:
    lines[_NUM_SHOWN:] = [f"  and {len(lines) - _NUM_SHOWN} more"]
  return lines


def flatten_settings(metadata: Mapping[str, Any]) -> dict[str, Any]:
  """Returns nested metadata as {"config.num_envs": 1024}, as JSON has it."""
  flat: dict[str, Any] = {}
  for name, value in json.loads(json.dumps(metadata)).items():
    if isinstance(value, dict):
      flat |= {f"{name}.{k}": v for k, v in flatten_settings(value).items()}
    else:
      flat[name] = value
  return flat


def _find_sharding(
  leaf: jax.Array | jax.ShapeDtypeStruct,
) -> jax.sharding.Sharding:
  if leaf.sharding is not None:
    return leaf.sharding
  return jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
