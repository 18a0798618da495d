"""Brax PPO, on our environment and on its own.

- `brax`: our task on MJX, or on an accelerator on the backend that ours takes:
  same task, and there same physics implementation.
- `brax_on_c`: our task on our C backend, which tells the learner's part of a
  ratio from the physics'.
- `brax_own`: Brax's halfcheetah on Brax's MJX backend, another body whose step
  is five steps of physics.
"""

from __future__ import annotations

import functools
import math
import time
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from brax import envs as brax_envs
from brax.training.agents.ppo import networks as ppo_networks
from brax.training.agents.ppo import train as ppo_train

import envs
from benchmarks import jobs, settings, timing
from experiments import recipes
from rlinf_jax.algorithms import evaluation

TASK = "cheetah_run"
# Between epochs Brax does small things on the host, which an accelerator would
# notice; on a CPU an iteration takes seconds.
ITERATIONS_PER_EPOCH = {"cpu": 1}
ITERATIONS_PER_EPOCH_ELSEWHERE = 16
_MANY = 10_000


class TaskEnv(brax_envs.Env):
  """An `envs.Env` as Brax sees environments. Brax adds limits and resets."""

  def __init__(self, env: envs.Env):
    self._env = env

  def reset(self, rng: jax.Array) -> brax_envs.State:
    state = self._env.reset(rng)
    zero = jnp.zeros(())
    return brax_envs.State(state, state.obs, zero, zero)

  def step(self, state: brax_envs.State, action: jax.Array) -> brax_envs.State:
    own = self._env.step(state.pipeline_state, action)
    return state.replace(
      pipeline_state=own,
      obs=own.obs,
      reward=own.reward,
      done=own.terminated.astype(jnp.float32),
    )

  @property
  def observation_size(self) -> int:
    return settings.OBS_SIZE

  @property
  def action_size(self) -> int:
    return settings.ACTION_SIZE

  @property
  def backend(self) -> str:
    return self._env.backend


class _Enough(Exception):
  """Stops Brax's loop, which counts steps and not seconds."""


class _Epochs:
  """Seconds of epochs as Brax reports them, and which of them compiled."""

  def __init__(self) -> None:
    self.seconds: list[float] = []
    self.is_steady: list[bool] = []
    self._compiling_s = 0.0
    jax.monitoring.register_event_duration_secs_listener(self._hear)

  def note(self, _: int, metrics: dict[str, Any]) -> None:
    """Brax's `progress_fn`."""
    epoch_s = metrics["training/walltime"] - sum(self.seconds)
    self.seconds.append(epoch_s)
    self.is_steady.append(self._compiling_s < 0.01 * epoch_s)
    self._compiling_s = 0.0

  @property
  def steady_s(self) -> tuple[float, ...]:
    """Seconds of the epochs in which nothing was compiled."""
    return tuple(s for s, ok in zip(self.seconds, self.is_steady) if ok)

  def _hear(self, event: str, duration_secs: float, **_: Any) -> None:
    if event.startswith("/jax/core/compile/"):
      self._compiling_s += duration_secs


def speed(job: jobs.Job, setting: settings.Setting) -> dict[str, Any]:
  """Returns the rate of Brax's epochs in which nothing compiles.

  It is what Brax itself reports (`training/sps`): its time of the epoch's
  program, without what it does on the host in between.
  """
  env, num_substeps = _env(job)
  per_epoch = _iterations_per_epoch()
  epochs = _Epochs()

  def note(step: int, metrics: dict[str, Any]) -> None:
    epochs.note(step, metrics)
    if epochs.steady_s and sum(epochs.steady_s) >= job.seconds:
      raise _Enough

  start_s = time.perf_counter()
  try:
    _train(
      env,
      setting,
      num_epochs=_MANY,
      iterations_per_epoch=per_epoch,
      progress_fn=note,
    )
  except _Enough:
    pass
  total_s = time.perf_counter() - start_s
  steady_s = epochs.steady_s
  rate = timing.Rate(
    num_steps=setting.steps_per_iteration * per_epoch * len(steady_s),
    call_s=steady_s,
  )
  running_s = rate.seconds / len(steady_s) * len(epochs.seconds)
  return {
    **rate.to_json(),
    "compile_s": total_s - running_s,
    "physics": env.backend,
    "num_substeps": num_substeps,
  }


def learning(job: jobs.Job, setting: settings.Setting) -> dict[str, Any]:
  """Returns the learning curve of each seed, judged as ours are.

  Raises:
    LegUnavailableError: `brax_own` learns another task.
  """
  if job.leg == "brax_own":
    raise jobs.LegUnavailableError(
      "brax_own: returns on Brax's halfcheetah do not compare with ours"
    )
  env = envs.make(TASK, physics=_physics(job))
  curves = [_curve(job, setting, env, seed) for seed in range(job.num_seeds)]
  return {"curves": curves, "physics": env.backend}


