"""Repair: windows of an order, each solved anew by CP-SAT.

Large-neighbourhood search (Shaw, 1998): granules that start within a window
take any order; all others keep theirs. The solver runs on one thread with a
fixed seed and a limit in its own deterministic time.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

from scheduler.planners import order_bounds, shops
from scheduler.planners.shops import Order, Shop

_WINDOW = 30
_DETERMINISTIC_TIME = 0.5


def is_available() -> bool:
  """Returns whether OR-tools is installed."""
  return importlib.util.find_spec("ortools") is not None


def repair(
  shop: Shop, order: Order, *, windows: int, seed: int
) -> tuple[int, Order]:
  """Returns an order that is not worse, with its makespan.

  Args:
    shop: the chains.
    order: where to begin.
    windows: how many to solve at most.
    seed: of the solver.
  """
  time, floor = shops.makespan(shop, order), order_bounds.bound(shop)
  passed, start = 0, 0
  for _ in range(windows):
    if time <= floor or passed >= len(order):
      break
    window = range(start, min(start + _WINDOW, len(order)))
    changed = _solved(shop, order, window, seed)
    changed_time = shops.makespan(shop, changed)
    passed += _WINDOW // 2
    if changed_time < time:
      time, order, passed = changed_time, changed, 0
    start = (start + _WINDOW // 2) % max(1, len(order) - _WINDOW // 2)
  return time, order


def _solved(shop: Shop, order: Order, window: range, seed: int) -> Order:
  """Returns the order with the granules in a window put in the best order."""
  from ortools.sat.python import cp_model

  now, ends = shops.run(shop, order)
  model = cp_model.CpModel()
  counts = [0] * len(shop.chains)
  granules: list[tuple[int, int]] = []
  for c in order:
    granules.append((c, counts[c]))
    counts[c] += 1
  place = {granule: i for i, granule in enumerate(granules)}
  begins = [model.new_int_var(0, now, "") for _ in order]
  for i, (c, k) in enumerate(granules):
    model.add_hint(begins[i], ends[c][k] - shop.chains[c].durations[k])
  _add_waits(model, shop, granules, place, begins)
  _add_orders(model, shop, granules, begins, window)
  _add_disjunctions(model, shop, granules, begins, window)
  length = model.new_int_var(0, now, "")
  for i, (c, k) in enumerate(granules):
    chain = shop.chains[c]
    out = max(shop.swap_out[r][chain.family] for r in chain.resources)
    into = max(shop.swap_in[r][chain.family] for r in chain.resources)
    model.add(length >= begins[i] + chain.durations[k] + out)
    model.add(begins[i] >= into)
  model.minimize(length)
  solver = cp_model.CpSolver()
  solver.parameters.num_workers = 1
  solver.parameters.random_seed = seed
  solver.parameters.max_deterministic_time = _DETERMINISTIC_TIME
  status = solver.solve(model)
  if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
    return order
  by_time = sorted(
    range(len(order)),
    key=lambda i: (solver.value(begins[i]), granules[i][1], i),
  )
  return _topological(shop, [granules[i][0] for i in by_time])


def _add_waits(
  model: Any,
  shop: Shop,
  granules: list[tuple[int, int]],
  place: dict[tuple[int, int], int],
  begins: list[Any],
) -> None:
  """Granules wait for the one before in their chain, and for others'."""
  for i, (c, k) in enumerate(granules):
    before = [(c, k - 1, 0)] if k else []
    for p, j, delay in (*before, *shop.chains[c].needs[k]):
      end = begins[place[p, j]] + shop.chains[p].durations[j]
      model.add(begins[i] >= end + delay)


def _add_orders(
  model: Any,
  shop: Shop,
  granules: list[tuple[int, int]],
  begins: list[Any],
  window: range,
) -> None:
  """Two granules on one resource keep their order, if one is outside."""
  for r in range(shop.num_resources):
    last: dict[int, int] = {}  # of each family the latest before the window
    inside: list[int] = []
    for i, (c, _) in enumerate(granules):
      if r not in shop.chains[c].resources:
        continue
      if i in window:
        before = list(last.values())
        inside.append(i)
      else:
        before = [*last.values(), *inside]
        last[shop.chains[c].family] = i
      for j in before:
        d, k = granules[j]
        end = begins[j] + shop.chains[d].durations[k]
        model.add(begins[i] >= end + _gap(shop, r, d, c))


def _add_disjunctions(
  model: Any,
  shop: Shop,
  granules: list[tuple[int, int]],
  begins: list[Any],
  window: range,
) -> None:
  """Two granules in the window that share a resource exclude each other."""
  for i, j in _pairs(window):
    (c, k), (d, m) = granules[i], granules[j]
    shared = set(shop.chains[c].resources) & set(shop.chains[d].resources)
    if c == d or not shared:
      continue
    gap = max(_gap(shop, r, c, d) for r in shared)
    back = max(_gap(shop, r, d, c) for r in shared)
    is_first = model.new_bool_var("")
    model.add_hint(is_first, True)
    end = begins[i] + shop.chains[c].durations[k]
    model.add(begins[j] >= end + gap).only_enforce_if(is_first)
    end = begins[j] + shop.chains[d].durations[m]
    model.add(begins[i] >= end + back).only_enforce_if(~is_first)


def _pairs(window: range) -> Iterator[tuple[int, int]]:
  for i in window:
    for j in range(i + 1, window.stop):
      yield i, j


def _gap(shop: Shop, resource: int, first: int, second: int) -> int:
  """Returns the time between granules of two chains on a resource."""
  out, into = shop.chains[first].family, shop.chains[second].family
  if out == into:
    return 0
  return shop.swap_out[resource][out] + shop.swap_in[resource][into]


def _topological(shop: Shop, order: list[int]) -> Order:
  """Returns an order in which nothing waits for what comes later."""
  counts = [0] * len(shop.chains)
  left, found = list(order), []
  while left:
    at = next(
      i
      for i, c in enumerate(left)
      if all(counts[p] > j for p, j, _ in shop.chains[c].needs[counts[c]])
    )
    c = left.pop(at)
    counts[c] += 1
    found.append(c)
  return tuple(found)
