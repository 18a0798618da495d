"""Training runs: programs compiled ahead, and the loops that run them.

`train` is the loop of robot policies; `post_training` is that of language
models, `warm_start` what may come before, and `tasks` what they are asked.
"""

from rlinf_jax.training import post_training, tasks, warm_start
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
  "post_training",
  "tasks",
  "train",
  "warm_start",
  "write_result",
]
