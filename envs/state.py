"""What an environment is: a pair of pure functions over one `State`.

An `Env` is written for a single simulation; callers `vmap` it. Time limits,
episode statistics and auto-reset are not its business: `envs.autoreset` adds
them to any `Env`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

Obs = Any  # an array, or a dict of arrays


@struct.dataclass
class State:
  """One environment between two steps.

  `obs` is an array or a dict of arrays. A dict's entry `"policy"` is what the
  policy sees and `"critic"`, where present, what the value function sees.
  """

  obs: Obs  # float32, any shape
  reward: jax.Array  # [] float32
  terminated: jax.Array  # [] bool: the episode ended, its future is worth 0
  truncated: jax.Array  # [] bool: it was cut off, its future is worth V
  metrics: dict[str, jax.Array]  # [] float32 each
  final_obs: Obs  # `obs` as it was before an auto-reset replaced it
  physics: Any  # the task's simulator state
  info: dict[str, Any]  # whatever else the task carries


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Box:
  """Continuous actions: float32 [size], each in [-1, 1]."""

  size: int


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Discrete:
  """One of `num` actions: int32 []."""

  num: int


ActionSpec = Box | Discrete
ResetFn = Callable[[chex.PRNGKey], State]
StepFn = Callable[[State, jax.Array], State]
RenderFn = Callable[[Sequence[State]], np.ndarray]


class Env(NamedTuple):
  """A task: pure functions of one simulation, and what callers must know.

  Attributes:
    name: the name under which `envs.make` knows it.
    reset: key -> State; the key is consumed.
    step: (State, action) -> State. Never resets; sets `final_obs` to `obs`.
    action: `Box` or `Discrete`.
    episode_length: steps after which an episode is truncated, or None where
      the environment truncates by itself.
    control_dt_s: simulated seconds per step.
    backend: which physics runs it ("jax", "mujoco", "mjx", "warp", "brax",
      "gymnasium").
    success_metric: the key of `State.metrics` that is 1 when the task is
      solved, or None.
    render: states of one episode (numpy leaves) -> uint8 [N, height, width, 3]
      frames, or None.
    is_resumable: False where state hides outside `State` (a host env), so that
      a resumed run is not bitwise the interrupted one.
  """

  name: str
  reset: ResetFn
  step: StepFn
  action: ActionSpec
  episode_length: int | None
  control_dt_s: float
  backend: str
  success_metric: str | None = None
  render: RenderFn | None = None
  is_resumable: bool = True


def initial_state(
  obs: Obs,
  *,
  physics: Any,
  metrics: dict[str, Any] | None = None,
  info: dict[str, Any] | None = None,
) -> State:
  """Returns the State with which an episode begins: no reward, not ended.

  Args:
    obs: the first observation.
    physics: the task's simulator state.
    metrics: every metric that `step` will report, with its initial value.
    info: whatever else the task carries.
  """
  return strengthen(
    State(
      obs=obs,
      reward=jnp.zeros((), jnp.float32),
      terminated=jnp.zeros((), bool),
      truncated=jnp.zeros((), bool),
      metrics={
        k: jnp.asarray(v, jnp.float32) for k, v in (metrics or {}).items()
      },
      final_obs=obs,
      physics=physics,
      info=info or {},
    )
  )


def next_state(
  state: State,
  obs: Obs,
  *,
  reward: jax.Array,
  terminated: Any = False,
  truncated: Any = False,
  physics: Any,
  metrics: dict[str, Any] | None = None,
  info: dict[str, Any] | None = None,
) -> State:
  """Returns the State after a step, with the types of the one before it."""
  return strengthen(
    dataclasses.replace(
      state,
      obs=obs,
      reward=jnp.asarray(reward, jnp.float32),
      terminated=jnp.asarray(terminated, bool),
      truncated=jnp.asarray(truncated, bool),
      metrics={
        k: jnp.asarray(v, jnp.float32) for k, v in (metrics or {}).items()
      },
      final_obs=obs,
      physics=physics,
      info=state.info if info is None else info,
    )
  )


def strengthen(tree: Any) -> Any:
  """Returns `tree` without weak types, so that `step` compiles once."""
  return jax.tree.map(
    lambda x: (
      jax.lax.convert_element_type(x, jnp.asarray(x).dtype)
      if not jax.dtypes.issubdtype(jnp.asarray(x).dtype, jax.dtypes.prng_key)
      else x
    ),
    tree,
  )
