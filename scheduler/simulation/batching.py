"""Continuous batching: replicas take new sequences as others finish.

A replica decodes one token of each of its sequences in a step, and steps follow
each other without a pause. Between two steps sequences that are done leave, and
others enter. When the next step's tokens do not fit into the memory for caches,
the sequence that entered last is evicted; it goes on when there is room, before
any new one.
"""

from __future__ import annotations

import bisect
import collections
import dataclasses
import functools
import heapq
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from scheduler import decoding, durations, errors, timelines
from scheduler.clusters import DeviceClass, Links
from scheduler.profiles import Config, DecodeLaw
from scheduler.simulation import perturbations
from scheduler.simulation.stretches import NEVER_NS
from scheduler.workflows import Stage


class Eviction(NamedTuple):
  """What it costs to evict a sequence; meanwhile its replica stands still.

  Attributes:
    leave_s: from the tokens of a sequence to the seconds until it has left.
    return_s: to the seconds until it can go on.
  """

  leave_s: Callable[[int], float]
  return_s: Callable[[int], float]


EvictionFn = Callable[[DecodeLaw, DeviceClass, Config], Eviction]


def recomputation(
  law: DecodeLaw, device: DeviceClass, config: Config
) -> Eviction:
  """Returns the eviction that drops a cache, and computes it anew."""
  rate = device.flops_per_s * law.flop_efficiency * config.devices
  return Eviction(
    leave_s=lambda tokens: 0.0,
    return_s=lambda tokens: 2 * law.num_params * tokens / rate,
  )


def swapping(
  law: DecodeLaw, device: DeviceClass, config: Config, *, links: Links
) -> Eviction:
  """Returns the eviction that moves a cache to the host, and back."""
  rate = links.host_bytes_per_s * config.devices

  def move_s(tokens: int) -> float:
    return links.latency_s + tokens * law.kv_bytes_per_token / rate

  return Eviction(leave_s=move_s, return_s=move_s)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Replicas:
  """Equal replicas of a decode.

  Attributes:
    count: how many.
    law: the time of a step, and how many sequences one has at most.
    device: the class of their devices.
    config: of each.
    cache_bytes: memory for caches on each device.
    eviction_fn: what happens when it runs out.
  """

  count: int
  law: DecodeLaw
  device: DeviceClass
  config: Config = Config()
  cache_bytes: float
  eviction_fn: EvictionFn = recomputation

  @property
  def cache_tokens(self) -> float:
    """How many tokens fit into the caches of one replica."""
    if not self.law.kv_bytes_per_token:
      return math.inf
    total_bytes = self.cache_bytes * self.config.devices
    return total_bytes // self.law.kv_bytes_per_token


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Served:
  """What became of sequences.

  Attributes:
    timeline: an event for each stay of a sequence on a replica, and the memory
      of the caches, which is taken at once for what they grow to until the
      replica's next event.
    done_ns: when each sequence was done.
    num_evictions: of all.
  """

  timeline: timelines.Timeline
  done_ns: tuple[int, ...]
  num_evictions: int


