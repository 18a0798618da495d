"""What is sampled from, by hand: chances 1/2, 1/4, 1/8, 1/8 of four tokens."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlinf_jax import rollout

CHANCES = np.array([0.125, 0.5, 0.125, 0.25], np.float32)


def chances(**options):
  logits = jnp.log(jnp.asarray(CHANCES))
  return np.exp(rollout.log_distribution(logits, **options))


def test_without_options_it_is_the_softmax():
  np.testing.assert_allclose(chances(), CHANCES, rtol=1e-6)


def test_temperature_two_takes_square_roots():
  roots = np.sqrt(CHANCES)
  expected = roots / roots.sum()
  np.testing.assert_allclose(chances(temperature=2.0), expected, rtol=1e-6)


@pytest.mark.parametrize(
  ("top_k", "expected"),
  [(1, [0, 1, 0, 0]), (2, [0, 2 / 3, 0, 1 / 3]), (3, CHANCES), (9, CHANCES)],
)
def test_top_k_leaves_the_likeliest_and_ties_with_the_last(top_k, expected):
  np.testing.assert_allclose(chances(top_k=top_k), expected, rtol=1e-6)


@pytest.mark.parametrize(
  ("top_p", "expected"),
  [
    (0.1, [0, 1, 0, 0]),
    (0.5, [0, 1, 0, 0]),  # the first alone sums to 0.5
    (0.51, [0, 2 / 3, 0, 1 / 3]),
    (0.75, [0, 2 / 3, 0, 1 / 3]),
    (0.8, CHANCES),  # a third is needed, and the fourth is as likely
    (1.0, CHANCES),
  ],
)
def test_top_p_leaves_the_fewest_that_sum_to_it(top_p, expected):
  np.testing.assert_allclose(chances(top_p=top_p), expected, rtol=1e-6)


def test_top_p_counts_what_top_k_left():
  # Of 1/2 and 1/4 the first is 2/3 of what is left.
  np.testing.assert_allclose(
    chances(top_k=2, top_p=0.6), [0, 1, 0, 0], rtol=1e-6
  )


def test_temperature_comes_first():
  # At temperature 1/2 chances are as 16 : 4 : 1 : 1, the first 16/22 = 0.73.
  np.testing.assert_allclose(
    chances(temperature=0.5, top_p=0.7), [0, 1, 0, 0], rtol=1e-6
  )


def test_rows_are_apart():
  logits = jax.random.normal(jax.random.key(0), (3, 7))
  whole = rollout.log_distribution(logits, top_k=4, top_p=0.8)
  for row, found in zip(logits, whole):
    alone = rollout.log_distribution(row, top_k=4, top_p=0.8)
    np.testing.assert_allclose(found, alone, rtol=1e-6)
