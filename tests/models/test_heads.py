"""Heads: densities that integrate to 1, against scipy, numpy and by hand."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from rlinf_jax import models

HEADS = {
  "tanh": models.tanh_gaussian(2),
  "clipped": models.clipped_gaussian(2),
  "shared": models.with_shared_std(models.tanh_gaussian(2)),
  "categorical": models.categorical(3),
}


def outputs_of(head, shape=(5,), seed=0):
  key = jax.random.key(seed)
  return jax.random.normal(key, (*shape, head.num_outputs))


@pytest.mark.slow
@pytest.mark.parametrize("name", HEADS)
def test_leading_axes_are_kept(name):
  head = HEADS[name]
  outputs = outputs_of(head, (3, 4))
  raw = jax.jit(head.sample)(outputs, jax.random.key(1))
  action_shape = () if name == "categorical" else (2,)
  assert raw.shape == head.mode(outputs).shape == (3, 4, *action_shape)
  assert head.log_prob(outputs, raw).shape == (3, 4)
  assert head.entropy(outputs, jax.random.key(2)).shape == (3, 4)
  assert head.to_action(raw).shape == raw.shape


@pytest.mark.parametrize("name", HEADS)
def test_entropy_is_the_mean_of_minus_the_log_probability(name):
  head = HEADS[name]
  outputs = outputs_of(head, ())
  outputs_n = jnp.broadcast_to(outputs, (100_000, head.num_outputs))
  raw_n = head.sample(outputs_n, jax.random.key(1))
  surprise_n = -head.log_prob(outputs_n, raw_n)
  entropy = jnp.mean(head.entropy(outputs_n, jax.random.key(2)))
  error = 5 * jnp.std(surprise_n) / np.sqrt(100_000)  # five standard errors
  np.testing.assert_allclose(jnp.mean(surprise_n), entropy, atol=float(error))


@pytest.mark.slow
@pytest.mark.parametrize("name", HEADS)
def test_no_raw_action_is_more_likely_than_the_mode(name):
  head = HEADS[name]
  if name == "categorical":
    density = head.log_prob
  else:  # the mode is that of the raw action, which has no slope
    density = models.clipped_gaussian(2).log_prob
  outputs_n = outputs_of(head, (200,))
  raw_n = head.sample(outputs_n, jax.random.key(3))
  at_mode_n = density(outputs_n, head.mode(outputs_n))
  assert (at_mode_n >= density(outputs_n, raw_n)).all()


@pytest.mark.parametrize("name", ["tanh", "clipped", "shared"])
def test_actions_stay_within_their_bounds(name):
  head = HEADS[name]
  raw = jnp.array([[-100.0, 100.0], [0.0, 0.5]])
  action = head.to_action(raw)
  np.testing.assert_allclose(action[0], [-1.0, 1.0])
  assert float(action[1, 0]) == 0.0
  assert 0.4 < float(action[1, 1]) <= 0.5


def test_clipped_gaussian_scores_the_sample_before_clipping():
  head = models.clipped_gaussian(2, initial_std=0.5, min_std=0.1)
  outputs = jnp.array([1.0, -1.0, 0.0, 0.0])  # standard deviations of 0.5
  raw = jnp.array([2.0, -1.5])
  np.testing.assert_allclose(
    head.log_prob(outputs, raw),
    scipy.stats.norm.logpdf([2.0, -1.5], [1.0, -1.0], 0.5).sum(),
    rtol=1e-5,
  )


@pytest.mark.parametrize("mean", [-1.0, 0.0, 2.0])
def test_density_of_squashed_actions_integrates_to_1(mean):
  head = models.tanh_gaussian(1)
  action_n = jnp.linspace(-1, 1, 200_001)[1:-1, None]
  outputs_n = jnp.broadcast_to(jnp.array([mean, 0.0]), (199_999, 2))
  density_n = jnp.exp(head.log_prob(outputs_n, jnp.arctanh(action_n)))
  np.testing.assert_allclose(jnp.sum(density_n) * 1e-5, 1.0, rtol=1e-3)


def test_squashed_density_is_the_gaussian_over_the_slope_of_tanh():
  raw = jnp.array([0.3, -1.2])
  outputs = outputs_of(HEADS["tanh"], ())
  slope = 1 - np.tanh(np.array(raw, np.float64)) ** 2
  np.testing.assert_allclose(
    HEADS["tanh"].log_prob(outputs, raw),
    HEADS["clipped"].log_prob(outputs, raw) - np.log(slope).sum(),
    rtol=1e-5,
  )


def test_squashed_density_and_gradient_are_finite_where_tanh_saturates():
  head = models.tanh_gaussian(1)
  log_prob = lambda raw: head.log_prob(jnp.zeros(2), raw)
  # log(1 - tanh(x)^2) = 2 log 2 - 2 |x| for large |x|
  normal = scipy.stats.norm.logpdf(30.0, 0.0, 0.7)
  expected = normal - (2 * np.log(2.0) - 60.0)
  for raw in (30.0, -30.0):
    raw = jnp.array([raw])
    np.testing.assert_allclose(log_prob(raw), expected, rtol=1e-5)
    assert np.isfinite(jax.grad(log_prob)(raw)).all()


def test_samples_have_the_mean_and_deviation_that_outputs_say():
  head = models.clipped_gaussian(1, initial_std=0.5)
  outputs_n = jnp.broadcast_to(jnp.array([0.3, 0.0]), (100_000, 2))
  raw_n = head.sample(outputs_n, jax.random.key(0))
  np.testing.assert_allclose(jnp.mean(raw_n), 0.3, atol=0.01)
  np.testing.assert_allclose(jnp.std(raw_n), 0.5, atol=0.01)


def test_deviation_never_falls_below_its_minimum():
  head = models.clipped_gaussian(1, min_std=0.2)
  outputs_n = jnp.broadcast_to(jnp.array([0.0, -100.0]), (100_000, 2))
  raw_n = head.sample(outputs_n, jax.random.key(0))
  np.testing.assert_allclose(jnp.std(raw_n), 0.2, atol=0.01)


def test_shared_outputs_are_the_deviations():
  assert HEADS["tanh"].num_shared == 0
  assert HEADS["shared"].num_shared == 2


def test_entropy_of_a_uniform_choice_is_log_n():
  entropy = models.categorical(7).entropy(jnp.full(7, 3.0), jax.random.key(0))
  np.testing.assert_allclose(entropy, np.log(7.0), rtol=1e-6)


def test_probabilities_of_a_choice_by_hand():
  head = models.categorical(3)
  logits = jnp.log(jnp.array([0.2, 0.3, 0.5]))
  np.testing.assert_allclose(
    head.log_prob(jnp.stack([logits] * 3), jnp.arange(3)), logits, rtol=1e-6
  )
  assert int(head.mode(logits)) == 2
  # -(0.2 log 0.2 + 0.3 log 0.3 + 0.5 log 0.5)
  np.testing.assert_allclose(
    head.entropy(logits, jax.random.key(0)), 1.029653, rtol=1e-5
  )


def test_a_forbidden_action_adds_no_entropy_and_is_never_sampled():
  head = models.categorical(3)
  logits = jnp.array([0.0, -jnp.inf, 0.0])
  np.testing.assert_allclose(
    head.entropy(logits, jax.random.key(0)), np.log(2.0), rtol=1e-6
  )
  raw_n = head.sample(jnp.stack([logits] * 1000), jax.random.key(1))
  assert set(np.unique(raw_n)) == {0, 2}


def test_constructors_say_what_they_expected():
  with pytest.raises(ValueError, match="size=0"):
    models.tanh_gaussian(0)
  with pytest.raises(ValueError, match="min_std < initial_std"):
    models.clipped_gaussian(1, initial_std=0.1, min_std=0.2)
  with pytest.raises(ValueError, match="num=0"):
    models.categorical(0)


def test_outputs_of_another_size_are_refused():
  with pytest.raises(AssertionError):
    HEADS["tanh"].mode(jnp.zeros((5, 3)))
