"""Folders are loaded and saved bitwise; bad ones get one clear error."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors import numpy as safetensors_numpy

from rlinf_jax.models import huggingface, transformer
from tests.models.transformer import variants

TOKENIZER = {
  "tokenizer.json": '{"model": {}}',
  "tokenizer_config.json": "{}",
  "chat_template.jinja": "{{ messages }}",
  "merges.txt": "a b\n",
  "generation_config.json": '{"eos_token_id": 2}',
  "LICENSE": "terms",
}


def read(folder):
  """Returns all tensors of a folder, from however many files."""
  tensors = {}
  for path in folder.glob("*.safetensors"):
    tensors |= safetensors_numpy.load_file(path)
  return tensors


def assert_same_bits(found, expected):
  assert found.keys() == expected.keys()
  for name, x in expected.items():
    assert found[name].dtype == x.dtype, name
    assert found[name].shape == x.shape, name
    assert found[name].tobytes() == x.tobytes(), name


@pytest.mark.parametrize("name", variants.VARIANTS)
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize(
  "through", [None, pytest.param(np.float32, marks=pytest.mark.slow)]
)
def test_a_round_trip_is_bitwise(name, dtype, through, tmp_path):
  tensors = variants.write(tmp_path / "a", variants.VARIANTS[name], dtype)
  config, params = huggingface.load(tmp_path / "a", dtype=through)
  assert params["embedding"].dtype == (through or dtype)
  huggingface.save(
    tmp_path / "b", config, params, source=tmp_path / "a", dtype=dtype
  )
  assert_same_bits(read(tmp_path / "b"), tensors)
  assert huggingface.load(tmp_path / "b").config == config


def test_parameters_on_devices_are_saved_alike(tmp_path):
  tensors = variants.write(tmp_path / "a", variants.VARIANTS["qwen2_tied"])
  config, params = huggingface.load(tmp_path / "a")
  huggingface.save(tmp_path / "b", config, jax.tree.map(jnp.asarray, params))
  assert_same_bits(read(tmp_path / "b"), tensors)


def test_large_models_are_saved_in_parts_that_name_each_other(tmp_path):
  tensors = variants.write(tmp_path / "a", variants.VARIANTS["llama"])
  config, params = huggingface.load(tmp_path / "a")
  huggingface.save(tmp_path / "b", config, params, max_shard_bytes=20_000)
  files = sorted(path.name for path in (tmp_path / "b").glob("*.safetensors"))
  assert files == [f"model-0000{i}-of-00004.safetensors" for i in (1, 2, 3, 4)]
  index = json.loads(
    (tmp_path / "b" / "model.safetensors.index.json").read_text()
  )
  assert index["metadata"]["total_size"] == 72_320
  assert index["weight_map"].keys() == tensors.keys()
  # The embedding and the head are 5,120 bytes, a normalisation's scale is 128,
  # queries and outputs are 4,096, keys and values 2,048, the perceptron's three
  # 6,144, in the order of a forward pass. A file ends before the tensor with
  # which it would exceed 20,000.
  sizes = []
  for file in files:
    held = safetensors_numpy.load_file(tmp_path / "b" / file)
    sizes.append(sum(x.nbytes for x in held.values()))
    assert all(index["weight_map"][name] == file for name in held)
  assert sizes == [17_664, 18_560, 18_560, 17_536]
  again = huggingface.load(tmp_path / "b").params
  jax.tree.map(np.testing.assert_array_equal, again, params)


def test_tokenizer_template_and_settings_come_along(tmp_path):
  found = variants.VARIANTS["qwen2"] | {"of_no_interest": 1}
  variants.write(tmp_path / "a", found)
  for name, text in TOKENIZER.items():
    (tmp_path / "a" / name).write_text(text)
  (tmp_path / "a" / "README.md").write_text("about another model")
  (tmp_path / "a" / "config.json").write_text(json.dumps(found, indent=7))
  config, params = huggingface.load(tmp_path / "a")
  huggingface.save(tmp_path / "b", config, params, source=tmp_path / "a")
  for name in (*TOKENIZER, "config.json"):
    same = (tmp_path / "a" / name).read_bytes()
    assert (tmp_path / "b" / name).read_bytes() == same, name
  assert not (tmp_path / "b" / "README.md").exists()


def test_settings_that_became_untrue_are_corrected(tmp_path):
  found = variants.VARIANTS["qwen2"] | {"torch_dtype": "bfloat16"}
  variants.write(tmp_path / "a", found, ml_dtypes.bfloat16)
  config, params = huggingface.load(tmp_path / "a")
  value = transformer.critic_params(params)
  huggingface.save(
    tmp_path / "b",
    config,
    value,
    source=tmp_path / "a",
    dtype=np.float16,
    extra={"eos_token_id": 2},
  )
  written = json.loads((tmp_path / "b" / "config.json").read_text())
  assert written == found | {
    "architectures": ["Qwen2ForSequenceClassification"],
    "id2label": {"0": "LABEL_0"},
    "label2id": {"LABEL_0": 0},
    "torch_dtype": "float16",
    "eos_token_id": 2,
  }
  assert "value" in huggingface.load(tmp_path / "b").params


@pytest.mark.parametrize("name", variants.VARIANTS)
def test_settings_written_anew_describe_the_same_network(name, tmp_path):
  variants.write(tmp_path / "a", variants.VARIANTS[name])
  config, params = huggingface.load(tmp_path / "a")
  huggingface.save(tmp_path / "b", config, params)
  assert huggingface.read_config(tmp_path / "b") == config


def test_a_tensor_of_a_block_is_a_view_of_the_stack():
  params = variants.params(variants.VARIANTS["qwen2"])
  tensors = dict(huggingface.named_tensors(params))
  key = tensors["model.layers.1.self_attn.k_proj.bias"]
  assert np.shares_memory(key, params["blocks"]["key"]["bias"])
  np.testing.assert_array_equal(key, params["blocks"]["key"]["bias"][1])


def test_a_tied_head_that_is_stored_too_is_accepted_if_it_is_the_embedding(
  tmp_path,
):
  tensors = variants.write(tmp_path, variants.VARIANTS["qwen2_tied"])
  path = tmp_path / "model.safetensors"
  head = tensors["model.embed_tokens.weight"]
  safetensors_numpy.save_file(tensors | {"lm_head.weight": head}, path)
  assert "head" not in huggingface.load(tmp_path).params
  safetensors_numpy.save_file(tensors | {"lm_head.weight": head + 1}, path)
  with pytest.raises(ValueError, match="head is the embedding"):
    huggingface.load(tmp_path)


def rewrite(folder, change):
  """Changes the tensors that a folder's file holds."""
  path = folder / "model.safetensors"
  tensors = safetensors_numpy.load_file(path)
  change(tensors)
  safetensors_numpy.save_file(tensors, path)


