from __future__ import annotations

import functools
import random

import hypothesis
import pytest
from hypothesis import strategies as st

from scheduler import clusters, decoding, errors, workflows
from scheduler.profiles import Config, DecodeLaw
from scheduler.simulation import batching

S = 10**9
# One operation per second, one byte per second to the host.
DEVICE = clusters.DeviceClass(
  name="any", memory_bytes=1, flops_per_s=1.0, memory_bytes_per_s=1e30
)
# A second per step, whoever takes part.
STEADY = DecodeLaw(
  t0_s=1.0,
  weight_bytes=0,
  kv_bytes_per_token=1,
  num_params=0,
  flop_efficiency=1.0,
  max_active=2,
)
# A second per step and sequence, and one for each token computed anew.
CROWDED = DecodeLaw(
  t0_s=0.0,
  weight_bytes=0,
  kv_bytes_per_token=1,
  num_params=0.5,
  flop_efficiency=1.0,
  max_active=2,
)


def serve(tokens, law=STEADY, *, count=1, cache_bytes=100, **fields):
  eviction_fn = fields.pop("eviction_fn", batching.recomputation)
  return batching.serve(
    tokens,
    batching.Replicas(
      count=count,
      law=law,
      device=DEVICE,
      cache_bytes=cache_bytes,
      eviction_fn=eviction_fn,
    ),
    **fields,
  )


def stays(served: batching.Served) -> list[tuple[int, str, float, float]]:
  return [
    (e.items[0], e.resources[0][-1], e.start_ns / S, e.stop_ns / S)
    for e in served.timeline.events
  ]


def test_a_place_that_becomes_free_is_taken_at_once():
  # Two places: 0 and 1 enter; at 1 s sequence 1 is done and 2 enters.
  assert stays(serve([3, 1, 2])) == [
    (1, "0", 0, 1),
    (0, "0", 0, 3),
    (2, "0", 1, 3),
  ]


def test_sequences_go_to_the_replica_that_has_the_fewest():
  # In turn at first: 0 and 2 to replica 0, 1 and 3 to replica 1. At 1 s
  # sequences 2 and 3 are done; 4 goes to the first of two equals, 5 to the
  # other.
  assert stays(serve([2, 5, 1, 1, 1, 1], count=2)) == [
    (2, "0", 0, 1),
    (3, "1", 0, 1),
    (0, "0", 0, 2),
    (1, "1", 0, 5),
    (4, "0", 1, 2),
    (5, "1", 1, 2),
  ]


def test_a_sequence_that_arrives_enters_after_the_step_under_way():
  # At 1.5 s replica 0 has sequence 0, replica 1 nothing since 1 s: sequence 2
  # starts there at once. At 1.6 s both have one; 3 goes to replica 0, whose
  # step ends at 2 s.
  served = serve([4, 1, 2, 1], count=2, arrivals_ns=[
    0, 0, 15 * S // 10, 16 * S // 10
  ])  # fmt: skip
  assert stays(served) == [
    (1, "1", 0, 1),
    (0, "0", 0, 4),
    (2, "1", 1.5, 3.5),
    (3, "0", 2, 3),
  ]


def test_the_last_to_enter_is_evicted_and_computed_anew():
  # Caches of 7 tokens. Two sequences begin with 1 each and grow to 3 each in
  # two steps of 2 s; another step would need 8. Sequence 1 leaves; 0 takes 2
  # steps of 1 s. At 6 s sequence 1 returns: 3 s for its 3 tokens, then 1 step.
  served = serve([4, 3], CROWDED, cache_bytes=7, prompt_tokens=1)
  assert stays(served) == [(1, "0", 0, 4), (0, "0", 0, 6), (1, "0", 6, 10)]
  assert served.done_ns == (6 * S, 10 * S)
  assert served.num_evictions == 1


def test_an_evicted_sequence_may_be_swapped_instead():
  # As above, but for 2 s to move 3 bytes out, from 4 to 6, and 2 s to return.
  swapping = functools.partial(
    batching.swapping, links=clusters.Links(host_bytes_per_s=1.5)
  )
  served = serve(
    [4, 3], CROWDED, cache_bytes=7, prompt_tokens=1, eviction_fn=swapping
  )
  assert stays(served) == [(1, "0", 0, 4), (0, "0", 0, 8), (1, "0", 8, 11)]


def test_memory_is_what_the_caches_grow_to():
  # Two steps to 3 + 3 tokens, two of sequence 0 to 5, one of sequence 1 to 4.
  served = serve([4, 3], CROWDED, cache_bytes=7, prompt_tokens=1)
  assert [
    (m.at_ns / S, m.bytes_per_device) for m in served.timeline.memory
  ] == [(0, 6), (4, 5), (6, 4), (10, 0)]


def test_a_sequence_that_never_fits_is_refused():
  with pytest.raises(errors.InfeasiblePlanError, match="12 tokens"):
    serve([4, 11], cache_bytes=11, prompt_tokens=1)


@hypothesis.given(st.randoms(use_true_random=False))
def test_every_sequence_is_decoded_within_the_memory(rng: random.Random):
  tokens = [rng.randint(1, 9) for _ in range(rng.randint(1, 12))]
  arrivals_ns = sorted(rng.randint(0, 9 * S) for _ in tokens)
  cache_bytes = rng.randint(10, 30)
  served = serve(
    tokens,
    CROWDED,
    count=rng.randint(1, 3),
    cache_bytes=cache_bytes,
    prompt_tokens=rng.randint(0, 1),
    arrivals_ns=arrivals_ns,
  )
  assert max(m.bytes_per_device for m in served.timeline.memory) <= cache_bytes
  # A token takes a second at least.
  for n, arrival_ns, done_ns in zip(tokens, arrivals_ns, served.done_ns):
    assert done_ns >= arrival_ns + n * S
  for resource in {e.resources for e in served.timeline.events}:
    edges = [
      (at, change)
      for e in served.timeline.events
      if e.resources == resource
      for at, change in ((e.start_ns, 1), (e.stop_ns, -1))
    ]
    inside = 0
    for _, change in sorted(edges):
      inside += change
      assert 0 <= inside <= CROWDED.max_active


REAL = DecodeLaw(
  t0_s=2e-3, weight_bytes=15e9, kv_bytes_per_token=57_344, num_params=7e9
)
H100 = clusters.DeviceClass(
  name="h100",
  memory_bytes=80 * 10**9,
  flops_per_s=989e12,
  memory_bytes_per_s=3.35e12,
)
ROLLOUT = workflows.Stage(
  name="rollout",
  kind="decode",
  items=64,
  group=4,
  lengths=workflows.LogNormalLengths(
    median_tokens=300, sigma=1.0, max_tokens=4000, prompt_tokens=100
  ),
)


def test_one_replica_with_room_for_all_decodes_as_the_profile_says():
  args = (ROLLOUT, REAL, H100, Config(), 1, (0, 64), 3)
  batched = batching.make_ready_fn(cache_bytes=1e12)(*args)
  # Rounded to nanoseconds at each of 64 sequences' ends.
  assert batched == pytest.approx(decoding.ready_s(*args), abs=64e-9)


def test_the_same_sequences_have_the_same_timeline():
  tokens = decoding.draw_tokens(ROLLOUT, 5)
  replicas = batching.Replicas(
    count=3, law=REAL, device=H100, cache_bytes=60_000 * 57_344 / 10
  )
  first = batching.serve(tokens, replicas, prompt_tokens=100)
  assert first.num_evictions > 0
  assert first == batching.serve(tokens, replicas, prompt_tokens=100)
