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
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax

from rlinf_jax.runtime import (
  choices,
  elasticity,
  executables,
  executor,
  graphs,
  machines,
  measurements,
  one_program,
  predictions,
  tasks,
  tracing,
)
from scheduler import (
  bounds,
  documents,
  durations,
  errors,
  evaluation,
  planners,
  plans,
  profiles,
  reports,
  timelines,
  workflows,
)
from scheduler import devices as devices_lib

PlanLike = choices.PlanLike
# What reports are of: the last iterations, and activities that differ most.
MOST_ITERATIONS, MOST_DIFFERENT = 50, 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
  """How a macro flow is planned and executed.

  Attributes:
    plan: a planner's name, a plan, or the path of a plan's JSON.
    staleness: how many updates old what passes `flow.sync` may be, exactly.
    machine: devices; by default all of this process. It gets a host slot for
      each stage that is not on a mesh, if it has none.
    profile: by default it is measured when the flow is first called.
    profile_path: where a measured profile is kept, see `measurements.measure`.
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
    donate: whether the state's buffers may be reused where one program runs.
    notify: called with (stage, points done, points in all) while measuring.
  """

  plan: PlanLike = "auto"
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
    self._prepared: _Prepared | None = None
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
    for done in prepared.executor.iterate(jax.tree.leaves(state), leaves):
      start_s = time.perf_counter()
      yield jax.tree.unflatten(tree, done.outputs)
      self._away_s.append(time.perf_counter() - start_s)

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
    self._prepared = _under_plan(
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

  def prepare(self, state: Any, *inputs: Any) -> _Prepared:
    """Traces, measures and plans, the first time; returns what came of it."""
    if self._prepared is None:
      self._prepared = _prepare(self._fn, self._options, (state, *inputs))
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
    ready = self._ready
    if ready.program is not None:
      return ready.program.timeline()
    assert ready.executor is not None
    return ready.executor.timeline

  @property
  def is_one_program(self) -> bool:
    """Whether the plan is one program on one set of devices."""
    return self._ready.program is not None

  @property
  def label(self) -> str:
    """Whether the numbers are the eager ones: "bitwise", or "close"."""
    return "close" if self._ready.why_close else "bitwise"

  def explain(self) -> str:
    """Returns why the plan is as it is, what it was predicted to take."""
    ready = self._ready
    lines = [
      workflows.format_workflow(ready.graph.workflow),
      "",
      f"Results are {self.label}.",
      *(f"  not bitwise: {why}" for why in ready.why_close[:5]),
    ]
    if ready.program is not None:
      lines.append("Everything is on the same devices: one program.")
    lines.append(f"Predicted on this machine: {self.prediction}.")
    others = ready.choice.alternatives
    for name, other in others.items():
      if isinstance(other, choices.Choice):
        lines.append(f"  {name} instead: {other.prediction}")
    lines.append(f"Profile: {ready.profile.provenance}.")
    text = reports.explain(
      self.evaluation,
      self.workflow,
      ready.machine.cluster,
      alternatives={
        name: other if isinstance(other, str) else other.evaluation
        for name, other in others.items()
      },
      bound=self._bound(),
    )
    return "\n".join([*lines, "", text])

  def write_report(self, directory: str | pathlib.Path) -> list[pathlib.Path]:
    """Writes what the last call did; returns the files.

    plan.json, workflow.mmd (a picture of the stages, for Mermaid) and, if
    anything ran, report.html (what ran when, use of devices, what to try next)
    and trace.json (for Perfetto or chrome://tracing). Of a call of more than
    `MOST_ITERATIONS` they show the last ones.
    """
    folder = pathlib.Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    page, trace = folder / "report.html", folder / "trace.json"
    timeline = self._recent()
    documents.write(self.plan, folder / "plan.json")
    picture = reports.to_mermaid(self.workflow, places=self._ready.graph.place)
    (folder / "workflow.mmd").write_text(f"{picture}\n", encoding="utf-8")
    if not timeline.events:
      return [folder / "plan.json", folder / "workflow.mmd"]
    reports.write_page(
      timeline,
      page,
      title=self.workflow.name,
      text=f"{self.explain()}\n\n{self.compare()}\n\n{picture}",
      advice=self._advice(timeline),
    )
    reports.write_perfetto(timeline, trace)
    return [page, trace, folder / "plan.json", folder / "workflow.mmd"]

  def compare(self) -> str:
    """Returns what the last call took, beside what was predicted.

    In all, of each stage, and of the activities that differ most. Without
    staleness an iteration begins when the caller asks for it: what it did
    before is not counted, but where one program runs.
    """
    timeline = self._recent()
    n = timeline.num_iterations
    if n < 2:
      return "nothing to compare: fewer than two iterations"
    stops = [timeline.iteration_stop_ns(i) for i in range(n)]
    # The median: checkpoints and evaluations come between some iterations.
    took_s = [(b - a) * 1e-9 for a, b in itertools.pairwise(stops)]
    away_s = self._away_s[: self.timeline.num_iterations - 1][-len(took_s) :]
    if self.is_one_program or self._options.staleness or not away_s:
      away_s = [0.0] * len(took_s)
    measured_s = statistics.median(a - b for a, b in zip(took_s, away_s))
    predicted_s = self.prediction.seconds
    lines = [
      f"an iteration took {measured_s:.6f} s; {self.prediction} were predicted,"
      f" {predicted_s / measured_s - 1:+.1%}"
    ]
    if any(away_s):
      lines[0] += f"; the caller took {statistics.median(away_s):.6f} s between"
    if self.is_one_program:
      return lines[0]
    busy_ns = _busy_ns([e for e in timeline.events if e.iteration])
    for stage, ns in busy_ns.items():
      lines.append(
        f"  {stage}: {ns / (n - 1) * 1e-9:.6f} s,"
        f" {self.prediction.stage_s.get(stage, 0.0):.6f} s predicted"
      )
    compared = reports.compare_timelines(self.prediction.timeline, timeline)
    lines.append(reports.format_differences(compared, limit=MOST_DIFFERENT))
    return "\n".join(lines)

  def _recent(self) -> timelines.Timeline:
    """Returns what the last iterations did: a run may have had thousands."""
    return timelines.last_iterations(self.timeline, MOST_ITERATIONS)

  def _bound(self) -> bounds.Bound | None:
    """Returns what no plan can be faster than, None where it is not known."""
    ready = self._ready
    try:
      return bounds.lower_bound(
        self.workflow, ready.profile, ready.machine.cluster
      )
    except errors.SchedulerError:
      return None

  def _advice(self, timeline: timelines.Timeline) -> tuple[str, ...]:
    """Returns what to try next."""
    summary, bound = reports.summarise(timeline), self._bound()
    # What is one program may be faster than the sum of its stages.
    is_bound = bound is not None and bound.seconds <= summary.iteration_s
    return reports.advise(
      summary,
      staleness=self._options.staleness,
      bound_s=bound.seconds if bound is not None and is_bound else None,
    )

  @property
  def _ready(self) -> _Prepared:
    if self._prepared is None:
      raise ValueError(
        "the flow has not been planned yet; call it, or .prepare(state,"
        " *inputs), first"
      )
    return self._prepared


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Prepared:
  """A traced, planned and compiled flow."""

  graph: graphs.Graph
  profile: profiles.Profile
  choice: choices.Choice
  machine: machines.Machine
  compiled: executables.Executables
  why_close: tuple[str, ...]
  executor: executor.Executor | None
  program: one_program.OneProgram | None


def _prepare(
  fn: Callable[..., Any], options: Options, args: tuple[Any, ...]
) -> _Prepared:
  traced = tracing.trace(fn, *args)
  name = getattr(fn, "__name__", "flow")
  graph = graphs.describe(traced, name=name, staleness=options.staleness)
  machine = machines.with_host_slots(
    options.machine or machines.of_process(memory_bytes=options.budget_bytes),
    sum(place != "mesh" for place in graph.place.values()),
  )
  if (
    options.profile is None and machine.cluster.links == machines.DEFAULT_LINKS
  ):
    machine = machines.with_links(machine, measurements.links(machine))
  compiled = executables.Executables(traced.program)

  def plan_fn(profile: profiles.Profile) -> plans.FlatPlan:
    return _choose(options, graph, profile, machine).evaluation.flat

  profile = options.profile or measurements.measure(
    graph,
    machine,
    jax.tree.leaves(args),
    compiled=compiled,
    plan_fn=plan_fn,
    budget_s=options.measure_s,
    path=options.profile_path,
    notify=options.notify,
  )
  prepared = _under_plan(fn, options, graph, profile, machine, compiled)
  if prepared.executor is not None and "process" not in graph.place.values():
    # Two iterations whose results nobody sees compile everything ahead: the
    # second one's state lies where the first has left it. A service is spared
    # them: it would keep weights of versions that are then made otherwise.
    inputs = iter([jax.tree.leaves(args[1:])] * 2)
    for _ in prepared.executor.iterate(jax.tree.leaves(args[0]), inputs):
      pass
  elif prepared.program is not None:
    prepared.program.warm_up(*args)
  return prepared


def _under_plan(
  fn: Callable[..., Any],
  options: Options,
  graph: graphs.Graph,
  profile: profiles.Profile,
  machine: machines.Machine,
  compiled: executables.Executables,
) -> _Prepared:
  choice = _choose(options, graph, profile, machine)
  program = runner = None
  if choice.devices:
    program = one_program.OneProgram(fn, choice.devices, donate=options.donate)
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
    )
  return _Prepared(
    graph=graph,
    profile=profile,
    choice=choice,
    machine=machine,
    compiled=compiled,
    why_close=tuple(choices.why_close(graph)),
    executor=runner,
    program=program,
  )


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


def _busy_ns(events: Sequence[timelines.Event]) -> dict[str, int]:
  """Returns how long each stage was at work; calls at once count once."""
  busy_ns: dict[str, int] = {}
  until_ns: dict[str, int] = {}
  for event in events:  # by start
    from_ns = max(event.start_ns, until_ns.get(event.stage, 0))
    spent = max(0, event.stop_ns - from_ns)
    busy_ns[event.stage] = busy_ns.get(event.stage, 0) + spent
    until_ns[event.stage] = max(event.stop_ns, from_ns)
  return busy_ns
