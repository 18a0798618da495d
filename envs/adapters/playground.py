"""MuJoCo Playground's tasks over this project's physics.

`playground:CheetahRun` is Playground's own code for how an episode begins and
for observation, reward and termination, unchanged. What moves the bodies is
`envs.physics`, so that one name runs on MuJoCo's C engine, on MJX and on
MJX-Warp. On a CPU, C compiles in seconds where MJX takes a minute and more, and
runs more steps per CPU second where there are contacts (2026-11-30, 256
simulations, ratio C to MJX: CheetahRun 4.5, WalkerWalk 2.7, ReacherEasy 0.7).

How: a Playground task reaches physics through three functions only,
`mjx_env.make_data`, `mjx.forward` and `mjx_env.step`. Its `reset` and `step`
are copied with these names bound to ours, and read a `_Data` where they would
read an `mjx.Data`. Playground's modules stay as they are: whoever uses them in
the same process sees no change. A task that needs something else of MJX is
refused by name when it is made, never run wrongly.

Left out are Playground's wrappers (`envs.autoreset` has that part) and its
domain randomisers. What differs from running Playground by itself: the values
of `naconmax` and `njmax` in its configs, which size MJX-Warp's buffers, are not
used, and after a reset the solver starts cold.

Source: MuJoCo Playground, https://playground.mujoco.org (version 0.2.0).
"""

from __future__ import annotations

import difflib
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import chex
import jax
import jax.numpy as jnp
import mujoco

from envs import physics as physics_lib
from envs import rendering
from envs import state as state_lib
from envs.adapters import foreign
from envs.physics import fields as fields_lib

_INPUTS = ("qpos", "qvel", "mocap_pos", "mocap_quat")
_MATRICES = ("cam_xmat", "geom_xmat", "site_xmat", "ximat", "xmat")


def make(
  name: str,
  *,
  physics: str = "auto",
  config: Mapping[str, Any] | None = None,
  randomise: bool = False,
  num_threads: int = 0,
) -> state_lib.Env:
  """Returns Playground's environment `name`.

  An observation with entries "state" and "privileged_state" is given the names
  "policy" and "critic". A terminated state is one that Playground calls done.

  Args:
    name: as Playground knows it, such as "CheetahRun".
    physics: "auto", "mujoco", "mjx" or "warp".
    config: values that replace some of Playground's default config, by name
      ("ctrl_dt"), dotted where the config is nested ("reward_config.scale").
    randomise: refused: Playground randomises MJX models, not ours.
    num_threads: of the mujoco backend; 0 takes all cores.

  Raises:
    ValueError: for a name or a config entry that Playground does not have, for
      a task whose robot it would download or that needs what `envs.physics`
      does not give, or for `randomise`.
    MissingExtraError: if Playground is not installed.
  """
  mjx_env = foreign.require(
    "mujoco_playground._src.mjx_env", extra="playground"
  )
  registry = foreign.require(
    "mujoco_playground._src.registry", extra="playground"
  )
  if randomise:
    raise ValueError(
      f"playground:{name} has no domain randomisation here; leave randomise "
      "out."
    )
  _check_name(name, registry, mjx_env)
  task = _load(name, registry, config)
  _check_model(name, task.mj_model)
  # What the task reads and how long it steps is found by tracing it once over
  # all there is; nothing runs.
  probe = _Substitute(
    name, task.mj_model, backend="mujoco", fields=fields_lib.ALLOWED
  )
  _trace(_env(name, task, mjx_env, probe), action_size=task.action_size)
  substitute = _Substitute(
    name,
    task.mj_model,
    backend=physics_lib.choose(physics),
    fields=sorted(probe.fields_read),
    num_threads=num_threads,
  )
  for num_substeps in sorted(probe.num_substeps_used):
    substitute.physics(num_substeps)
  return _env(name, task, mjx_env, substitute)


