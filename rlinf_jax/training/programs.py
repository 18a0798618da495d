"""The compiled programs of a run, and what they need of memory."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rlinf_jax import flow, runtime
from rlinf_jax.algorithms import evaluation, ppo
from rlinf_jax.reporting import memory, progress
from rlinf_jax.runtime import meshes
from rlinf_jax.training import plans

DEFAULT_MAX_STEPS = 1000


class Programs(NamedTuple):
  """What a run executes, compiled, and what the state looks like.

  Attributes:
    init: () -> TrainState.
    iterate: (TrainState, steps of each iteration) -> an iterator over
      (TrainState, metrics), one for each; the state is donated.
    state: the state's shapes, dtypes and shardings, to restore onto.
    estimates: what each program needs of memory.
    flow: the iteration under a plan, where it runs under one.
  """

  init: Callable[[], ppo.TrainState]
  iterate: Callable[[ppo.TrainState, Iterable[int]], Generator[Any, None, None]]
  state: Any
  estimates: list[memory.Estimate]
  flow: runtime.M2Flow | None = None


class Evaluation(NamedTuple):
  """How a policy is judged, jitted.

  Attributes:
    evaluate: (Actor, key) -> `evaluation.Episodes`, leaves [N], or [seeds, N].
    record: (Actor, key) -> (states, length) of one episode of one seed.
    max_steps: at which an episode is cut off.
  """

  evaluate: Callable[..., evaluation.Episodes]
  record: Callable[..., Any]
  max_steps: int


def compile_programs(
  algorithm: ppo.Ppo,
  *,
  num_steps: int,
  seed: int,
  num_seeds: int,
  mesh: jax.sharding.Mesh | None,
  display: progress.Progress,
  transform: Callable[..., runtime.M2Flow] | None = None,
) -> Programs:
  """Returns the programs of a run; runs nothing.

  Args:
    algorithm: from `ppo.make`.
    num_steps: environment steps still to be run, of each seed.
    seed: the first seed.
    num_seeds: policies trained at once, by `vmap`, with seeds from `seed` on.
    mesh: devices to divide the environments over; None is the first device.
    display: where phases are named and timed.
    transform: puts an iteration under a plan, in place of one program.
  """
  config = algorithm.config

  def init() -> ppo.TrainState:
    keys = [jax.random.key(seed + i) for i in range(num_seeds)]
    if num_seeds == 1:
      return algorithm.init(keys[0])
    return jax.vmap(algorithm.init)(jnp.stack(keys))

  abstract = jax.eval_shape(init)
  shardings = None
  if mesh is not None:
    shardings = _shardings(abstract, mesh, axis=min(num_seeds - 1, 1))
    abstract = jax.tree.map(
      lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
      abstract,
      shardings,
    )

  def compile_iteration(num_rows: int) -> jax.stages.Compiled:
    iteration = functools.partial(_iteration, algorithm, num_rows)
    if num_seeds > 1:
      iteration = jax.vmap(iteration, in_axes=(0, None))
    program = flow.fuse(iteration, mesh=mesh, donate=(0,))
    return program.lower(abstract, jax.ShapeDtypeStruct((), "int32")).compile()

  with display.phase("compile initial state"):
    compiled_init = jax.jit(init, out_shardings=shardings).lower().compile()
  estimates = [memory.estimate(compiled_init, name="making the initial state")]
  planned, whole = None, None
  if transform is not None:
    iteration = functools.partial(_iteration, algorithm, config.unroll_length)
    if num_seeds > 1:
      iteration = jax.vmap(iteration, in_axes=(0, None))
    planned = plans.put(iteration, transform, display)
    with display.phase("trace, measure and plan"):
      planned.prepare(compiled_init(), np.int32(_whole(config)))
  else:
    with display.phase("compile iteration"):
      whole = compile_iteration(config.unroll_length)
    estimates.append(memory.estimate(whole, name="an iteration"))
  left_over = num_steps % _whole(config)
  is_in_jit = algorithm.simulate_on == "mesh"
  last = None
  if left_over and is_in_jit:
    with display.phase("compile last iteration"):
      last = compile_iteration(-(-left_over // config.num_envs))

  def iterate(
    state: ppo.TrainState, counts: Iterable[int]
  ) -> Generator[Any, None, None]:
    counts = list(counts)
    # Without a program of its own the last iteration is a whole one, which
    # learns from as many steps as are left.
    num_whole = sum(n == _whole(config) or not is_in_jit for n in counts)
    if planned is not None:
      inputs = [(np.int32(n),) for n in counts[:num_whole]]
      for out in planned.iterate(state, inputs):
        state = out[0]
        yield out
      if mesh is None:
        state = jax.device_put(state, jax.devices()[0])
    elif whole is not None:
      for n in counts[:num_whole]:
        state, row = whole(state, np.int32(n))
        yield state, row
    for n in counts[num_whole:]:
      assert last is not None
      state, row = last(state, np.int32(n))
      yield state, row

  return Programs(compiled_init, iterate, abstract, estimates, planned)


def _whole(config: ppo.Config) -> int:
  """Returns the steps of an iteration."""
  return config.num_envs * config.unroll_length


def make_evaluation(
  algorithm: ppo.Ppo,
  env: Any,
  carry: Any,
  *,
  num_episodes: int,
  num_seeds: int,
  max_steps: int | None = None,
) -> Evaluation:
  """Returns jitted programs that judge the policy's mode.

  Args:
    algorithm: whose `act_best` is judged.
    env: the environment, without auto-reset.
    carry: the policy's memory before the first step.
    num_episodes: per seed.
    num_seeds: leading axis of the actor, where above 1.
    max_steps: per episode; the environment's time limit by default.
  """
  max_steps = max_steps or env.episode_length or DEFAULT_MAX_STEPS

  def evaluate(actor: ppo.Actor, key: Any) -> evaluation.Episodes:
    act = functools.partial(algorithm.act_best, actor)
    return evaluation.evaluate(
      env, act, carry, key, num_episodes=num_episodes, max_steps=max_steps
    )

  def record(actor: ppo.Actor, key: Any) -> Any:
    act = functools.partial(algorithm.act_best, actor)
    return evaluation.record(env, act, carry, key, num_steps=max_steps)

  if num_seeds > 1:
    evaluate = jax.vmap(evaluate, in_axes=(0, None))
  return Evaluation(jax.jit(evaluate), jax.jit(record), max_steps)


def _iteration(
  algorithm: ppo.Ppo, num_rows: int, state: ppo.TrainState, num_steps: jax.Array
) -> Any:
  return algorithm.iteration(state, num_rows, num_steps)


def _shardings(
  state: ppo.TrainState, mesh: jax.sharding.Mesh, *, axis: int
) -> ppo.TrainState:
  whole = meshes.replicate(state, mesh)
  return whole.replace(
    sim=meshes.split(state.sim, mesh, axis=axis),
    carry=meshes.split(state.carry, mesh, axis=axis),
  )
