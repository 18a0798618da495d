"""M2Flow: a macro flow, executed under a plan, with the same numbers.

  run = m2flow(iteration, plan="auto")
  state, metrics = run(state, key)
  print(run.explain())

Source: RLinf (arXiv 2509.15965) calls the translation of a macro flow to how it
is executed macro-to-micro flow.
"""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax

from rlinf_jax.runtime import (
  accounts,
  choices,
  one_program,
  predictions,
  preparation,
)
from scheduler import devices as devices_lib
from scheduler import (
  evaluation,
  planners,
  plans,
  profiles,
  timelines,
  workflows,
)

PlanLike = choices.PlanLike
Options = preparation.Options


def m2flow(fn: Callable[..., Any], **options: Any) -> M2Flow:
  """Returns a macro flow as a function that is executed under a plan.

  Args:
    fn: (state, *inputs) -> (state, result), over stages (`rlinf_jax.flow`).
    **options: fields of `Options`.

  Raises:
    TypeError: for an option that does not exist.
    ValueError: for a planner that does not exist, or a staleness below 0.
  """
  settings = Options(**options)
  if isinstance(settings.plan, str) and settings.plan not in planners.PLANNERS:
    if not pathlib.Path(settings.plan).is_file():
      raise ValueError(
        f"plan is {settings.plan!r}; give a planner of"
        f" {sorted(planners.PLANNERS)}, a plan, or the path of its JSON"
      )
  if settings.staleness < 0:
    raise ValueError(f"staleness is {settings.staleness}; it counts from 0")
  if settings.channel_budget is not None and settings.channel_budget < 0:
    raise ValueError(
      f"channel_budget is {settings.channel_budget}; it is a weight, of 0 or"
      " more"
    )
  return M2Flow(fn, settings)