def _check_name(name: str, registry: Any, mjx_env: Any) -> None:
  suite = registry.dm_control_suite.ALL_ENVS
  if name in suite:
    return
  if name not in registry.ALL_ENVS:
    near = difflib.get_close_matches(name, registry.ALL_ENVS, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ValueError(
      f"MuJoCo Playground has no environment {name!r}.{hint} Its dm_control "
      f"suite has {', '.join(suite)}; its other suites need robot meshes that "
      "it downloads."
    )
  if not mjx_env.MENAGERIE_PATH.exists():
    raise ValueError(
      f"playground:{name} needs the robot meshes of mujoco_menagerie, which "
      "are not installed, and which Playground would clone from GitHub. An "
      "environment here never downloads. Put a checkout of that repository, "
      f"commit {mjx_env.MENAGERIE_COMMIT_SHA}, at {mjx_env.MENAGERIE_PATH} and "
      f"try again, or choose from the dm_control suite: {', '.join(suite)}."
    )


def _load(name: str, registry: Any, config: Mapping[str, Any] | None) -> Any:
  """Returns Playground's environment object, its config overridden."""
  overrides = {"impl": "jax", **(config or {})}
  known = registry.get_default_config(name)
  for key in overrides:
    if key not in known and key.partition(".")[0] not in known:
      raise ValueError(
        f"playground:{name} has no config entry {key!r}; it has "
        f"{', '.join(sorted(known))}."
      )
  return registry.load(name, config_overrides=overrides)


def _check_model(name: str, mj_model: mujoco.MjModel) -> None:
  if mj_model.na:
    raise ValueError(
      f"playground:{name} has {mj_model.na} actuators with internal state, "
      "which envs.physics cannot set at a reset."
    )


def _env(
  name: str, task: Any, mjx_env: Any, substitute: _Substitute
) -> state_lib.Env:
  """Returns the Env of `task` with `substitute` in the place of MJX."""
  reset_fn = substitute.bind(task.reset)
  step_fn = substitute.bind(task.step)

  def reset(key: chex.PRNGKey) -> state_lib.State:
    with foreign.promotion():
      first = reset_fn(key)
    return state_lib.initial_state(
      foreign.observation(first.obs),
      physics=substitute.settle(first.data),
      metrics=first.metrics,
      info=first.info,
    )

  def step(state: state_lib.State, action: jax.Array) -> state_lib.State:
    chex.assert_shape(action, (task.action_size,))
    chex.assert_type(action, jnp.float32)
    # Playground's tasks write into these dicts: they get copies.
    own = mjx_env.State(
      data=_Data(substitute, state.physics, {}),
      obs=state.obs,
      reward=state.reward,
      done=state.terminated.astype(jnp.float32),
      metrics=dict(state.metrics),
      info=jax.tree.map(lambda x: x, state.info),
    )
    with foreign.promotion():
      own = step_fn(own, action)
    return state_lib.next_state(
      state,
      foreign.observation(own.obs),
      reward=own.reward,
      terminated=own.done > 0.5,
      physics=substitute.settle(own.data),
      metrics={key: own.metrics[key] for key in state.metrics},
      info=own.info,
    )

  return state_lib.Env(
    name=f"playground:{name}",
    reset=reset,
    step=step,
    action=state_lib.Box(size=task.action_size),
    episode_length=int(task._config.episode_length),
    control_dt_s=float(task.dt),
    backend=substitute.backend,
    render=rendering.mujoco_render_fn(
      task.mj_model, mocap_fn=_mocap if task.mj_model.nmocap else None
    ),
  )


def _mocap(state: state_lib.State) -> tuple[jax.Array, jax.Array]:
  return state.physics.data["mocap_pos"], state.physics.data["mocap_quat"]


def _trace(env: state_lib.Env, *, action_size: int) -> None:
  state = jax.eval_shape(env.reset, jax.random.key(0))
  action = jax.ShapeDtypeStruct((action_size,), jnp.float32)
  jax.eval_shape(env.step, state, action)


class _Substitute:
  """`envs.physics` in the place of MJX, for one task.

  Attributes:
    name: the task's.
    backend: "mujoco", "mjx" or "warp".
    fields_read: the mjData fields that the task has read while being traced.
    num_substeps_used: likewise, the numbers of substeps it has stepped by.
  """

  def __init__(
    self,
    name: str,
    mj_model: mujoco.MjModel,
    *,
    backend: str,
    fields: Sequence[str],
    num_threads: int = 0,
  ):
    self.name = name
    self.backend = backend
    self.fields_read = set(_INPUTS[2:]) if mj_model.nmocap else set()
    self.num_substeps_used = {1}
    self._mj_model = mj_model
    self._fields = tuple(fields)
    self._num_threads = num_threads
    self._physics: dict[int, physics_lib.Physics] = {}

  def physics(self, num_substeps: int) -> physics_lib.Physics:
    """Returns the physics that steps by `num_substeps`."""
    self.num_substeps_used.add(num_substeps)
    if num_substeps not in self._physics:
      self._physics[num_substeps] = physics_lib.make(
        self._mj_model,
        backend=self.backend,
        num_substeps=num_substeps,
        fields=self._fields,
        num_threads=self._num_threads,
      )
    return self._physics[num_substeps]

  def bind(self, method: types.MethodType) -> Callable[..., Any]:
    """Returns `method` with what it calls of MJX bound to this."""
    function = method.__func__
    theirs = vars(function.__globals__["mjx_env"])
    names = {
      "mjx": _Mjx(self),
      "mjx_env": types.SimpleNamespace(
        **theirs | {"make_data": self.make_data, "step": self.step}
      ),
    }
    copy = types.FunctionType(
      function.__code__,
      {**function.__globals__, **names},
      function.__name__,
      function.__defaults__,
      function.__closure__,
    )
    return types.MethodType(copy, method.__self__)

  def make_data(self, mj_model: mujoco.MjModel, **values: Any) -> _Data:
    """Stands for `mjx_env.make_data`; values that size buffers are unused."""
    given = {k: v for k, v in values.items() if k in _INPUTS and v is not None}
    given.setdefault("qpos", jnp.asarray(mj_model.qpos0, jnp.float32))
    return _Data(self, None, given)

  def forward(self, unused_mjx_model: Any, data: _Data) -> _Data:
    """Stands for `mjx.forward`."""
    return _Data(self, self._computed(data), {})

  def step(
    self,
    unused_mjx_model: Any,
    data: _Data,
    action: jax.Array,
    n_substeps: int = 1,
  ) -> _Data:
    """Stands for `mjx_env.step`."""
    ctrl = jnp.asarray(action, jnp.float32)
    stepped = self.physics(n_substeps).step(self.settle(data), ctrl)
    return _Data(self, stepped, {})

  def settle(self, data: _Data) -> physics_lib.PhysicsState:
    """Returns the simulation of which `data` is a view, with its changes."""
    if data.simulation is None or data.changes:
      return self._computed(data)
    return data.simulation

  def _computed(self, data: _Data) -> physics_lib.PhysicsState:
    given = {}
    for name in _INPUTS:
      if name in data.changes:
        given[name] = jnp.asarray(data.changes[name], jnp.float32)
      elif data.simulation is not None and name in data.simulation.data:
        given[name] = data.simulation.data[name]
    return self.physics(1).reset(given.pop("qpos"), **given)


class _Mjx:
  """Stands for the module `mjx` in a task's `reset` and `step`."""

  def __init__(self, substitute: _Substitute):
    self.forward = substitute.forward
    self._name = substitute.name

  def __getattr__(self, function: str) -> Any:
    raise _unsupported(self._name, f"calls mjx.{function}")


class _Data:
  """What a task sees in place of an `mjx.Data`.

  Attributes:
    simulation: where the values come from; None before the first `forward`.
    changes: inputs that were replaced since.
  """

  def __init__(
    self,
    substitute: _Substitute,
    simulation: physics_lib.PhysicsState | None,
    changes: Mapping[str, Any],
  ):
    self.simulation = simulation
    self.changes = dict(changes)
    self._substitute = substitute

  def replace(self, **changes: Any) -> _Data:
    """Returns a copy with other inputs; derived fields stay, as in MJX."""
    for name, value in changes.items():
      if name == "time" and isinstance(value, float) and value == 0.0:
        continue  # a reset starts the clock
      if name not in _INPUTS:
        raise _unsupported(self._substitute.name, f"sets mjx.Data.{name}")
    inputs = {k: v for k, v in changes.items() if k in _INPUTS}
    return _Data(self._substitute, self.simulation, self.changes | inputs)

  def __getattr__(self, name: str) -> jax.Array:
    if name in self.changes:
      return self.changes[name]
    if self.simulation is None or name not in self.simulation.data:
      raise _unsupported(self._substitute.name, f"reads mjx.Data.{name}")
    self._substitute.fields_read.add(name)
    value = self.simulation.data[name]
    return value.reshape(-1, 3, 3) if name in _MATRICES else value


def _unsupported(name: str, what: str) -> ValueError:
  return ValueError(
    f"playground:{name} {what}, which envs.physics does not have; it cannot "
    "run here. Wrap it in an environment file of your own, on MJX."
  )
