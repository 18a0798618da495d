"""Brax's environments on Brax's own physics.

`brax:ant` is `brax.envs.get_environment("ant")` without Brax's wrappers: time
limits and auto-reset are those of `envs.autoreset`. The physics is one of
Brax's pipelines, chosen by `config={"backend": ...}`: "generalized" (Brax's
default), "positional", "spring" or "mjx". None of them is MuJoCo's C engine.

Source: Brax, https://github.com/google/brax (version 0.14.2). It was made for
older releases of JAX. Its PPO needs what JAX has since removed; of its
environments only `swimmer` does, which `_repaired` sees to.
"""

from __future__ import annotations

import difflib
import importlib.util
import types
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from envs import rendering
from envs import state as state_lib
from envs.adapters import foreign

_EPISODE_LENGTH = 1000  # steps: the default of brax.envs.create


def make(
  name: str,
  *,
  physics: str = "auto",
  config: Mapping[str, Any] | None = None,
  randomise: bool = False,
  num_threads: int = 0,
) -> state_lib.Env:
  """Returns Brax's environment `name`.

  A terminated state is one that Brax calls done. An episode is cut off after
  1000 steps, as by `brax.envs.create`.

  Args:
    name: as Brax knows it, such as "ant".
    physics: "auto" for Brax's choice, or "mjx" for its pipeline of that name.
    config: keyword arguments of the environment's constructor, such as
      {"backend": "positional", "ctrl_cost_weight": 0.1}.
    randomise: refused: Brax's environments have no domain randomisation.
    num_threads: unused: XLA runs this physics.

  Raises:
    ValueError: for a name, a physics or a config that Brax does not have.
    MissingExtraError: if Brax is not installed.
  """
  del num_threads
  brax_envs = foreign.require("brax.envs", extra="brax")
  if randomise:
    raise ValueError(
      f"brax:{name} has no domain randomisation; leave randomise out."
    )
  known = sorted(set(brax_envs._envs) - {"fast"})  # a stand-in of Brax's tests
  if name not in known:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ValueError(
      f"Brax has no environment {name!r}.{hint} It has {', '.join(known)}."
    )
  task = _load(name, brax_envs, _arguments(name, physics, config))

  def reset(key: chex.PRNGKey) -> state_lib.State:
    with foreign.promotion():
      first = task.reset(key)
    return state_lib.initial_state(
      foreign.observation(first.obs),
      physics=first.pipeline_state,
      metrics=first.metrics,
      info=first.info,
    )

  def step(state: state_lib.State, action: jax.Array) -> state_lib.State:
    chex.assert_shape(action, (task.action_size,))
    chex.assert_type(action, jnp.float32)
    # Brax's environments write into these dicts: they get copies.
    own = brax_envs.State(
      pipeline_state=state.physics,
      obs=state.obs,
      reward=state.reward,
      done=state.terminated.astype(jnp.float32),
      metrics=dict(state.metrics),
      info=jax.tree.map(lambda x: x, state.info),
    )
    with foreign.promotion():
      own = task.step(own, action)
    return state_lib.next_state(
      state,
      foreign.observation(own.obs),
      reward=own.reward,
      terminated=own.done > 0.5,
      physics=own.pipeline_state,
      metrics={key: own.metrics[key] for key in state.metrics},
      info=own.info,
    )

  def render(states: Sequence[state_lib.State]) -> np.ndarray:
    qpos_nq = np.stack([np.asarray(s.physics.q) for s in states])
    return rendering.mujoco_frames(task.sys.mj_model, qpos_nq)

  return state_lib.Env(
    name=f"brax:{name}",
    reset=reset,
    step=step,
    action=state_lib.Box(size=task.action_size),
    episode_length=_EPISODE_LENGTH,
    control_dt_s=float(task.dt),
    backend="brax",
    render=render,
  )


def _arguments(
  name: str, physics: str, config: Mapping[str, Any] | None
) -> dict[str, Any]:
  """Returns the keyword arguments of the environment's constructor."""
  arguments = dict(config or {})
  if physics not in ("auto", "mjx"):
    raise ValueError(
      f"brax:{name} runs on Brax's physics, not on {physics!r}. Leave physics "
      "out, or choose a pipeline by config={'backend': 'generalized'}, "
      "'positional', 'spring' or 'mjx'."
    )
  if physics == "mjx" and arguments.setdefault("backend", "mjx") != "mjx":
    raise ValueError(
      f"brax:{name} is asked for physics='mjx' and for the backend "
      f"{arguments['backend']!r}; give one of the two."
    )
  return arguments


def _load(name: str, brax_envs: Any, arguments: Mapping[str, Any]) -> Any:
  """Returns Brax's environment object."""
  with warnings.catch_warnings():
    # Brax announces at each load that it is no longer maintained.
    warnings.simplefilter("ignore", UserWarning)
    try:
      task = brax_envs.get_environment(name, **arguments)
    except (TypeError, ValueError) as error:
      raise ValueError(
        f"brax:{name} cannot be made with {dict(arguments)}: {error}"
      ) from error
  if task.backend == "generalized" and task.sys.enable_fluid:
    task._pipeline = _repaired()
  return task


def _repaired() -> types.ModuleType:
  """Returns a copy of Brax's generalized pipeline in which fluids work.

  `brax.fluid` calls `jnp.clip` with an argument that JAX no longer has. The
  copies are private to the environment: Brax's own modules stay as they are.
  """
  numpy = types.SimpleNamespace(**vars(jnp) | {"clip": _clip})
  fluid = _copy("brax.fluid", jp=numpy)
  dynamics = _copy("brax.generalized.dynamics", fluid=fluid)
  return _copy("brax.generalized.pipeline", dynamics=dynamics)


def _clip(x: jax.Array, a_min: float) -> jax.Array:
  return jnp.clip(x, min=a_min)


def _copy(name: str, **replaced: Any) -> types.ModuleType:
  """Returns a new copy of the module `name` in which names are replaced."""
  spec = importlib.util.find_spec(name)
  if spec is None or spec.loader is None:
    raise ImportError(f"{name} has no source to copy", name=name)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  vars(module).update(replaced)
  return module
