"""Advantage estimators: by hand, and against one another."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlinf_jax import losses

T = 6


def random_steps(seed, num_steps=T):
  """Returns steps of several episodes, with whatever values."""
  keys = jax.random.split(jax.random.key(seed), 5)
  reward_t, value_t, next_value_t = (
    jax.random.normal(k, (num_steps,)) for k in keys[:3]
  )
  terminated_t = jax.random.bernoulli(keys[3], 0.2, (num_steps,))
  truncated_t = jax.random.bernoulli(keys[4], 0.2, (num_steps,)) & ~terminated_t
  return reward_t, value_t, next_value_t, terminated_t, truncated_t


def one_episode(reward_t, value_t, last_value):
  """Returns steps that neither end nor fail, before a state of last_value."""
  value_t = jnp.array(value_t)
  next_value_t = jnp.append(value_t[1:], last_value)
  never = jnp.zeros(value_t.shape, bool)
  return jnp.array(reward_t), value_t, next_value_t, never, never


def test_gae_of_three_steps_by_hand():
  steps = one_episode([1.0, 2.0, 3.0], [0.5, 1.0, 1.5], 2.0)
  advantage_t, target_t = jax.jit(losses.gae)(
    *steps, discount=0.5, gae_lambda=0.5
  )
  # delta = r + 0.5 V' - V:  1 + 0.5 - 0.5 = 1,  2 + 0.75 - 1 = 1.75,
  #   3 + 1 - 1.5 = 2.5
  # A_2 = 2.5,  A_1 = 1.75 + 0.25 * 2.5 = 2.375,  A_0 = 1 + 0.25 * 2.375
  np.testing.assert_allclose(advantage_t, [1.59375, 2.375, 2.5])
  # plus the values 0.5, 1, 1.5
  np.testing.assert_allclose(target_t, [2.09375, 3.375, 4.0])


def test_gae_ends_at_a_termination_and_bootstraps_a_truncation():
  advantage_t, _ = losses.gae(
    jnp.array([1.0, 1.0, 1.0, 1.0]),
    jnp.array([2.0, 2.0, 2.0, 2.0]),
    jnp.array([4.0, 6.0, 8.0, 4.0]),
    jnp.array([False, True, False, False]),
    jnp.array([False, False, True, False]),
    discount=0.5,
    gae_lambda=1.0,
  )
  # A_3 = 1 + 0.5 * 4 - 2 = 1
  # A_2 = 1 + 0.5 * 8 - 2 = 3      truncated: V(s') counts, A_3 does not
  # A_1 = 1 + 0 - 2 = -1           terminated: neither does
  # A_0 = 1 + 0.5 * 4 - 2 + 0.5 * (-1) = 0.5
  np.testing.assert_allclose(advantage_t, [0.5, -1.0, 3.0, 1.0])


def test_gae_with_lambda_0_is_the_temporal_difference_error():
  reward_t, value_t, next_value_t, terminated_t, truncated_t = random_steps(0)
  advantage_t, _ = losses.gae(
    reward_t,
    value_t,
    next_value_t,
    terminated_t,
    truncated_t,
    discount=0.9,
    gae_lambda=0.0,
  )
  future_t = np.where(terminated_t, 0.0, 0.9 * next_value_t)
  np.testing.assert_allclose(
    advantage_t, reward_t + future_t - value_t, rtol=1e-6
  )


def test_gae_with_lambda_1_is_the_discounted_return_less_the_value():
  reward_t = jnp.arange(1.0, T + 1.0)
  value_t = jnp.sin(reward_t)
  steps = one_episode(reward_t, value_t, 10.0)
  advantage_t, target_t = losses.gae(*steps, discount=0.9, gae_lambda=1.0)
  return_t = np.array(
    [
      sum(0.9 ** (k - t) * float(reward_t[k]) for k in range(t, T))
      + 0.9 ** (T - t) * 10.0
      for t in range(T)
    ]
  )
  np.testing.assert_allclose(target_t, return_t, rtol=1e-6)
  np.testing.assert_allclose(advantage_t, return_t - value_t, rtol=1e-5)


def test_gae_of_a_row_of_episodes_is_that_of_each_alone():
  reward_t, value_t, next_value_t, _, _ = random_steps(5, 12)
  terminated_t = jnp.arange(12) == 3
  truncated_t = jnp.arange(12) == 7
  steps = (reward_t, value_t, next_value_t, terminated_t, truncated_t)
  estimate = jax.jit(
    lambda *steps: losses.gae(*steps, discount=0.9, gae_lambda=0.8)[0]
  )
  parts = [estimate(*(x[i : i + 4] for x in steps)) for i in (0, 4, 8)]
  np.testing.assert_allclose(estimate(*steps), np.concatenate(parts), rtol=1e-6)


@pytest.mark.parametrize("estimator", ["gae", "vtrace"])
def test_a_failed_step_is_worth_0_and_passes_nothing_on(estimator):
  reward_t, value_t, next_value_t, terminated_t, truncated_t = one_episode(
    [1.0, jnp.nan, 3.0], [0.5, 1.0, 1.5], 2.0
  )
  next_value_t = next_value_t.at[1].set(jnp.nan)
  arguments = [reward_t, value_t, next_value_t, terminated_t, truncated_t]
  options = dict(discount=0.5, mask_t=jnp.array([True, False, True]))
  if estimator == "gae":
    results = losses.gae(*arguments, gae_lambda=1.0, **options)
  else:
    arguments.insert(3, jnp.array([0.0, jnp.nan, 0.0]))
    results = losses.vtrace(*arguments, **options)
  # A_2 = 3 + 0.5 * 2 - 1.5 = 2.5;  A_1 = 0;  A_0 = 1 + 0.5 * 1 - 0.5 + 0
  np.testing.assert_allclose(results[0], [1.0, 0.0, 2.5])
  np.testing.assert_allclose(results[1], [1.5, 1.0, 4.0])


def test_vtrace_of_two_steps_by_hand():
  reward_t, value_t, next_value_t, never, _ = one_episode(
    [1.0, 2.0], [1.0, 2.0], 4.0
  )
  log_ratio_t = jnp.log(jnp.array([0.5, 3.0]))
  advantage_t, target_t = jax.jit(losses.vtrace)(
    reward_t,
    value_t,
    next_value_t,
    log_ratio_t,
    never,
    never,
    discount=0.5,
    rho_bar=2.0,
    c_bar=1.0,
  )
  # rho = min(2, [0.5, 3]) = [0.5, 2],  c = min(1, ...) = [0.5, 1]
  # delta_1 = 2 (2 + 0.5 * 4 - 2) = 4,  delta_0 = 0.5 (1 + 0.5 * 2 - 1) = 0.5
  # v_1 = 2 + 4 = 6,  v_0 = 1 + 0.5 + 0.5 * 0.5 * 4 = 2.5
  np.testing.assert_allclose(target_t, [2.5, 6.0], rtol=1e-6)
  # A_1 = 2 (2 + 0.5 * 4 - 2) = 4,  A_0 = 0.5 (1 + 0.5 v_1 - 1) = 1.5
  np.testing.assert_allclose(advantage_t, [1.5, 4.0], rtol=1e-6)


@pytest.mark.parametrize("trace_lambda", [0.0, 0.7, 1.0])
def test_vtrace_on_policy_is_gae(trace_lambda):
  steps = random_steps(1, 40)
  chex.assert_trees_all_close(
    losses.vtrace(
      *steps[:3],
      jnp.zeros(40),
      *steps[3:],
      discount=0.9,
      vtrace_lambda=trace_lambda,
    ),
    losses.gae(*steps, discount=0.9, gae_lambda=trace_lambda),
    rtol=1e-5,
    atol=1e-6,
  )


def test_vtrace_of_actions_that_are_no_longer_taken_learns_nothing():
  steps = random_steps(2)
  advantage_t, target_t = losses.vtrace(
    *steps[:3], jnp.full(T, -100.0), *steps[3:], discount=0.9
  )
  np.testing.assert_allclose(advantage_t, np.zeros(T), atol=1e-30)
  np.testing.assert_allclose(target_t, steps[1])


def test_vtrace_clips_ratios_that_overflow():
  steps = random_steps(3)
  results = [
    losses.vtrace(*steps[:3], jnp.full(T, x), *steps[3:], discount=0.9)
    for x in (0.0, 1000.0)
  ]
  chex.assert_trees_all_close(*results)


@pytest.mark.parametrize("estimator", ["gae", "vtrace"])
def test_no_gradient_flows_through_advantages_and_targets(estimator):
  reward_t, value_t, next_value_t, terminated_t, truncated_t = random_steps(4)

  def total(value_t, next_value_t):
    arguments = [reward_t, value_t, next_value_t, terminated_t, truncated_t]
    if estimator == "gae":
      results = losses.gae(*arguments, discount=0.9, gae_lambda=0.9)
    else:
      arguments.insert(3, value_t)
      results = losses.vtrace(*arguments, discount=0.9)
    return jnp.sum(results[0] + results[1])

  for gradient in jax.grad(total, argnums=(0, 1))(value_t, next_value_t):
    np.testing.assert_array_equal(gradient, np.zeros(T))


def test_gae_under_vmap_is_gae_of_each_sequence():
  steps_b = jax.tree.map(lambda *x: jnp.stack(x), *map(random_steps, range(4)))
  estimate = lambda *steps: losses.gae(*steps, discount=0.9, gae_lambda=0.9)
  whole = jax.jit(jax.vmap(estimate))(*steps_b)
  for i in range(4):
    chex.assert_trees_all_close(
      jax.tree.map(lambda x, i=i: x[i], whole),
      estimate(*random_steps(i)),
      rtol=1e-6,
    )


def test_gae_refuses_steps_of_unequal_length_or_type():
  steps = random_steps(0)
  with pytest.raises(AssertionError, match="shape"):
    losses.gae(*steps[:4], steps[4][1:], discount=0.9, gae_lambda=0.9)
  with pytest.raises(AssertionError, match="type"):
    losses.gae(
      *steps[:4], steps[4].astype(jnp.float32), discount=0.9, gae_lambda=0.9
    )
