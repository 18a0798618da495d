"""The exact solver: worked by hand, against all plans, and by its proofs."""

from __future__ import annotations

import dataclasses
import random

import pytest

from scheduler import (
  bounds,
  checker,
  cycles,
  documents,
  errors,
  evaluation,
  exact,
)
from scheduler.exact import (
  assignments,
  class_s,
  dispatch,
  sequencing,
  shops,
  suite,
)
from scheduler.exact.shops import APART, EXCLUSIVE, SWAPPED, Shop
from scheduler.profiles import Sample, Table
from scheduler.workflows import Workflow
from tests.scheduler import cases, toys

S = toys.S


def solved(case: cases.Case, **options) -> exact.Solution:
  """Returns a solution whose plan can run and takes as long as it says."""
  solution = exact.solve(*case, **options)
  checker.check(solution.plan, *case)
  assert cycles.period_ns(solution.plan) == solution.period_ns
  assert solution.bound_ns <= solution.period_ns
  return solution


def chain(granules: int, profile, cluster, state: int = 0) -> cases.Case:
  names = list(dict.fromkeys(entry.stage for entry in profile.entries))
  stages = (cases.stage(name, granules, state) for name in names)
  return toys.workflow(*stages), profile, cluster


def test_one_group_does_all_work_in_turn():
  # 3 granules of 2 s + 5 s.
  case = chain(3, cases.times(a=[2], b=[5]), cases.cluster(1))
  assert solved(case).period_ns == 21 * S


def test_stages_on_groups_of_their_own_overlap():
  # a on one, b on the other device: 2 s, then 3 granules of 5 s. On one of
  # them both would take 21 s, and on both, which are no faster, as well.
  case = chain(3, cases.times(a=[2, 2], b=[5, 5]), cases.cluster(1, 1))
  assert solved(case).period_ns == 17 * S


def test_states_that_do_not_fit_together_are_swapped():
  # 600 + 600 bytes on a device of 1000: each leaves and returns in 600 s.
  case = chain(3, cases.times(a=[2], b=[5]), cases.cluster(1), state=600)
  solution = solved(case)
  assert solution.period_ns == (21 + 4 * 600) * S
  kinds = [a.kind for a in solution.plan.activities]
  assert (kinds.count("swap_in"), kinds.count("swap_out")) == (2, 2)


def test_swaps_overlap_with_what_other_groups_do():
  # Stages b and c share the second device, a and d the first (4 states of 400
  # bytes on two devices of 1000: two fit). Nothing is swapped.
  profile = cases.times(a=[9, 9], b=[9, 9], c=[9, 9], d=[9, 9])
  case = chain(1, profile, cases.cluster(1, 1, memory=800), state=400)
  assert solved(case).period_ns == 36 * S
  # Of 5 stages one group has three, which take turns: it is swapped 3 times in
  # and out, 400 s each. The chain itself takes 45 s. The device with three of
  # them works 27 s; its swaps between iterations happen while the others work.
  profile = cases.times(a=[9, 9], b=[9, 9], c=[9, 9], d=[9, 9], e=[9, 9])
  case = chain(1, profile, cases.cluster(1, 1, memory=800), state=400)
  assert solved(case).period_ns == (27 + 6 * 400) * S


def test_updates_are_applied_and_weights_come_back():
  # On one device: 4 granules of 3 s and 5 s, and 4 of 2 items in 4 s, in two
  # updates. All states fit.
  train = toys.stage("c", 8, "train", granule_min=2, granule_max=2, updates=2)
  flow = toys.workflow(
    cases.stage("a", 4), cases.stage("b", 4), train, syncs=(("c", "a"),)
  )
  law = Table(samples=(Sample(granule=2, devices=1, seconds=4.0),))
  profile = toys.profile(a=cases.table(3), b=cases.table(5), c=law)
  solution = solved((flow, profile, cases.cluster(1)))
  assert solution.period_ns == 48 * S
  kinds = [a.kind for a in solution.plan.activities]
  assert kinds.count("apply") == 2


