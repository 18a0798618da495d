"""EnvPool's CheetahRun with a jitted PPO around it.

The task is the control suite's own cheetah: another body, but the same size of
observation and action, the same reward and one physics step of 0.01 s per
step. Acting is one jitted program, learning another, with the loss, the update
and the networks of `rlinf_jax`; between them NumPy goes to EnvPool and back.
EnvPool's XLA interface would save that, but returns 64-bit observations where
JAX keeps 32, and corrupts memory (seen with envpool 1.2.5, jax 0.10.2).
"""

from __future__ import annotations

import os
from typing import Any

import envpool
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import jobs, settings, timing
from experiments import recipes
from rlinf_jax import losses, models, types
from rlinf_jax.algorithms import minibatches, ppo, updates
from rlinf_jax.models import normaliser

TASK = "CheetahRun-v1"


def speed(job: jobs.Job, setting: settings.Setting) -> dict[str, Any]:
  """Returns the rate of whole iterations, and of EnvPool by itself."""
  trainer = _Trainer(setting)
  pool = _make_pool(setting.num_envs)
  pool.reset()
  shape = (setting.steps_per_env, setting.num_envs, settings.ACTION_SIZE)
  actions = np.random.default_rng(0).uniform(-1.0, 1.0, shape)

  def simulate() -> None:
    for action in actions:
      pool.step(action)

  rates = timing.in_turn(
    {"iteration": trainer.iterate, "envpool_only": simulate},
    num_steps=setting.steps_per_iteration,
    min_seconds=job.seconds,
  )
  return {
    **rates["iteration"].to_json(),
    "physics": f"EnvPool {TASK}, another body",
    "parts": {"envpool_only": rates["envpool_only"].to_json()},
  }


def learning(job: jobs.Job, setting: settings.Setting) -> dict[str, Any]:
  """Raises LegUnavailableError: another body has other returns."""
  raise jobs.LegUnavailableError(
    f"envpool: returns on {TASK}, another body, do not compare with ours"
  )


class _Trainer:
  """PPO around an EnvPool, which keeps the state of the environments."""

  def __init__(self, setting: settings.Setting):
    self._pool = _make_pool(setting.num_envs)
    self._setting = setting
    self._act, self._learn, init = _programs(setting)
    self._key = jax.random.key(0)
    self._learner, self._stats = init(self._next_key())
    self._obs_b = _flat(self._pool.reset()[0])
    self._is_first_b = np.ones(setting.num_envs, bool)

  def iterate(self) -> None:
    """Collects and learns."""
    rows = []
    for _ in range(self._setting.steps_per_env):
      action_b, raw_b, log_prob_b = self._act(
        self._learner.params, self._stats, self._obs_b, self._next_key()
      )
      obs, reward_b, terminated_b, truncated_b, info = self._pool.step(
        np.asarray(action_b, np.float64)
      )
      # After an episode's end a step resets: it took no action of ours.
      is_reset_b = info["elapsed_step"] == 0
      next_obs_b = _flat(obs)
      rows.append(
        {
          "obs": self._obs_b,
          "action": raw_b,
          "log_prob": log_prob_b,
          "final_obs": next_obs_b,
          "reward": reward_b,
          "terminated": terminated_b & ~is_reset_b,
          "truncated": truncated_b & ~is_reset_b,
          "is_first": self._is_first_b,
          "mask": ~is_reset_b,
        }
      )
      self._obs_b, self._is_first_b = next_obs_b, is_reset_b
    rollout_bt = jax.tree.map(lambda *x: np.stack(x, axis=1), *rows)
    self._learner, self._stats = jax.block_until_ready(
      self._learn(self._learner, self._stats, rollout_bt, self._next_key())
    )

  def _next_key(self) -> Any:
    self._key, key = jax.random.split(self._key)
    return key


