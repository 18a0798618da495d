"""Constants of the laws, fitted by `calibration`; and what was assumed."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Constants:
  """What is fitted; `calibration.FIGURES` says on what.

  Attributes:
    decode_t0_s: fixed time per token of a decode.
    decode_efficiency: share of memory bandwidth that a decode reaches.
    sigma_1_5b: of the logarithm of lengths, of the 1.5B model.
    sigma_7b: the same of the 7B model.
    median_dynarl_tokens: of the row "dynarl".
    median_paper_tokens: of the row "rlinf_paper".
    fixed_params: parameters that would cost what each token costs besides
      weights and attention (logits, loss, padding, communication).
    infer_efficiency: share of flops_per_s of log-probabilities.
    train_efficiency: share of flops_per_s of an update.
  """

  decode_t0_s: float
  decode_efficiency: float
  sigma_1_5b: float
  sigma_7b: float
  median_dynarl_tokens: float
  median_paper_tokens: float
  fixed_params: float
  infer_efficiency: float
  train_efficiency: float


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class OwnConstants:
  """What has one published figure each: exact there, and claimed nowhere.

  Attributes:
    placement_mean_tokens: of the row "rlinf_placement", from its rollout.
    placement_infer_efficiency: of that row; more than others reach.
    placement_train_efficiency: of that row; less than others reach.
    verl_sigma: of the logarithm of lengths of the row "verl_32", from its
      generation.
    h20_infer_efficiency: share of flops_per_s on H20, from the same row.
    h20_train_efficiency: share of flops_per_s on H20, from the same row.
    reward_s: seconds per sequence of a reward that runs on host cores, one at
      a time for each 64 devices, from the row "rlinf_7b".
  """

  placement_mean_tokens: float
  placement_infer_efficiency: float
  placement_train_efficiency: float
  verl_sigma: float
  h20_infer_efficiency: float
  h20_train_efficiency: float
  reward_s: float


# Made by `python -m benchmarks.calibrate`.
FITTED = Constants(
  decode_t0_s=5.707e-3,
  decode_efficiency=0.7447,
  sigma_1_5b=0.3292,
  sigma_7b=0.4452,
  median_dynarl_tokens=7805.0,
  median_paper_tokens=5527.0,
  fixed_params=9.82e8,
  infer_efficiency=0.3257,
  train_efficiency=0.2937,
)
OWN = OwnConstants(
  placement_mean_tokens=8221.0,
  placement_infer_efficiency=0.321,
  placement_train_efficiency=0.09534,
  verl_sigma=0.8455,
  h20_infer_efficiency=0.5026,
  h20_train_efficiency=0.6206,
  reward_s=2.49e-3,
)

# Assumed; no published row at hand determines them.
DECODE_FLOP_EFFICIENCY = 0.5
ALLREDUCE_S = 10e-6  # two per layer and token where tp > 1
TP_EFFICIENCY = 0.97  # of compute, for each doubling of tp
PP_EFFICIENCY = 0.9  # of compute, for each doubling of pp
INFER_OVERHEAD_S = 0.02  # per granule
TRAIN_OVERHEAD_S = 0.05  # per granule
PROMPT_TOKENS = 256
MEMORY_SHARE = 0.9  # of a device, that state and work may take
