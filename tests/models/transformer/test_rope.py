"""Rotary positions by hand: base 16, heads of 8, so four planes.

Their frequencies are 16^0, 16^(-1/4), 16^(-1/2), 16^(-3/4) = 1, 1/2, 1/4, 1/8.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlinf_jax.models.transformer import rope

PLAIN = np.array([1.0, 0.5, 0.25, 0.125])


def frequencies(scaling):
  return rope.frequencies(rope.Rope(base=16.0, scaling=scaling), 8)


def test_plain_frequencies_fall_by_the_base():
  np.testing.assert_allclose(frequencies(None), PLAIN, rtol=1e-12)


def test_linear_scaling_divides_every_frequency():
  scaled = frequencies(rope.Linear(factor=4.0))
  np.testing.assert_allclose(scaled, PLAIN / 4, rtol=1e-12)


def test_llama3_blends_between_two_wavelengths():
  # In 16 pi positions the planes turn 8, 4, 2 and 1 times. Of 4 turns and more
  # all is kept, of 1 and less nothing, and of 2 a third: (2 - 1) / (4 - 1).
  scaled = frequencies(
    rope.Llama3(
      factor=8.0,
      original_context_size=16 * math.pi,
      low_frequency_factor=1.0,
      high_frequency_factor=4.0,
    )
  )
  blended = 0.25 / 3 + (0.25 / 8) * 2 / 3
  np.testing.assert_allclose(scaled, [1.0, 0.5, blended, 1 / 64], rtol=1e-12)


def test_yarn_blends_between_two_planes():
  # The plane that turns n times in 16 pi positions is log2(8 / n): plane 0 for
  # 8 turns, plane 2 for 2. So the shares kept are 1, 1/2, 0, 0.
  scaled = frequencies(
    rope.Yarn(
      factor=4.0,
      original_context_size=16 * math.pi,
      beta_fast=8.0,
      beta_slow=2.0,
      # Truncating would not move them but by rounding: floor(0 - 1e-16).
      is_truncated=False,
    )
  )
  blended = 0.5 / 2 + (0.5 / 4) / 2
  np.testing.assert_allclose(scaled, [1.0, blended, 1 / 16, 1 / 32], rtol=1e-12)


def test_yarn_truncated_begins_and_ends_at_planes():
  # Planes log2(8 / 6) = 0.42 and log2(8 / 3) = 1.42 become 0 and 2.
  scaled = frequencies(
    rope.Yarn(
      factor=4.0,
      original_context_size=16 * math.pi,
      beta_fast=6.0,
      beta_slow=3.0,
    )
  )
  blended = 0.5 / 2 + (0.5 / 4) / 2
  np.testing.assert_allclose(scaled, [1.0, blended, 1 / 16, 1 / 32], rtol=1e-12)


@pytest.mark.parametrize(
  ("attention_factor", "expected"),
  [(None, 0.1 * math.log(4.0) + 1.0), (1.5, 1.5), (0.5, 0.5)],
)
def test_yarn_multiplies_queries_and_keys(attention_factor, expected):
  scaling = rope.Yarn(
    factor=4.0, original_context_size=16, attention_factor=attention_factor
  )
  at_zero = rope.rotation(
    rope.Rope(base=16.0, scaling=scaling), 8, jnp.zeros((1, 1), int)
  )
  np.testing.assert_allclose(at_zero.cos, np.full((1, 1, 4), expected), 1e-6)
  np.testing.assert_array_equal(at_zero.sin, np.zeros((1, 1, 4)))


def test_dynamic_scaling_grows_the_base_with_the_text():
  # Twice the context, factor 2: stretch 2 * 2 - 1 = 3; base 16 * 3^(8/6).
  text = jnp.full((1, 1), 2.0)
  turned = rope.rotation(
    rope.Rope(base=16.0, scaling=rope.DynamicNtk(factor=2.0)),
    8,
    jnp.ones((1, 1), int),
    text,
  )
  base = 16 * 3 ** (8 / 6)
  expected = base ** -np.array([0, 1 / 4, 1 / 2, 3 / 4])
  np.testing.assert_allclose(turned.sin[0, 0], np.sin(expected), rtol=1e-6)


def test_a_plane_is_turned_by_its_angle():
  # Position 2, plane 1: the pair (3, 4) of features 1 and 5 turns by 1 radian.
  x = jnp.zeros((1, 1, 1, 8)).at[0, 0, 0, 1].set(3.0).at[0, 0, 0, 5].set(4.0)
  turn = rope.rotation(rope.Rope(base=16.0), 8, jnp.full((1, 1), 2))
  turned = rope.rotate(x, turn)[0, 0, 0]
  first = 3 * math.cos(1) - 4 * math.sin(1)
  second = 4 * math.cos(1) + 3 * math.sin(1)
  np.testing.assert_allclose(
    turned, [0, first, 0, 0, 0, second, 0, 0], atol=1e-6
  )


def test_products_depend_on_distance_alone():
  query, key = np.random.RandomState(0).standard_normal((2, 1, 1, 1, 8))
  product = lambda i, j: jnp.sum(
    rope.rotate(jnp.float32(query), turn(i))
    * rope.rotate(jnp.float32(key), turn(j))
  )
  turn = lambda i: rope.rotation(rope.Rope(base=1e4), 8, jnp.full((1, 1), i))
  np.testing.assert_allclose(product(7, 3), product(1004, 1000), rtol=1e-3)


def test_angles_of_far_positions_keep_their_precision():
  position = jnp.array([[30_001, 120_003]])
  turn = jax.jit(rope.rotation, static_argnums=(0, 1))(
    rope.Rope(base=1e6), 64, position
  )
  angle = np.float32(rope.frequencies(rope.Rope(base=1e6), 64)) * np.float32(
    np.asarray(position)[..., None]
  )
  expected = np.cos(angle.astype(np.float64))
  np.testing.assert_allclose(turn.cos, expected, atol=1e-5)


@pytest.mark.parametrize(
  ("make", "words"),
  [
    (lambda: rope.Rope(base=1.0), "more than 1"),
    (
      lambda: rope.Rope(base=2.0, scaling=rope.Linear(factor=0.5)),
      "at least 1",
    ),
  ],
)
def test_nonsense_is_refused(make, words):
  with pytest.raises(ValueError, match=words):
    make()