class M2Flow:
  """A macro flow under a plan; `m2flow` makes them."""

  def __init__(self, fn: Callable[..., Any], options: Options) -> None:
    self._fn, self._options = fn, options
    self._prepared: preparation.Prepared | None = None
    # Seconds that the caller kept each iteration before it asked for the next.
    self._away_s: list[float] = []

  def __call__(self, state: Any, *inputs: Any) -> Any:
    """Runs one iteration; returns what the flow returns.

    Raises:
      StageError: a stage failed; its cause is what it raised.
      ValueError: the staleness is above 0, where iterations overlap and one
        alone has no meaning: use `iterate`.
    """
    if self._options.staleness:
      raise ValueError(
        f"with staleness {self._options.staleness} iterations overlap; run them"
        " by .iterate(state, inputs)"
      )
    prepared = self.prepare(state, *inputs)
    if prepared.program is not None:
      return prepared.program(state, *inputs)
    (result,) = self.iterate(state, [inputs])
    return result

  def iterate(
    self, state: Any, inputs: Iterable[Sequence[Any]]
  ) -> Iterator[Any]:
    """Yields what the flow returns in each iteration, in order.

    Args:
      state: the first state.
      inputs: the other arguments of each iteration.

    Raises:
      StageError: a stage failed; its cause is what it raised.
      DeadlineError: nothing happened for `deadline_s`.
    """
    rest = iter(inputs)
    try:
      first = tuple(next(rest))
    except StopIteration:
      return
    prepared = self.prepare(state, *first)
    every = itertools.chain([first], rest)
    if prepared.program is not None:
      prepared.program.forget()
      for given in every:
        out = prepared.program(state, *given)
        state = one_program.state_of(out, state)
        yield out
      return
    assert prepared.executor is not None
    tree = prepared.graph.traced.out_tree
    leaves = (jax.tree.leaves(tuple(given)) for given in every)
    self._away_s.clear()
    away_s = None
    iterations = prepared.executor.iterate(jax.tree.leaves(state), leaves)
    del state  # it is not to stay in memory as long as this runs
    for done in iterations:
      if away_s is not None:
        self._away_s.append(away_s)
      start_s = time.perf_counter()
      yield jax.tree.unflatten(tree, done.outputs)
      away_s = time.perf_counter() - start_s

  def replan(self, plan: PlanLike) -> None:
    """Goes on under another plan, from the next call on.

    State stays where it is, and moves when a stage on other devices reads it:
    this takes devices from a stage, or gives it some, without a restart.

    Args:
      plan: see `Options`.

    Raises:
      SchedulerError: the plan cannot run. The flow then keeps its old one.
    """
    ready = self._ready
    options = dataclasses.replace(self._options, plan=plan)
    self._prepared = preparation.under_plan(
      self._fn,
      options,
      ready.graph,
      ready.profile,
      ready.machine,
      ready.compiled,
    )
    self._options = options

  def scale(
    self, stage: str, devices: str | devices_lib.Devices | None
  ) -> None:
    """Gives a stage other devices, at once: also while `iterate` runs.

    Granules that have begun end where they are; those that have not, of this
    iteration and of later ones, run on the new devices, until the next
    `replan`. Nothing restarts and no number changes; weights are brought to the
    devices that lack them, once.

    Args:
      stage: its name.
      devices: such as "0-3", of this machine; None: as the plan says.

    Raises:
      ValueError: there is no such stage, it cannot be there, or the plan is one
        program, whose stages have no devices of their own: `replan` then.
    """
    if self._ready.executor is None:
      raise ValueError(
        f"stage '{stage}' is part of one program; give .replan() a plan that"
        " has stages on other devices first"
      )
    if isinstance(devices, str):
      devices = devices_lib.Devices.parse(devices)
    self._ready.executor.scale(stage, devices)

  def prepare(self, state: Any, *inputs: Any) -> preparation.Prepared:
    """Traces, measures and plans, the first time; returns what came of it."""
    if self._prepared is None:
      self._prepared = preparation.prepare(
        self._fn, self._options, (state, *inputs)
      )
    return self._prepared

  @property
  def workflow(self) -> workflows.Workflow:
    """The traced workflow."""
    return self._ready.graph.workflow

  @property
  def profile(self) -> profiles.Profile:
    """What the plan was made from."""
    return self._ready.profile

  @property
  def plan(self) -> plans.Plan:
    """The plan, as the planner made it."""
    return self._ready.choice.plan

  @property
  def evaluation(self) -> evaluation.Evaluation:
    """The plan as planners see it: its period, memory and flat form."""
    return self._ready.choice.evaluation

  @property
  def prediction(self) -> predictions.Prediction:
    """What an iteration should take on this machine."""
    return self._ready.choice.prediction

  @property
  def timeline(self) -> timelines.Timeline:
    """What ran when, in the last call; see `OneProgram.timeline` too."""
    return accounts.timeline(self._ready)

  @property
  def is_one_program(self) -> bool:
    """Whether the plan is one program on one set of devices."""
    return self._ready.program is not None

  @property
  def label(self) -> str:
    """Whether the numbers are the eager ones: "bitwise", or "close"."""
    return accounts.label(self._ready)

  def explain(self) -> str:
    """Returns why the plan is as it is, what it was predicted to take."""
    return accounts.explain(self._ready)

  def compare(self) -> str:
    """Returns what the last call took beside what was predicted."""
    return accounts.compare(self._ready, self._away_s)

  def write_report(self, directory: str | pathlib.Path) -> list[pathlib.Path]:
    """Writes what the last call did; returns the files.

    The plan, a picture of the workflow, a page and a trace, see
    `accounts.write_report`.
    """
    return accounts.write_report(self._ready, self._away_s, directory)

  @property
  def _ready(self) -> preparation.Prepared:
    if self._prepared is None:
      raise ValueError(
        "the flow has not been planned yet; call it, or .prepare(state,"
        " *inputs), first"
      )
    return self._prepared
