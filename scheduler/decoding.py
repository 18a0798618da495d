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
from collections.abc import Callable

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
  size, count = stage.group, cohort[1] - cohort[0]
  stops = tuple(min(g + size, count) for g in range(0, count, size))
  each = emitted_s(stage, law, device, config, replicas, cohort, seed, stops)
  ready: list[float] = []
  for stop, time_s in zip(stops, each):
    ready += [time_s] * (stop - len(ready))
  return tuple(ready)


def emitted_s(
  stage: Stage,
  law: DecodeLaw,
  device: DeviceClass,
  config: Config,
  replicas: int,
  cohort: tuple[int, int],
  seed: int,
  stops: tuple[int, ...],
) -> tuple[float, ...]:
  """Returns when the first so many items of a cohort are emitted.

  As `ready_s`, where only some of its times are wanted.

  Args:
    stage: the decode.
    law: its time per token.
    device: the class that it runs on.
    config: of one replica.
    replicas: how many share the cohort.
    cohort: half-open interval of positions in the emission order.
    seed: of the lengths.
    stops: numbers of items, each at least 1.

  Raises:
    ProfileError: the device class lacks a bandwidth or an operation rate.
  """
  if min(device.memory_bytes_per_s, device.flops_per_s) <= 0:
    raise errors.ProfileError(
      f"stage {stage.name!r} needs memory_bytes_per_s and flops_per_s of device"
      f" class {device.name!r}"
    )
  _, ranks = _by_length(stage, cohort, seed)
  done = _done_s(stage, law, device, config, replicas, cohort, seed)
  # An item is done with those of its rank by length on the other replicas.
  return tuple(
    done[-1 - ranks[(stop - 1) // stage.group] // replicas] for stop in stops
  )


@functools.lru_cache(maxsize=4096)
def _done_s(
  stage: Stage,
  law: DecodeLaw,
  device: DeviceClass,
  config: Config,
  replicas: int,
  cohort: tuple[int, int],
  seed: int,
) -> tuple[float, ...]:
  """Returns when each item of the replica with the longest ones is done.

  Planners ask for it once for each granule that they try.
  """
  lengths, _ = _by_length(stage, cohort, seed)
  mine = lengths[::-1][::replicas][::-1]
  prompt = stage.lengths.prompt_tokens if stage.lengths else 0
  token_fn = law.token_fn(device, config)
  if len(mine) <= law.max_active:
    return _together_s(mine, prompt, token_fn)
  return _queued_s(mine, prompt, law.max_active, token_fn)


@functools.lru_cache(maxsize=64)
def _by_length(
  stage: Stage, cohort: tuple[int, int], seed: int
) -> tuple[list[int], list[int]]:
  """Returns a cohort's lengths, ascending, and what its groups wait for.

  For each group in emission order that is how many items of the cohort are
  longer than the longest that was emitted by then.
  """
  tokens = draw_tokens(stage, seed)
  order = emission_order(stage, seed)[slice(*cohort)]
  by_length = sorted(range(len(order)), key=lambda k: tokens[order[k]])
  longer = [0] * len(order)
  for rank, k in enumerate(reversed(by_length)):
    longer[k] = rank
  groups = range(0, len(order), stage.group)
  least = (min(longer[g : g + stage.group]) for g in groups)
  return (
    [tokens[order[k]] for k in by_length],
    list(itertools.accumulate(least, min)),
  )


def _together_s(
  tokens: list[int], prompt: int, token_fn: Callable[[float, float], float]
) -> tuple[float, ...]:
  """Returns when each of some items that run at once is done, in order."""
  done: list[float] = []
  now_s, position, b = 0.0, 0, len(tokens)
  context = float(prompt * b)  # of all active, together
  for end in tokens:
    steps = end - position
    if steps:
      now_s += steps * token_fn(b, (context + b * steps / 2) / b)
      context += b * steps
      position = end
    context -= prompt + end
    b -= 1
    done.append(now_s)
  return tuple(done)


def _queued_s(
  tokens: list[int],
  prompt: int,
  max_active: int,
  token_fn: Callable[[float, float], float],
) -> tuple[float, ...]:
  """Returns when as many of one replica's items are done; `tokens` ascends.

  Up to `max_active` run at once; items of all lengths enter in turn as places
  become free.
  """
  queue = _mixed(len(tokens))
  waiting = queue[max_active:]
  # Position counts the tokens that a place has decoded since the start.
  active = [(tokens[i], tokens[i]) for i in queue[:max_active]]
  heapq.heapify(active)
  context = float(prompt * len(active))  # of all active, together
  done: list[float] = []
  now_s, position, b = 0.0, 0, len(active)
  for nxt in waiting:
    length = tokens[nxt]
    end, left = heapq.heappop(active)
    heapq.heappush(active, (end + length, length))
    steps = end - position
    if steps:
      now_s += steps * token_fn(b, (context + b * steps / 2) / b)
      position = end
    context += b * steps - left
    done.append(now_s)
  while active:
    end, left = heapq.heappop(active)
    steps = end - position
    if steps:
      now_s += steps * token_fn(b, (context + b * steps / 2) / b)
      position = end
    context += b * steps - (prompt + left)
    b -= 1
    done.append(now_s)
  return tuple(done)


def _mixed(n: int) -> list[int]:
  """Returns 0..n-1 in an order in which every stretch spans the range."""
  stride = max(1, round(n * 0.6180339887))
  while math.gcd(stride, n) > 1:
    stride += 1
  return [i * stride % n for i in range(n)]