def _programs(setting: settings.Setting) -> tuple[Any, Any, Any]:
  """Returns jitted act, learn and init."""
  obs = jax.ShapeDtypeStruct((settings.OBS_SIZE,), jnp.float32)
  policy = models.mlp_policy(
    obs,
    models.tanh_gaussian(settings.ACTION_SIZE),
    policy_hidden_sizes=setting.policy_sizes,
    value_hidden_sizes=setting.value_sizes,
    activation=recipes.ACTIVATIONS[setting.activation],
  )
  config = ppo.Config(
    num_epochs=setting.num_epochs,
    num_minibatches=setting.num_minibatches,
    learning_rate=setting.learning_rate,
    learning_rate_end=setting.learning_rate,
    max_grad_norm=setting.max_grad_norm,
    clip_low=setting.clip,
    clip_high=setting.clip,
    value_weight=setting.value_weight,
    entropy_weight=setting.entropy_weight,
  )
  optimizer = ppo.adam(config, num_iterations=1)
  update = updates.make(ppo.ppo_loss(policy, config), optimizer)

  def init(key: Any) -> Any:
    return update.init(policy.init(key)), normaliser.init(obs)

  def act(params: Any, stats: Any, obs_b: jax.Array, key: Any) -> Any:
    def one(obs: jax.Array, key: Any) -> Any:
      outputs_t, _, _ = policy.apply(params, obs[None], (), jnp.zeros(1, bool))
      raw = policy.head.sample(outputs_t[0], key)
      log_prob = policy.head.log_prob(outputs_t[0], raw)
      return policy.head.to_action(raw), raw, log_prob

    obs_b = normaliser.normalise(stats, obs_b)
    return jax.vmap(one)(obs_b, jax.random.split(key, setting.num_envs))

  def estimate(params: Any, stats: Any, row_t: Any) -> types.Sequence:
    def values(obs_t: jax.Array) -> jax.Array:
      return policy.apply(params, obs_t, (), row_t["is_first"])[1]

    obs_t = normaliser.normalise(stats, row_t["obs"])
    value_t = values(obs_t)
    reward_t = row_t["reward"] * setting.reward_scale
    advantage_t, target_t = losses.gae(
      reward_t,
      value_t,
      values(normaliser.normalise(stats, row_t["final_obs"])),
      row_t["terminated"],
      row_t["truncated"],
      discount=setting.discount,
      gae_lambda=setting.gae_lambda,
      mask_t=row_t["mask"],
    )
    same = ("action", "log_prob", "terminated", "truncated", "is_first", "mask")
    return types.Sequence(
      obs=obs_t,
      value=value_t,
      advantage=advantage_t,
      target=target_t,
      reward=reward_t,
      carry=(),
      **{name: row_t[name] for name in same},
    )

  def learn(learner: Any, stats: Any, rollout_bt: Any, key: Any) -> Any:
    batch_b = jax.vmap(estimate, in_axes=(None, None, 0))(
      learner.params, stats, rollout_bt
    )
    mean = jnp.mean(batch_b.advantage, where=batch_b.mask)
    deviation = jnp.std(batch_b.advantage, where=batch_b.mask)
    batch_b = batch_b.replace(
      advantage=(batch_b.advantage - mean) / (deviation + 1e-8)
    )
    shuffle_key, loss_key = jax.random.split(key)
    index_us = minibatches.shuffled(
      shuffle_key,
      setting.num_envs,
      num_epochs=setting.num_epochs,
      num_minibatches=setting.num_minibatches,
    )

    def body(learner: Any, xs: Any) -> Any:
      index_s, key = xs
      batch = minibatches.select(batch_b, index_s)
      return update.step(learner, batch, key)[0], None

    keys = jax.random.split(loss_key, index_us.shape[0])
    learner, _ = jax.lax.scan(body, learner, (index_us, keys))
    sums = normaliser.summarise(
      stats, rollout_bt["obs"], weight=rollout_bt["mask"]
    )
    return learner, normaliser.merge(stats, sums)

  return jax.jit(act), jax.jit(learn, donate_argnums=(0, 1)), jax.jit(init)


def _make_pool(num_envs: int) -> Any:
  return envpool.make(
    TASK,
    env_type="gymnasium",
    num_envs=num_envs,
    num_threads=os.cpu_count() or 1,
    seed=0,
  )


def _flat(obs: dict[str, np.ndarray]) -> np.ndarray:
  parts = [obs["position"], obs["velocity"]]
  return np.concatenate(parts, axis=-1, dtype=np.float32)
