"""Published figures that the laws are calibrated on.

Figures are of three uses. Those to "fit" share the constants in
`constants.Constants`, of which there are fewer than figures: their residuals
say how well the laws describe them, and leaving each out in turn how well the
rest predicts it. Where a row states neither model nor lengths, or contradicts
the others, a phase has as many unknowns as figures: these are of "own" use,
met exactly by `constants.OwnConstants`, and say nothing of accuracy. Figures
to "test" were fitted by nothing, but were known when the laws were chosen.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from scheduler import clusters
from scheduler.workloads import hardware, models

Use = Literal["fit", "own", "test"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Row:
  """What a publication measured.

  Attributes:
    source: where it is.
    model: the network.
    device: the device class.
    num_devices: all of them do each phase in turn.
    sequences: of one iteration.
    max_tokens: of the generated tokens.
    mean_tokens: generated; None: it is fitted.
    rollout_tp: tensor-parallel devices of one replica that generates.
    train_tp: of one replica that trains.
    assumed: what the source leaves open.
  """

  source: str
  model: models.Model
  device: clusters.DeviceClass
  num_devices: int
  sequences: int
  max_tokens: int
  mean_tokens: float | None = None
  rollout_tp: int = 1
  train_tp: int = 1
  assumed: str = ""


# 28k of context, of which 1k is for the prompt.
_28K = 27_648
_RLINF = "RLinf documentation, comparison with veRL"
_VERL = "verl, docs/advance/fully_async.md, synchronous rows"
_OPEN_VERL = (
  "a mean of 1,500 tokens; replicas of one device generate, of two train"
)

ROWS = {
  "rlinf_1_5b": Row(
    source=_RLINF,
    model=models.QWEN_1_5B,
    device=hardware.H100,
    num_devices=8,
    sequences=512,
    max_tokens=_28K,
    mean_tokens=13_975.0,
  ),
  "rlinf_7b": Row(
    source=_RLINF,
    model=models.QWEN_7B,
    device=hardware.H100,
    num_devices=64,
    sequences=2048,
    max_tokens=_28K,
    mean_tokens=10_426.0,
    rollout_tp=2,
    train_tp=4,
    assumed="H100; replicas of two devices generate, of four train",
  ),
  "dynarl": Row(
    source="DynaRL (OSDI'26)",
    model=models.QWEN_1_5B,
    device=hardware.H100,
    num_devices=64,
    sequences=8192,
    max_tokens=_28K,
    assumed="28k of context",
  ),
  "rlinf_paper": Row(
    source="RLinf paper (arXiv 2509.15965), rollout times of a 7B model",
    model=models.QWEN_7B,
    device=hardware.H100,
    num_devices=64,
    sequences=2048,
    max_tokens=_28K,
    rollout_tp=2,
    assumed="64 H100 and 2,048 sequences, as in rlinf_7b",
  ),
  "rlinf_placement": Row(
    source="RLinf, unit test of automatic placement",
    model=models.QWEN_1_5B,
    device=hardware.H100,
    num_devices=128,
    sequences=8192,
    max_tokens=_28K,
    assumed="the 1.5B model on H100",
  ),
  "verl_32": Row(
    source=_VERL,
    model=models.QWEN_7B,
    device=hardware.H20,
    num_devices=32,
    sequences=8192,
    max_tokens=28_672,
    mean_tokens=1500.0,
    train_tp=2,
    assumed=_OPEN_VERL,
  ),
  "verl_64": Row(
    source=_VERL,
    model=models.QWEN_7B,
    device=hardware.H20,
    num_devices=64,
    sequences=8192,
    max_tokens=28_672,
    mean_tokens=1500.0,
    train_tp=2,
    assumed=_OPEN_VERL,
  ),
  "verl_128": Row(
    source=_VERL,
    model=models.QWEN_7B,
    device=hardware.H20,
    num_devices=128,
    sequences=8192,
    max_tokens=28_672,
    mean_tokens=1500.0,
    train_tp=2,
    assumed=_OPEN_VERL,
  ),
}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
  """One published time.

  Attributes:
    row: a key of `ROWS`.
    phase: "generation", "infer", "train" or "reward".
    seconds: as published.
    use: see the module.
    share: of a generation, the share of sequences that are then finished.
    label: tells figures of one phase apart.
  """

  row: str
  phase: Literal["generation", "infer", "train", "reward"]
  seconds: float
  use: Use
  share: float = 1.0
  label: str = ""

  @property
  def name(self) -> str:
    """Row, phase and label."""
    return " ".join(part for part in (self.row, self.phase, self.label) if part)


FIGURES = (
  Figure(row="rlinf_1_5b", phase="generation", seconds=266.1, use="fit"),
  Figure(row="rlinf_7b", phase="generation", seconds=317.0, use="fit"),
  Figure(row="dynarl", phase="generation", seconds=259.5, use="fit"),
  Figure(
    row="dynarl",
    phase="generation",
    seconds=150.0,
    use="fit",
    share=0.95,
    label="P95",
  ),
  Figure(
    row="rlinf_paper",
    phase="generation",
    seconds=60.0,
    use="fit",
    share=0.5,
    label="P50",
  ),
  Figure(
    row="rlinf_paper",
    phase="generation",
    seconds=111.0,
    use="fit",
    share=0.9,
    label="P90",
  ),
  Figure(
    row="rlinf_paper",
    phase="generation",
    seconds=127.0,
    use="fit",
    share=0.95,
    label="P95",
  ),
  Figure(row="rlinf_paper", phase="generation", seconds=260.0, use="fit"),
  Figure(row="rlinf_1_5b", phase="infer", seconds=17.8, use="fit"),
  Figure(row="rlinf_7b", phase="infer", seconds=21.6, use="fit", label="old"),
  Figure(
    row="rlinf_7b", phase="infer", seconds=20.7, use="fit", label="reference"
  ),
  Figure(row="rlinf_1_5b", phase="train", seconds=61.1, use="fit"),
  Figure(row="rlinf_7b", phase="train", seconds=73.0, use="fit"),
  Figure(row="rlinf_7b", phase="reward", seconds=5.1, use="own"),
  Figure(row="rlinf_placement", phase="generation", seconds=224.0, use="own"),
  Figure(row="rlinf_placement", phase="infer", seconds=10.0, use="own"),
  Figure(row="rlinf_placement", phase="train", seconds=101.0, use="own"),
  Figure(row="verl_32", phase="generation", seconds=357.4, use="own"),
  Figure(row="verl_32", phase="infer", seconds=107.7, use="own"),
  Figure(row="verl_32", phase="train", seconds=269.8, use="own"),
  Figure(row="verl_64", phase="generation", seconds=150.72, use="test"),
  Figure(row="verl_64", phase="infer", seconds=70.26, use="test"),
  Figure(row="verl_64", phase="train", seconds=133.41, use="test"),
  Figure(row="verl_128", phase="generation", seconds=177.85, use="test"),
  Figure(row="verl_128", phase="infer", seconds=53.92, use="test"),
  Figure(row="verl_128", phase="train", seconds=113.81, use="test"),
)
