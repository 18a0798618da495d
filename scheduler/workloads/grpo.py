"""GRPO of language models on verifiable tasks."""

from __future__ import annotations

import dataclasses

from scheduler import clusters, profiles, workflows
from scheduler.workloads import (
  constants,
  laws,
  models,
  problems,
  sequences,
  variations,
)


def grpo_1_5b(
  cluster: clusters.Cluster,
  *,
  variation: variations.Variation = sequences.NOMINAL,
) -> problems.Problem:
  """Returns GRPO of a 1.5B model: rollout, log-probabilities, training.

  On 8 H100 this is the row "rlinf_1_5b" of `figures`.
  """
  drawn = sequences.lengths(13_975.0, constants.FITTED.sigma_1_5b, variation)
  return grpo("grpo_1_5b", models.QWEN_1_5B, drawn, cluster, variation)


def grpo_7b(
  cluster: clusters.Cluster,
  *,
  variation: variations.Variation = sequences.NOMINAL,
) -> problems.Problem:
  """Returns GRPO of a 7B model, with a reward and a reference model.

  On 64 H100 and with 32 sequences per device this is the row "rlinf_7b" of
  `figures`.
  """
  drawn = sequences.lengths(10_426.0, constants.FITTED.sigma_7b, variation)
  return grpo(
    "grpo_7b",
    models.QWEN_7B,
    drawn,
    cluster,
    variation,
    has_reward=True,
    has_reference=True,
  )


def grpo_7b_one_step_off(
  cluster: clusters.Cluster,
  *,
  variation: variations.Variation = sequences.NOMINAL,
) -> problems.Problem:
  """Returns `grpo_7b` with rollouts of parameters that are one update old."""
  problem = grpo_7b(cluster, variation=variation)
  workflow = dataclasses.replace(problem.workflow, staleness=1)
  return dataclasses.replace(problem, workflow=workflow)


def grpo_32b(
  cluster: clusters.Cluster,
  *,
  variation: variations.Variation = sequences.NOMINAL,
) -> problems.Problem:
  """Returns GRPO of a 32B model, with a reward; lengths are assumed."""
  drawn = sequences.lengths(8000.0, constants.FITTED.sigma_7b, variation)
  return grpo(
    "grpo_32b", models.QWEN_32B, drawn, cluster, variation, has_reward=True
  )


def grpo_moe_30b(
  cluster: clusters.Cluster,
  *,
  variation: variations.Variation = sequences.NOMINAL,
) -> problems.Problem:
  """Returns GRPO of a mixture of experts of 30B, of which 3B are active.

  State and weight sync are those of all parameters, operations those of the
  active ones. Lengths are assumed.
  """
  drawn = sequences.lengths(8000.0, constants.FITTED.sigma_7b, variation)
  return grpo("grpo_moe_30b", models.MOE_30B, drawn, cluster, variation)


def grpo(
  name: str,
  model: models.Model,
  drawn: workflows.LogNormalLengths,
  cluster: clusters.Cluster,
  variation: variations.Variation,
  *,
  has_reward: bool = False,
  has_reference: bool = False,
) -> problems.Problem:
  """Returns GRPO of a model.

  Args:
    name: of the workflow.
    model: policy, and reference where there is one.
    drawn: lengths of its sequences.
    cluster: on what.
    variation: batch, groups and updates.
    has_reward: whether a reward on host cores is a stage of its own; a plan
      gives it devices, whose hosts' cores it uses.
    has_reference: whether a reference model's log-probabilities are needed.

  Raises:
    InfeasiblePlanError: a stage fits on no devices of the cluster.
  """
  rollout = sequences.rollout(model, drawn, cluster, variation)
  logprob = sequences.reader(rollout, "logprob", "infer", model.weight_bytes)
  train = sequences.reader(
    rollout, "train", "train", model.train_bytes, updates=variation.updates
  )
  readers = [logprob]
  entries = [
    *sequences.decode_entries(rollout, model, drawn, cluster),
    *sequences.infer_entries(logprob, model, drawn, cluster),
    *sequences.train_entries(train, model, drawn, cluster),
  ]
  if has_reward:
    reward = sequences.reader(rollout, "reward", "host")
    readers.append(reward)
    law = laws.reward_law(constants.OWN.reward_s)
    entries += [
      profiles.Entry(stage="reward", device_class=device.name, law=law)
      for device in cluster.classes
    ]
  if has_reference:
    reference = sequences.reader(
      rollout, "reference", "infer", model.weight_bytes
    )
    readers.append(reference)
    entries += sequences.infer_entries(reference, model, drawn, cluster)
  workflow = workflows.Workflow(
    name=name,
    stages=(rollout, *readers, train),
    edges=sequences.edges(rollout, readers, (train,), drawn),
    syncs=tuple(
      workflows.WeightSync(
        source="train", target=target, num_bytes=model.weight_bytes
      )
      for target in ("rollout", "logprob")
    ),
  )
  return problems.problem(workflow, entries, cluster)
