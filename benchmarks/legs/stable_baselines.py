"""Stable-Baselines3 PPO, and SBX, its JAX sister, on the numpy twin."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import stable_baselines3
import torch
from stable_baselines3.common import vec_env

from benchmarks import cheetah_gym, jobs, settings, timing

WORKERS_PER_CPU = 4


def speed(job: jobs.Job, setting: settings.Setting) -> dict[str, Any]:
  """Returns the rate of the variant that is fastest here, and of all.

  `DummyVecEnv` steps all of the setting's environments in one process and acts
  on all of them at once; `SubprocVecEnv` has one process per environment, so
  it gets few, and as many more steps of each. Samples per iteration and per
  update are the same. torch has one thread or one per core; more are not
  always faster for small networks.
  """
  num_cpus = os.cpu_count() or 1
  vec_envs = {
    "dummy": setting.num_envs,
    "subproc": min(setting.num_envs, WORKERS_PER_CPU * num_cpus),
  }
  threads = sorted({1, num_cpus}) if job.leg == "sb3" else [num_cpus]
  num_steps = setting.steps_per_iteration
  rates: dict[str, timing.Rate] = {}
  for kind, num_envs in vec_envs.items():
    for num_threads in threads:
      torch.set_num_threads(num_threads)
      model = _model(job, setting, kind=kind, num_envs=num_envs, seed=0)
      iterate = functools.partial(_iterate, model, num_steps)
      name = f"{kind}, {num_envs} envs, torch threads {num_threads}"
      rates |= timing.in_turn(
        {name: iterate}, num_steps=num_steps, min_seconds=job.seconds
      )
      model.get_env().close()
  best = max(rates, key=lambda name: rates[name].steps_per_s)
  return {
    **rates[best].to_json(),
    "physics": f"mujoco, {best}",
    "variants": {name: rate.to_json() for name, rate in rates.items()},
  }


def learning(job: jobs.Job, setting: settings.Setting) -> dict[str, Any]:
  """Returns the learning curve of each seed, judged on the twin.

  The first of equal pieces of work, in which SBX compiles, counts as long as
  the others took.
  """
  torch.set_num_threads(1)  # the faster choice for small networks
  per_point = job.iterations_per_point(setting.steps_per_iteration)
  num_steps = per_point * setting.steps_per_iteration
  curves = []
  for seed in range(job.num_seeds):
    model = _model(
      job, setting, kind="dummy", num_envs=setting.num_envs, seed=seed
    )
    seconds, returns = [], []
    for _ in range(job.num_points):
      start_s = time.perf_counter()
      _iterate(model, num_steps)
      seconds.append(time.perf_counter() - start_s)
      returns.append(_mean_return(model, num_episodes=job.num_episodes))
    seconds[0] = float(np.median(seconds[1:] or seconds))
    curves.append(
      [
        {"step": (i + 1) * num_steps, "seconds": float(at_s), "return": value}
        for i, (at_s, value) in enumerate(zip(np.cumsum(seconds), returns))
      ]
    )
  return {"curves": curves, "physics": "mujoco, dummy vector env"}


def _model(
  job: jobs.Job,
  setting: settings.Setting,
  *,
  kind: str,
  num_envs: int,
  seed: int,
) -> Any:
  """Returns a PPO of the setting; both libraries take the same arguments."""
  env_fn = _env_fn(setting.reward_scale)
  make = {"dummy": vec_env.DummyVecEnv, "subproc": vec_env.SubprocVecEnv}[kind]
  env = vec_env.VecNormalize(
    make([env_fn] * num_envs), norm_reward=False, clip_obs=10.0
  )
  ppo, activation = _library(job.leg, setting.activation)
  return ppo(
    "MlpPolicy",
    env,
    learning_rate=setting.learning_rate,
    n_steps=setting.steps_per_iteration // num_envs,
    batch_size=setting.steps_per_iteration // setting.num_minibatches,
    n_epochs=setting.num_epochs,
    gamma=setting.discount,
    gae_lambda=setting.gae_lambda,
    clip_range=setting.clip,
    ent_coef=setting.entropy_weight,
    vf_coef=0.5 * setting.value_weight,  # of the whole squared error
    max_grad_norm=setting.max_grad_norm,
    policy_kwargs={
      "net_arch": {
        "pi": list(setting.policy_sizes),
        "vf": list(setting.value_sizes),
      },
      "activation_fn": activation,
    },
    seed=seed,
    device="cpu",
  )


def _library(leg: str, activation: str) -> tuple[Any, Any]:
  """Returns the class of PPO and the activation as it wants it."""
  if leg == "sb3":
    layers = {"tanh": torch.nn.Tanh, "swish": torch.nn.SiLU}
    return stable_baselines3.PPO, layers[activation]
  import sbx
  from flax import linen

  functions = {"tanh": linen.tanh, "swish": linen.swish}
  return sbx.PPO, functions[activation]


def _env_fn(reward_scale: float) -> Callable[[], gymnasium.Env]:
  return functools.partial(
    cheetah_gym.CheetahRun,
    episode_length=settings.EPISODE_LENGTH,
    reward_scale=reward_scale,
  )


def _iterate(model: Any, num_steps: int) -> None:
  """Runs whole iterations: collecting and learning."""
  model.learn(num_steps, reset_num_timesteps=False, log_interval=None)


def _mean_return(model: Any, *, num_episodes: int) -> float:
  """Returns the mean return, unscaled, of episodes of the policy's mode."""
  envs = vec_env.DummyVecEnv([_env_fn(1.0)] * num_episodes)
  envs.seed(1)
  obs, total = envs.reset(), np.zeros(num_episodes)
  normalise = model.get_vec_normalize_env().normalize_obs
  for _ in range(settings.EPISODE_LENGTH):
    action, _ = model.predict(normalise(obs), deterministic=True)
    obs, reward, _, _ = envs.step(action)
    total += reward
  return float(total.mean())
