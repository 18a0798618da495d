"""Stages over sequences of tokens, and their entries in a profile."""

from __future__ import annotations

from collections.abc import Iterable

from scheduler import clusters, profiles, workflows
from scheduler.workloads import (
  constants,
  distributions,
  hardware,
  laws,
  models,
  variations,
)

NOMINAL = variations.Variation()

# 28k of context, of which 1k is for the prompt.
_MAX_TOKENS = 27_648
# Assumed: no published row at hand says how alike the lengths of a group are.
_CORRELATION = 0.5
# Token, log-probability, mask and reward of each token, of four bytes each; a
# stage that reads sequences adds one number per token.
_SEQUENCE_BYTES_PER_TOKEN = 16
_RESULT_BYTES_PER_TOKEN = 4


def lengths(
  mean_tokens: float,
  sigma: float,
  variation: variations.Variation,
  *,
  max_tokens: int = _MAX_TOKENS,
  prompt_tokens: int = constants.PROMPT_TOKENS,
) -> workflows.LogNormalLengths:
  """Returns lengths with this mean, before the variation's scale."""
  mean = mean_tokens * variation.length_scale
  return workflows.LogNormalLengths(
    median_tokens=round(distributions.median_of(mean, sigma, max_tokens)),
    sigma=sigma,
    max_tokens=max_tokens,
    prompt_tokens=prompt_tokens,
    correlation=_CORRELATION,
  )


def rollout(
  model: models.Model,
  drawn: workflows.LogNormalLengths,
  cluster: clusters.Cluster,
  variation: variations.Variation,
) -> workflows.Stage:
  """Returns the stage that generates a batch for all of a cluster."""
  return workflows.Stage(
    name="rollout",
    kind="decode",
    items=variation.sequences(hardware.num_accelerators(cluster)),
    granule_min=variation.group,
    quantum=variation.group,
    group=variation.group,
    state_bytes=model.weight_bytes,
    item_bytes=sequence_bytes(drawn),
    lengths=drawn,
  )


def reader(
  source: workflows.Stage,
  name: str,
  kind: workflows.Kind,
  state_bytes: int = 0,
  *,
  updates: int = 1,
  needs_all: bool = False,
) -> workflows.Stage:
  """Returns a stage that reads all that another emits, in whole groups."""
  return workflows.Stage(
    name=name,
    kind=kind,
    items=source.items,
    granule_min=source.group,
    quantum=source.group,
    updates=updates,
    needs_all=needs_all,
    state_bytes=state_bytes,
    item_bytes=source.item_bytes,
  )


def edges(
  source: workflows.Stage,
  readers: Iterable[workflows.Stage],
  trains: Iterable[workflows.Stage],
  drawn: workflows.LogNormalLengths,
) -> tuple[workflows.Edge, ...]:
  """Returns edges by which all read sequences, and training the results."""
  readers, trains = tuple(readers), tuple(trains)
  result_bytes = round(
    _RESULT_BYTES_PER_TOKEN * distributions.moments(drawn)[0]
  )
  read = [
    workflows.Edge(
      source=source.name, target=stage.name, item_bytes=source.item_bytes
    )
    for stage in (*readers, *trains)
  ]
  results = [
    workflows.Edge(source=a.name, target=b.name, item_bytes=result_bytes)
    for a in readers
    for b in trains
  ]
  return (*read, *results)


def sequence_bytes(drawn: workflows.LogNormalLengths) -> int:
  """Returns the bytes that one sequence is passed on as."""
  return round(_SEQUENCE_BYTES_PER_TOKEN * distributions.moments(drawn)[0])


def decode_entries(
  stage: workflows.Stage,
  model: models.Model,
  drawn: workflows.LogNormalLengths,
  cluster: clusters.Cluster,
) -> tuple[profiles.Entry, ...]:
  """Returns entries of a decode."""
  context_tokens = distributions.moments(drawn)[0]
  return laws.entries(
    stage,
    cluster,
    laws.TENSOR_PARALLEL,
    lambda device, config: laws.decode_law(
      model, device, config, context_tokens=context_tokens
    ),
  )


def infer_entries(
  stage: workflows.Stage,
  model: models.Model,
  drawn: workflows.LogNormalLengths,
  cluster: clusters.Cluster,
) -> tuple[profiles.Entry, ...]:
  """Returns entries of log-probabilities, values or scores."""
  return laws.entries(
    stage,
    cluster,
    laws.TENSOR_PARALLEL,
    lambda device, config: laws.infer_law(model, device, config, drawn),
  )


def train_entries(
  stage: workflows.Stage,
  model: models.Model,
  drawn: workflows.LogNormalLengths,
  cluster: clusters.Cluster,
) -> tuple[profiles.Entry, ...]:
  """Returns entries of training."""
  return laws.entries(
    stage,
    cluster,
    laws.PIPELINED,
    lambda device, config: laws.train_law(model, device, config, drawn),
  )
