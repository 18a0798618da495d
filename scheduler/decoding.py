"""Decoding: drawn lengths, and when each item is ready.

All sequences of a replica are decoded together, one token each at a time. A
step's time depends on how many are active and on their contexts, so a batch
empties at a growing rate, and its longest member decides when it ends.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import math
import random

from scheduler import errors
from scheduler.clusters import DeviceClass
from scheduler.profiles import Config, DecodeLaw
from scheduler.workflows import LogNormalLengths, Stage


@functools.lru_cache(maxsize=512)
def draw_tokens(stage: Stage, seed: int) -> tuple[int, ...]:
  """Returns the generated tokens of each item, by index.

  Args:
    stage: with `lengths`, of which `stage.group` items share a prompt.
    seed: of the draw; recorded lengths are rotated by it.
  """
  lengths = stage.lengths
  if lengths is None:
    return (1,) * stage.items
  if not isinstance(lengths, LogNormalLengths):
    n = len(lengths.tokens)
    return tuple(lengths.tokens[(i + seed) % n] for i in range(stage.items))
  rng = random.Random(seed)
  mu, shared = math.log(lengths.median_tokens), math.sqrt(lengths.correlation)
  own = math.sqrt(1 - lengths.correlation)
  tokens = []
  for _ in range(stage.items // stage.group):
    of_group = rng.gauss(0.0, 1.0)
    for _ in range(stage.group):
      z = shared * of_group + own * rng.gauss(0.0, 1.0)
      drawn = math.exp(mu + lengths.sigma * z)
      tokens.append(max(1, min(lengths.max_tokens, round(drawn))))
  return tuple(tokens)


def emission_order(stage: Stage, seed: int) -> tuple[int, ...]:
  """Returns item indices in the order in which a decode emits them.

  Groups whose longest member is shorter come first; a group is emitted whole.
  """
  tokens, size = draw_tokens(stage, seed), stage.group
  groups = [range(i, i + size) for i in range(0, stage.items, size)]
  groups.sort(key=lambda group: max(tokens[i] for i in group))
  return tuple(itertools.chain.from_iterable(groups))


@functools.lru_cache(maxsize=4096)
def ready_s(
  stage: Stage,
  law: DecodeLaw,
  device: DeviceClass,
  config: Config,
  replicas: int,
  cohort: tuple[int, int],
  seed: int,
) -> tuple[float, ...]:
  """Returns when each item of a cohort is emitted, in emission order.

  Args:
    stage: the decode.
    law: its time per token.
    device: the class that it runs on.
    config: of one replica.
    replicas: how many share the cohort, each every so manieth item by length.
    cohort: half-open interval of positions in the emission order.
    seed: of the lengths.

  Returns:
    Seconds after the start, not decreasing. All replicas are taken to be like
    the one with the longest items.

  Raises:
    ProfileError: the device class lacks a bandwidth or an operation rate.
  """
  if min(device.memory_bytes_per_s, device.flops_per_s) <= 0:
    raise errors.ProfileError(
      f"stage {stage.name!r} needs memory_bytes_per_s and flops_per_s of device"
      f" class {device.name!r}"
    )
  tokens = draw_tokens(stage, seed)
  order = emission_order(stage, seed)[slice(*cohort)]
  by_length = sorted(range(len(order)), key=lambda k: tokens[order[k]])
  mine = [tokens[order[k]] for k in by_length[::-1][::replicas][::-1]]
  prompt = stage.lengths.prompt_tokens if stage.lengths else 0
  done = _completions_s(mine, prompt, law, device, config)
  # An item is done with those of its rank by length on the other replicas.
  times = [0.0] * len(order)
  for longer, k in enumerate(reversed(by_length)):
    times[k] = done[-1 - longer // replicas]
  size = stage.group
  ready: list[float] = []
  for first in range(0, len(order), size):
    group = times[first : first + size]
    ready += [max(*group, ready[-1] if ready else 0.0)] * len(group)
  return tuple(ready)


def _completions_s(
  tokens: list[int],
  prompt: int,
  law: DecodeLaw,
  device: DeviceClass,
  config: Config,
) -> list[float]:
  """Returns when as many of one replica's items are done; `tokens` ascends.

  Up to `max_active` run at once; where more wait, items of all lengths enter
  in turn as places become free.
  """
  queue = _mixed(len(tokens)) if len(tokens) > law.max_active else []
  waiting = queue[law.max_active :]
  entering = queue[: law.max_active] or range(len(tokens))
  # Position counts the tokens that a place has decoded since the start.
  active = [(tokens[i], i) for i in entering]
  heapq.heapify(active)
  context = float(prompt * len(active))  # of all active, together
  done, now_s, position = [0.0] * len(tokens), 0.0, 0
  for nxt in itertools.chain(waiting, itertools.repeat(None)):
    if not active:
      break
    end, item = heapq.heappop(active)
    b, steps = len(active) + 1, end - position
    now_s += steps * law.token_s(
      b, (context + b * steps / 2) / b, device, config
    )
    context += b * steps - (prompt + tokens[item])
    position, done[item] = end, now_s
    if nxt is not None:
      heapq.heappush(active, (position + tokens[nxt], nxt))
      context += prompt
  # Where some waited, a short one may end late: as many are out by then.
  return sorted(done)


def _mixed(n: int) -> list[int]:
  """Returns 0..n-1 in an order in which every stretch spans the range."""
  stride = max(1, round(n * 0.6180339887))
  while math.gcd(stride, n) > 1:
    stride += 1
  return [i * stride % n for i in range(n)]
