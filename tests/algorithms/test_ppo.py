"""Laws of the PPO macro flow, on toy environments."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from envs import autoreset
from rlinf_jax import flow, models, runtime, types
from rlinf_jax.algorithms import minibatches, ppo, updates
from rlinf_jax.runtime import machines, meshes
from tests import toy_envs

CONFIG = ppo.Config(
  num_envs=64,
  unroll_length=8,
  num_epochs=2,
  num_minibatches=4,
  learning_rate=3e-3,
  learning_rate_end=3e-3,
  pool_size=16,
)
ALL = jnp.int32(2**30)


def make(env, config=CONFIG, **kwargs):
  obs = jax.eval_shape(env.reset, jax.random.key(0)).obs
  policy = models.mlp_policy(
    obs,
    models.tanh_gaussian(env.action.size),
    policy_hidden_sizes=(16,),
    value_hidden_sizes=(16,),
  )
  episodes = autoreset.episodes(env, stagger=config.stagger)
  optimizer = ppo.adam(config, num_iterations=100)
  return ppo.make(episodes, policy, optimizer, config, **kwargs)


@functools.cache
def counting():
  """Returns what several tests train, so that it is compiled once."""
  return make(toy_envs.counter(episode_length=5))


@functools.cache
def fused(algorithm, mesh, rows):
  return flow.fuse(lambda s, n: algorithm.iteration(s, rows, n), mesh=mesh)


def iterate(algorithm, state, *, mesh=None, num=1, rows=8, num_steps=ALL):
  run = fused(algorithm, mesh, rows)
  for _ in range(num):
    state, metrics = run(state, num_steps)
  return state, metrics


def on_mesh(state, mesh):
  shardings = meshes.replicate(state, mesh).replace(
    sim=meshes.split(state.sim, mesh)
  )
  return jax.device_put(state, shardings)


def leaves(state):
  return jax.tree.leaves(state.learner.params)


@pytest.mark.slow
def test_it_finds_the_action_that_pays():
  algorithm = make(toy_envs.target(at=0.5))
  state = algorithm.init(jax.random.key(0))
  state, _ = iterate(algorithm, state, num=60)
  actor = ppo.Actor(state.learner.params, state.normaliser)
  action, _ = algorithm.act_best(actor, jnp.zeros(1), (), jnp.ones((), bool))
  assert abs(float(action[0]) - 0.5) < 0.1


@pytest.mark.bits
@pytest.mark.slow
def test_quanta_give_the_same_bits_on_1_and_8_devices():
  config = dataclasses.replace(CONFIG, quantum=2)
  algorithm = make(toy_envs.counter(episode_length=5), config)
  state = algorithm.init(jax.random.key(0))
  mesh = meshes.items_mesh(1)
  one, _ = iterate(algorithm, on_mesh(state, mesh), mesh=mesh, num=3)
  mesh = meshes.items_mesh(8)
  eight, _ = iterate(algorithm, on_mesh(state, mesh), mesh=mesh, num=3)
  for x, y in zip(leaves(one), leaves(eight)):
    np.testing.assert_array_equal(x, y)


@pytest.mark.slow
def test_without_quanta_1_and_8_devices_are_close_after_an_iteration():
  algorithm = counting()
  state = algorithm.init(jax.random.key(0))
  one, _ = iterate(algorithm, state)
  mesh = meshes.items_mesh(8)
  eight, _ = iterate(algorithm, on_mesh(state, mesh), mesh=mesh)
  for x, y in zip(leaves(one), leaves(eight)):
    assert np.max(np.abs(x - y)) <= 1e-5 * np.max(np.abs(y))


@pytest.mark.slow
def test_eager_is_close_to_fused():
  config = dataclasses.replace(CONFIG, num_epochs=1, num_minibatches=2)
  algorithm = make(toy_envs.target(), config)
  state = algorithm.init(jax.random.key(0))
  eager, _ = algorithm.iteration(state, 2, ALL)
  fused, _ = iterate(algorithm, state, rows=2)
  for x, y in zip(leaves(eager), leaves(fused)):
    assert np.max(np.abs(x - y)) <= 1e-5 * np.max(np.abs(y))


@pytest.mark.slow
def test_samples_beyond_num_steps_are_not_learnt_from():
  # Rows 4 to 7 of one run are what the other does not have at all.
  algorithm = counting()
  state = algorithm.init(jax.random.key(0))
  num_steps = jnp.int32(4 * CONFIG.num_envs)
  cut, cut_metrics = iterate(algorithm, state, rows=8, num_steps=num_steps)
  short, short_metrics = iterate(algorithm, state, rows=4, num_steps=num_steps)
  for x, y in zip(leaves(cut), leaves(short)):
    assert np.max(np.abs(x - y)) <= 1e-5 * np.max(np.abs(y))
  assert cut_metrics["episodes"] == short_metrics["episodes"]


@pytest.mark.slow
def test_nan_steps_are_counted_and_do_not_reach_the_parameters():
  algorithm = make(toy_envs.counter(nan_at=3, episode_length=9))
  state = algorithm.init(jax.random.key(0))
  state, metrics = iterate(algorithm, state)
  assert metrics["nan_steps"] > 0
  assert np.isfinite(metrics["loss"])
  assert all(np.all(np.isfinite(x)) for x in leaves(state))


@pytest.mark.slow
def test_seeds_trained_at_once_are_the_seeds_trained_alone():
  algorithm = counting()
  keys = jax.random.split(jax.random.key(0), 2)
  states = jax.vmap(algorithm.init)(keys)
  run = jax.vmap(lambda s, n: algorithm.iteration(s, 8, n), in_axes=(0, None))
  both, metrics = flow.fuse(run)(states, ALL)
  assert metrics["loss"].shape == (2,)
  for i in range(2):
    alone, _ = iterate(algorithm, algorithm.init(keys[i]))
    for x, y in zip(leaves(both), leaves(alone)):
      assert np.max(np.abs(x[i] - y)) <= 1e-5 * np.max(np.abs(y))


@pytest.mark.slow
def test_an_iteration_traces_once():
  algorithm = make(toy_envs.target())
  count = 0

  def iteration(state, num_steps):
    nonlocal count
    count += 1
    return algorithm.iteration(state, 8, num_steps)

  run = flow.fuse(iteration)
  state = algorithm.init(jax.random.key(0))
  for _ in range(3):
    state, _ = run(state, ALL)
  assert count == 1


def test_a_scalar_loss_counts_like_one_that_is_equal_at_every_step():
  def loss_of(shape):
    def loss_fn(params, batch, key):
      del key
      value = jnp.sum(jnp.square(params["w"])) * jnp.mean(batch.reward)
      return jnp.broadcast_to(value, shape), {"m": value}

    return loss_fn

  batch = _batch(num=4, length=3)
  params = {"w": jnp.arange(2.0)}
  results = []
  for shape in ((), (3,)):
    update = updates.make(loss_of(shape), optax.sgd(0.1))
    learner, metrics = update.step(
      update.init(params), batch, jax.random.key(0)
    )
    results.append((learner.params["w"], metrics["loss"], metrics["m"]))
  for x, y in zip(*results):
    np.testing.assert_allclose(x, y, rtol=1e-6)


def test_an_update_averages_over_valid_steps_only():
  # loss = w r, so the gradient is the mean reward of valid steps: rewards are
  # 0..11 over [4, 3]; without the last sequence their mean is 4. SGD: -0.1 * 4.
  loss_fn = lambda params, batch, key: (params["w"] * batch.reward, {})
  batch = _batch(num=4, length=3)
  batch = batch.replace(mask=batch.mask.at[3].set(False))
  update = updates.make(loss_fn, optax.sgd(0.1))
  learner, metrics = update.step(
    update.init({"w": jnp.float32(1.0)}), batch, jax.random.key(0)
  )
  np.testing.assert_allclose(learner.params["w"], 1.0 - 0.4, rtol=1e-6)
  np.testing.assert_allclose(metrics["loss"], 4.0, rtol=1e-6)


def test_each_epoch_has_every_sequence_once():
  index_us = minibatches.shuffled(
    jax.random.key(0), 48, num_epochs=3, num_minibatches=4
  )
  assert index_us.shape == (12, 6, 2)  # 12 per minibatch: 6 blocks of 2
  for epoch in np.asarray(index_us).reshape(3, 4, 6, 2):
    for block in range(6):
      assert sorted(epoch[:, block].ravel()) == list(range(8))


def test_selecting_takes_the_sequences_named_within_their_block():
  batch_b = jnp.arange(8) * 10  # two blocks: 0..30 and 40..70
  index_s = jnp.asarray([[3, 0], [1, 2]])
  np.testing.assert_array_equal(
    minibatches.select(batch_b, index_s), [30, 0, 50, 60]
  )


def test_devices_that_do_not_divide_are_refused():
  with pytest.raises(
    ValueError, match="num_envs is 64, which 3 devices do not"
  ):
    ppo.check_config(CONFIG, num_devices=3)


@pytest.mark.parametrize(
  "change, message",
  [
    ({"num_envs": 0}, "num_envs is 0; give 1 or more"),
    ({"num_minibatches": 7}, "num_envs=64 sequences do not divide into"),
    ({"discount": 1.5}, "discount is 1.5"),
    ({"quantum": 5}, "quantum is 5, but each of the 8 blocks gives 2"),
  ],
)
def test_sizes_that_do_not_fit_are_refused(change, message):
  with pytest.raises(ValueError, match=message):
    make(toy_envs.target(), dataclasses.replace(CONFIG, **change))


def _batch(*, num, length):
  x = jnp.arange(num * length, dtype=jnp.float32).reshape(num, length)
  false = jnp.zeros((num, length), bool)
  return types.Sequence(
    obs=x[..., None],
    action=x[..., None],
    log_prob=x,
    value=x,
    advantage=x,
    target=x,
    reward=x,
    terminated=false,
    truncated=false,
    is_first=false,
    mask=~false,
    carry=(),
  )


@pytest.mark.slow
def test_environments_on_the_host_give_the_numbers_of_the_mesh():
  on_mesh = make(toy_envs.target())
  on_host = make(toy_envs.target(), simulate_on="host")
  start = on_mesh.init(jax.random.key(0))
  planned = runtime.m2flow(
    lambda state, n: on_host.iteration(state, 8, n),
    plan="disaggregated",
    machine=machines.of_process(1, num_host_slots=1),
    staleness=1,
    measure_s=1.0,
  )
  # The first iteration acts by the first weights, whatever the staleness.
  (first, _), (_, metrics) = planned.iterate(start, [(ALL,)] * 2)
  assert metrics["staleness"] == 1
  expected, _ = iterate(on_mesh, start)
  for a, b in zip(leaves(first), leaves(expected)):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
  assert planned.workflow.stage("simulate").kind == "host"


def test_a_simulator_is_in_a_known_place():
  with pytest.raises(ValueError, match="choose from"):
    make(toy_envs.target(), simulate_on="moon")
