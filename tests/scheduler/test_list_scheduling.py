from __future__ import annotations

import collections
import random

import hypothesis
import pytest
from hypothesis import strategies as st

from scheduler.planners import (
  annealing,
  beams,
  folding,
  list_scheduling,
  order_bounds,
  repair,
  shops,
)
from scheduler.planners.shops import Chain, Shop


def chain(
  durations: list[int],
  resources: str,
  *,
  after: int | None = None,
  family: int = 0,
) -> Chain:
  """Returns a chain whose granules wait for those of another, one by one."""
  return Chain(
    durations=tuple(durations),
    resources=tuple(map(int, resources)),
    needs=tuple(
      () if after is None else ((after, k, 0),) for k in range(len(durations))
    ),
    family=family,
  )


def shop(*chains: Chain, swaps: dict[int, list[int]] | None = None) -> Shop:
  """Returns a shop; of each resource in `swaps` the time of each family."""
  families = max(c.family for c in chains) + 1
  num_resources = max(r for c in chains for r in c.resources) + 1
  times = tuple(
    tuple((swaps or {}).get(r, [0] * families)) for r in range(num_resources)
  )
  return Shop(chains=chains, swap_in=times, swap_out=times)


# a and c share resource 0, b and d resource 1; d needs c, which needs b, which
# needs a.
CHAIN = shop(
  chain([2, 2, 2], "0", family=0),
  chain([1, 1, 1], "1", after=0, family=1),
  chain([1, 1, 1], "0", after=1, family=2),
  chain([3, 3, 3], "1", after=2, family=3),
)


@st.composite
def small_shops(draw) -> Shop:
  rng = draw(st.randoms(use_true_random=False))
  count, num_chains = rng.randint(1, 3), rng.randint(1, 3)
  chains = [
    chain(
      [rng.randint(0, 4)] * count,
      "".join(sorted(rng.sample("01", rng.randint(1, 2)))),
      after=rng.choice([None, *range(i)]) if i else None,
      family=i,
    )
    for i in range(num_chains)
  ]
  swaps = {
    r: [rng.randint(0, 3) for _ in chains] for r in (0, 1) if rng.random() < 0.4
  }
  return shop(*chains, chain([1], "01", family=num_chains - 1), swaps=swaps)


def all_orders(made: Shop, order: tuple[int, ...] = ()):
  """Yields every order in which nothing waits for what comes later."""
  counts = collections.Counter(order)
  is_done = True
  for c, one in enumerate(made.chains):
    if counts[c] < len(one.durations):
      is_done = False
      if all(counts[p] > i for p, i, _ in one.needs[counts[c]]):
        yield from all_orders(made, (*order, c))
  if is_done:
    yield order


def test_granules_wait_for_items_and_for_resources():
  # Resource 0: a 0-2, a 2-4, c 4-5 (b is done at 3), a 5-7, c 7-8, c 8-9.
  # Resource 1: b 2-3, b 4-5, d 5-8, b 8-9, d 9-12, d 12-15.
  order = (0, 1, 0, 1, 2, 3, 0, 1, 2, 2, 3, 3)
  time, ends = shops.run(CHAIN, order)
  assert ends == [[2, 4, 7], [3, 5, 9], [5, 8, 10], [8, 12, 15]]
  assert time == 15


def test_a_change_of_stage_swaps_one_out_and_another_in():
  # In 2, a 1, a 1, out 2, in 3, b 1, out 3; a and b in turns: 2 + 1 + 2 + 3 + 1
  # + 3 + 2 + 1 + 2 + 3 + 1 + 3.
  made = shop(
    chain([1, 1], "0", family=0),
    chain([1, 1], "0", after=0, family=1),
    swaps={0: [2, 3]},
  )
  assert shops.makespan(made, (0, 0, 1, 1)) == 2 + 2 + 2 + 3 + 2 + 3
  assert shops.makespan(made, (0, 1, 0, 1)) == 24


def test_what_ends_an_iteration_stays_for_the_next():
  # a comes first and last: out 2, in 3, b 1, out 3, in 2, and 3 granules of a.
  made = shop(
    chain([1, 1, 1], "0", family=0),
    chain([1], "0", family=1),
    swaps={0: [2, 3]},
  )
  assert shops.makespan(made, (0, 1, 0, 0)) == 3 + 2 + 3 + 1 + 3 + 2


