"""Checkpoints of a whole training state; see `store`."""

from rlinf_jax.checkpoints.layout import CheckpointError, latest, steps
from rlinf_jax.checkpoints.store import (
  read_metadata,
  restore,
  restore_part,
  save,
)

__all__ = [
  "CheckpointError",
  "latest",
  "read_metadata",
  "restore",
  "restore_part",
  "save",
  "steps",
]
