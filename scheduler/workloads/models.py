"""Neural networks, as far as their time and memory go."""

from __future__ import annotations

import dataclasses

# Weights and gradients in bf16 and fp32, a master copy and two moments of Adam
# in fp32: 2 + 4 + 4 + 8. CALIBRATION.md has 16 to 18.
TRAIN_BYTES_PER_PARAM = 18
WEIGHT_BYTES_PER_PARAM = 2
# Activations in bf16, in units of the width of one layer and token: those kept
# from each layer for its recomputation, and those of the layer at work.
_LIVE_WIDTHS = 34


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Model:
  """A transformer.

  Attributes:
    name: for people.
    num_params: all parameters.
    active_params: those that one token passes; of a dense model, all.
    num_layers: layers.
    width: of the residual stream.
    attention_width: all query heads together.
    kv_bytes_per_token: of the key-value cache, over all layers.
  """

  name: str
  num_params: float
  active_params: float
  num_layers: int
  width: int
  attention_width: int
  kv_bytes_per_token: int

  @property
  def weight_bytes(self) -> int:
    """Bytes of one copy of the weights, in bf16."""
    return round(WEIGHT_BYTES_PER_PARAM * self.num_params)

  @property
  def train_bytes(self) -> int:
    """Bytes of weights, gradients and optimizer together."""
    return round(TRAIN_BYTES_PER_PARAM * self.num_params)

  def forward_flop(self, tokens: float, square_tokens: float = 0.0) -> float:
    """Returns operations of a forward pass over sequences.

    Two per active parameter and token; attention of n tokens to those before
    them adds 2 n^2 per layer and unit of its width.

    Args:
      tokens: of a sequence, on average.
      square_tokens: mean of the squared number; 0 leaves attention out.
    """
    attention = 2 * self.num_layers * self.attention_width * square_tokens
    return 2 * self.active_params * tokens + attention

  def train_flop(self, tokens: float, square_tokens: float = 0.0) -> float:
    """Returns operations of forward and backward: 6 per parameter and token."""
    return 3 * self.forward_flop(tokens, square_tokens)

  def train_activation_bytes(self, tokens: int) -> int:
    """Returns bytes that training on this many tokens at once takes."""
    widths = self.num_layers + _LIVE_WIDTHS
    return WEIGHT_BYTES_PER_PARAM * widths * self.width * tokens

  def infer_activation_bytes(self, tokens: int) -> int:
    """Returns bytes that one forward pass over this many tokens takes."""
    return WEIGHT_BYTES_PER_PARAM * _LIVE_WIDTHS * self.width * tokens


# Sizes from the models' published configurations; the cache in bf16 is
# 2 (K, V) x layers x KV heads x size of a head x 2 bytes.
QWEN_1_5B = Model(
  name="Qwen2.5 1.5B",
  num_params=1.54e9,
  active_params=1.54e9,
  num_layers=28,
  width=1536,
  attention_width=1536,
  kv_bytes_per_token=28_672,
)
QWEN_7B = Model(
  name="Qwen2.5 7B",
  num_params=7.62e9,
  active_params=7.62e9,
  num_layers=28,
  width=3584,
  attention_width=3584,
  kv_bytes_per_token=57_344,
)
QWEN_32B = Model(
  name="Qwen2.5 32B",
  num_params=32.8e9,
  active_params=32.8e9,
  num_layers=64,
  width=5120,
  attention_width=5120,
  kv_bytes_per_token=262_144,
)
MOE_30B = Model(
  name="Qwen3 30B-A3B",
  num_params=30.5e9,
  active_params=3.3e9,
  num_layers=48,
  width=2048,
  attention_width=4096,
  kv_bytes_per_token=98_304,
)
OPENVLA = Model(
  name="OpenVLA 7B",
  num_params=7.5e9,
  active_params=7.5e9,
  num_layers=32,
  width=4096,
  attention_width=4096,
  kv_bytes_per_token=524_288,
)
PI_3B = Model(
  name="OpenPI 3B",
  num_params=3.3e9,
  active_params=3.3e9,
  num_layers=18,
  width=2048,
  attention_width=2048,
  kv_bytes_per_token=18_432,
)
