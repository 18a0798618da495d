"""How this project meets packages that it does without by default."""

from __future__ import annotations

import contextlib
import importlib
import types
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp


class MissingExtraError(ImportError):
  """A package is missing that an extra of this project installs."""


def require(module: str, *, extra: str) -> types.ModuleType:
  """Returns the module called `module`, imported.

  Args:
    module: a dotted name.
    extra: the extra of this project that installs it.

  Raises:
    MissingExtraError: if the package is not installed; it names the extra.
    ImportError: if it is there but cannot be imported, as its own code raised
      it.
  """
  try:
    return importlib.import_module(module)
  except ModuleNotFoundError as error:
    package = module.partition(".")[0]
    if error.name != package:
      raise
    raise MissingExtraError(
      f"The Python package {package!r} is not installed. Install this project "
      f"with its extra: pip install -e '.[{extra}]'",
      name=package,
    ) from error


@contextlib.contextmanager
def promotion() -> Iterator[None]:
  """Traces a package's code under JAX's own rules of promotion.

  Our code runs under stricter ones where a test or a user asks for them; code
  that was not written for those fails there.
  """
  with (
    jax.numpy_dtype_promotion("standard"),
    jax.numpy_rank_promotion("allow"),
  ):
    yield


def observation(obs: Any) -> Any:
  """Returns an observation of Playground or Brax in the form of ours.

  Args:
    obs: an array, or a dict with "state" for the policy and where there is one
      "privileged_state" for the critic.

  Returns:
    float32 arrays; a dict's entries are called "policy" and "critic".
  """
  names = {"state": "policy", "privileged_state": "critic"}
  if isinstance(obs, Mapping):
    obs = {names.get(key, key): value for key, value in obs.items()}
  return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), obs)
