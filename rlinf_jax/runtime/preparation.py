"""Macro flows, prepared: traced, measured, planned and compiled."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

import jax

from rlinf_jax.runtime import (
  choices,
  elasticity,
  executables,
  executor,
  graphs,
  ledgers,
  machines,
  measurements,
  one_program,
  tasks,
  tracing,
)
from scheduler import documents, durations, planners, plans, profiles


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
  """How a macro flow is planned and executed.

  Attributes:
    plan: a planner's name, a plan, or the path of a plan's JSON.
    staleness: how many updates old what passes `flow.sync` may be, exactly.
    machine: devices; by default all of this process. It gets a host slot for
      each stage that is not on a mesh, if it has none.
    profile: by default it is measured when the flow is first called.
    profile_path: where a measured profile is kept, see `measurements.read`.
    measure_s: time for measuring once an iteration has been compiled; what no
      plan can do without is measured later too.
    budget_bytes: memory of each device; more is an error that names the stage.
    deadline_s: how long nothing may happen before the flow is given up.
    channel_budget: weight (`flow.stage(weight=)`: tokens) of items that may
      wait between the stage that makes them and one that takes them on other
      devices; None: as many as the plan says.
    plan_budget: how much the planner may search.
    seed: of the planner.
    is_elastic: whether devices that an iteration no longer needs are given to a
      stage that has granules left; `online` does it in any case.
    donate: whether the state's buffers may be written over, so that a state
      that was returned is valid until the next iteration is asked for. With a
      staleness above 0 only where one program runs.
    notify: called with (stage, points done, points in all) while measuring.
  """

  plan: choices.PlanLike = "auto"
  staleness: int = 0
  machine: machines.Machine | None = None
  profile: profiles.Profile | None = None
  profile_path: str | pathlib.Path | None = None
  measure_s: float = 20.0
  budget_bytes: int | None = None
  deadline_s: float = executor.DEFAULT_DEADLINE_S
  channel_budget: float | None = None
  plan_budget: planners.Budget = planners.Budget()
  seed: int = 0
  is_elastic: bool = False
  donate: bool = False
  notify: Callable[[str, int, int], None] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prepared:
  """A traced, planned and compiled flow.

  Attributes:
    graph: the macro flow.
    profile: what the plan was made from.
    choice: the plan.
    machine: its devices, with measured links.
    compiled: stages that are compiled already.
    why_close: what keeps its results from being bitwise the eager ones.
    executor: runs it; None where it is one program.
    program: likewise, the other way round.
  """

  graph: graphs.Graph
  profile: profiles.Profile
  choice: choices.Choice
  machine: machines.Machine
  compiled: executables.Executables
  why_close: tuple[str, ...]
  executor: executor.Executor | None
  program: one_program.OneProgram | None


def prepare(
  fn: Callable[..., Any], options: Options, args: tuple[Any, ...]
) -> Prepared:
  """Returns a flow that was traced, measured, planned and compiled.

  Args:
    fn: the macro flow.
    options: see `Options`.
    args: of one real iteration.
  """
  traced = tracing.trace(fn, *args)
  name = getattr(fn, "__name__", "flow")
  graph = graphs.describe(traced, name=name, staleness=options.staleness)
  machine = machines.with_host_slots(
    options.machine or machines.of_process(memory_bytes=options.budget_bytes),
    sum(place != "mesh" for place in graph.place.values()),
  )
  known = options.profile
  if known is None:
    known = measurements.read(options.profile_path, graph, machine)
  if machine.cluster.links == machines.DEFAULT_LINKS:
    links = measurements.links(machine) if known is None else known.links
    machine = machines.with_links(machine, links or machines.DEFAULT_LINKS)
  compiled = executables.Executables(traced.program)

  def plan_fn(profile: profiles.Profile) -> plans.FlatPlan:
    return _choose(options, graph, profile, machine).evaluation.flat

  profile = known or measurements.measure(
    graph,
    machine,
    jax.tree.leaves(args),
    compiled=compiled,
    plan_fn=plan_fn,
    budget_s=options.measure_s,
    deadline_s=options.deadline_s,
    notify=options.notify,
  )
  if known is None and options.profile_path is not None:
    documents.write(profile, options.profile_path)
  choice = _choose(options, graph, profile, machine)
  first: executor.StageError | None = None
  while True:
    prepared = under_plan(
      fn, options, graph, profile, machine, compiled, choice
    )
    try:
      _warm_up(prepared, args)
      return prepared
    except executor.StageError as error:
      if not isinstance(error.__cause__, ledgers.OverBudgetError):
        raise
      # Planners know of no program's temporaries. Only `auto` has more to try.
      first = first or error
      other = choices.next_best(choice, str(error))
      if other is None:
        raise first from first.__cause__
      choice = other


def under_plan(
  fn: Callable[..., Any],
  options: Options,
  graph: graphs.Graph,
  profile: profiles.Profile,
  machine: machines.Machine,
  compiled: executables.Executables,
  choice: choices.Choice | None = None,
) -> Prepared:
  """Returns a measured flow under a plan.

  Args:
    fn: the macro flow.
    options: see `Options`.
    graph: of the flow.
    profile: of its stages.
    machine: on what.
    compiled: stages that are compiled already.
    choice: the plan; None: the one that the options ask for.
  """
  choice = choice or _choose(options, graph, profile, machine)
  program = runner = None
  if choice.devices:
    program = one_program.OneProgram(
      fn,
      choice.devices,
      donate=options.donate,
      budget_bytes=options.budget_bytes,
    )
  else:
    seconds_fn = None
    if options.is_elastic or options.plan == "online":
      seconds_fn = _seconds_fn(graph, profile, machine)
    runner = executor.Executor(
      graph,
      tasks.make(choice.evaluation.flat, graph),
      machine,
      compiled=compiled,
      budget_bytes=options.budget_bytes,
      deadline_s=options.deadline_s,
      channel_budget=options.channel_budget,
      seconds_fn=seconds_fn,
      donate=options.donate,
    )
  return Prepared(
    graph=graph,
    profile=profile,
    choice=choice,
    machine=machine,
    compiled=compiled,
    why_close=tuple(choices.why_close(graph)),
    executor=runner,
    program=program,
  )


def _warm_up(prepared: Prepared, args: tuple[Any, ...]) -> None:
  """Compiles everything ahead, by iterations whose results nobody sees."""
  if prepared.program is not None:
    prepared.program.warm_up(*args)
  elif "process" not in prepared.graph.place.values():
    # By two: the second one's state lies where the first has left it. A service
    # is spared them: it would keep weights of versions that are then made
    # otherwise.
    assert prepared.executor is not None
    inputs = iter([jax.tree.leaves(args[1:])] * 2)
    for _ in prepared.executor.iterate(jax.tree.leaves(args[0]), inputs):
      pass


def _seconds_fn(
  graph: graphs.Graph, profile: profiles.Profile, machine: machines.Machine
) -> elasticity.SecondsFn:
  """Returns (stage, items, devices) -> seconds, by the profile."""

  def seconds(name: str, items: int, devices: int) -> float:
    place = machine.mesh_class if graph.place[name] == "mesh" else machines.HOST
    (ns,) = durations.granules_ns(
      graph.workflow.stage(name),
      profile,
      machine.cluster.device_class(place),
      devices,
      profiles.Config(),
      items,
      (0, items),
    )
    return ns * 1e-9

  return seconds


def _choose(
  options: Options,
  graph: graphs.Graph,
  profile: profiles.Profile,
  machine: machines.Machine,
) -> choices.Choice:
  return choices.choose(
    options.plan,
    graph,
    profile,
    machine,
    budget=options.plan_budget,
    seed=options.seed,
  )
