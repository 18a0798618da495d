"""Losses and what they are made of: published equations over one sequence.

Every function takes arrays of shape [T] (T time; [G] for a group), returns
arrays of shape [T], and leaves `vmap`, means and weights to its caller.
`objectives` puts them together into the published algorithms, `corrections`
has weights for samples of another program.
"""

from rlinf_jax.losses import corrections, objectives
from rlinf_jax.losses.advantages import gae, vtrace
from rlinf_jax.losses.aggregations import (
  length_mask,
  masked_sum,
  sequence_mean,
  sequence_sum,
)
from rlinf_jax.losses.divergences import kl_k1, kl_k2, kl_k3
from rlinf_jax.losses.groups import (
  batch_standardised,
  group_centred,
  group_leave_one_out,
  group_standardised,
  has_signal,
)
from rlinf_jax.losses.objectives import Objective
from rlinf_jax.losses.policy_gradients import cispo, policy_gradient
from rlinf_jax.losses.shaping import (
  overlong_penalty,
  returns_to_go,
  token_rewards,
)
from rlinf_jax.losses.surrogates import (
  clipped_surrogate,
  decoupled_surrogate,
  is_clipped,
  sequence_surrogate,
)
from rlinf_jax.losses.values import value_loss

__all__ = [
  "Objective",
  "batch_standardised",
  "cispo",
  "clipped_surrogate",
  "corrections",
  "decoupled_surrogate",
  "gae",
  "group_centred",
  "group_leave_one_out",
  "group_standardised",
  "has_signal",
  "is_clipped",
  "kl_k1",
  "kl_k2",
  "kl_k3",
  "length_mask",
  "masked_sum",
  "objectives",
  "overlong_penalty",
  "policy_gradient",
  "returns_to_go",
  "sequence_mean",
  "sequence_sum",
  "sequence_surrogate",
  "token_rewards",
  "value_loss",
  "vtrace",
]
