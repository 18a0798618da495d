"""Losses and what they are made of: published equations over one sequence.

Every function takes arrays of shape [T] (T time; [G] for a group), returns
arrays of shape [T], and leaves `vmap`, means and weights to its caller.
"""

from rlinf_jax.losses.advantages import gae, vtrace
from rlinf_jax.losses.aggregations import masked_sum
from rlinf_jax.losses.divergences import kl_k1, kl_k2, kl_k3
from rlinf_jax.losses.groups import (
  group_centred,
  group_leave_one_out,
  group_standardised,
)
from rlinf_jax.losses.surrogates import clipped_surrogate, is_clipped
from rlinf_jax.losses.values import value_loss

__all__ = [
  "clipped_surrogate",
  "gae",
  "group_centred",
  "group_leave_one_out",
  "group_standardised",
  "is_clipped",
  "kl_k1",
  "kl_k2",
  "kl_k3",
  "masked_sum",
  "value_loss",
  "vtrace",
]