@pytest.mark.parametrize(
  "seed",
  [
    *range(8),
    *(pytest.param(i, marks=pytest.mark.slow) for i in range(8, 24)),
  ],
)
def test_no_plan_of_a_tiny_case_is_better(seed):
  case = cases.tiny(seed)
  best = exact.brute_force(*case)
  checker.check(best.plan, *case)
  solution = solved(case)
  assert solution.status == "optimal"
  assert solution.period_ns == best.period_ns
  exact.replay(solution.certificate, *case)


@pytest.mark.parametrize("seed", range(8))
def test_bounds_are_below_the_optimum(seed):
  case = cases.tiny(seed)
  any_plan, single = bounds.lower_bound(*case), bounds.single_mode_bound(*case)
  assert any_plan.ns <= exact.brute_force(*case).period_ns
  assert any_plan.values_ns["modes"] * (1 - 2e-6) <= single.values_ns["modes"]
  assert single.ns <= exact.brute_force(*case).period_ns


def test_groups_and_stages_have_no_order():
  # Groups of 1, 1 and 2 devices in another order; stages listed backwards.
  profile = cases.times(
    a=[9, 6, 5, 4], b=[14, 9, 7, 6], c=[5, 4, 4, 4], d=[8, 5, 4, 3]
  )
  flow = chain(4, profile, None)[0]
  one = solved((flow, profile, cases.cluster(1, 1, 2)))
  other = solved((flow, profile, cases.cluster(2, 1, 1)))
  backwards = dataclasses.replace(flow, stages=flow.stages[::-1])
  third = solved((backwards, profile, cases.cluster(1, 2, 1)))
  assert one.period_ns == other.period_ns == third.period_ns


def test_another_group_never_hurts():
  profile = cases.times(
    a=[9, 6, 5, 4], b=[14, 9, 7, 6], c=[5, 4, 4, 4], d=[8, 5, 4, 3]
  )
  periods = [
    solved(chain(4, profile, cases.cluster(*(1,) * count))).period_ns
    for count in (1, 2, 3, 4)
  ]
  assert periods == sorted(periods, reverse=True)


def instance(name: str) -> cases.Case:
  found = next(i for i in suite.draw("development") if i.name == name)
  return found.workflow, found.profile, found.cluster


@pytest.fixture(scope="module")
def proven() -> tuple[cases.Case, exact.Solution]:
  """An instance whose proof needs CP-SAT, with its solution."""
  case = instance("v4-g3-m8-chain-loose-equal")
  solution = solved(case)
  assert solution.status == "optimal"
  assert solution.certificate.refuted
  return case, solution


def test_a_certificate_can_be_replayed(proven):
  case, solution = proven
  exact.replay(solution.certificate, *case)


def test_a_certificate_is_a_document(proven):
  certificate = proven[1].certificate
  text = documents.to_json(certificate)
  assert documents.from_json(exact.Certificate, text) == certificate


def test_a_false_certificate_is_found_out(proven):
  case, solution = proven
  certificate = solution.certificate
  first = certificate.starts[0]
  late = ((first[0], first[1] - 1, *first[2:]), *certificate.starts[1:])
  with pytest.raises(ValueError, match="overlaps with the one before"):
    exact.replay(dataclasses.replace(certificate, starts=late), *case)
  with pytest.raises(ValueError, match="as stated"):
    exact.replay(
      dataclasses.replace(certificate, period=certificate.period - 1), *case
    )
  with pytest.raises(ValueError, match="nothing shows that modes"):
    exact.replay(dataclasses.replace(certificate, refuted=()), *case)
  # The optimum itself refutes any higher bound.
  above = certificate.bound + 1
  best = shops.of(class_s.read(*case), certificate.assignment)
  refuted = (*certificate.refuted, best)
  with pytest.raises(ValueError, match="nothing shows|refuted below"):
    exact.replay(
      dataclasses.replace(certificate, bound=above, refuted=refuted), *case
    )


