"""The normaliser against numpy in float64, up to a billion steps."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlinf_jax.models import normaliser

summarise = jax.jit(normaliser.summarise)
merge = jax.jit(normaliser.merge)


def see(batches, obs=None):
  """Returns the statistics of batches, merged one after the other."""
  stats = normaliser.init(batches[0][0] if obs is None else obs)
  for batch in batches:
    stats = merge(stats, summarise(stats, batch))
  return stats


def draw(seed, *shape):
  return 3.0 * jax.random.normal(jax.random.key(seed), shape) + 5.0


def test_statistics_of_one_batch_by_hand():
  stats = see([jnp.array([1.0, 3.0, 8.0])])
  # mean 4, variance (9 + 1 + 16) / 3
  np.testing.assert_allclose(stats.count.value, 3.0)
  np.testing.assert_allclose(stats.mean.value, 4.0)
  np.testing.assert_allclose(stats.variance.value, 26 / 3, rtol=1e-6)


@pytest.mark.slow
def test_batches_in_turn_are_all_at_once():
  batches = [draw(0, 7, 2), draw(1, 1, 2), draw(2, 30, 2)]
  stats = see(batches)
  together = np.concatenate(batches).astype(np.float64)
  np.testing.assert_allclose(stats.count.value, 38.0)
  np.testing.assert_allclose(stats.mean.value, together.mean(0), rtol=1e-6)
  np.testing.assert_allclose(stats.variance.value, together.var(0), rtol=1e-5)


def test_sums_of_parts_add_up():
  stats = see([draw(0, 10, 2)])
  batch = draw(1, 8, 4, 2)
  whole = summarise(stats, batch)
  parts = [summarise(stats, batch[:3]), summarise(stats, batch[3:])]
  total = jax.tree.map(jnp.add, *parts)
  chex.assert_trees_all_close(total, whole, rtol=1e-5)


def test_observations_without_weight_do_not_count_even_if_nan():
  batch = jnp.array([[1.0], [jnp.nan], [3.0]])
  mask = jnp.array([True, False, True])
  stats = normaliser.init(batch[0])
  stats = merge(stats, summarise(stats, batch, weight=mask))
  chex.assert_trees_all_close(stats, see([jnp.array([[1.0], [3.0]])]))


def test_nothing_seen_changes_nothing():
  for stats in (normaliser.init(jnp.zeros(2)), see([draw(0, 10, 2)])):
    sums = summarise(stats, draw(1, 4, 2), weight=jnp.zeros(4))
    chex.assert_trees_all_equal(merge(stats, sums), stats)


def test_statistics_of_nothing_change_no_observation():
  obs = jnp.array([[-2.0, 0.0, 2.0]])
  stats = normaliser.init(obs[0])
  np.testing.assert_allclose(normaliser.normalise(stats, obs), obs, rtol=1e-6)


def test_normalised_observations_have_mean_0_and_variance_1():
  batch = draw(0, 1000, 2)
  normal = normaliser.normalise(see([batch]), batch)
  np.testing.assert_allclose(jnp.mean(normal, 0), [0.0, 0.0], atol=1e-5)
  np.testing.assert_allclose(jnp.var(normal, 0), [1.0, 1.0], rtol=1e-4)


def test_normalised_observations_are_clipped():
  stats = see([draw(0, 100, 2)])
  far = jnp.array([[1e6, -1e6]])
  np.testing.assert_array_equal(
    normaliser.normalise(stats, far, clip=4.0), [[4.0, -4.0]]
  )


def test_a_constant_becomes_0():
  batch = jnp.full((100, 1), 0.1)
  normal = normaliser.normalise(see([batch]), batch)
  np.testing.assert_allclose(normal, np.zeros((100, 1)), atol=1e-3)


@pytest.mark.slow
def test_images_stay_as_they_are_and_cost_nothing():
  obs = {"camera": jnp.zeros((4, 4, 3)), "joints": jnp.zeros(2)}
  batch = {"camera": draw(0, 5, 4, 4, 3), "joints": draw(1, 5, 2)}
  stats = see([batch], obs)
  assert stats.mean["camera"].value.size == 0
  normal = normaliser.normalise(stats, batch)
  np.testing.assert_array_equal(normal["camera"], batch["camera"])
  assert not np.allclose(normal["joints"], batch["joints"])
  # One observation without batch axes is treated alike.
  single = jax.tree.map(lambda x: x[0], batch)
  chex.assert_trees_all_close(
    normaliser.normalise(stats, single),
    jax.tree.map(lambda x: x[0], normal),
    rtol=1e-6,
  )


@pytest.mark.slow
@pytest.mark.optimised
def test_a_billion_steps_later_the_count_and_the_mean_still_move():
  # A million batches of 16: far from 0, in small steps, as float32 hates it.
  # The last mean is that of all, to float32's precision.
  seen = 1_000_000_000.0
  stats = normaliser.init(jnp.zeros(()))
  stats = stats.replace(
    count=normaliser.Total(jnp.array(seen), jnp.zeros(())),
    mean=normaliser.Total(jnp.array(100.0), jnp.zeros(())),
    variance=normaliser.Total(jnp.array(1.0), jnp.zeros(())),
  )
  batch = jnp.where(jnp.arange(16) % 2 == 0, 100.5, 102.5)  # mean 101.5, var 1

  def step(stats, _):
    sums = normaliser.summarise(stats, batch)
    return normaliser.merge(stats, sums), None

  num_merges = 1_000_000
  stats, _ = jax.jit(
    lambda stats: jax.lax.scan(step, stats, length=num_merges)
  )(stats)
  count = seen + 16 * num_merges
  share = 16 * num_merges / count
  np.testing.assert_allclose(stats.count.value, count, rtol=1e-7)
  np.testing.assert_allclose(stats.mean.value - 100.0, 1.5 * share, rtol=1e-3)
  # variance of a mixture: 1 + share (1 - share) 1.5^2
  np.testing.assert_allclose(
    stats.variance.value - 1.0, share * (1 - share) * 2.25, rtol=1e-3
  )


def test_leaves_of_unequal_batches_are_refused():
  stats = normaliser.init({"a": jnp.zeros(2), "b": jnp.zeros(3)})
  batch = {"a": jnp.zeros((5, 2)), "b": jnp.zeros((4, 3))}
  with pytest.raises(AssertionError, match=r"\(5,\), \(4,\)"):
    normaliser.summarise(stats, batch)
