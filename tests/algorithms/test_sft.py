"""Supervised fine-tuning, on a tiny model."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rlinf_jax.algorithms import sft
from rlinf_jax.models import transformer
from rlinf_jax.models.huggingface import settings
from tests.models.transformer import variants

FOUND = variants.VARIANTS["qwen2_tied"]


def test_examples_share_rows_and_only_answers_are_learnt():
  rows = sft.pack([([5, 6], [7, 1]), ([8], [9])], 6)
  np.testing.assert_array_equal(rows.token, [[5, 6, 7, 1, 8, 9]])
  np.testing.assert_array_equal(rows.segment, [[1, 1, 1, 1, 2, 2]])
  np.testing.assert_array_equal(
    rows.is_target, [[False, False, True, True, False, True]]
  )


@pytest.mark.slow
def test_the_loss_is_the_answers_mean_negative_log_likelihood():
  model = transformer.language_model(settings.to_config(FOUND))
  params = jax.tree.map(jnp.asarray, variants.params(FOUND))
  update = sft.make(model, optax.sgd(0.0))
  # Three tokens are learnt: 7 and 1 after (5, 6), and 9 after (8).
  rows = sft.pack([([5, 6], [7, 1]), ([8], [9])], 6)
  _, metrics = update.step(update.init(params), rows, jax.random.key(0))
  total = 0.0
  for text, start in (([5, 6, 7, 1], 2), ([8, 9], 1)):
    token = jnp.array(text)[None]
    place = jnp.arange(len(text))[None]
    logits = model.apply(params, token, place, jnp.ones_like(place))[0]
    log_prob = jax.nn.log_softmax(logits)
    for t in range(start, len(text)):
      total -= float(log_prob[t - 1, text[t]])
  np.testing.assert_allclose(metrics["loss"], total / 3, rtol=1e-5)