def _curve(
  job: jobs.Job, setting: settings.Setting, env: envs.Env, seed: int
) -> list[dict[str, float]]:
  """Returns the points of one seed.

  An epoch that compiled counts as long as the others took; ours is compiled
  ahead.
  """
  per_point = job.iterations_per_point(setting.steps_per_iteration)
  steps: list[int] = []
  returns: list[float] = []
  epochs = _Epochs()
  judge_fn = None

  def judge(step: int, make_policy: Any, params: Any) -> None:
    nonlocal judge_fn
    judge_fn = judge_fn or _judge(env, make_policy, job.num_episodes)
    if step:  # Brax asks once more, before the first epoch
      steps.append(step)
      returns.append(float(np.mean(judge_fn(params, jax.random.key(1)))))

  _train(
    TaskEnv(env),
    setting,
    num_epochs=job.num_points,
    iterations_per_epoch=per_point,
    progress_fn=epochs.note,
    policy_params_fn=judge,
    seed=seed,
  )
  usual_s = float(np.median(epochs.steady_s or epochs.seconds))
  seconds = [
    s if ok else usual_s for s, ok in zip(epochs.seconds, epochs.is_steady)
  ]
  return [
    {"step": step, "seconds": float(at_s), "return": value}
    for step, at_s, value in zip(steps, np.cumsum(seconds), returns)
  ]


def network_factory(setting: settings.Setting) -> Callable[..., Any]:
  """Returns Brax's maker of networks with a setting's sizes."""
  return functools.partial(
    ppo_networks.make_ppo_networks,
    policy_hidden_layer_sizes=setting.policy_sizes,
    value_hidden_layer_sizes=setting.value_sizes,
    activation=recipes.ACTIVATIONS[setting.activation],
  )


def _env(job: jobs.Job) -> tuple[brax_envs.Env, int]:
  """Returns the environment, and physics steps per step of it."""
  if job.leg != "brax_own":
    return TaskEnv(envs.make(TASK, physics=_physics(job))), 1
  with warnings.catch_warnings():
    # Brax announces at each load that its environments are not maintained.
    warnings.simplefilter("ignore", UserWarning)
    env = brax_envs.get_environment("halfcheetah", backend="mjx")
  return env, round(float(env.dt / env.sys.opt.timestep))


def _physics(job: jobs.Job) -> str:
  if job.leg == "brax_on_c":
    return "mujoco"
  return "mjx" if jax.default_backend() == "cpu" else job.physics


def _iterations_per_epoch() -> int:
  return ITERATIONS_PER_EPOCH.get(
    jax.default_backend(), ITERATIONS_PER_EPOCH_ELSEWHERE
  )


def _train(
  env: brax_envs.Env,
  setting: settings.Setting,
  *,
  num_epochs: int,
  iterations_per_epoch: int,
  progress_fn: Callable[[int, dict[str, Any]], None],
  policy_params_fn: Callable[..., None] = lambda *_: None,
  seed: int = 0,
) -> None:
  """Runs Brax PPO; an "eval" of Brax's is an epoch, and judges nothing."""
  _put_back_what_brax_needs()
  num_sequences = setting.num_envs * setting.num_unrolls
  has_clip = math.isfinite(setting.max_grad_norm)
  ppo_train.train(
    env,
    num_timesteps=(
      num_epochs * iterations_per_epoch * setting.steps_per_iteration
    ),
    max_devices_per_host=1,
    num_envs=setting.num_envs,
    episode_length=settings.EPISODE_LENGTH,
    learning_rate=setting.learning_rate,
    entropy_cost=setting.entropy_weight,
    discounting=setting.discount,
    unroll_length=setting.unroll_length,
    batch_size=num_sequences // setting.num_minibatches,
    num_minibatches=setting.num_minibatches,
    num_updates_per_batch=setting.num_epochs,
    normalize_observations=True,
    reward_scaling=setting.reward_scale,
    clipping_epsilon=setting.clip,
    gae_lambda=setting.gae_lambda,
    max_grad_norm=setting.max_grad_norm if has_clip else None,
    vf_loss_coefficient=setting.value_weight,
    network_factory=network_factory(setting),
    seed=seed,
    num_evals=num_epochs + 1,
    run_evals=False,
    num_eval_envs=1,
    progress_fn=progress_fn,
    policy_params_fn=policy_params_fn,
  )


def _judge(env: envs.Env, make_policy: Any, num_episodes: int) -> Any:
  """Returns jitted (params, key) -> returns [N] of the policy's mode."""

  def evaluate(params: Any, key: Any) -> jax.Array:
    policy = make_policy(params, deterministic=True)

    def act(obs: jax.Array, carry: Any, is_first: jax.Array) -> Any:
      del is_first
      return policy(obs, jax.random.key(0))[0], carry

    return evaluation.evaluate(
      env,
      act,
      (),
      key,
      num_episodes=num_episodes,
      max_steps=settings.EPISODE_LENGTH,
    ).returns

  return jax.jit(evaluate)


def _put_back_what_brax_needs() -> None:
  """Gives this process `jax.device_put_replicated`, which JAX removed.

  Brax 0.14.2 calls it once, to give each device of `pmap` a copy. Nothing else
  of JAX or Brax is changed. The copies come out of a `pmap`, as they came then:
  laid out in another way they would make Brax compile its epoch twice.
  """
  if hasattr(jax, "device_put_replicated"):
    return

  def device_put_replicated(tree: Any, devices: Any) -> Any:
    copies = jax.tree.map(
      lambda x: jnp.stack([jnp.asarray(x)] * len(devices)), tree
    )
    return jax.pmap(lambda x: x, axis_name="i", devices=devices)(copies)

  jax.device_put_replicated = device_put_replicated  # type: ignore[assignment]
