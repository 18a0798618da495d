"""Exports a policy as StableHLO, to be run without this project's code.

Two files: NAME.stablehlo, which `jax.export` wrote and any JAX of the next six
months reads, and NAME.json, which says what goes in and comes out.
"""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.export
import jax.numpy as jnp

PolicyFn = Callable[[Any], jax.Array]
Path = str | os.PathLike[str]


def save_policy(
  path: Path,
  policy_fn: PolicyFn,
  obs: Any,
  *,
  platforms: Sequence[str] = ("cpu", "cuda"),
) -> pathlib.Path:
  """Writes `policy_fn`, with the parameters it closes over; returns the path.

  Args:
    path: of the StableHLO file, with the suffix .stablehlo; the JSON file lies
      beside it.
    policy_fn: obs of one environment -> action. Parameters and the normaliser's
      statistics are inside.
    obs: one environment's observation, or its shapes: an array or a dict.
    platforms: on which the file is to run.

  Raises:
    ValueError: the suffix is another one.
  """
  path = _check_suffix(path)
  (batch_size,) = jax.export.symbolic_shape("B")
  obs_b = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct((batch_size, *x.shape), x.dtype), obs
  )
  program = jax.jit(jax.vmap(policy_fn))
  exported = jax.export.export(program, platforms=platforms)(obs_b)
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_bytes(exported.serialize())
  description = {
    "format": "jax.export StableHLO",
    "jax_version": jax.__version__,
    "calling_convention_version": exported.calling_convention_version,
    "platforms": list(exported.platforms),
    "observation": _describe(obs_b),
    "action": _describe(jax.eval_shape(program, obs_b)),
  }
  path.with_suffix(".json").write_text(json.dumps(description, indent=2) + "\n")
  return path


def load_policy(path: Path) -> PolicyFn:
  """Returns the exported function: obs [B, ...] -> action [B, ...], any B.

  Raises:
    ValueError: the suffix is another one, or the file is no exported policy.
    FileNotFoundError: there is no file.
  """
  path = _check_suffix(path)
  try:
    exported = jax.export.deserialize(bytearray(path.read_bytes()))
  except FileNotFoundError:
    raise
  except Exception as error:  # flatbuffers and MLIR raise what they like
    raise ValueError(f"{path} is no exported policy: {error}") from error
  return jax.jit(exported.call)


def _check_suffix(path: Path) -> pathlib.Path:
  path = pathlib.Path(path)
  if path.suffix != ".stablehlo":
    raise ValueError(f"An exported policy ends in .stablehlo, got {path}.")
  return path


def _describe(tree: Any) -> Any:
  """Returns for instance {"policy": {"shape": ["B", 3], "dtype": ...}}."""

  def describe(leaf: Any) -> dict[str, Any]:
    shape = [d if isinstance(d, int) else str(d) for d in leaf.shape]
    return {"shape": shape, "dtype": str(jnp.dtype(leaf.dtype))}

  return jax.tree.map(describe, tree)
