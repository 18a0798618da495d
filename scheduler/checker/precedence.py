"""Laws of order: what has to have ended before an activity starts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from scheduler import cycles, errors, plans
from scheduler.checker import moves, weights
from scheduler.checker.needs import Need
from scheduler.checker.view import View


def nothing_deadlocks(view: View) -> None:
  """There is a schedule; activities do not wait for each other in a circle."""
  _ = view.schedule


def activities_wait(view: View) -> None:
  """Arcs and orders imply all that activities have to wait for."""
  known: dict[tuple[int, int], int] = {}
  for arc in (*view.plan.arcs, *plans.order_arcs(view.plan)):
    if arc.after == "end":
      pair = (arc.source, arc.target)
      known[pair] = min(known.get(pair, arc.lag), arc.lag)
  # By far the most are arcs. For the others all paths are looked at, at once
  # for all needs whose sources lie on one resource.
  left: dict[int, list[Need]] = {}
  for need in needs(view):
    lag = known.get((need.source, need.target))
    if lag is None or lag > need.lag:
      # An activity that occupies nothing is an order of its own.
      resources = view.plan.activities[need.source].resources
      left.setdefault((*resources, ~need.source)[0], []).append(need)
  orders = [
    view.plan.orders[r] if r >= 0 else (plans.Slot(activity=~r),) for r in left
  ]
  for own, order, last in zip(
    left.values(), orders, cycles.last_ended(view.plan, orders)
  ):
    place = {slot.activity: (slot.shift, p) for p, slot in enumerate(order)}
    for need in own:
      shift, p = place[need.source]
      if last[need.target] < (shift - need.lag) * len(order) + p:
        raise errors.InfeasiblePlanError(
          f"{view.words(need.target)} {need.why}, but does not wait for"
          f" {view.words(need.source)} of {_ago(need.lag)}; add an arc of lag"
          f" {need.lag}"
        )


def needs(view: View) -> Iterator[Need]:
  """Yields all that activities have to wait for."""
  yield from moves.items_are_ready(view)
  yield from moves.items_have_arrived(view)
  yield from _turns_follow(view)
  yield from _cohorts_follow(view)
  yield from _updates_follow(view)
  yield from weights.weights_have_arrived(view)
  yield from _iterations_end(view)


def _turns_follow(view: View) -> Iterator[Need]:
  for turns in view.turns.values():
    for earlier, later in itertools.pairwise(turns):
      chains = view.chains(earlier)
      for g in later:
        for chain in chains:
          if (last := chain.last(g.start, g.stop)) is not None:
            yield Need(last, g.activity, 0, "goes on with the turn before")


def _cohorts_follow(view: View) -> Iterator[Need]:
  for turns in view.turns.values():
    for before, g in itertools.chain(*map(itertools.pairwise, turns)):
      cohort = view.cohorts[g.activity]
      if cohort is not None and cohort[0] < g.start:
        yield Need(before.activity, g.activity, 0, "goes on with its cohort")


def _updates_follow(view: View) -> Iterator[Need]:
  for name, stage in view.costs.stages.items():
    applies = sorted(
      view.by_kind["apply", name], key=lambda i: view.plan.activities[i].index
    )
    size = stage.items // stage.updates
    for update, apply in enumerate(applies):
      # The apply before; of the first, the last one of the last iteration.
      previous, lag = applies[update - 1], int(update == 0)
      if update:
        yield Need(previous, apply, lag, "applies the next update")
      part = [g for g in view.turns[name][0] if g.start // size == update]
      for chain in view.chains(part):
        last = max(chain.granules, key=lambda g: g.place)
        yield Need(last.activity, apply, 0, "applies its gradient")
        yield Need(previous, chain.first(), lag, "differentiates at its result")


def _iterations_end(view: View) -> Iterator[Need]:
  ends = [(computes[0], computes[-1]) for computes in view.computes if computes]
  for (_, last), (first, _) in itertools.product(ends, ends):
    why = f"begins an iteration, of which at most {view.lag} may be alive"
    yield Need(last, first, view.lag, why)


def _ago(lag: int) -> str:
  if lag == 0:
    return "the same iteration"
  if lag < 0:
    return f"the iteration {-lag} later"
  return "the iteration before" if lag == 1 else f"{lag} iterations before"
