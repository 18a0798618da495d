"""PPO as a macro flow: act, simulate, estimate advantages, learn.

The flow is written over stages (`rlinf_jax.flow`) and runs eagerly or fused.
Its loss is an argument: `ppo_loss` is one, a user's own is another.

Letters: T steps of a rollout, B environments, S blocks of environments,
E epochs, M minibatches.

Source: Schulman et al. 2017, arXiv 1707.06347, with choices of
Andrychowicz et al. 2020 (arXiv 2006.05990) and of Brax: whole sequences are
shuffled; advantages are normalised over the whole batch, observations by
running moments that are merged once per iteration.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax
from flax import struct

from rlinf_jax import flow, losses, types
from rlinf_jax.algorithms import minibatches, rollouts, simulators, updates
from rlinf_jax.models import normaliser
from rlinf_jax.models import policy as policies


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Config:
  """How PPO collects and learns.

  Attributes:
    num_envs: B, environments simulated side by side.
    unroll_length: T, steps of each environment per iteration.
    num_epochs: E, passes over a batch.
    num_minibatches: M, updates per pass; each sees B / M whole sequences.
    learning_rate: Adam's, at the start.
    learning_rate_end: Adam's at the end of the run, reached linearly.
    max_grad_norm: gradients with a larger global norm are scaled down to it.
    discount: per step, in [0, 1].
    gae_lambda: in [0, 1].
    clip_low: probability ratios below 1 - clip_low stop paying.
    clip_high: those above 1 + clip_high do.
    dual_clip: bound on the ratio where the advantage is negative, or None.
    value_weight: of the critic's loss.
    value_clip: how far the critic may move per iteration, or None.
    value_huber_delta: where its error turns linear, or None.
    entropy_weight: of the entropy bonus.
    reward_scale: rewards are multiplied by it before anything else.
    normalise_obs: whether observations are whitened by running moments.
    pool_size: fresh reset states made per iteration.
    quantum: sequences whose gradients are summed at once (`flow.Spec`); None
      sums each device's at once, which is fastest.
    stagger: whether first episodes begin at random ages.
  """

  num_envs: int = 1024
  unroll_length: int = 32
  num_epochs: int = 4
  num_minibatches: int = 8
  learning_rate: float = 3e-4
  learning_rate_end: float = 0.0
  max_grad_norm: float = 1.0
  discount: float = 0.99
  gae_lambda: float = 0.95
  clip_low: float = 0.2
  clip_high: float = 0.2
  dual_clip: float | None = None
  value_weight: float = 0.5
  value_clip: float | None = None
  value_huber_delta: float | None = None
  entropy_weight: float = 1e-3
  reward_scale: float = 0.1
  normalise_obs: bool = True
  pool_size: int = 256
  quantum: int | None = None
  stagger: bool = True


@struct.dataclass
class TrainState:
  """Everything that a run is: saving it and loading it loses nothing."""

  learner: updates.Learner
  normaliser: normaliser.Stats
  sim: Any  # [B] environments with their running episodes
  carry: Any  # [B, ...] the policy's recurrent state, () without one
  key: chex.PRNGKey
  iteration: jax.Array  # [] int32: iterations done


@struct.dataclass
class Actor:
  """What acting needs to know."""

  params: types.Params
  normaliser: normaliser.Stats


class Ppo(NamedTuple):
  """The pure functions of a training run.

  Attributes:
    init: key -> TrainState; the key is consumed.
    iteration: (TrainState, num_rows, num_steps) -> (TrainState, metrics): the
      macro flow. It runs `num_rows` (a Python int) steps of every environment
      and learns from the first `num_steps` (int32 []) of those samples, counted
      row by row. Metrics are [] float32.
    act: (Actor, obs, carry, is_first, key) -> (action, carry), for one
      environment; sampled. `act_best` is its mode, without a key.
    simulate_on: where environments are stepped. With a stage on the host an
      iteration runs eagerly or under a plan, and not inside `jax.jit`.
  """

  init: Callable[[chex.PRNGKey], TrainState]
  iteration: Callable[..., tuple[TrainState, types.Metrics]]
  act: Callable[..., tuple[jax.Array, Any]]
  act_best: Callable[..., tuple[jax.Array, Any]]
  config: Config
  simulate_on: str = "mesh"


def ppo_loss(policy: policies.Policy, config: Config) -> types.LossFn:
  """Returns PPO's loss: clipped surrogate + value error - entropy.

  Source: arXiv 1707.06347, eq. 9.
  """

  def loss_fn(
    params: types.Params, batch: types.Sequence, key: chex.PRNGKey
  ) -> tuple[jax.Array, types.Metrics]:
    outputs_t, value_t, _ = policy.apply(
      params, batch.obs, batch.carry, batch.is_first
    )
    log_prob_t = policy.head.log_prob(outputs_t, batch.action)
    entropy_t = policy.head.entropy(outputs_t, key)
    surrogate_t = losses.clipped_surrogate(
      log_prob_t,
      batch.log_prob,
      batch.advantage,
      clip_low=config.clip_low,
      clip_high=config.clip_high,
      dual_clip=config.dual_clip,
    )
    value_loss_t = losses.value_loss(
      value_t,
      batch.target,
      old_value_t=None if config.value_clip is None else batch.value,
      clip=config.value_clip,
      huber_delta=config.value_huber_delta,
    )
    loss_t = (
      surrogate_t
      + config.value_weight * value_loss_t
      - config.entropy_weight * entropy_t
    )
    metrics = {
      "policy_loss": surrogate_t,
      "value_loss": value_loss_t,
      "entropy": entropy_t,
      "kl": losses.kl_k3(batch.log_prob, log_prob_t),
      "clip_fraction": losses.is_clipped(
        log_prob_t,
        batch.log_prob,
        clip_low=config.clip_low,
        clip_high=config.clip_high,
      ),
    }
    return loss_t, metrics

  return loss_fn


def adam(
  config: Config, *, num_iterations: int
) -> optax.GradientTransformation:
  """Returns Adam with clipped gradients and a linearly falling step size."""
  schedule = optax.linear_schedule(
    config.learning_rate,
    config.learning_rate_end,
    num_iterations * config.num_epochs * config.num_minibatches,
  )
  return optax.chain(
    optax.clip_by_global_norm(config.max_grad_norm),
    optax.adam(schedule, eps=1e-5),
  )


def check_config(config: Config, *, num_devices: int = 1) -> None:
  """Raises ValueError for sizes that do not fit together."""
  for name in ("num_envs", "unroll_length", "num_epochs", "num_minibatches"):
    if getattr(config, name) < 1:
      raise ValueError(f"{name} is {getattr(config, name)}; give 1 or more")
  for name in ("discount", "gae_lambda"):
    if not 0 <= getattr(config, name) <= 1:
      raise ValueError(
        f"{name} is {getattr(config, name)}; give a number in [0, 1]"
      )
  blocks = minibatches.num_blocks(config.num_envs, config.num_minibatches)
  per_block = config.num_envs // config.num_minibatches // blocks
  if config.quantum and per_block % config.quantum:
    raise ValueError(
      f"quantum is {config.quantum}, but each of the {blocks} blocks gives"
      f" {per_block} sequences to a minibatch; choose a divisor of that"
    )
  divided = {
    "num_envs": config.num_envs,
    "pool_size": config.pool_size,
    "the number of blocks of num_envs / num_minibatches": blocks,
  }
  for name, size in divided.items():
    if size % num_devices:
      raise ValueError(
        f"{name} is {size}, which {num_devices} devices do not divide evenly;"
        " change it or the number of devices"
      )


def make(
  episodes: types.Episodes,
  policy: policies.Policy,
  optimizer: optax.GradientTransformation,
  config: Config,
  *,
  loss_fn: types.LossFn | None = None,
  simulate_on: str = "mesh",
) -> Ppo:
  """Returns the functions of a PPO run.

  Args:
    episodes: a self-resetting environment, from `envs.autoreset.episodes`.
    policy: actor and critic.
    optimizer: any optax transformation.
    config: see `Config`.
    loss_fn: the loss of one sequence; `ppo_loss(policy, config)` by default.
    simulate_on: where environments are stepped, see `simulators.make`.

  Raises:
    ValueError: for sizes that do not fit together.
  """
  check_config(config)
  update = updates.make(
    loss_fn or ppo_loss(policy, config), optimizer, quantum=config.quantum
  )
  num_envs = config.num_envs

  def see(stats: normaliser.Stats, obs: Any) -> Any:
    return normaliser.normalise(stats, obs) if config.normalise_obs else obs

  def infer(
    actor: Actor, obs: Any, carry: Any, is_first: jax.Array
  ) -> tuple[jax.Array, Any]:
    obs_t = jax.tree.map(lambda x: x[None], see(actor.normaliser, obs))
    outputs_t, _, carry = policy.apply(
      actor.params, obs_t, carry, is_first[None]
    )
    return outputs_t[0], carry

  @flow.stage(items={1: 0, 2: 0, 3: 0, 4: 0}, quantum=config.quantum)
  def act(
    actor: Actor, obs_b: Any, carry_b: Any, is_first_b: Any, key_b: Any
  ) -> Any:
    def one(obs: Any, carry: Any, is_first: Any, key: Any) -> Any:
      outputs, carry = infer(actor, obs, carry, is_first)
      action = policy.head.sample(outputs, key)
      return action, policy.head.log_prob(outputs, action), carry

    return jax.vmap(one)(obs_b, carry_b, is_first_b, key_b)

  def step(sim_b: Any, action_b: Any, pool: Any, key_b: Any) -> Any:
    def one(sim: Any, action: Any, key: Any) -> Any:
      return episodes.step(sim, policy.head.to_action(action), pool, key)

    return jax.vmap(one)(sim_b, action_b, key_b)

  simulate = simulators.make(step, place=simulate_on)

  @flow.stage(items={0: 0})
  def refill(key_p: Any) -> Any:
    return jax.vmap(episodes.env.reset)(key_p)

  @flow.stage(items={1: 1, 2: 1, 3: 0}, quantum=config.quantum)
  def estimate(
    actor: Actor, rollout_tb: Any, mask_tb: Any, carry_b: Any
  ) -> Any:
    def one(xs: Any) -> types.Sequence:
      rollout_t, mask_t, carry = xs
      return rollouts.to_sequence(
        policy,
        actor.params,
        rollout_t,
        mask_t,
        carry,
        see=functools.partial(see, actor.normaliser),
        reward_scale=config.reward_scale,
        discount=config.discount,
        gae_lambda=config.gae_lambda,
      )

    by_env = lambda x_tb: jnp.swapaxes(x_tb, 0, 1)
    rollout_bt, mask_bt = jax.tree.map(by_env, (rollout_tb, mask_tb))
    # A minibatch's worth at a time: all at once need several times the memory
    # of an update, which a CPU neither caches nor has mapped.
    size = config.num_envs // config.num_minibatches
    return jax.lax.map(one, (rollout_bt, mask_bt, carry_b), batch_size=size)

  @flow.stage(items={1: 1, 2: 1}, reduces="sum", quantum=config.quantum)
  def observe(stats: Any, obs_tb: Any, mask_tb: Any) -> Any:
    return normaliser.summarise(stats, obs_tb, weight=mask_tb)

  @flow.stage(items={0: 0}, reduces="sum", quantum=config.quantum)
  def moments(batch_b: types.Sequence) -> Any:
    mask_bt = batch_b.mask.astype(jnp.float32)
    advantage_bt = batch_b.advantage * mask_bt
    return mask_bt.sum(), advantage_bt.sum(), jnp.square(advantage_bt).sum()

  def init(key: chex.PRNGKey) -> TrainState:
    params_key, sim_key, run_key = jax.random.split(key, 3)
    sim_b = jax.vmap(episodes.reset)(jax.random.split(sim_key, num_envs))
    params = policy.init(params_key)
    one_obs = jax.eval_shape(_first, sim_b.obs)
    return TrainState(
      learner=update.init(params),
      normaliser=normaliser.init(one_obs),
      sim=sim_b,
      carry=_repeat(policy.initial_carry(), num_envs),
      key=run_key,
      iteration=jnp.zeros((), jnp.int32),
    )

  def collect(
    state: TrainState, actor: Actor, key: chex.PRNGKey, num_rows: int
  ) -> Any:
    pool_key, act_key, reset_key = jax.random.split(key, 3)
    pool = refill(jax.random.split(pool_key, config.pool_size))
    key_tb = jax.random.split(act_key, (num_rows, num_envs))
    reset_key_tb = simulators.keys(
      jax.random.split(reset_key, (num_rows, num_envs)), place=simulate_on
    )

    def body(held: Any, keys: Any) -> Any:
      sim_b, carry_b = held
      act_key_b, reset_key_b = keys
      action_b, log_prob_b, carry_b = act(
        actor, sim_b.obs, carry_b, sim_b.is_first, act_key_b
      )
      next_sim_b, outcome_b = simulate(sim_b, action_b, pool, reset_key_b)
      row = rollouts.Rollout(
        sim_b.obs, action_b, log_prob_b, sim_b.is_first, carry_b, outcome_b
      )
      return (next_sim_b, carry_b), row

    return flow.loop(body, (state.sim, state.carry), (key_tb, reset_key_tb))

  def learn(
    learner: updates.Learner, batch_b: types.Sequence, key: chex.PRNGKey
  ) -> tuple[updates.Learner, types.Metrics]:
    shuffle_key, loss_key = jax.random.split(key)
    index_us = minibatches.shuffled(
      shuffle_key,
      num_envs,
      num_epochs=config.num_epochs,
      num_minibatches=config.num_minibatches,
    )
    key_u = jax.random.split(loss_key, index_us.shape[0])

    def body(learner: updates.Learner, xs: Any) -> Any:
      index_s, key = xs
      return update.step(learner, minibatches.select(batch_b, index_s), key)

    learner, metrics_u = flow.loop(body, learner, (index_us, key_u))
    return learner, jax.tree.map(jnp.mean, metrics_u)

  def iteration(
    state: TrainState, num_rows: int, num_steps: Any
  ) -> tuple[TrainState, types.Metrics]:
    key, collect_key, learn_key = jax.random.split(state.key, 3)
    actor = Actor(state.learner.params, state.normaliser)
    acting, made_in = flow.sync((actor, state.iteration))
    (sim_b, carry_b), rollout_tb = collect(state, acting, collect_key, num_rows)

    sample_tb = jnp.arange(num_rows * num_envs).reshape(num_rows, num_envs)
    counts_tb = sample_tb < num_steps
    mask_tb = counts_tb & rollout_tb.outcome.is_valid
    batch_b = estimate(actor, rollout_tb, mask_tb, state.carry)
    batch_b = batch_b.replace(
      advantage=_standardise(batch_b.advantage, *moments(batch_b))
    )
    learner, metrics = learn(state.learner, batch_b, learn_key)
    stats = state.normaliser
    if config.normalise_obs:
      sums = observe(stats, rollout_tb.obs, mask_tb)
      stats = normaliser.merge(stats, sums)
    metrics |= rollouts.episode_metrics(rollout_tb.outcome, counts_tb)
    age = state.iteration - made_in
    metrics["staleness"] = age.astype(jnp.float32)
    state = TrainState(
      learner=learner,
      normaliser=stats,
      sim=sim_b,
      carry=carry_b,
      key=key,
      iteration=state.iteration + 1,
    )
    return state, metrics

  def act_one(
    actor: Actor, obs: Any, carry: Any, is_first: jax.Array, key: chex.PRNGKey
  ) -> tuple[jax.Array, Any]:
    outputs, carry = infer(actor, obs, carry, is_first)
    return policy.head.to_action(policy.head.sample(outputs, key)), carry

  def act_best(
    actor: Actor, obs: Any, carry: Any, is_first: jax.Array
  ) -> tuple[jax.Array, Any]:
    outputs, carry = infer(actor, obs, carry, is_first)
    return policy.head.to_action(policy.head.mode(outputs)), carry

  return Ppo(init, iteration, act_one, act_best, config, simulate_on)


def _standardise(
  x: jax.Array, count: jax.Array, total: jax.Array, squares: jax.Array
) -> jax.Array:
  count = jnp.maximum(count, 1.0)
  mean = total / count
  variance = jnp.maximum(squares / count - jnp.square(mean), 0.0)
  return (x - mean) * jax.lax.rsqrt(variance + 1e-8)


def _repeat(tree: Any, num: int) -> Any:
  return jax.tree.map(lambda x: jnp.broadcast_to(x, (num, *x.shape)), tree)


def _first(tree: Any) -> Any:
  return jax.tree.map(lambda x: x[0], tree)
