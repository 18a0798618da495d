"""Gymnasium's environments: simulators whose state stays on the host.

`gymnasium:HalfCheetah-v5` and `gymnasium:CartPole-v1` are what
`gymnasium.make` returns, and so is `gymnasium:my_package:MyEnv-v0`, for which
gymnasium imports `my_package` first. Robot benchmarks that are Python programs
(LIBERO, robosuite, Meta-World) come in the same way.

An `Env` is a pair of functions, and a gymnasium environment is an object with a
state that cannot be copied out. What makes it a function all the same is in
`envs.adapters.host`: a `State` carries a handle, the episode's seed and a
digest of its actions, and a whole batch of handles and actions goes to the host
in one callback. It follows that
  * `reset` only draws a seed and asks some simulator for the first observation;
    rows that start from the same reset state (a pool's) have simulators of
    their own from their first step on, and each such start resets once more;
  * under `vmap` over rows, over seeds, or both, the batch is one flat list; a
    row is found by its handle, not by its place in that list;
  * a state can be stepped once. Stepping it again with the same action gives
    the same result; with another one, or in another process, it raises. Hence
    `is_resumable` is False: a resumed run has to reset;
  * an episode that is over stays so: further steps give the same observation
    and no reward.

`terminated` and `truncated` are gymnasium's, so that there is no
`episode_length`. An observation from a Box is as it is, in float32 (images keep
0 to 255); from any other space it is flattened, one-hot for Discrete. Where
infos have "success" or "is_success", that is the metric "success".
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from envs import rendering
from envs import state as state_lib
from envs.adapters import foreign

_PLATFORMS = ("egl", "osmesa")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Config:
  """How to make and run the environment.

  Attributes:
    arguments: keyword arguments of `gymnasium.make`.
    num_processes: run the simulators in that many processes; 0 runs them in
      threads of this one, which is as fast where a step is mostly C (MuJoCo's)
      and on few cores.
    max_simulators: how many episodes can be open at once, unless a single call
      steps more; each has a simulator, with the memory that takes.
  """

  arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  num_processes: int = 0
  max_simulators: int = 1024


@struct.dataclass
class Episode:
  """A handle to an episode on the host."""

  seed: jax.Array  # [] uint32
  num_steps: jax.Array  # [] int32
  digest: jax.Array  # [] uint32, of the actions so far
  is_over: jax.Array  # [] bool
  action: jax.Array  # the last one; zeros before the first


def make(
  name: str,
  *,
  physics: str = "auto",
  config: Config | None = None,
  randomise: bool = False,
  num_threads: int = 0,
) -> state_lib.Env:
  """Returns gymnasium's environment `name`.

  Actions of a Box space are rescaled from [-1, 1] to its limits.

  Args:
    name: as gymnasium knows it, such as "HalfCheetah-v5".
    physics: "auto": the environment has its own.
    config: see `Config`.
    randomise: refused: gymnasium has no domain randomisation.
    num_threads: that run simulators; 0 takes all cores. Results do not depend
      on it.

  Raises:
    ValueError: for a name that gymnasium does not have, a physics, a
      `randomise`, or an action or observation space that cannot be had here.
    MissingExtraError: if gymnasium, or a package that the environment needs,
      is not installed.
  """
  gymnasium = foreign.require("gymnasium", extra="gymnasium")
  # Imported when needed: this module needs gymnasium when it is imported.
  from envs.adapters import host as host_lib
  from envs.adapters import simulators

  if physics != "auto" or randomise:
    raise ValueError(
      f"gymnasium:{name} brings its own physics and no domain randomisation; "
      f"leave out physics={physics!r} and randomise={randomise}."
    )
  config = config or Config()
  worker_fn: Callable[[], Any] = lambda: simulators.Simulators(
    name, config.arguments
  )
  num_workers = num_threads or os.cpu_count() or 1
  if config.num_processes:
    worker_fn = lambda: simulators.Child(name, config.arguments)
    num_workers = config.num_processes
  workers = [worker_fn() for _ in range(num_workers)]
  try:
    host = host_lib.Host(workers, max_simulators=config.max_simulators)
  except gymnasium.error.UnregisteredEnv as error:
    raise ValueError(f"gymnasium:{name}: {error}") from error
  except gymnasium.error.DependencyNotInstalled as error:
    raise foreign.MissingExtraError(f"gymnasium:{name}: {error}") from error
  return state_lib.Env(
    name=f"gymnasium:{name}",
    reset=_reset_fn(host),
    step=_step_fn(host),
    action=_action_spec(name, host.summary.action_space),
    episode_length=None,
    control_dt_s=host.summary.control_dt_s,
    backend="gymnasium",
    success_metric="success" if host.summary.has_success else None,
    render=_render_fn(name, config.arguments),
    is_resumable=False,
  )


def _reset_fn(host: Any) -> state_lib.ResetFn:
  obs_shape = jax.ShapeDtypeStruct(host.summary.obs_shape, jnp.float32)
  action = _no_action(host.summary.action_space)

  def call(seed: jax.Array) -> np.ndarray:
    obs_b = host.reset([int(s) for s in np.ravel(seed)])
    return obs_b.reshape((*seed.shape, *obs_shape.shape))

  def reset(key: chex.PRNGKey) -> state_lib.State:
    # 31 bits: some simulators take no larger seeds.
    seed = jax.random.bits(key, (), jnp.uint32) >> jnp.uint32(1)
    obs = jax.pure_callback(call, obs_shape, seed, vmap_method="broadcast_all")
    episode = Episode(
      seed=seed,
      num_steps=jnp.zeros((), jnp.int32),
      digest=jnp.zeros((), jnp.uint32),
      is_over=jnp.zeros((), bool),
      action=jnp.asarray(action),
    )
    metrics = {"success": 0.0} if host.summary.has_success else {}
    return state_lib.initial_state(obs, physics=episode, metrics=metrics)

  return reset


def _step_fn(host: Any) -> state_lib.StepFn:
  template = _no_action(host.summary.action_space)
  scalar = lambda dtype: jax.ShapeDtypeStruct((), dtype)
  shapes = (
    jax.ShapeDtypeStruct(host.summary.obs_shape, jnp.float32),
    scalar(jnp.float32),
    scalar(bool),
    scalar(bool),
    scalar(jnp.float32),
    scalar(jnp.uint32),
  )

  def call(episode: Episode, action: jax.Array) -> tuple[np.ndarray, ...]:
    lead = np.shape(episode.seed)
    handles = zip(
      *(
        np.ravel(x).tolist()
        for x in (episode.seed, episode.num_steps, episode.digest)
      )
    )
    histories = [
      None if is_over else handle
      for handle, is_over in zip(handles, np.ravel(episode.is_over))
    ]
    action_b = np.asarray(action).reshape((-1, *template.shape))
    results, digest_b = host.step(histories, action_b)
    return tuple(x.reshape((*lead, *x.shape[1:])) for x in (*results, digest_b))

  def step(state: state_lib.State, action: jax.Array) -> state_lib.State:
    chex.assert_shape(action, template.shape)
    chex.assert_type(action, template.dtype)
    episode = state.physics
    obs, reward, terminated, truncated, success, digest = jax.pure_callback(
      call, shapes, episode, action, vmap_method="broadcast_all"
    )
    was_over = episode.is_over
    terminated = jnp.where(was_over, state.terminated, terminated)
    truncated = jnp.where(was_over, state.truncated, truncated)
    kept = {
      k: jnp.where(was_over, v, success) for k, v in state.metrics.items()
    }
    return state_lib.next_state(
      state,
      jnp.where(was_over, state.obs, obs),
      reward=reward,
      terminated=terminated,
      truncated=truncated,
      physics=Episode(
        seed=episode.seed,
        num_steps=episode.num_steps + jnp.int32(1),
        digest=digest,
        is_over=was_over | terminated | truncated,
        action=action,
      ),
      metrics=kept,
    )

  return step


def _action_spec(name: str, space: Any) -> state_lib.ActionSpec:
  """Returns `space` as ours.

  Raises:
    ValueError: if it is neither Discrete nor a Box with limits.
  """
  import gymnasium

  if isinstance(space, gymnasium.spaces.Discrete):
    return state_lib.Discrete(num=int(space.n))
  if not isinstance(space, gymnasium.spaces.Box):
    raise ValueError(
      f"gymnasium:{name} has actions in {space}; a Box or Discrete space is "
      "needed. Wrap it in an environment that has one, register that with "
      "gymnasium, and give its name."
    )
  if not space.is_bounded():
    raise ValueError(
      f"gymnasium:{name} has actions in {space}, which has no limits to which "
      "actions in [-1, 1] could be rescaled. Wrap it in "
      "gymnasium.wrappers.ClipAction or an environment of yours."
    )
  return state_lib.Box(size=int(np.prod(space.shape)))


def _no_action(space: Any) -> np.ndarray:
  """Returns zeros of the type that `step` takes."""
  import gymnasium

  if isinstance(space, gymnasium.spaces.Discrete):
    return np.zeros((), np.int32)
  return np.zeros((int(np.prod(space.shape)),), np.float32)


def _render_fn(name: str, arguments: Mapping[str, Any]) -> state_lib.RenderFn:
  """Returns a function that draws an episode by living through it again."""

  def render(states: Sequence[state_lib.State]) -> np.ndarray:
    seed, actions = _replay(name, states)
    wish = os.environ.get("MUJOCO_GL", _PLATFORMS[0])
    reasons = []
    for platform in dict.fromkeys((wish, *_PLATFORMS)):
      try:
        return _frames(name, arguments, platform, seed, actions)
      except Exception as error:  # noqa: BLE001  a driver may raise anything
        reasons.append(f"MUJOCO_GL={platform}: {error}")
    raise rendering.RenderingUnavailableError(
      f"gymnasium:{name} could not be drawn. " + "; ".join(reasons)
    )

  return render


def _replay(
  name: str, states: Sequence[state_lib.State]
) -> tuple[int, list[np.ndarray | None]]:
  """Returns the seed of an episode, and the actions between its states.

  Raises:
    ValueError: unless the states are those of one episode, from its first.
  """
  episodes = [state.physics for state in states]
  steps = [int(e.num_steps) for e in episodes]
  seeds = {int(e.seed) for e in episodes}
  first = min(steps, default=0)
  expected = list(range(first, first + len(steps)))
  if len(seeds) != 1 or first > 1 or steps != expected:
    raise ValueError(
      f"gymnasium:{name} is drawn by replaying an episode, which takes all of "
      f"its states from the first on; got those after {steps} steps, of "
      f"{len(seeds)} episodes."
    )
  actions = [np.asarray(e.action) for e in episodes]
  return seeds.pop(), [a if n else None for n, a in zip(steps, actions)]


def _frames(
  name: str,
  arguments: Mapping[str, Any],
  platform: str,
  seed: int,
  actions: Sequence[np.ndarray | None],
) -> np.ndarray:
  """Returns the frames, drawn in a process with that GL platform."""
  from envs.adapters import simulators

  child = simulators.Child(
    name,
    {**arguments, "render_mode": "rgb_array"},
    variables={"MUJOCO_GL": platform, "SDL_VIDEODRIVER": "dummy"},
  )
  try:
    return child.frames(seed, actions)
  finally:
    child.close()