def serve(
  tokens: Sequence[int],
  replicas: Replicas,
  *,
  prompt_tokens: int = 0,
  arrivals_ns: Sequence[int] | None = None,
  stage: str = "decode",
) -> Served:
  """Returns how replicas decode sequences.

  Sequences wait in one queue. Its first goes to the replica that has the
  fewest, of those with a place and memory for it; on equal terms to the first
  of these. It enters between two steps. Prompts take memory, but no time.

  Args:
    tokens: to decode, of each sequence.
    replicas: that decode them.
    prompt_tokens: of each sequence.
    arrivals_ns: of each sequence, ascending; None: all are there at 0.
    stage: its name, for events.

  Raises:
    InfeasiblePlanError: the cache of one sequence does not fit.
  """
  most = max(tokens, default=0) + prompt_tokens
  if most > replicas.cache_tokens:
    raise errors.InfeasiblePlanError(
      f"a sequence of stage {stage!r} grows to {most} tokens, and the caches of"
      f" a replica hold {replicas.cache_tokens:.0f}; give it more memory"
    )
  pool = [_Replica(replicas, r) for r in range(replicas.count)]
  arrivals = arrivals_ns or [0] * len(tokens)
  waiting: collections.deque[_Sequence] = collections.deque()
  num_arrived = 0
  while True:
    at = min(replica.next_ns for replica in pool)
    if num_arrived < len(tokens):
      at = min(at, arrivals[num_arrived])
    if at == NEVER_NS:
      break
    while num_arrived < len(tokens) and arrivals[num_arrived] == at:
      waiting.append(_Sequence(num_arrived, prompt_tokens, tokens[num_arrived]))
      num_arrived += 1
    paused = [replica for replica in pool if replica.next_ns == at]
    for replica in paused:
      replica.pause(at)
    while waiting:
      able = [replica for replica in pool if replica.has_room(waiting[0])]
      if not able:
        break
      chosen = min(able, key=lambda replica: replica.num_sequences)
      chosen.take(waiting.popleft(), at)
    for replica in pool:
      if replica.next_ns == at:
        replica.go_on(at)
  stays = sorted(stay for replica in pool for stay in replica.stays)
  done_ns = [0] * len(tokens)
  for _, stop_ns, _, request in stays:
    done_ns[request] = max(done_ns[request], stop_ns)
  return Served(
    timeline=timelines.Timeline(
      source="simulated",
      events=tuple(
        timelines.Event(
          kind="compute",
          stage=stage,
          iteration=0,
          resources=(f"replica {number}",),
          start_ns=start_ns,
          stop_ns=stop_ns,
          items=(request, request + 1),
        )
        for start_ns, stop_ns, number, request in stays
      ),
      memory=tuple(
        timelines.MemorySample(
          resource=f"replica {number}",
          at_ns=at_ns,
          bytes_per_device=math.ceil(
            held * replicas.law.kv_bytes_per_token / replicas.config.devices
          ),
        )
        for at_ns, number, held in sorted(
          sample for replica in pool for sample in replica.samples
        )
      ),
    ),
    done_ns=tuple(done_ns),
    num_evictions=len(stays) - len(tokens),
  )


class _Sequence:
  """A sequence: its cache's tokens when it entered, and those to come."""

  __slots__ = ("context", "entry", "left", "request", "start_ns")

  def __init__(self, request: int, context: int, left: int):
    self.request, self.context, self.left = request, context, left
    self.entry = self.start_ns = 0


