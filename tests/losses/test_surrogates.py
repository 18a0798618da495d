"""PPO's surrogate: by hand, and where its gradient vanishes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlinf_jax import losses


def surrogate(ratio_t, advantage_t, **options):
  ratio_t = jnp.array(ratio_t)
  return losses.clipped_surrogate(
    jnp.log(ratio_t), jnp.zeros_like(ratio_t), jnp.array(advantage_t), **options
  )


def gradient(ratio_t, advantage_t, **options):
  """Returns d loss_t / d log_prob_t."""
  log_prob_t = jnp.log(jnp.array(ratio_t))

  def total(log_prob_t):
    return jnp.sum(
      losses.clipped_surrogate(
        log_prob_t,
        jnp.zeros_like(log_prob_t),
        jnp.array(advantage_t),
        **options,
      )
    )

  return jax.jit(jax.grad(total))(log_prob_t)


def test_surrogate_by_hand():
  # ratio 1.5, A = 2:   min(3, 1.2 * 2) = 2.4
  # ratio 1.5, A = -2:  min(-3, -2.4) = -3
  # ratio 0.5, A = 2:   min(1, 1.6) = 1
  # ratio 0.5, A = -2:  min(-1, 0.8 * -2) = -1.6
  np.testing.assert_allclose(
    surrogate([1.5, 1.5, 0.5, 0.5], [2.0, -2.0, 2.0, -2.0]),
    [-2.4, 3.0, -1.0, 1.6],
    rtol=1e-6,
  )


def test_clip_range_may_be_asymmetric():
  # ratio 1.5, A = 1: 1 + 0.4;  ratio 0.5, A = -1: -(1 - 0.1)
  np.testing.assert_allclose(
    surrogate([1.5, 0.5], [1.0, -1.0], clip_low=0.1, clip_high=0.4),
    [-1.4, 0.9],
    rtol=1e-6,
  )


def test_dual_clip_binds_only_for_bad_actions_that_became_likely():
  ratio_t = [5.0, 2.0, 5.0, 0.5]
  advantage_t = [-2.0, -2.0, 2.0, -2.0]
  # A < 0: max(-10, 3 * -2) = -6;  max(-4, -6) = -4;  max(-1.6, -6) = -1.6
  # A > 0: 2.4, as without it
  np.testing.assert_allclose(
    surrogate(ratio_t, advantage_t, dual_clip=3.0),
    [6.0, 4.0, -2.4, 1.6],
    rtol=1e-6,
  )
  np.testing.assert_array_equal(
    gradient(ratio_t, advantage_t, dual_clip=3.0)[0], 0.0
  )


def test_gradient_is_ratio_times_advantage_inside_and_0_where_clipped():
  ratio_t = [1.1, 0.9, 1.5, 1.5, 0.5, 0.5]
  advantage_t = [2.0, -2.0, 2.0, -2.0, 2.0, -2.0]
  # -ratio * A, but for (1.5, good) and (0.5, bad)
  np.testing.assert_allclose(
    gradient(ratio_t, advantage_t),
    [-2.2, 1.8, 0.0, 3.0, -1.0, 0.0],
    rtol=1e-6,
  )


def test_gradient_of_the_first_update_is_the_policy_gradient():
  advantage_t = [2.0, -3.0, 0.0]
  np.testing.assert_allclose(gradient([1.0] * 3, advantage_t), [-2.0, 3.0, 0.0])


def test_gradient_flows_to_the_learning_policy_only():
  arguments = [jnp.array([x]) for x in (0.1, 0.0, 1.0)]
  total = lambda *a: jnp.sum(losses.clipped_surrogate(*a))
  new, old, advantage = jax.grad(total, argnums=(0, 1, 2))(*arguments)
  assert float(new[0]) != 0
  assert float(old[0]) == float(advantage[0]) == 0


@pytest.mark.parametrize("log_ratio", [-1e4, 1e4])
def test_absurd_ratios_leave_loss_and_gradient_finite(log_ratio):
  def total(log_prob_t):
    advantage_t = jnp.array([-1.0, 0.0, 1.0])
    loss_t = losses.clipped_surrogate(log_prob_t, jnp.zeros(3), advantage_t)
    return jnp.sum(loss_t)

  loss, grad_t = jax.value_and_grad(total)(jnp.full(3, log_ratio))
  assert np.isfinite(loss)
  assert np.isfinite(grad_t).all()


def test_is_clipped_marks_ratios_outside_the_range():
  np.testing.assert_array_equal(
    losses.is_clipped(
      jnp.log(jnp.array([0.7, 0.85, 1.0, 1.25, 1.35])),
      jnp.zeros(5),
      clip_low=0.2,
      clip_high=0.3,
    ),
    [1.0, 0.0, 0.0, 0.0, 1.0],
  )


def test_surrogate_refuses_a_batch():
  with pytest.raises(AssertionError, match="rank"):
    losses.clipped_surrogate(*[jnp.zeros((2, 3))] * 3)


def test_decoupled_surrogate_by_hand():
  # pi = 0.3, 0.1; pi_prox = 0.2, 0.2; pi_behav = 0.4, 0.05; A = 2, -1
  # ratio 1.5 and 0.5; clipped losses -1.2 * 2 = -2.4 and 0.8
  # weights 0.2 / 0.4 = 0.5 and 0.2 / 0.05 = 4, bounded by 3
  arguments = [
    jnp.log(jnp.array(x)) for x in ([0.3, 0.1], [0.2, 0.2], [0.4, 0.05])
  ]
  advantage_t = jnp.array([2.0, -1.0])
  np.testing.assert_allclose(
    losses.decoupled_surrogate(*arguments, advantage_t), [-1.2, 3.2], rtol=1e-5
  )
  np.testing.assert_allclose(
    losses.decoupled_surrogate(*arguments, advantage_t, max_weight=3.0),
    [-1.2, 2.4],
    rtol=1e-5,
  )


def random_tokens(seed, size):
  keys = jax.random.split(jax.random.key(seed), 3)
  log_prob_t = -jax.random.exponential(keys[0], (size,))
  old_log_prob_t = log_prob_t + 0.3 * jax.random.normal(keys[1], (size,))
  return log_prob_t, old_log_prob_t, jax.random.normal(keys[2], (size,))


def value_and_grad(loss_fn, log_prob_t):
  return jax.jit(jax.value_and_grad(lambda x: jnp.sum(loss_fn(x))))(log_prob_t)


def assert_same_losses(loss_fn, other_fn, log_prob_t):
  for ours, theirs in zip(
    value_and_grad(loss_fn, log_prob_t), value_and_grad(other_fn, log_prob_t)
  ):
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-7)


def test_decoupled_surrogate_is_ppo_where_the_proximal_policy_acted():
  log_prob_t, old_log_prob_t, advantage_t = random_tokens(0, 20)
  assert_same_losses(
    lambda x: losses.decoupled_surrogate(
      x, old_log_prob_t, old_log_prob_t, advantage_t
    ),
    lambda x: losses.clipped_surrogate(x, old_log_prob_t, advantage_t),
    log_prob_t,
  )


def test_decoupled_surrogate_passes_gradient_to_the_learner_alone():
  log_prob_t, old_log_prob_t, advantage_t = random_tokens(1, 4)
  gradients = jax.grad(
    lambda *x: jnp.sum(losses.decoupled_surrogate(*x)), argnums=(0, 1, 2, 3)
  )(log_prob_t, log_prob_t, old_log_prob_t, advantage_t)
  assert bool(jnp.all(gradients[0] != 0))
  for gradient in gradients[1:]:
    np.testing.assert_array_equal(gradient, np.zeros(4))


def test_sequence_surrogate_by_hand():
  # ratios 4 and 1, the third token does not count: s = sqrt(4) = 2
  # A = 1: -min(2, 1.5) = -1.5;  A = -1: -min(-2, -1.5) = 2
  old_log_prob_t = jnp.log(jnp.array([0.1, 0.5, 0.1]))
  log_prob_t = jnp.log(jnp.array([0.4, 0.5, 0.9]))
  mask_t = jnp.array([True, True, False])
  for advantage, expected in ((1.0, -1.5), (-1.0, 2.0)):
    loss_t = losses.sequence_surrogate(
      log_prob_t,
      old_log_prob_t,
      jnp.full(3, advantage),
      mask_t,
      clip_low=0.5,
      clip_high=0.5,
    )
    np.testing.assert_allclose(loss_t[:2], [expected] * 2, rtol=1e-6)


@pytest.mark.slow
def test_sequence_surrogate_of_one_token_is_ppo():
  for seed in range(8):
    log_prob_t, old_log_prob_t, advantage_t = random_tokens(seed, 1)
    assert_same_losses(
      lambda x, old=old_log_prob_t, a=advantage_t: losses.sequence_surrogate(
        x, old, a, jnp.ones(1, bool), clip_low=0.2, clip_high=0.2
      ),
      lambda x, old=old_log_prob_t, a=advantage_t: losses.clipped_surrogate(
        x, old, a
      ),
      log_prob_t,
    )


@pytest.mark.parametrize("shift", [0.0, 0.1, -0.1, 1.0, -1.0])
@pytest.mark.parametrize("advantage", [1.5, -1.5])
def test_sequence_surrogate_averages_to_the_loss_of_one_ratio(shift, advantage):
  log_prob_t, old_log_prob_t, _ = random_tokens(3, 6)
  log_prob_t = log_prob_t + shift
  mask_t = losses.length_mask(jnp.array(4), 6)

  def tokens(log_prob_t):
    loss_t = losses.sequence_surrogate(
      log_prob_t,
      old_log_prob_t,
      jnp.full(6, advantage),
      mask_t,
      clip_low=0.2,
      clip_high=0.3,
    )
    return losses.sequence_mean(loss_t, mask_t)[0]

  def whole(log_prob_t):  # GSPO's eqs. 5 and 7, of the first four tokens
    ratio = jnp.exp(jnp.mean((log_prob_t - old_log_prob_t)[:4]))
    clipped = jnp.clip(ratio, 0.8, 1.3)
    return -jnp.minimum(ratio * advantage, clipped * advantage)

  assert_same_losses(tokens, whole, log_prob_t)
