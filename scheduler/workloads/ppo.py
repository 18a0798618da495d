"""PPO from human feedback: four models, two of which learn."""

from __future__ import annotations

import dataclasses

from scheduler import clusters, workflows
from scheduler.workloads import (
  constants,
  models,
  problems,
  sequences,
  variations,
)


def ppo_7b(
  cluster: clusters.Cluster,
  *,
  variation: variations.Variation = sequences.NOMINAL,
) -> problems.Problem:
  """Returns PPO with an actor, a critic, a reward and a reference model of 7B.

  Answers of some hundred tokens, one for each prompt; their lengths are
  assumed. Advantages are normalised over the batch, so that training waits for
  all of it.

  Args:
    cluster: on what.
    variation: batch, lengths and updates.

  Raises:
    InfeasiblePlanError: a stage fits on no devices of the cluster.
  """
  model = models.QWEN_7B
  variation = dataclasses.replace(variation, group=1)
  drawn = sequences.lengths(
    800.0, constants.FITTED.sigma_7b, variation, max_tokens=4096
  )
  rollout = sequences.rollout(model, drawn, cluster, variation)
  readers = [
    sequences.reader(rollout, name, "infer", model.weight_bytes)
    for name in ("logprob", "reference", "reward", "values")
  ]
  trains = [
    sequences.reader(
      rollout,
      name,
      "train",
      model.train_bytes,
      updates=variation.updates,
      needs_all=True,
    )
    for name in ("train_actor", "train_critic")
  ]
  entries = [*sequences.decode_entries(rollout, model, drawn, cluster)]
  for stage in readers:
    entries += sequences.infer_entries(stage, model, drawn, cluster)
  for stage in trains:
    entries += sequences.train_entries(stage, model, drawn, cluster)
  workflow = workflows.Workflow(
    name="ppo_7b",
    stages=(rollout, *readers, *trains),
    edges=sequences.edges(rollout, readers, trains, drawn),
    syncs=tuple(
      workflows.WeightSync(
        source=source, target=target, num_bytes=model.weight_bytes
      )
      for source, target in (
        ("train_actor", "rollout"),
        ("train_actor", "logprob"),
        ("train_critic", "values"),
      )
    ),
  )
  return problems.problem(workflow, entries, cluster)
