"""`rlinf_jax`: what `python -m experiments.embodied` runs, taken apart."""

from __future__ import annotations

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from mujoco import batch as mujoco_batch

import envs
from benchmarks import jobs, settings, timing
from envs.tasks import models as task_models
from experiments import recipes
from rlinf_jax import flow
from rlinf_jax.algorithms import ppo

TASK = "cheetah_run"


def speed(job: jobs.Job, setting: settings.Setting) -> dict[str, Any]:
  """Returns the rate of whole iterations, and of what they consist of.

  - "collecting": the program of an iteration without what learning makes. XLA
    removes what nobody asks for: advantages and updates are left out, acting,
    physics, auto-reset and the moments of observations stay.
  - "physics_only": a scan of `env.step` with random actions.
  - "engine": MuJoCo's batch by itself; C backend only.
  """
  env, _, algorithm = build(job, setting)
  num_rows = setting.steps_per_env
  num_steps = np.int32(setting.steps_per_iteration)
  start_s = time.perf_counter()
  iterate = compile_iteration(algorithm)
  compile_s = time.perf_counter() - start_s

  @jax.jit
  def collect(state: ppo.TrainState) -> Any:
    state, metrics = algorithm.iteration(state, num_rows, num_steps)
    return state.sim, state.carry, state.normaliser, metrics["return"]

  state = jax.jit(algorithm.init)(jax.random.key(0))
  snapshot = jax.tree.map(jnp.copy, state)  # `iterate` donates its own

  def one_iteration() -> None:
    nonlocal state
    state, metrics = iterate(state, num_steps)
    jax.block_until_ready(metrics)

  calls = {
    "iteration": one_iteration,
    "collecting": lambda: jax.block_until_ready(collect(snapshot)),
    "physics_only": _physics_only(env, setting),
  }
  if env.backend == "mujoco":
    calls["engine"] = _engine(setting)
  rates = timing.in_turn(
    calls, num_steps=setting.steps_per_iteration, min_seconds=job.seconds
  )
  return {
    **rates["iteration"].to_json(),
    "compile_s": compile_s,
    "physics": env.backend,
    "parts": {
      name: rate.to_json() for name, rate in rates.items() if name in calls
    },
  }


def learning(job: jobs.Job, setting: settings.Setting) -> dict[str, Any]:
  """Returns the learning curve of each seed."""
  env, judge, algorithm = build(job, setting)
  iterate = compile_iteration(algorithm)
  init = jax.jit(algorithm.init)
  num_steps = np.int32(setting.steps_per_iteration)
  per_point = job.iterations_per_point(setting.steps_per_iteration)
  curves = []
  for seed in range(job.num_seeds):
    state = jax.block_until_ready(init(jax.random.key(seed)))
    curve, seconds = [], 0.0
    for point in range(1, job.num_points + 1):
      start_s = time.perf_counter()
      for _ in range(per_point):
        state, metrics = iterate(state, num_steps)
        jax.block_until_ready(metrics)
      seconds += time.perf_counter() - start_s
      actor = ppo.Actor(state.learner.params, state.normaliser)
      returns = judge.evaluate(actor, jax.random.key(1)).returns
      curve.append(
        {
          "step": point * per_point * setting.steps_per_iteration,
          "seconds": seconds,
          "return": float(np.mean(returns)),
        }
      )
    curves.append(curve)
  return {"curves": curves, "physics": env.backend}


def build(job: jobs.Job, setting: settings.Setting) -> Any:
  """Returns environment, judge and algorithm, by `experiments.recipes`.

  Products of networks are rounded as Brax's are, who leaves it to JAX: not at
  all on a CPU, to TF32 on a GPU.
  """
  is_cpu = jax.default_backend() == "cpu"
  recipe = recipes.Recipe(
    num_steps=setting.steps_per_iteration,
    ppo=ppo.Config(
      num_envs=setting.num_envs,
      unroll_length=setting.steps_per_env,
      num_epochs=setting.num_epochs,
      num_minibatches=setting.num_minibatches,
      learning_rate=setting.learning_rate,
      learning_rate_end=setting.learning_rate,
      max_grad_norm=setting.max_grad_norm,
      discount=setting.discount,
      gae_lambda=setting.gae_lambda,
      clip_low=setting.clip,
      clip_high=setting.clip,
      value_weight=setting.value_weight,
      entropy_weight=setting.entropy_weight,
      reward_scale=setting.reward_scale,
    ),
    network=recipes.Network(
      policy_sizes=setting.policy_sizes,
      value_sizes=setting.value_sizes,
      activation=setting.activation,
      precision="float32" if is_cpu else "tf32",
    ),
  )
  return recipes.build(
    recipes.Settings(env=TASK, recipe=recipe, physics=job.physics),
    num_eval_episodes=job.num_episodes,
  )


def compile_iteration(algorithm: ppo.Ppo) -> Any:
  """Returns the compiled (TrainState, num_steps) -> (TrainState, metrics)."""
  num_rows = algorithm.config.unroll_length

  def iteration(state: ppo.TrainState, num_steps: jax.Array) -> Any:
    return algorithm.iteration(state, num_rows, num_steps)

  abstract = jax.eval_shape(algorithm.init, jax.random.key(0))
  program = flow.fuse(iteration, donate=(0,))
  return program.lower(abstract, jax.ShapeDtypeStruct((), "int32")).compile()


def _physics_only(env: envs.Env, setting: settings.Setting) -> Any:
  shape = (setting.num_envs, settings.ACTION_SIZE)

  @jax.jit
  def scan(states: envs.State, key: Any) -> tuple[envs.State, Any]:
    key, *keys = jax.random.split(key, setting.steps_per_env + 1)

    def body(states: envs.State, key: Any) -> tuple[envs.State, None]:
      action = jax.random.uniform(key, shape, minval=-1.0, maxval=1.0)
      return jax.vmap(env.step)(states, action), None

    return jax.lax.scan(body, states, jnp.stack(keys))[0], key

  keys = jax.random.split(jax.random.key(0), setting.num_envs)
  held = jax.jit(jax.vmap(env.reset))(keys), jax.random.key(1)

  def call() -> None:
    nonlocal held
    held = jax.block_until_ready(scan(*held))

  return call


def _engine(setting: settings.Setting) -> Any:
  mj_model = task_models.load(TASK)
  batch = mujoco_batch.Batch(mj_model, setting.num_envs, nthread=0)
  ctrl = batch.bind("ctrl")
  shape = (setting.steps_per_env, setting.num_envs, mj_model.nu)
  actions = np.random.default_rng(0).uniform(-1.0, 1.0, shape)

  def call() -> None:
    for action in actions:
      ctrl[:] = action
      batch.step(nstep=1)

  return call
