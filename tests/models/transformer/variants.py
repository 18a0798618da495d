"""Tiny checkpoints of each family and variant, the same on every machine."""

from __future__ import annotations

import json
import zlib

import numpy as np
from safetensors import numpy as safetensors_numpy

from rlinf_jax.models.huggingface import names, settings

BASE = {
  "vocab_size": 40,
  "hidden_size": 32,
  "num_hidden_layers": 2,
  "num_attention_heads": 4,
  "num_key_value_heads": 2,
  "intermediate_size": 48,
  "max_position_embeddings": 16,
  "rms_norm_eps": 1e-6,
  "rope_theta": 10000.0,
  "tie_word_embeddings": False,
}
QWEN2 = BASE | {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
LLAMA = BASE | {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
YARN = {
  "rope_type": "yarn",
  "factor": 4.0,
  "original_max_position_embeddings": 16,
  # Of the four planes of a head the first stays, the last is slowed.
  "beta_fast": 2.0,
  "beta_slow": 0.1,
}
# name -> config.json
VARIANTS = {
  "qwen2": QWEN2,
  "qwen2_tied": QWEN2 | {"tie_word_embeddings": True},
  "qwen2_yarn": QWEN2 | {"rope_scaling": YARN},
  # As Qwen2.5's model card says: `type`, and the defaults of the rest.
  "qwen2_yarn_plain": QWEN2
  | {
    "max_position_embeddings": 256,
    "rope_scaling": {
      "type": "yarn",
      "factor": 4.0,
      "original_max_position_embeddings": 256,
    },
  },
  "qwen2_dynamic": QWEN2
  | {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
  "llama": LLAMA,
  "llama_every_head": LLAMA | {"num_key_value_heads": 4},
  "llama_wide_head": LLAMA | {"head_dim": 16},
  "llama_linear": LLAMA
  | {"rope_scaling": {"rope_type": "linear", "factor": 3.0}},
  "llama_yarn_scaled": LLAMA
  | {
    "rope_scaling": YARN
    | {"mscale": 0.7, "mscale_all_dim": 0.3, "truncate": False}
  },
  "llama3": LLAMA
  | {
    "rope_theta": 500000.0,
    "rope_scaling": {
      "rope_type": "llama3",
      "factor": 8.0,
      "original_max_position_embeddings": 16,
      "low_freq_factor": 0.1,
      "high_freq_factor": 1.0,
    },
  },
  # As transformers 5 writes it.
  "llama3_new_style": {k: v for k, v in LLAMA.items() if k != "rope_theta"}
  | {
    "rope_parameters": {
      "rope_theta": 10000.0,
      "rope_type": "llama3",
      "factor": 4.0,
      "original_max_position_embeddings": 16,
      "low_freq_factor": 0.2,
      "high_freq_factor": 2.0,
    },
  },
  "llama_reward": LLAMA
  | {
    "architectures": ["LlamaForSequenceClassification"],
    "id2label": {"0": "LABEL_0"},
    "label2id": {"LABEL_0": 0},
    "pad_token_id": 0,
  },
  "qwen2_reward": QWEN2
  | {
    "architectures": ["Qwen2ForSequenceClassification"],
    "id2label": {"0": "LABEL_0"},
    "label2id": {"LABEL_0": 0},
    "pad_token_id": 0,
  },
}
# Longer than the context of 16, where dynamic scaling begins.
TOKENS = np.random.RandomState(0).randint(1, 40, size=(1, 24)).astype(np.int32)


def abstract(found):
  return names.abstract_params(
    settings.to_config(found),
    is_critic=settings.architecture(found)[1] == "value",
  )


def weights(found, dtype=np.float32):
  """Returns named tensors, from numpy's frozen generator and their names."""
  drawn = {}
  for name, shape in names.shapes(abstract(found)).items():
    noise = np.random.RandomState(zlib.crc32(name.encode()))
    x = noise.standard_normal(shape)
    x = 1.0 + 0.1 * x if name.endswith("norm.weight") else 0.2 * x
    drawn[name] = x.astype(dtype)
  return drawn


def write(folder, found, dtype=np.float32):
  """Writes a folder as Hugging Face's libraries do, and returns its tensors."""
  folder.mkdir(exist_ok=True)
  (folder / "config.json").write_text(json.dumps(found))
  tensors = weights(found, dtype)
  safetensors_numpy.save_file(
    tensors, folder / "model.safetensors", metadata={"format": "pt"}
  )
  return tensors


def params(found, dtype=np.float32):
  tensors = weights(found, dtype)
  return names.read_params(abstract(found), tensors.__getitem__, dtype)
