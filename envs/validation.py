"""Checks that a user's environment keeps the promises of `Env` and `State`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from envs import state as state_lib

_SCALARS = {
  "reward": jnp.float32,
  "terminated": jnp.bool_,
  "truncated": jnp.bool_,
}


def check(env: Any, *, source: str) -> None:
  """Returns if `env` is a proper Env: traced, not run.

  Args:
    env: what should be an Env.
    source: begins every message, as in "The env of my_env.py".

  Raises:
    ValueError: at the first fault, with what was found and what was expected.
  """
  if not isinstance(env, state_lib.Env):
    raise ValueError(f"{source} must be an envs.Env, not {_kind(env)}.")
  _check_fields(env, source)
  before = jax.eval_shape(env.reset, jax.random.key(0))
  _check_state(env, before, f"{source}: reset")
  action = _action(env.action)
  after = jax.eval_shape(env.step, before, action)
  _check_state(env, after, f"{source}: step")
  _check_same(before, after, source)


def _check_fields(env: state_lib.Env, source: str) -> None:
  for field in ("reset", "step"):
    if not callable(getattr(env, field)):
      raise ValueError(
        f"{source}: {field} must be a function, not "
        f"{_kind(getattr(env, field))}."
      )
  if not isinstance(env.action, state_lib.Box | state_lib.Discrete):
    raise ValueError(
      f"{source}: action must be envs.Box(size=...) or envs.Discrete(num=...), "
      f"not {_kind(env.action)}."
    )
  if env.episode_length is not None and not env.episode_length >= 1:
    raise ValueError(
      f"{source}: episode_length must be at least 1 step, or None where step "
      f"sets `truncated` itself, not {env.episode_length}."
    )
  if not env.control_dt_s > 0:
    raise ValueError(
      f"{source}: control_dt_s must be positive seconds, not "
      f"{env.control_dt_s}."
    )


def _check_state(env: state_lib.Env, state: Any, source: str) -> None:
  if not isinstance(state, state_lib.State):
    raise ValueError(
      f"{source} must return an envs.State (see envs.initial_state and "
      f"envs.next_state), not {_kind(state)}."
    )
  for field, dtype in _SCALARS.items():
    value = getattr(state, field)
    if (value.shape, value.dtype) != ((), dtype):
      raise ValueError(
        f"{source} returns {field} as {_type(value)}; it must be "
        f"{jnp.dtype(dtype).name}[], of one simulation."
      )
  for path, leaf in jax.tree.leaves_with_path(state.obs):
    if leaf.dtype != jnp.float32:
      raise ValueError(
        f"{source} returns obs{jax.tree_util.keystr(path)} as {_type(leaf)}; "
        "observations are float32."
      )
  if isinstance(state.obs, dict) and "policy" not in state.obs:
    raise ValueError(
      f"{source} returns obs with entries {sorted(state.obs)}; a dict needs "
      "'policy', which is what the policy sees."
    )
  if env.success_metric not in (None, *state.metrics):
    raise ValueError(
      f"{source} returns metrics {sorted(state.metrics)} without the "
      f"success_metric {env.success_metric!r}."
    )


def _check_same(before: Any, after: Any, source: str) -> None:
  old, new = (
    {jax.tree_util.keystr(p): leaf for p, leaf in jax.tree.leaves_with_path(s)}
    for s in (before, after)
  )
  for path in sorted(old.keys() ^ new.keys()):
    maker, other = ("reset", "step") if path in old else ("step", "reset")
    raise ValueError(
      f"{source}: {maker} returns State{path} and {other} does not; both must "
      "return the same entries."
    )
  for path in old:
    if _type(old[path]) != _type(new[path]):
      raise ValueError(
        f"{source}: step turns State{path} from {_type(old[path])} into "
        f"{_type(new[path])}; its shape and dtype must stay. "
        "(envs.initial_state and envs.next_state strip weak types.)"
      )


def _action(spec: state_lib.ActionSpec) -> jax.ShapeDtypeStruct:
  if isinstance(spec, state_lib.Box):
    return jax.ShapeDtypeStruct((spec.size,), jnp.float32)
  return jax.ShapeDtypeStruct((), jnp.int32)


def _type(x: Any) -> str:
  weak = "weak " if getattr(x, "weak_type", False) else ""
  return f"{weak}{x.dtype}{list(x.shape)}"


def _kind(x: Any) -> str:
  """Returns a word or two for what `x` is, to stand in an error."""
  return f"the class {x.__name__}" if isinstance(x, type) else type(x).__name__