@hypothesis.given(small_shops())
@hypothesis.settings(max_examples=60, deadline=None)
def test_no_order_beats_the_bound_and_searches_come_near(made: Shop):
  best = min(shops.makespan(made, order) for order in all_orders(made))
  assert order_bounds.bound(made) <= best
  for time, order in (
    list_scheduling.quick(made),
    list_scheduling.thorough(made, (1, 8)),
  ):
    assert shops.makespan(made, order) == time >= best


@hypothesis.given(small_shops(), st.integers(0, 2**16))
@hypothesis.settings(max_examples=40, deadline=None)
def test_annealing_finds_possible_orders_that_are_not_worse(made, seed):
  start = list_scheduling.dispatch(made, seed % 3)
  time, order = annealing.anneal(made, start, steps=60, rng=random.Random(seed))
  assert shops.makespan(made, order) == time <= shops.makespan(made, start)
  assert order in set(all_orders(made))


@pytest.mark.slow
@hypothesis.given(small_shops())
@hypothesis.settings(max_examples=40, deadline=None)
def test_the_best_order_backwards_takes_as_long(made: Shop):
  backwards = shops.mirrored(made)
  assert shops.mirrored(backwards) == made
  best, other = (
    min(shops.makespan(x, order) for order in all_orders(x))
    for x in (made, backwards)
  )
  assert best == other
  order = list_scheduling.dispatch(backwards, 0)
  assert shops.reflected(made, order) in set(all_orders(made))


def test_a_wide_beam_finds_the_best_order():
  best = min(shops.makespan(CHAIN, order) for order in all_orders(CHAIN))
  assert shops.makespan(CHAIN, beams.beam(CHAIN, 64)) == best == 15


def test_two_granules_taken_as_one_wait_for_the_later():
  coarse = shops.coarsened(CHAIN, 2)
  assert [c.durations for c in coarse.chains] == [
    (4, 2), (2, 1), (2, 1), (6, 3),
  ]  # fmt: skip
  assert coarse.chains[1].needs == (((0, 0, 0),), ((0, 1, 0),))
  assert shops.refined(CHAIN, (0, 1, 0, 2, 1, 2, 3, 3), 2) == (
    0, 0, 1, 1, 0, 2, 2, 1, 2, 3, 3, 3,
  )  # fmt: skip


def test_the_critical_path_leads_to_the_end_without_a_gap():
  order = (0, 1, 0, 1, 2, 3, 0, 1, 2, 2, 3, 3)
  path = shops.critical_path(CHAIN, order)
  durations = [CHAIN.chains[order[place]].durations[0] for place in path]
  assert sum(durations) == shops.makespan(CHAIN, order)


# ---- Folding ----


def test_iterations_overlap_as_far_as_the_busiest_resource_allows():
  # Resource 0 works 9 s, resource 1 12 s; one iteration by itself takes 15 s.
  assert folding.bound(CHAIN, 2) == 12
  order = beams.beam(CHAIN, 64)
  assert folding.fold(CHAIN, order, 1).period_ns == 15
  time, order = annealing.anneal(
    CHAIN, order, steps=60, rng=random.Random(0), alive=2
  )
  assert folding.fold(CHAIN, order, 2).period_ns == time == 12


@hypothesis.given(small_shops(), st.integers(2, 3))
@hypothesis.settings(max_examples=60, deadline=None)
def test_folded_granules_never_share_a_resource(made: Shop, alive: int):
  made = shop(*made.chains)
  _, order = list_scheduling.quick(made)
  folded = folding.fold(made, order, alive)
  period = folded.period_ns
  assert folding.least_period(made) <= period <= shops.makespan(made, order)
  assert max(folded.shifts) < alive


def test_what_is_swapped_is_not_folded():
  made = shop(
    chain([1], "0", family=0), chain([1], "0", family=1), swaps={0: [1, 1]}
  )
  assert folding.fold(made, (0, 1), 2).period_ns == 6


# ---- Repair ----


def test_repair_puts_a_window_in_the_best_order():
  pytest.importorskip("ortools")
  worst = tuple(c for c in range(4) for _ in range(3))
  assert shops.makespan(CHAIN, worst) == 16
  time, order = repair.repair(CHAIN, worst, windows=4, seed=0)
  assert (time, shops.makespan(CHAIN, order)) == (15, 15)
  assert repair.repair(CHAIN, worst, windows=4, seed=0) == (time, order)


@hypothesis.given(small_shops())
@hypothesis.settings(max_examples=15, deadline=None)
def test_repair_is_never_worse(made: Shop):
  pytest.importorskip("ortools")
  start = list_scheduling.dispatch(made, 1)
  time, order = repair.repair(made, start, windows=2, seed=0)
  assert shops.makespan(made, order) == time <= shops.makespan(made, start)
