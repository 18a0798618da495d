"""config.json: what network a folder holds."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping
from typing import Any

from rlinf_jax.models import transformer
from rlinf_jax.models.transformer import rope as rope_lib

FILE = "config.json"
# architecture -> (model_type, the last layer's name in `names`)
ARCHITECTURES = {
  "Qwen2ForCausalLM": ("qwen2", "head"),
  "LlamaForCausalLM": ("llama", "head"),
  "Qwen2ForSequenceClassification": ("qwen2", "value"),
  "LlamaForSequenceClassification": ("llama", "value"),
}
# What these files may say and the network does not do: setting -> what is fine.
_FIXED: dict[str, tuple[Any, ...]] = {
  "hidden_act": ("silu",),
  "use_sliding_window": (False,),
  "attention_bias": (False,),
  "mlp_bias": (False,),
  "attention_dropout": (0, None),
  "partial_rotary_factor": (1, None),
  "quantization_config": (None,),
}


def read_config(folder: str | pathlib.Path) -> transformer.Config:
  """Returns what network a folder's config.json describes.

  Raises:
    ValueError: there is none, or it is of a network that is not supported.
  """
  return to_config(read(folder))


def read(folder: str | pathlib.Path) -> dict[str, Any]:
  """Returns a folder's config.json.

  Raises:
    ValueError: there is none, or it is not JSON.
  """
  path = pathlib.Path(folder) / FILE
  if not path.is_file():
    raise ValueError(
      f"Given {folder}, expected a folder with a {FILE}, as Hugging Face's"
      " `save_pretrained` writes it; check the path."
    )
  try:
    found = json.loads(path.read_text(encoding="utf-8"))
  except ValueError as error:
    raise ValueError(
      f"{path} is not JSON ({error}); fetch it again."
    ) from error
  return found


def architecture(found: Mapping[str, Any]) -> tuple[str, str]:
  """Returns the model_type and last layer, "head" or "value", of a network.

  Raises:
    ValueError: it is not supported.
  """
  architectures = found.get("architectures") or [
    name
    for name, (model_type, layer) in ARCHITECTURES.items()
    if layer == "head" and model_type == found.get("model_type")
  ]
  if len(architectures) != 1 or architectures[0] not in ARCHITECTURES:
    raise ValueError(
      f"Given a checkpoint of {architectures or found.get('model_type')},"
      f" expected one of {sorted(ARCHITECTURES)}: Qwen2, Qwen2.5, Llama 3, or"
      " what was distilled into them. Take one of those."
    )
  return ARCHITECTURES[architectures[0]]


def to_config(found: Mapping[str, Any]) -> transformer.Config:
  """Returns the network that a config.json describes.

  Raises:
    ValueError: it is not one of those that are supported; says which setting.
  """
  model_type, last_layer = architecture(found)
  if last_layer == "value" and len(found.get("id2label", "01")) != 1:
    raise ValueError(
      f"Given a classifier of labels {found.get('id2label')}, expected a critic"
      " or reward model, with one."
    )
  for name, allowed in _FIXED.items():
    if found.get(name, allowed[0]) not in allowed:
      raise ValueError(
        f"Given {name} = {found[name]!r}, expected {allowed[0]!r}: the network"
        " has nothing else. Take a checkpoint without it."
      )
  lacking = [name for name in _SIZES if found.get(name) is None]
  if lacking:
    raise ValueError(
      f"Given a {FILE} without {lacking}, expected all sizes of the network;"
      " complete it."
    )
  num_heads = found["num_attention_heads"]
  rope, context_size = _read_rope(found)
  return transformer.Config(
    **{field: found[name] for name, field in _SIZES.items()},
    num_kv_heads=found.get("num_key_value_heads") or num_heads,
    head_size=found.get("head_dim") or found["hidden_size"] // num_heads,
    context_size=context_size,
    rope=rope,
    norm_epsilon=found.get("rms_norm_eps", 1e-6),
    has_bias=model_type == "qwen2",
    is_tied=found.get("tie_word_embeddings", False),
    initial_std=found.get("initializer_range", 0.02),
  )


def from_config(
  config: transformer.Config, *, is_critic: bool, dtype: str
) -> dict[str, Any]:
  """Returns a config.json that describes a network.

  Args:
    config: the network.
    is_critic: its last layer gives one value instead of logits.
    dtype: of the file's tensors, as "float32".
  """
  model_type = "qwen2" if config.has_bias else "llama"
  described = (model_type, "value" if is_critic else "head")
  found: dict[str, Any] = {
    "architectures": [k for k, v in ARCHITECTURES.items() if v == described],
    "model_type": model_type,
    **{name: getattr(config, field) for name, field in _SIZES.items()},
    "num_key_value_heads": config.num_kv_heads,
    "head_dim": config.head_size,
    "hidden_act": "silu",
    "max_position_embeddings": config.context_size,
    "rms_norm_eps": config.norm_epsilon,
    "rope_theta": config.rope.base,
    "tie_word_embeddings": config.is_tied,
    "initializer_range": config.initial_std,
    "torch_dtype": dtype,
  }
  if is_critic:
    found |= {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
  if config.rope.scaling is not None:
    found["rope_scaling"] = _write_scaling(config.rope.scaling)
  return found


_SIZES = {
  "vocab_size": "vocabulary_size",
  "hidden_size": "width",
  "num_hidden_layers": "num_layers",
  "num_attention_heads": "num_heads",
  "intermediate_size": "mlp_size",
}


def _read_rope(found):
  """Returns the rope, and how many positions the network was made for."""
  # Transformers 5 writes one dict, before it wrote a number and a dict.
  scaling = found.get("rope_parameters") or found.get("rope_scaling") or {}
  base = scaling.get("rope_theta") or found.get("rope_theta", 10000.0)
  context_size = found.get("max_position_embeddings")
  if context_size is None:
    raise ValueError(
      f"Given a {FILE} without max_position_embeddings, expected the context's"
      " size; complete it."
    )
  kind = scaling.get("rope_type") or scaling.get("type") or "default"
  rope: rope_lib.Scaling | None = None
  original = scaling.get("original_max_position_embeddings") or context_size
  try:
    match kind:
      case "default":
        pass
      case "linear":
        rope = rope_lib.Linear(factor=scaling["factor"])
      case "dynamic":
        rope = rope_lib.DynamicNtk(factor=scaling["factor"])
      case "yarn":
        rope = _read_yarn(scaling, original)
        # Some name the context before the stretch, some the one after it.
        context_size = max(context_size, int(original * rope.factor))
      case "llama3":
        rope = rope_lib.Llama3(
          factor=scaling["factor"],
          original_context_size=original,
          low_frequency_factor=scaling["low_freq_factor"],
          high_frequency_factor=scaling["high_freq_factor"],
        )
      case _:
        raise ValueError(
          f"Given rotary positions of type {kind!r}, expected default, linear,"
          " dynamic, yarn or llama3. Take a checkpoint with one of these."
        )
  except KeyError as error:
    raise ValueError(
      f"Given rotary positions {scaling}, expected an entry {error} for type"
      f" {kind!r}; complete {FILE}."
    ) from error
  return rope_lib.Rope(base=base, scaling=rope), context_size


def _read_yarn(scaling, original):
  scale = scaling.get("attention_factor")
  above, below = scaling.get("mscale"), scaling.get("mscale_all_dim")
  if scale is None and above and below:
    scale = rope_lib.yarn_scale(scaling["factor"], above)
    scale /= rope_lib.yarn_scale(scaling["factor"], below)
  return rope_lib.Yarn(
    factor=scaling["factor"],
    original_context_size=original,
    beta_fast=scaling.get("beta_fast") or 32.0,
    beta_slow=scaling.get("beta_slow") or 1.0,
    attention_factor=scale,
    is_truncated=scaling.get("truncate", True),
  )


def _write_scaling(scaling):
  match scaling:
    case rope_lib.Linear():
      return {"rope_type": "linear", "factor": scaling.factor}
    case rope_lib.DynamicNtk():
      return {"rope_type": "dynamic", "factor": scaling.factor}
    case rope_lib.Llama3():
      return {
        "rope_type": "llama3",
        "factor": scaling.factor,
        "original_max_position_embeddings": scaling.original_context_size,
        "low_freq_factor": scaling.low_frequency_factor,
        "high_freq_factor": scaling.high_frequency_factor,
      }
  written = {
    "rope_type": "yarn",
    "factor": scaling.factor,
    "original_max_position_embeddings": scaling.original_context_size,
    "beta_fast": scaling.beta_fast,
    "beta_slow": scaling.beta_slow,
    "truncate": scaling.is_truncated,
  }
  if scaling.attention_factor is not None:
    written["attention_factor"] = scaling.attention_factor
  return written
