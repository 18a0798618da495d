"""Multi-turn tool use: a model that calls tools, which run on host cores."""

from __future__ import annotations

from scheduler import clusters, decoding, profiles, workflows
from scheduler.workloads import (
  constants,
  distributions,
  hardware,
  laws,
  models,
  problems,
  sequences,
  variations,
)

# Assumed: a tool takes a second on average, and some calls several; an eighth
# of a host runs 12 of them at once.
_TURNS = 4
_TURN_TOKENS = 600.0
_MAX_TURN_TOKENS = 4096
_RESULT_TOKENS = 400
_CALL_S = 1.0
_CALLS_AT_ONCE = 12
_BYTES_PER_CALL = 1 << 30
_CALL_BYTES = 4096
_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


def tool_use_7b(
  cluster: clusters.Cluster,
  *,
  variation: variations.Variation = sequences.NOMINAL,
) -> problems.Problem:
  """Returns GRPO of a 7B model that calls a tool after each of four turns.

  A turn's generation is profiled as a whole, by sequences of one replica: the
  longest decides when the tools are called. Nothing of it is calibrated but
  the model.

  Args:
    cluster: with devices of class "cpu", on which the tools run.
    variation: batch, turns' lengths and updates.

  Raises:
    InfeasiblePlanError: a stage fits on no devices of the cluster.
  """
  model, sigma = models.QWEN_7B, constants.FITTED.sigma_7b
  turn = sequences.lengths(
    _TURN_TOKENS,
    sigma,
    variation,
    max_tokens=_MAX_TURN_TOKENS,
    # What the first turns leave is context of the last; on average, of half.
    prompt_tokens=constants.PROMPT_TOKENS
    + round((_TURNS - 1) / 2 * (_TURN_TOKENS + _RESULT_TOKENS)),
  )
  whole = sequences.lengths(
    _TURNS * (_TURN_TOKENS + _RESULT_TOKENS),
    sigma / _TURNS**0.5,
    variation,
    max_tokens=_TURNS * (_MAX_TURN_TOKENS + _RESULT_TOKENS),
  )
  item_bytes = sequences.sequence_bytes(whole)
  generate = workflows.Stage(
    name="generate",
    kind="infer",
    items=variation.sequences(hardware.num_accelerators(cluster)),
    state_bytes=model.weight_bytes,
    item_bytes=item_bytes,
  )
  tools = sequences.reader(generate, "tools", "host")
  logprob = sequences.reader(generate, "logprob", "infer", model.weight_bytes)
  train = sequences.reader(
    generate, "train", "train", model.train_bytes, updates=variation.updates
  )
  workflow = workflows.Workflow(
    name="tool_use_7b",
    stages=(generate, tools, logprob, train),
    edges=(
      workflows.Edge(source="generate", target="tools", item_bytes=_CALL_BYTES),
      workflows.Edge(source="tools", target="generate", item_bytes=_CALL_BYTES),
      *sequences.edges(tools, (logprob,), (train,), whole),
    ),
    loops=(
      workflows.Loop(
        name="dialogue", stages=("generate", "tools"), turns=_TURNS
      ),
    ),
    syncs=tuple(
      workflows.WeightSync(
        source="train", target=target, num_bytes=model.weight_bytes
      )
      for target in ("generate", "logprob")
    ),
  )
  entries = [
    *laws.entries(
      generate,
      cluster,
      laws.TENSOR_PARALLEL,
      lambda device, config: _turn_law(model, device, config, turn),
    ),
    profiles.Entry(stage="tools", device_class="cpu", law=_tool_law()),
    *sequences.infer_entries(logprob, model, whole, cluster),
    *sequences.train_entries(train, model, whole, cluster),
  ]
  return problems.problem(workflow, entries, cluster)


def _turn_law(
  model: models.Model,
  device: clusters.DeviceClass,
  config: profiles.Config,
  turn: workflows.LogNormalLengths,
) -> profiles.ReplicaTable:
  """Returns the time in which a replica generates one turn of a batch."""
  context_tokens = distributions.moments(turn)[0]
  law = laws.decode_law(model, device, config, context_tokens=context_tokens)
  samples = []
  for batch in _BATCHES:
    stage = workflows.Stage(
      name="generate",
      kind="decode",
      items=batch,
      lengths=workflows.TraceLengths(
        tokens=distributions.quantiles(turn, batch),
        prompt_tokens=turn.prompt_tokens,
      ),
    )
    ready = decoding.ready_s(stage, law, device, config, 1, (0, batch), 0)
    cache = min(batch, law.max_active) * context_tokens
    samples.append(
      profiles.Sample(
        granule=batch,
        devices=config.devices,
        seconds=round(ready[-1], 6),
        num_bytes=round(cache * model.kv_bytes_per_token / config.devices),
      )
    )
  return profiles.ReplicaTable(samples=tuple(samples), extrapolate=True)


def _tool_law() -> profiles.ReplicaTable:
  """Returns the time of calls on one device of class "cpu".

  Exponential with the mean `_CALL_S`: the longest of g calls takes the mean
  times 1 + 1/2 + ... + 1/g; beyond those that run at once, others wait.
  """
  samples = []
  for calls in _BATCHES:
    at_once = min(calls, _CALLS_AT_ONCE)
    longest_s = _CALL_S * sum(1 / i for i in range(1, at_once + 1))
    waiting_s = _CALL_S * (calls - at_once) / _CALLS_AT_ONCE
    samples.append(
      profiles.Sample(
        granule=calls,
        devices=1,
        seconds=round(longest_s + waiting_s, 6),
        num_bytes=at_once * _BYTES_PER_CALL,
      )
    )
  return profiles.ReplicaTable(samples=tuple(samples), extrapolate=True)
