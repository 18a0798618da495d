"""Training runs: programs compiled ahead, and the loop that runs them."""

from rlinf_jax.training.programs import (
  Evaluation,
  Programs,
  compile_programs,
  make_evaluation,
)
from rlinf_jax.training.run import (
  CHECKPOINTS,
  Options,
  Result,
  train,
  write_result,
)

__all__ = [
  "CHECKPOINTS",
  "Evaluation",
  "Options",
  "Programs",
  "Result",
  "compile_programs",
  "make_evaluation",
  "train",
  "write_result",
]
