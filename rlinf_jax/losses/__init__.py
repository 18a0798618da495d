"""Losses and what they are made of: published equations over one sequence.

Every function takes arrays of shape [T] (T time; [G] for a group), returns
arrays of shape [T], and leaves `vmap`, means and weights to its caller.
"""

from rlinf_jax.losses.advantages import (
  gae,
  group_centred,
  group_leave_one_out,
  group_standardised,
  vtrace,
)

__all__ = [
  "gae",
  "group_centred",
  "group_leave_one_out",
  "group_standardised",
  "vtrace",
]
