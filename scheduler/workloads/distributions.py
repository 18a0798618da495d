"""Distributions of lengths: what follows from a log-normal cut at a maximum."""

from __future__ import annotations

import functools
import math
import statistics

from scheduler import errors, profiles, workflows


def moments(lengths: workflows.LogNormalLengths) -> tuple[float, float]:
  """Returns the mean of a sequence's tokens, prompt included, and of n^2."""
  mean = profiles.mean_tokens(lengths)
  square = mean_square_tokens(lengths)
  prompt = lengths.prompt_tokens
  return prompt + mean, prompt**2 + 2 * prompt * mean + square


def mean_square_tokens(lengths: workflows.LogNormalLengths) -> float:
  """Returns E[min(X, m)^2] of a log-normal X, in closed form."""
  if lengths.sigma == 0:
    return min(lengths.median_tokens, float(lengths.max_tokens)) ** 2
  mu, s, m = math.log(lengths.median_tokens), lengths.sigma, lengths.max_tokens
  z = (math.log(m) - mu) / s
  below = math.exp(2 * mu + 2 * s * s) * _normal_cdf(z - 2 * s)
  return below + m * m * (1 - _normal_cdf(z))


def median_of(mean_tokens: float, sigma: float, max_tokens: int) -> float:
  """Returns the median of the log-normal that, cut, has this mean.

  Raises:
    WorkflowError: no length up to the maximum has such a mean.
  """
  if not 1 <= mean_tokens < max_tokens:
    raise errors.WorkflowError(
      f"lengths of at most {max_tokens} cannot have the mean {mean_tokens}"
    )
  low, high = math.log(mean_tokens) - sigma**2, math.log(max_tokens) + 10
  for _ in range(60):
    middle = (low + high) / 2
    drawn = workflows.LogNormalLengths(
      median_tokens=math.exp(middle), sigma=sigma, max_tokens=max_tokens
    )
    if profiles.mean_tokens(drawn) < mean_tokens:
      low = middle
    else:
      high = middle
  return math.exp((low + high) / 2)


def quantiles(
  lengths: workflows.LogNormalLengths, count: int
) -> tuple[int, ...]:
  """Returns `count` lengths at the middles of equal shares, ascending."""
  drawn = (
    round(lengths.median_tokens * math.exp(lengths.sigma * z))
    for z in _normal_quantiles(count)
  )
  return tuple(max(1, min(lengths.max_tokens, tokens)) for tokens in drawn)


@functools.lru_cache(maxsize=8)
def _normal_quantiles(count: int) -> tuple[float, ...]:
  normal = statistics.NormalDist()
  return tuple(normal.inv_cdf((i + 0.5) / count) for i in range(count))


def _normal_cdf(z: float) -> float:
  return 0.5 * math.erfc(-z / math.sqrt(2))
