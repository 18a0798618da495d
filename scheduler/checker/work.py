"""Laws of what is computed: items, granules, cohorts, updates, durations."""

from __future__ import annotations

import itertools

from scheduler import errors
from scheduler.checker.view import View


def items_are_handled_once(view: View) -> None:
  """Every item of every stage is in one compute; in a loop, in every turn."""
  for name, turns in view.turns.items():
    items = view.costs.stages[name].items
    for turn, granules in enumerate(turns):
      when = f" in turn {turn}" if view.loop_of(name) else ""
      reached = 0
      for g in (*granules, None):
        start = g.start if g else items
        if start > reached:
          raise errors.InfeasiblePlanError(
            f"no compute of stage {name!r} handles items {reached} to"
            f" {start - 1}{when}"
          )
        if g is None:
          break
        if not reached == g.start < g.stop <= items:
          raise errors.InfeasiblePlanError(
            f"{view.words(g.activity)}{when} does not go on from item"
            f" {reached}; each of the {items} items is handled once"
          )
        reached = g.stop


def granules_are_allowed(view: View) -> None:
  """Granules have the size that their stage allows, and whole quanta."""
  for name, turns in view.turns.items():
    stage = view.costs.stages[name]
    part = stage.items // stage.updates
    for granules in turns:
      for g, after in itertools.zip_longest(granules, granules[1:]):
        size, words = g.stop - g.start, view.words(g.activity)
        if (g.stop - 1) // part != g.start // part:
          raise errors.InfeasiblePlanError(
            f"{words} belongs to two updates, of {part} items each; end the"
            " granule where the update ends"
          )
        if g.start % part % stage.quantum or g.stop % part % stage.quantum:
          raise errors.InfeasiblePlanError(
            f"{words} cuts a quantum of stage {name!r}; begin and end granules"
            f" at multiples of {stage.quantum} items"
          )
        # The rest of a share is smaller; what follows it is not, once more.
        is_rest = (
          after is None
          or after.atoms != g.atoms
          or g.stop % part == 0
          or after.stop - after.start >= stage.granule_min
        )
        if size > stage.largest_granule or (
          size < stage.granule_min and not is_rest
        ):
          raise errors.InfeasiblePlanError(
            f"{words} has {size} items; stage {name!r} allows"
            f" {stage.granule_min} to {stage.largest_granule}, and fewer only"
            " as the rest of an update or share"
          )


def cohorts_are_whole(view: View) -> None:
  """What is decoded together is emitted to its end, in item order."""
  for turns in view.turns.values():
    for granules in turns:
      cohorts = [view.cohorts[g.activity] for g in granules]
      for i, (g, cohort) in enumerate(zip(granules, cohorts)):
        if cohort is None:
          continue
        is_first = i == 0 or cohorts[i - 1] != cohort
        is_last = i + 1 == len(cohorts) or cohorts[i + 1] != cohort
        if is_first != (g.start == cohort[0]) or is_last != (
          g.stop == cohort[1]
        ):
          raise errors.InfeasiblePlanError(
            f"{view.words(g.activity)} belongs to the cohort"
            f" {list(cohort)}, whose items are decoded together; its granules"
            " must emit all of them, one after another"
          )


def updates_are_applied(view: View) -> None:
  """Every update of a train stage outside of loops is applied once."""
  for name, stage in view.costs.stages.items():
    applied = sorted(
      view.plan.activities[i].index for i in view.by_kind["apply", name]
    )
    is_expected = stage.kind == "train" and view.loop_of(name) is None
    expected = list(range(stage.updates)) if is_expected else []
    if applied != expected:
      raise errors.InfeasiblePlanError(
        f"stage {name!r} has applies with the indices {applied}; its updates"
        f" need {expected}"
      )


def computes_take_their_time(view: View) -> None:
  """Computes take what the profile says."""
  for name in view.costs.stages:
    for g in itertools.chain.from_iterable(view.turns[name]):
      found = view.plan.activities[g.activity].duration_ns
      expected = view.compute_ns(g.activity)
      if found != expected:
        raise errors.InfeasiblePlanError(
          f"{view.words(g.activity)} takes {found} ns; by the profile it takes"
          f" {expected} ns"
        )
    for i in view.by_kind["apply", name]:
      if view.plan.activities[i].duration_ns:
        raise errors.InfeasiblePlanError(
          f"{view.words(i)} takes {view.plan.activities[i].duration_ns} ns; a"
          " profile has the time of applies in that of granules"
        )
