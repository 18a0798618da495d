"""Rewards that can be computed: what a response is worth.

A reward function takes a `types.Completion` and returns a number. `score` calls
one here and now; `Scorers` calls one from a file in processes that can be
killed, for those that may hang (`MATH`, `GYM`, your own).
"""

from rlinf_jax.rewards.expressions import countdown
from rlinf_jax.rewards.extraction import boxed, last_number, tagged, whole
from rlinf_jax.rewards.formats import REASONING, matches
from rlinf_jax.rewards.lengths import finished, near_length
from rlinf_jax.rewards.matching import exact_match
from rlinf_jax.rewards.scorers import GYM, MATH, ScorerError, Scorers
from rlinf_jax.rewards.scores import (
  FailureCount,
  ScoreFn,
  Scores,
  score,
  weighted_sum,
)

__all__ = [
  "FailureCount",
  "GYM",
  "MATH",
  "REASONING",
  "ScoreFn",
  "ScorerError",
  "Scorers",
  "Scores",
  "boxed",
  "countdown",
  "exact_match",
  "finished",
  "last_number",
  "matches",
  "near_length",
  "score",
  "tagged",
  "weighted_sum",
  "whole",
]
