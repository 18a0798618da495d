"""What a decoder-only transformer is: its sizes and the choices of its family.

Qwen2, Qwen2.5 and Llama 3 (and what was distilled into them) are one network:
pre-normalised blocks of grouped-query attention with rotary positions and a
gated perceptron. They differ in biases, in how positions are stretched, and in
whether the last layer is the embedding again.
"""

from __future__ import annotations

import dataclasses

from rlinf_jax.models.transformer import rope as rope_lib


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Config:
  """Sizes and choices of one network.

  Attributes:
    vocabulary_size: tokens that the network knows.
    width: features of the residual stream.
    num_layers: blocks.
    num_heads: of queries.
    num_kv_heads: of keys and values; each serves num_heads / num_kv_heads
      heads of queries.
    head_size: features of a head, even.
    mlp_size: features inside the gated perceptron.
    context_size: positions that the network was made for.
    rope: how positions turn queries and keys.
    norm_epsilon: added to the mean square in each normalisation.
    has_bias: queries, keys and values have biases (Qwen2), or not (Llama).
    is_tied: the last layer is the embedding again.
    initial_std: of the weights that `init` draws.
  """

  vocabulary_size: int
  width: int
  num_layers: int
  num_heads: int
  num_kv_heads: int
  head_size: int
  mlp_size: int
  context_size: int
  rope: rope_lib.Rope
  norm_epsilon: float
  has_bias: bool
  is_tied: bool
  initial_std: float = 0.02

  def __post_init__(self):
    for field in (
      "vocabulary_size",
      "width",
      "num_layers",
      "num_heads",
      "num_kv_heads",
      "head_size",
      "mlp_size",
      "context_size",
    ):
      if getattr(self, field) < 1:
        raise ValueError(
          f"{field} is {getattr(self, field)}; a transformer has at least 1."
        )
    if self.num_heads % self.num_kv_heads:
      raise ValueError(
        f"Given {self.num_heads} heads of queries and {self.num_kv_heads} of"
        " keys: each head of keys serves equally many; give a divisor."
      )
    if self.head_size % 2:
      raise ValueError(
        f"head_size is {self.head_size}; rotary positions turn pairs of"
        " features, so give an even size."
      )