class _Replica:
  """A replica between two pauses.

  Attributes:
    next_ns: of its next pause; NEVER_NS: it has nothing to do.
    stays: (start, stop, the replica's number, request).
    samples: (instant, the replica's number, tokens in its caches).
  """

  def __init__(self, kind: Replicas, number: int):
    self.next_ns = NEVER_NS
    self.stays: list[tuple[int, int, int, int]] = []
    self.samples: list[tuple[int, int, int]] = []
    self._kind, self._number = kind, number
    self._limit = kind.cache_tokens
    self._eviction = kind.eviction_fn(kind.law, kind.device, kind.config)
    # Positions count steps since the start; sequences are done at theirs.
    self._position = 0
    self._ends: list[tuple[int, int]] = []  # (position, request)
    self._inside: dict[int, _Sequence] = {}  # by request, as they entered
    self._evicted: collections.deque[_Sequence] = collections.deque()
    self._entering: list[_Sequence] = []
    self._tokens = 0  # in caches, at the position
    self._steps, self._since_ns = 0, 0  # until the next pause
    self._debt_s = 0.0  # for which it stands still before

  @property
  def num_sequences(self) -> int:
    return len(self._inside) + len(self._entering) + len(self._evicted)

  def has_room(self, sequence: _Sequence) -> bool:
    """Returns whether a new sequence may come at the next pause."""
    if self._evicted:
      return False
    entering = sum(s.context for s in self._entering)
    grown = self._tokens + len(self._inside) * self._steps
    return self._fits(grown + entering, self.num_sequences, sequence)

  def take(self, sequence: _Sequence, at_ns: int) -> None:
    """Lets a sequence enter at the next pause, which is after this step."""
    self._entering.append(sequence)
    if not self._steps:
      self.next_ns = at_ns
    elif self.next_ns > at_ns:
      steps = range(1, self._steps + 1)
      self._steps = steps[bisect.bisect_left(steps, at_ns, key=self._after_ns)]
      self.next_ns = self._after_ns(self._steps)

  def pause(self, at_ns: int) -> None:
    """Ends the steps under way; sequences leave, and evicted ones return."""
    self._position += self._steps
    self._tokens += len(self._inside) * self._steps
    self._steps = 0
    while self._ends and self._ends[0][0] == self._position:
      self._leave(heapq.heappop(self._ends)[1], at_ns)
    while self._tokens + len(self._inside) > self._limit:
      request = next(reversed(self._inside))
      self._ends = [end for end in self._ends if end[1] != request]
      heapq.heapify(self._ends)
      sequence = self._leave(request, at_ns)
      self._evicted.appendleft(sequence)
      self._debt_s += self._eviction.leave_s(sequence.context)
    while self._evicted and self._fits(
      self._tokens, len(self._inside), self._evicted[0]
    ):
      sequence = self._evicted.popleft()
      self._debt_s += self._eviction.return_s(sequence.context)
      self._enter(sequence, at_ns)

  def go_on(self, at_ns: int) -> None:
    """Begins the steps until the next pause."""
    if self._steps:
      self.pause(at_ns)
    for sequence in self._entering:
      self._enter(sequence, at_ns)
    self._entering.clear()
    self.next_ns = NEVER_NS
    if self._inside:
      num = len(self._inside)
      self._steps = self._ends[0][0] - self._position
      if self._tokens + num * self._steps > self._limit:
        self._steps = int((self._limit - self._tokens) // num)
      self._since_ns = at_ns + durations.to_ns(self._debt_s)
      self._debt_s = 0.0
      self.next_ns = self._after_ns(self._steps)
    held = self._tokens + len(self._inside) * self._steps
    self.samples.append((at_ns, self._number, held))

  def _after_ns(self, steps: int) -> int:
    """Returns when so many steps are done, at their mean context."""
    num, kind = len(self._inside), self._kind
    context = (self._tokens + num * steps / 2) / num
    step_s = kind.law.token_s(num, context, kind.device, kind.config)
    return self._since_ns + durations.to_ns(steps * step_s)

  def _fits(self, tokens: int, num: int, sequence: _Sequence) -> bool:
    """Returns whether there is a place, and memory for the next step."""
    after = tokens + sequence.context + num + 1
    return num < self._kind.law.max_active and after <= self._limit

  def _enter(self, sequence: _Sequence, at_ns: int) -> None:
    sequence.entry, sequence.start_ns = self._position, at_ns
    self._inside[sequence.request] = sequence
    self._tokens += sequence.context
    end = (self._position + sequence.left, sequence.request)
    heapq.heappush(self._ends, end)

  def _leave(self, request: int, at_ns: int) -> _Sequence:
    sequence = self._inside.pop(request)
    steps = self._position - sequence.entry
    sequence.context += steps
    sequence.left -= steps
    self._tokens -= sequence.context
    self.stays.append((sequence.start_ns, at_ns, self._number, request))
    return sequence


def make_ready_fn(
  *, cache_bytes: float, eviction_fn: EvictionFn = recomputation
) -> perturbations.ReadyFn:
  """Returns when a decode emits its items if it is batched continuously.

  For `perturbations.perturb`: with it a decode's granules take the time
  that `serve` finds, instead of that of `decoding.ready_s`, in which every
  replica gets an equal share of long sequences and all caches fit.

  Args:
    cache_bytes: on each device, for caches.
    eviction_fn: what happens when they do not suffice.
  """

  @functools.lru_cache(maxsize=1024)
  def ready_s(
    stage: Stage,
    law: DecodeLaw,
    device: DeviceClass,
    config: Config,
    replicas: int,
    cohort: tuple[int, int],
    seed: int,
  ) -> tuple[float, ...]:
    items = sorted(decoding.emission_order(stage, seed)[slice(*cohort)])
    tokens = decoding.draw_tokens(stage, seed)
    served = serve(
      [tokens[i] for i in items],
      Replicas(
        count=replicas,
        law=law,
        device=device,
        config=config,
        cache_bytes=cache_bytes,
        eviction_fn=eviction_fn,
      ),
      prompt_tokens=stage.lengths.prompt_tokens if stage.lengths else 0,
      stage=stage.name,
    )
    size = stage.group
    groups = range(0, len(items), size)
    # A group is emitted as a whole.
    ready_ns = sorted(max(served.done_ns[i : i + size]) for i in groups)
    return tuple(
      ns / durations.NS_PER_S for ns in ready_ns for _ in range(size)
    )

  return ready_s
