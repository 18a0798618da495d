"""Profiles of models: the laws of each stage on each device class."""

from __future__ import annotations

import math
from collections.abc import Callable

from scheduler import clusters, profiles, workflows
from scheduler.workloads import constants, distributions, models

LawFn = Callable[[clusters.DeviceClass, profiles.Config], profiles.Law]

TENSOR_PARALLEL = tuple(profiles.Config(tp=tp) for tp in (1, 2, 4, 8))
PIPELINED = (
  *TENSOR_PARALLEL,
  profiles.Config(tp=8, pp=2),
  profiles.Config(tp=8, pp=4),
)
# A planner chooses among the smallest layout that fits, and two larger ones.
_NUM_CONFIGS = 3
_LEAST_ACTIVE, _MAX_ACTIVE = 8, 256
_REWARD_DEVICES = 64


def entries(
  stage: workflows.Stage,
  cluster: clusters.Cluster,
  configs: tuple[profiles.Config, ...],
  law_fn: LawFn,
) -> tuple[profiles.Entry, ...]:
  """Returns entries of a stage for every class that computes.

  Args:
    stage: with its state.
    cluster: whose device classes are meant.
    configs: that may be, ascending in devices.
    law_fn: the law on a class in a configuration.
  """
  found: list[profiles.Entry] = []
  for device in cluster.classes:
    if not device.flops_per_s:
      continue
    available = len(cluster.of_class(device.name))
    of_class = [
      profiles.Entry(
        stage=stage.name,
        device_class=device.name,
        law=law_fn(device, config),
        config=config,
      )
      for config in configs
      if config.devices <= available
    ]
    fitting = [entry for entry in of_class if _fits(stage, device, entry)]
    found += fitting[:_NUM_CONFIGS] or of_class[-1:]
  return tuple(found)


def decode_law(
  model: models.Model,
  device: clusters.DeviceClass,
  config: profiles.Config,
  *,
  context_tokens: float,
  fitted: constants.Constants = constants.FITTED,
) -> profiles.DecodeLaw:
  """Returns the law of a decode.

  Args:
    model: what generates.
    device: class of the devices.
    config: of one replica.
    context_tokens: of a sequence when it ends, on average; with it the cache
      of all active sequences fits beside the weights.
    fitted: constants.
  """
  memory = constants.MEMORY_SHARE * device.memory_bytes * config.devices
  cache = memory - model.weight_bytes
  active = math.floor(cache / (context_tokens * model.kv_bytes_per_token))
  reductions = 2 * model.num_layers if config.tp > 1 else 0
  return profiles.DecodeLaw(
    t0_s=fitted.decode_t0_s + reductions * constants.ALLREDUCE_S,
    weight_bytes=model.weight_bytes,
    kv_bytes_per_token=model.kv_bytes_per_token,
    num_params=model.active_params,
    efficiency=fitted.decode_efficiency,
    flop_efficiency=constants.DECODE_FLOP_EFFICIENCY,
    max_active=max(1, min(_MAX_ACTIVE, active)),
    weight_share=model.active_params / model.num_params,
  )


def infer_law(
  model: models.Model,
  device: clusters.DeviceClass,
  config: profiles.Config,
  lengths: workflows.LogNormalLengths,
  *,
  fitted: constants.Constants = constants.FITTED,
) -> profiles.ComputeLaw:
  """Returns the law of log-probabilities or values of whole sequences."""
  efficiency = fitted.infer_efficiency
  if device.name == "h20":
    efficiency = constants.OWN.h20_infer_efficiency
  longest = lengths.prompt_tokens + lengths.max_tokens
  return profiles.ComputeLaw(
    flop_per_item=_rounded(infer_flop(model, lengths, fitted.fixed_params)),
    efficiency=_rounded(efficiency * layout_efficiency(config)),
    overhead_s=constants.INFER_OVERHEAD_S,
    bytes_per_item=model.infer_activation_bytes(longest),
    max_active=1,
  )


def train_law(
  model: models.Model,
  device: clusters.DeviceClass,
  config: profiles.Config,
  lengths: workflows.LogNormalLengths,
  *,
  fitted: constants.Constants = constants.FITTED,
) -> profiles.ComputeLaw:
  """Returns the law of forward and backward passes over whole sequences.

  Micro-batches are packed to the longest context.
  """
  efficiency = fitted.train_efficiency
  if device.name == "h20":
    efficiency = constants.OWN.h20_train_efficiency
  longest = lengths.prompt_tokens + lengths.max_tokens
  return profiles.ComputeLaw(
    flop_per_item=_rounded(3 * infer_flop(model, lengths, fitted.fixed_params)),
    efficiency=_rounded(efficiency * layout_efficiency(config)),
    overhead_s=constants.TRAIN_OVERHEAD_S,
    bytes_per_item=model.train_activation_bytes(longest),
    max_active=1,
  )


def infer_flop(
  model: models.Model,
  lengths: workflows.LogNormalLengths,
  fixed_params: float,
) -> float:
  """Returns operations of a forward pass over one sequence, on average.

  A backward pass takes twice as many.

  Args:
    model: the network.
    lengths: of its sequences.
    fixed_params: see `constants.Constants`.
  """
  tokens, square = distributions.moments(lengths)
  return model.forward_flop(tokens, square) + 2 * fixed_params * tokens


def reward_law(reward_s: float) -> profiles.Table:
  """Returns the law of a reward that is computed on host cores.

  Sequences are scored one at a time, by one process for each 64 devices.

  Args:
    reward_s: seconds of one sequence.
  """
  samples = tuple(
    profiles.Sample(
      granule=granule, devices=devices, seconds=granule * reward_s * share
    )
    for devices, share in ((1, 1.0), (_REWARD_DEVICES, 1.0), (16_384, 1 / 256))
    for granule in (1, 1024)
  )
  return profiles.Table(samples=samples, extrapolate=True)


def layout_efficiency(config: profiles.Config) -> float:
  """Returns the share of a single device's efficiency that a layout keeps."""
  return (
    constants.TP_EFFICIENCY ** math.log2(config.tp)
    * constants.PP_EFFICIENCY ** math.log2(config.pp)
  )  # fmt: skip


def _fits(
  stage: workflows.Stage, device: clusters.DeviceClass, entry: profiles.Entry
) -> bool:
  law, transient = entry.law, 0.0
  if isinstance(law, profiles.DecodeLaw) and law.max_active < _LEAST_ACTIVE:
    return False
  if isinstance(law, profiles.ComputeLaw):
    transient = law.bytes_per_item
  needed = (stage.state_bytes + transient) / entry.config.devices
  return needed <= constants.MEMORY_SHARE * device.memory_bytes


def _rounded(value: float) -> float:
  """Returns six digits: libraries of mathematics differ in the last."""
  return float(f"{value:.6g}")
