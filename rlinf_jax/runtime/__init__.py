"""Macro flows traced, measured, planned and executed on device meshes."""

from rlinf_jax.runtime.executor import DeadlineError, StageError
from rlinf_jax.runtime.ledgers import OverBudgetError
from rlinf_jax.runtime.transformation import M2Flow, m2flow

__all__ = [
  "DeadlineError",
  "M2Flow",
  "OverBudgetError",
  "StageError",
  "m2flow",
]
