"""Episodes of an environment that counts its steps, worked by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs import autoreset
from tests import toy_envs


def run(env, num_steps, *, pool_size=1, stagger=False, seed=0):
  """Returns the outcomes of one simulation, leaves [num_steps, ...]."""
  episodes = autoreset.episodes(env, stagger=stagger)
  key, pool_key, step_key = jax.random.split(jax.random.key(seed), 3)
  pool = jax.vmap(env.reset)(jax.random.split(pool_key, pool_size))

  def body(sim, key):
    sim, outcome = episodes.step(sim, jnp.zeros(1), pool, key)
    return sim, (outcome, sim)

  sim = episodes.reset(key)
  keys = jax.random.split(step_key, num_steps)
  _, (outcomes, sims) = jax.jit(lambda s: jax.lax.scan(body, s, keys))(sim)
  return outcomes, sims


def test_time_limit_truncates_and_does_not_terminate():
  outcomes, _ = run(toy_envs.counter(episode_length=3), 7)
  np.testing.assert_array_equal(
    outcomes.truncated, [False, False, True, False, False, True, False]
  )
  assert not np.any(outcomes.terminated)


def test_termination_wins_over_truncation_in_the_same_step():
  outcomes, _ = run(toy_envs.counter(terminates_at=3, episode_length=3), 3)
  np.testing.assert_array_equal(outcomes.terminated, [False, False, True])
  assert not np.any(outcomes.truncated)


def test_return_and_length_are_reported_once_when_an_episode_ends():
  outcomes, _ = run(toy_envs.counter(episode_length=3), 6)
  # Steps pay 1, 2, 3: a return of 6.
  np.testing.assert_array_equal(outcomes.episode_return, [0, 0, 6, 0, 0, 6])
  np.testing.assert_array_equal(outcomes.episode_length, [0, 0, 3, 0, 0, 3])
  np.testing.assert_array_equal(outcomes.has_finished, [0, 0, 1, 0, 0, 1])


def test_final_obs_is_the_terminal_one_and_obs_the_fresh_one():
  outcomes, sims = run(toy_envs.counter(episode_length=3), 3)
  start = float(outcomes.final_obs[0, 0]) - 1.0
  np.testing.assert_array_equal(
    outcomes.final_obs[:, 0], start + np.asarray([1.0, 2.0, 3.0])
  )
  assert float(sims.obs[2, 0]) in (0.0, 10.0)
  np.testing.assert_array_equal(sims.is_first, [False, False, True])


def test_resets_draw_from_the_whole_pool():
  _, sims = run(toy_envs.counter(episode_length=1), 64, pool_size=16)
  assert set(np.unique(sims.obs)) == {0.0, 10.0}


def test_a_nan_step_is_reset_masked_and_left_out_of_the_statistics():
  outcomes, sims = run(toy_envs.counter(nan_at=2, episode_length=9), 4)
  np.testing.assert_array_equal(outcomes.is_valid, [True, False, True, False])
  np.testing.assert_array_equal(outcomes.reward, [1.0, 0.0, 1.0, 0.0])
  np.testing.assert_array_equal(outcomes.terminated, ~outcomes.is_valid)
  assert not np.any(outcomes.has_finished)
  assert np.all(np.isfinite(sims.obs))


def test_staggered_episodes_end_at_all_ages_and_do_not_count():
  env = toy_envs.counter(episode_length=50)
  episodes = autoreset.episodes(env, stagger=True)
  sims = jax.vmap(episodes.reset)(jax.random.split(jax.random.key(0), 500))
  ages = np.asarray(sims.num_steps)
  assert ages.min() == 0 and ages.max() == 49
  np.testing.assert_array_equal(sims.is_partial, ages > 0)


def test_a_whole_episode_after_a_partial_one_counts():
  env = toy_envs.counter(episode_length=5)
  seed = next(
    s
    for s in range(20)
    if autoreset.episodes(env, stagger=True)
    .reset(jax.random.split(jax.random.key(s), 3)[0])
    .is_partial
  )
  outcomes, _ = run(env, 12, stagger=True, seed=seed)
  ended = np.flatnonzero(outcomes.truncated)
  assert not outcomes.has_finished[ended[0]]
  assert outcomes.has_finished[ended[1]]
  assert outcomes.episode_return[ended[1]] == 1 + 2 + 3 + 4 + 5


@pytest.mark.parametrize("at, solved", [(0.0, 1.0), (0.9, 0.0)])
def test_an_episode_is_solved_when_some_step_is(at, solved):
  outcomes, _ = run(toy_envs.target(at=at), 8)
  assert outcomes.is_solved[-1] == solved