def test_the_search_reproduces(proven):
  case, solution = proven
  again = exact.solve(*case)
  assert again.plan == solution.plan
  assert again.certificate == solution.certificate


def test_two_workers_prove_the_same_optimum(proven):
  case, solution = proven
  assert solved(case, workers=2).period_ns == solution.period_ns


def test_out_of_time_it_returns_a_plan_and_a_bound():
  case = instance("v6-g4-m32-chain-tight-unequal")
  solution = solved(case, time_limit_s=0.0)
  assert solution.status == "bounded"
  assert 0 < solution.bound_ns < solution.period_ns
  assert solution.gap == 1 - solution.bound_ns / solution.period_ns
  exact.replay(solution.certificate, *case)


@pytest.mark.slow
def test_a_budget_of_decisions_reproduces():
  case = instance("v6-g3-m16-branches-loose-equal")
  one, other = (
    solved(case, time_limit_s=1000.0, max_decisions=1) for _ in range(2)
  )
  assert one.num_decided == 1
  assert (one.plan, one.bound_ns) == (other.plan, other.bound_ns)


def test_no_assignment_of_modes_is_forgotten():
  # What is left out, as dominated or as a mirror image, is no easier than one
  # that is kept.
  problem = class_s.read(*instance("v4-g3-m8-branches-tight-equal"))
  limit = 14_000
  candidates = assignments.below(problem, limit)
  kept = [candidates.shop(i) for i in range(len(candidates))]
  assert len(kept) > 10
  assert max(candidates.bounds) <= limit
  rng = random.Random(0)
  found = 0
  while found < 200:
    shop = shops.of(problem, [rng.randrange(len(own)) for own in problem.modes])
    if shops.bound(shop) <= limit:
      found += 1
      assert any(shops.is_no_easier(shop, other) for other in kept)


def random_shop(rng: random.Random) -> Shop:
  size = rng.choice([2, 3, 4])
  preds = tuple(
    tuple(sorted(rng.sample(range(v), rng.randint(1, min(v, 2))))) if v else ()
    for v in range(size)
  )
  levels = [[APART] * size for _ in range(size)]
  for u in range(size):
    for v in range(u):
      level = rng.choice([APART, EXCLUSIVE, SWAPPED])
      levels[u][v] = levels[v][u] = level
  swaps = tuple(
    rng.randint(0, 6) if SWAPPED in levels[v] else 0 for v in range(size)
  )
  return Shop(
    num_granules=rng.choice([1, 2, 3]),
    preds=preds,
    durations=tuple(rng.randint(1, 9) for _ in range(size)),
    swaps=swaps,
    conflicts=tuple(map(tuple, levels)),
  )


@pytest.mark.parametrize("seed", range(40))
def test_bound_optimum_and_list_scheduling_are_in_order(seed):
  shop = random_shop(random.Random(seed))
  period, starts = dispatch.best(shop)
  assert shops.period(shop, starts) == period
  verdict = sequencing.decide(shop, period)
  assert verdict.status == "optimal"
  optimum = shops.period(shop, verdict.starts)
  assert shops.bound(shop) <= optimum <= period
  assert optimum == verdict.bound
  refuted = sequencing.decide(shop, optimum - 1)
  assert (refuted.status, refuted.bound) == ("refuted", optimum)


@pytest.mark.parametrize("seed", range(20))
def test_a_shop_that_is_no_easier_takes_no_less(seed):
  rng = random.Random(seed)
  shop = random_shop(rng)
  harder = dataclasses.replace(
    shop,
    durations=tuple(d + rng.randint(0, 2) for d in shop.durations),
    swaps=tuple(s + rng.randint(0, 2) if s else s for s in shop.swaps),
  )
  assert shops.is_no_easier(harder, shop)
  optimum = [
    sequencing.decide(each, dispatch.best(each)[0]).bound
    for each in (shop, harder)
  ]
  assert optimum[0] <= optimum[1]