def settings_of(folder, **changes):
  found = json.loads((folder / "config.json").read_text())
  text = json.dumps({**found, **changes})
  (folder / "config.json").write_text(text)


NORM = "model.norm.weight"
# what is done to a good folder -> what the error says
BROKEN = {
  "no folder": (lambda f: f.rename(f.with_name("b")), "with a config.json"),
  "no settings": (lambda f: (f / "config.json").unlink(), "config.json"),
  "torn settings": (
    lambda f: (f / "config.json").write_text('{"a": '),
    "not JSON",
  ),
  "no weights": (
    lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"),
    r"pytorch_model.bin.*expected model.safetensors",
  ),
  "torn weights": (
    lambda f: (f / "model.safetensors").write_bytes(
      (f / "model.safetensors").read_bytes()[:-9]
    ),
    "cannot be read.*fetch it again",
  ),
  "a part is missing": (
    lambda f: (
      (f / "model.safetensors").rename(f / "x")
      and (f / "model.safetensors.index.json").write_text(
        '{"weight_map": {"a": "model-00001-of-00002.safetensors"}}'
      )
    ),
    "model-00001-of-00002.safetensors cannot be read",
  ),
  "a tensor is missing": (
    lambda f: rewrite(f, lambda tensors: tensors.pop(NORM)),
    f"lacks 1 tensors: {NORM}",
  ),
  "a tensor too many": (
    lambda f: rewrite(
      f, lambda tensors: tensors.update({"lora_A": np.zeros(1, np.float32)})
    ),
    "1 tensors that the network has no place for: lora_A",
  ),
  "another shape": (
    lambda f: rewrite(
      f, lambda tensors: tensors.update({NORM: np.zeros(7, np.float32)})
    ),
    rf"{NORM} has shape \(7,\), expected \(32,\)",
  ),
  "quantized": (
    lambda f: rewrite(
      f, lambda tensors: tensors.update({NORM: np.zeros(32, np.int8)})
    ),
    f"{NORM} is I8.*not quantized",
  ),
  "another architecture": (
    lambda f: settings_of(
      f, architectures=["MambaForCausalLM"], model_type="mamba"
    ),
    "MambaForCausalLM.*expected one of.*Qwen2ForCausalLM",
  ),
  "a classifier": (
    lambda f: settings_of(
      f,
      architectures=["LlamaForSequenceClassification"],
      id2label={"0": "bad", "1": "good"},
    ),
    "classifier of labels.*reward model",
  ),
  "another activation": (
    lambda f: settings_of(f, hidden_act="gelu"),
    "hidden_act = 'gelu', expected 'silu'",
  ),
  "a sliding window": (
    lambda f: settings_of(f, use_sliding_window=True),
    "use_sliding_window = True",
  ),
  "quantized settings": (
    lambda f: settings_of(f, quantization_config={"bits": 4}),
    "quantization_config",
  ),
  "another scaling": (
    lambda f: settings_of(f, rope_scaling={"type": "longrope"}),
    "'longrope', expected default, linear",
  ),
  "half a scaling": (
    lambda f: settings_of(f, rope_scaling={"type": "llama3", "factor": 2.0}),
    "an entry 'low_freq_factor'",
  ),
  "no size": (
    lambda f: settings_of(f, hidden_size=None),
    r"without \['hidden_size'\]",
  ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_bad_folder_gets_one_clear_error(name, tmp_path):
  change, words = BROKEN[name]
  variants.write(tmp_path / "a", variants.VARIANTS["llama"])
  change(tmp_path / "a")
  with pytest.raises(ValueError, match=words):
    huggingface.load(tmp_path / "a")


def test_a_folder_in_use_is_not_written_over(tmp_path):
  found = variants.VARIANTS["llama"]
  before = variants.write(tmp_path / "a", found)
  config, params = huggingface.load(tmp_path / "a")
  with pytest.raises(ValueError, match="exists, expected a new folder"):
    huggingface.save(tmp_path / "a", config, params)
  assert_same_bits(read(tmp_path / "a"), before)


def test_parameters_of_another_network_are_not_saved(tmp_path):
  config = huggingface.settings.to_config(variants.VARIANTS["llama"])
  params = variants.params(variants.VARIANTS["qwen2"])
  with pytest.raises(ValueError, match="k_proj.bias has shape .*None by the"):
    huggingface.save(tmp_path / "b", config, params)
  assert not (tmp_path / "b").exists()


def test_a_source_of_another_network_is_refused(tmp_path):
  variants.write(tmp_path / "a", variants.VARIANTS["llama"])
  found = variants.VARIANTS["qwen2"]
  with pytest.raises(ValueError, match="Given source .*loaded from, or None"):
    huggingface.save(
      tmp_path / "b",
      huggingface.settings.to_config(found),
      variants.params(found),
      source=tmp_path / "a",
    )


def test_a_save_that_fails_leaves_nothing_under_the_name(tmp_path, monkeypatch):
  found = variants.VARIANTS["llama"]
  network = huggingface.settings.to_config(found), variants.params(found)

  def fail(*args, **kwargs):
    raise OSError("the disk is full")

  with monkeypatch.context() as patch:
    patch.setattr(safetensors_numpy, "save_file", fail)
    with pytest.raises(OSError, match="the disk is full"):
      huggingface.save(tmp_path / "b", *network)
  assert not (tmp_path / "b").exists()
  huggingface.save(tmp_path / "b", *network)
  assert huggingface.read_config(tmp_path / "b") == network[0]
