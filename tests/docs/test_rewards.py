"""The example of docs/rewards.md runs, and its functions do what they say."""

import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "rewards.md"


def test_the_example_scores_judges_and_learns():
  (snippet,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
  names = {}
  exec(compile(snippet, str(PAGE), "exec"), names)
  np.testing.assert_array_equal(names["scores"].reward_b, [1, 0.5, 1, 0])
  # the median of 0, 0.5, 1, 1 is 0.75
  np.testing.assert_array_equal(names["advantage_g"], [1, -1, 1, -1])

  def total(log_prob_t):
    loss_t = names["objective"].loss_fn(
      log_prob_t, jnp.full(2, -1.0), jnp.array([1.0, -1.0]), jnp.ones(2, bool)
    )
    return names["objective"].aggregation_fn(loss_t, jnp.ones(2, bool))[0]

  # On policy the pull is 0, and the mean over two tokens halves -A.
  gradient = jax.jit(jax.grad(total))(jnp.full(2, -1.0))
  np.testing.assert_allclose(gradient, [-0.5, 0.5], rtol=1e-6)
