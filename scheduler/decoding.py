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
from collections.abc import Iterable, Iterator

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
  active, steps, contexts = _steps(
    stage, replicas, cohort, seed, law.max_active
  )
  token_fn = law.token_fn(device, config)
  now_s, done = 0.0, []
  for b, count, context in zip(active, steps, contexts):
    if count:
      now_s += count * token_fn(b, context)
    done.append(now_s)
  return tuple(done)


@functools.lru_cache(maxsize=512)
def _steps(
  stage: Stage,
  replicas: int,
  cohort: tuple[int, int],
  seed: int,
  max_active: int,
) -> tuple[list[int], list[int], list[float]]:
  """Returns what the replica with the longest items does until each is done.

  That is, for each of them, how many are active, how many tokens they all
  decode since the one before was done, and their mean context meanwhile. It is
  the same whatever a token takes.
  """
  lengths, _ = _by_length(stage, cohort, seed)
  mine = lengths[::-1][::replicas][::-1]
  prompt = stage.lengths.prompt_tokens if stage.lengths else 0
  entered = min(len(mine), max_active)
  ends: Iterable[tuple[int, int]] = ((length, length) for length in mine)
  if entered < len(mine):
    ends = _queued(mine, max_active)
  active: list[int] = []
  steps: list[int] = []
  contexts: list[float] = []
  left, position, b = len(mine), 0, entered
  context = float(prompt * b)  # of all active, together
  for end, length in ends:
    count = end - position
    active.append(b)
    steps.append(count)
    contexts.append((context + b * count / 2) / b)
    context += b * count - (prompt + length)
    position, left = end, left - 1
    if left >= b:
      context += prompt
    else:
      b -= 1
  return active, steps, contexts


def _queued(tokens: list[int], max_active: int) -> Iterator[tuple[int, int]]:
  """Yields positions at which items are done, with their lengths.

  Position counts the tokens that a place has decoded since the start. Items of
  all lengths enter in turn as places become free.
  """
  queue = _mixed(len(tokens))
  places = [(tokens[i], tokens[i]) for i in queue[:max_active]]
  heapq.heapify(places)
  for i in queue[max_active:]:
    end, length = places[0]
    yield end, length
    heapq.heapreplace(places, (end + tokens[i], tokens[i]))
  while places:
    yield heapq.heappop(places)


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


def _mixed(n: int) -> list[int]:
  """Returns 0..n-1 in an order in which every stretch spans the range."""
  stride = max(1, round(n * 0.6180339887))
  while math.gcd(stride, n) > 1:
    stride += 1
  return [i * stride % n for i in range(n)]
