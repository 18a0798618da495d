"""What the laws say of published figures."""

from __future__ import annotations

import math

from scheduler import decoding, profiles, workflows
from scheduler.workloads import (
  constants,
  distributions,
  figures,
  hardware,
  laws,
  models,
)


def predict_s(
  figure: figures.Figure,
  fitted: constants.Constants = constants.FITTED,
  own: constants.OwnConstants = constants.OWN,
) -> float:
  """Returns the seconds that the laws give a figure."""
  row = figures.ROWS[figure.row]
  if figure.phase == "reward":
    return row.sequences * own.reward_s
  lengths = row_lengths(figure.row, fitted, own)
  if figure.phase == "generation":
    ready = ready_s(row, lengths, fitted)
    return ready[math.ceil(figure.share * len(ready)) - 1]
  flop = laws.infer_flop(row.model, lengths, fitted.fixed_params)
  if figure.phase == "train":
    flop *= 3
  rate = row.num_devices * row.device.flops_per_s
  return row.sequences * flop / (rate * _efficiency(figure, fitted, own))


def row_lengths(
  name: str,
  fitted: constants.Constants = constants.FITTED,
  own: constants.OwnConstants = constants.OWN,
) -> workflows.LogNormalLengths:
  """Returns the lengths of a row's sequences."""
  row = figures.ROWS[name]
  sigma = {
    models.QWEN_1_5B: fitted.sigma_1_5b,
    models.QWEN_7B: fitted.sigma_7b,
  }[row.model]
  if row.device == hardware.H20:
    sigma = own.verl_sigma
  mean = row.mean_tokens or own.placement_mean_tokens
  median = {
    "dynarl": fitted.median_dynarl_tokens,
    "rlinf_paper": fitted.median_paper_tokens,
  }.get(name) or distributions.median_of(mean, sigma, row.max_tokens)
  return workflows.LogNormalLengths(
    median_tokens=median,
    sigma=sigma,
    max_tokens=row.max_tokens,
    prompt_tokens=constants.PROMPT_TOKENS,
  )


def ready_s(
  row: figures.Row,
  lengths: workflows.LogNormalLengths,
  fitted: constants.Constants = constants.FITTED,
) -> tuple[float, ...]:
  """Returns when each sequence of a row is finished, in order.

  Lengths are the distribution's quantiles, so that no draw is fitted.
  """
  config = profiles.Config(tp=row.rollout_tp)
  stage = workflows.Stage(
    name="rollout",
    kind="decode",
    items=row.sequences,
    lengths=workflows.TraceLengths(
      tokens=distributions.quantiles(lengths, row.sequences),
      prompt_tokens=lengths.prompt_tokens,
    ),
  )
  law = laws.decode_law(
    row.model,
    row.device,
    config,
    context_tokens=distributions.moments(lengths)[0],
    fitted=fitted,
  )
  replicas, cohort = row.num_devices // config.devices, (0, row.sequences)
  return decoding.ready_s(stage, law, row.device, config, replicas, cohort, 0)


def _efficiency(
  figure: figures.Figure,
  fitted: constants.Constants,
  own: constants.OwnConstants,
) -> float:
  row = figures.ROWS[figure.row]
  infer, train = fitted.infer_efficiency, fitted.train_efficiency
  if figure.row == "rlinf_placement":
    infer = own.placement_infer_efficiency
    train = own.placement_train_efficiency
  elif row.device == hardware.H20:
    infer, train = own.h20_infer_efficiency, own.h20_train_efficiency
  if figure.phase == "infer":
    return infer
  return train * laws.layout_efficiency(profiles.Config(tp=row.train_tp))