def test_a_bound_counts_the_cheapest_order_of_visits():
  # Two stages in a row, 2 granules of 3 and 4 ticks, swapped in 1 and 2 ticks.
  # Work 14; between iterations and within each state leaves and returns: 6.
  shop = Shop(
    num_granules=2,
    preds=((), (0,)),
    durations=(3, 4),
    swaps=(1, 2),
    conflicts=((APART, SWAPPED), (SWAPPED, APART)),
  )
  assert shops.bound(shop) == 20
  assert sequencing.decide(shop, 30).bound == 20


def test_free_groups_are_the_best_of_all_divisions():
  profile = cases.times(
    a=[12, 7, 5, 4, 4, 4], b=[20, 12, 9, 7, 6, 5], c=[9, 5, 4, 4, 4, 4]
  )
  flow = chain(3, profile, None)[0]
  free = exact.solve_free(flow, profile, cases.cluster(6))
  assert free.status == "optimal"
  assert free.num_divisions == 2  # 1 + 1 + 1 + 3 and 1 + 1 + 2 + 2
  divided = [
    solved((flow, profile, cases.cluster(*sizes))).period_ns
    for sizes in [(1, 1, 1, 3), (1, 1, 2, 2), (2, 2, 2), (3, 3), (6,)]
  ]
  assert free.period_ns == min(divided)
  own = dataclasses.replace(cases.cluster(6), groups=free.groups)
  exact.replay(free.certificate, flow, profile, own)


def test_free_groups_are_for_few_stages():
  names = "abcde"
  profile = cases.times(**{name: [1] * 5 for name in names})
  case = chain(2, profile, cases.cluster(5))
  with pytest.raises(errors.OutsideClassError, match="up to 4 can be"):
    exact.solve_free(*case)


def stale(flow: Workflow, staleness: int) -> Workflow:
  return dataclasses.replace(flow, staleness=staleness)


def test_staleness_hides_the_chain():
  # One granule: 1 s and then 2 s, on a device each. With two iterations alive
  # the slower stage is always busy.
  flow, profile, cluster = chain(
    1, cases.times(a=[1, 1], b=[2, 2]), cases.cluster(1, 1)
  )
  for staleness, seconds in ((0, 3), (1, 2)):
    case = stale(flow, staleness), profile, cluster
    best = exact.brute_force(*case)
    checker.check(best.plan, *case)
    assert best.period_ns == seconds * S
    assert evaluation.evaluate(best.plan, *case).period_ns == seconds * S


@pytest.mark.parametrize("seed", range(4))
def test_staleness_never_hurts_and_bounds_still_hold(seed):
  flow, profile, cluster = chain(
    2,
    cases.times(a=[3 + seed, 2], b=[4, 3 + seed % 2]),
    cases.cluster(1, 1),
  )
  now = exact.brute_force(flow, profile, cluster)
  case = stale(flow, 1), profile, cluster
  later = exact.brute_force(*case)
  checker.check(later.plan, *case)
  assert later.period_ns <= now.period_ns
  assert bounds.lower_bound(*case).ns <= later.period_ns


def test_unequal_replicas_divide_what_one_cannot():
  # 2 s on 1 device, 1 s on 2 or 3. Of 3 granules the large group does two
  # while the small one does one.
  case = chain(3, cases.times(a=[2, 1, 1]), cases.cluster(1, 2))
  assert exact.brute_force(*case).period_ns == 3 * S
  best = exact.brute_force(*case, has_replicas=True)
  checker.check(best.plan, *case)
  assert best.period_ns == 2 * S
  assert bounds.lower_bound(*case).ns <= 2 * S


def test_brute_force_is_for_tiny_cases():
  case = chain(5, cases.times(a=[1]), cases.cluster(1))
  with pytest.raises(errors.OutsideClassError, match="too many to try"):
    exact.brute_force(*case)


def test_what_fits_nowhere_has_no_plan():
  case = chain(2, cases.times(a=[1]), cases.cluster(1), state=2000)
  for solve_fn in (exact.solve, exact.brute_force):
    with pytest.raises(errors.InfeasiblePlanError, match="'a' fits nowhere"):
      solve_fn(*case)
