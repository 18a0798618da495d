"""What `transformers` saves is loaded and computes the same, and back.

pip install -e '.[dev,reasoning-test]'      # best in a venv of its own
python -m pytest tests/models/huggingface/test_transformers.py
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from rlinf_jax.models import huggingface, transformer
from tests.models.transformer import variants

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.slow


def random_model(name):
  """Returns a model of `transformers` with its own random weights."""
  found = variants.VARIANTS[name]
  constructor = getattr(transformers, found["architectures"][0])
  torch.manual_seed(0)
  config = constructor.config_class(**found | {"initializer_range": 0.2})
  config._attn_implementation = "eager"
  model = constructor(config).eval()
  with torch.no_grad():  # else biases are 0 and scales 1
    for key, x in model.named_parameters():
      if key.endswith(("bias", "norm.weight")):
        x.add_(0.2 * torch.randn_like(x))
  return model


def outputs_of(model, token):
  """Returns float32 [B, T, ...] logits or scores."""
  with torch.no_grad():
    token = torch.tensor(np.asarray(token), dtype=torch.long)
    if hasattr(model, "score"):
      hidden = model.model(token).last_hidden_state
      return model.score(hidden)[..., 0].numpy()
    return model(token).logits.numpy()


def run(config, params, token, **options):
  constructor = (
    transformer.critic if "value" in params else transformer.language_model
  )
  position = jnp.broadcast_to(jnp.arange(token.shape[1])[None], token.shape)
  model = constructor(config, **options)
  return jax.jit(model.apply)(params, token, position, jnp.ones_like(position))


def draw_tokens(num_rows, size):
  return np.random.default_rng(0).integers(1, 40, (num_rows, size), np.int32)


@pytest.mark.parametrize("name", variants.VARIANTS)
@pytest.mark.parametrize("size", [16, 40])
def test_outputs_agree_on_what_transformers_saved(name, size, tmp_path):
  model = random_model(name)
  model.save_pretrained(tmp_path, max_shard_size="30KB")
  assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
  token = draw_tokens(3, size)
  expected = outputs_of(model, token)
  found = run(*huggingface.load(tmp_path), token)
  assert np.abs(expected).max() > 0.5  # or agreeing would be no news
  np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", variants.VARIANTS)
def test_transformers_loads_what_was_saved_bitwise(name, tmp_path):
  found = variants.VARIANTS[name]
  tensors = variants.write(tmp_path / "a", found)
  config, params = huggingface.load(tmp_path / "a")
  constructor = getattr(transformers, found["architectures"][0])
  for source in (None, tmp_path / "a"):
    folder = tmp_path / f"from {source is None}"
    huggingface.save(
      folder, config, params, source=source, max_shard_bytes=30_000
    )
    model, report = constructor.from_pretrained(
      folder,
      dtype=torch.float32,
      attn_implementation="eager",
      output_loading_info=True,
    )
    assert not any(report.values())
    state = {k: x.numpy() for k, x in model.state_dict().items()}
    for key, x in tensors.items():
      np.testing.assert_array_equal(state[key], x)
    token = draw_tokens(2, 24)
    np.testing.assert_allclose(
      run(config, params, token), outputs_of(model, token), rtol=0, atol=1e-4
    )


def test_bfloat16_folders_hold_the_same_bits(tmp_path):
  model = random_model("qwen2").to(torch.bfloat16)
  model.save_pretrained(tmp_path)
  params = huggingface.load(tmp_path, dtype=None).params
  state = model.state_dict()
  for name, x in huggingface.named_tensors(params):
    assert x.dtype == ml_dtypes.bfloat16
    bits = state[name].view(torch.int16).numpy()
    np.testing.assert_array_equal(x.view(np.int16), bits)


def test_a_reward_is_read_at_the_last_token(tmp_path):
  model = random_model("llama_reward")
  model.save_pretrained(tmp_path)
  token = draw_tokens(2, 10)
  found = run(*huggingface.load(tmp_path), token)[:, -1]
  with torch.no_grad():
    expected = model(torch.tensor(token, dtype=torch.long)).logits[:, 0].numpy()
  np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)
