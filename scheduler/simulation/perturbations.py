"""Durations other than those that were planned with."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

from scheduler import decoding, durations, errors, profiles
from scheduler.clusters import Cluster, DeviceClass
from scheduler.devices import Devices
from scheduler.plans import Activity, FlatPlan
from scheduler.profiles import Config, DecodeLaw, Profile
from scheduler.workflows import Stage, Workflow

# From a plan and an iteration to the nanoseconds of each activity.
DurationsFn = Callable[[FlatPlan, int], Sequence[int]]

# As `decoding.ready_s`.
ReadyFn = Callable[
  [Stage, DecodeLaw, DeviceClass, Config, int, tuple[int, int], int],
  Sequence[float],
]

# Odd, so that it shifts every recorded trace.
_ITERATIONS_PER_SEED = 1_000_003


def perturb(
  workflow: Workflow,
  profile: Profile,
  cluster: Cluster,
  *,
  lengths_seed: int | None = None,
  noise: float = 0.0,
  noise_seed: int = 0,
  ready_fn: ReadyFn = decoding.ready_s,
) -> DurationsFn:
  """Returns how long a plan's activities take in a world like the profile's.

  Args:
    workflow: that is planned.
    profile: with which the plan was lowered.
    cluster: on which it runs.
    lengths_seed: every iteration draws lengths anew: a decode is timed with
      them, and what other stages with `lengths` take is scaled by the tokens
      of their items over the mean. Iteration 0 of seed 0 has the lengths that
      plans are lowered with. None: all as the plan says.
    noise: the profile is wrong by a factor for each stage, drawn evenly from
      [1 - noise, 1 + noise], the same in all iterations.
    noise_seed: of these factors.
    ready_fn: when a decode emits its items; see `batching.make_ready_fn`.

  Raises:
    SchedulerError: the noise is not in [0, 1).
  """
  if not 0 <= noise < 1:
    raise errors.SchedulerError(
      f"noise is {noise}; expected a share in [0, 1), such as 0.3"
    )
  factors = {
    stage.name: random.Random(f"{noise_seed} {stage.name}").uniform(
      1 - noise, 1 + noise
    )
    for stage in workflow.stages
  }
  world = _World(workflow, profile, cluster, lengths_seed, factors, ready_fn)
  return world.durations_ns


class _World(NamedTuple):
  workflow: Workflow
  profile: Profile
  cluster: Cluster
  lengths_seed: int | None
  factors: dict[str, float]
  ready_fn: ReadyFn

  def durations_ns(self, plan: FlatPlan, iteration: int) -> list[int]:
    seed = self.lengths_seed
    if seed is not None:
      seed = seed * _ITERATIONS_PER_SEED + iteration
    return [
      round(self.factors[a.stage] * self._nominal_ns(plan, a, seed))
      if a.kind in ("compute", "apply")
      else a.duration_ns
      for a in plan.activities
    ]

  def _nominal_ns(self, plan: FlatPlan, a: Activity, seed: int | None) -> float:
    stage = self.workflow.stage(a.stage)
    if seed is None or stage.lengths is None or a.kind == "apply":
      return a.duration_ns
    devices = Devices()
    for r in a.resources:
      devices = devices | plan.resources[r].devices
    device = self.cluster.class_of(devices)
    law = self.profile.law(stage.name, device.name, a.config)
    if not isinstance(law, DecodeLaw):
      return a.duration_ns * _relative_tokens(
        self.workflow, stage, a.items, seed
      )
    replicas = durations.replicas(len(devices), a.config)
    start, _ = cohort = a.cohort or a.items
    ready_s = self.ready_fn(
      stage, law, device, a.config, replicas, cohort, seed
    )
    first, last = a.items[0] - start, a.items[1] - start
    before_ns = durations.to_ns(ready_s[first - 1]) if first else 0
    return durations.to_ns(ready_s[last - 1]) - before_ns


def _relative_tokens(
  workflow: Workflow, stage: Stage, items: tuple[int, int], seed: int
) -> float:
  """Returns the tokens of a granule's items over their mean.

  They are those of the decode that has the same lengths, if there is one, in
  the order in which it emits them.
  """
  assert stage.lengths is not None
  source = next(
    (
      s
      for s in workflow.stages
      if (s.kind, s.lengths, s.items) == ("decode", stage.lengths, stage.items)
    ),
    stage,
  )
  tokens = _tokens_before(source, seed)
  start, stop = items
  prompts = stage.lengths.prompt_tokens * (stop - start)
  mean = profiles.mean_tokens(stage.lengths) * (stop - start) + prompts
  return (tokens[stop] - tokens[start] + prompts) / mean


@functools.lru_cache(maxsize=256)
def _tokens_before(stage: Stage, seed: int) -> tuple[int, ...]:
  """Returns how many tokens the first k emitted items have, for each k."""
  tokens = decoding.draw_tokens(stage, seed)
  order = decoding.emission_order(stage, seed)
  return (0, *itertools.accumulate(tokens[i] for i in order))
