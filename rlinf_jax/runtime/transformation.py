"""M2Flow: a macro flow, executed under a plan, with the same numbers.

  run = m2flow(iteration, plan="auto")
  state, metrics = run(state, key)
  print(run.explain())

Source: RLinf (arXiv 2509.15965) calls the translation of a macro flow to how it
is executed macro-to-micro flow.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax

from rlinf_jax import flow
from rlinf_jax.runtime import (
  executables,
  executor,
  graphs,
  machines,
  measurements,
  meshes,
  predictions,
  tasks,
  tracing,
  transport,
)
from scheduler import (
  clusters,
  documents,
  errors,
  evaluation,
  planners,
  plans,
  profiles,
  reports,
  timelines,
  workflows,
)

PlanLike = str | pathlib.Path | plans.TreePlan | plans.FlatPlan


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
    measure_s: time for measuring; what no plan can do without is measured
      later too.
    budget_bytes: memory of each device; more is an error that names the stage.
    deadline_s: how long nothing may happen before the flow is given up.
    plan_budget: how much the planner may search.
    seed: of the planner.
    donate: whether the state's buffers may be reused where one program runs.
    notify: called with (stage, points done, points in all) while measuring.
  """

  plan: PlanLike = "auto"
  staleness: int = 0
  machine: machines.Machine | None = None
  profile: profiles.Profile | None = None
  profile_path: str | pathlib.Path | None = None
  measure_s: float = 30.0
  budget_bytes: int | None = None
  deadline_s: float = executor.DEFAULT_DEADLINE_S
  plan_budget: planners.Budget = planners.Budget()
  seed: int = 0
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
  return M2Flow(fn, settings)


class M2Flow:
  """A macro flow under a plan; `m2flow` makes them."""

  def __init__(self, fn: Callable[..., Any], options: Options) -> None:
    self._fn, self._options = fn, options
    self._prepared: _Prepared | None = None

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
      for given in every:
        out = prepared.program(state, *given)
        state = _state_of(out, state)
        yield out
      return
    assert prepared.executor is not None
    tree = prepared.graph.traced.out_tree
    leaves = (jax.tree.leaves(tuple(given)) for given in every)
    for done in prepared.executor.iterate(jax.tree.leaves(state), leaves):
      yield jax.tree.unflatten(tree, done.outputs)

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
    return self._ready.plan

  @property
  def evaluation(self) -> evaluation.Evaluation:
    """The plan as planners see it: its period, memory and flat form."""
    return self._ready.evaluation

  @property
  def prediction(self) -> predictions.Prediction:
    """What an iteration should take on this machine."""
    return self._ready.prediction

  @property
  def timeline(self) -> timelines.Timeline:
    """What ran when, in the last call; empty where one program runs."""
    runner = self._ready.executor
    if runner is None:
      return timelines.Timeline(source="measured", events=())
    return runner.timeline

  @property
  def is_one_program(self) -> bool:
    """Whether the plan is one program on one set of devices."""
    return self._ready.program is not None

  @property
  def label(self) -> str:
    """Whether the numbers are the eager ones: "bitwise", or "close"."""
    return self._ready.label

  def explain(self) -> str:
    """Returns why the plan is as it is, what it was predicted to take."""
    ready = self._ready
    lines = [
      workflows.format_workflow(ready.graph.workflow),
      "",
      f"Results are {ready.label}.",
      *(f"  not bitwise: {why}" for why in ready.why_close[:5]),
    ]
    if ready.program is not None:
      lines.append("Everything is on the same devices: one program.")
    lines.append(f"Predicted on this machine: {ready.prediction}.")
    lines.append(f"Profile: {ready.profile.provenance}.")
    text = reports.explain(
      ready.evaluation, ready.graph.workflow, ready.machine.cluster
    )
    return "\n".join([*lines, "", text])

  def write_report(self, directory: str | pathlib.Path) -> list[pathlib.Path]:
    """Writes what the last call did; returns the files.

    report.html (what ran when, use of devices, what to try next), trace.json
    (for Perfetto or chrome://tracing) and plan.json.
    """
    folder = pathlib.Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    page, trace = folder / "report.html", folder / "trace.json"
    timeline = self.timeline
    reports.write_page(
      timeline,
      page,
      title=self.workflow.name,
      text=f"{self.explain()}\n\n{self.compare()}",
    )
    reports.write_perfetto(timeline, trace)
    documents.write(self.plan, folder / "plan.json")
    return [page, trace, folder / "plan.json"]

  def compare(self) -> str:
    """Returns what the last call took, beside what was predicted."""
    timeline = self.timeline
    n = timeline.num_iterations
    if n < 2:
      return "nothing to compare: one program, or fewer than two iterations"
    first, last = (timeline.iteration_stop_ns(i) for i in (0, n - 1))
    measured_s = (last - first) / (n - 1) * 1e-9
    busy_ns = _busy_ns([e for e in timeline.events if e.iteration])
    predicted_s = self.prediction.seconds
    lines = [
      f"an iteration took {measured_s:.6f} s; {self.prediction} were predicted,"
      f" {predicted_s / measured_s - 1:+.1%}"
    ]
    for stage, ns in busy_ns.items():
      lines.append(
        f"  {stage}: {ns / (n - 1) * 1e-9:.6f} s,"
        f" {self.prediction.stage_s.get(stage, 0.0):.6f} s predicted"
      )
    return "\n".join(lines)

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
  plan: plans.Plan
  evaluation: evaluation.Evaluation
  prediction: predictions.Prediction
  machine: machines.Machine
  compiled: executables.Executables
  label: str
  why_close: tuple[str, ...]
  executor: executor.Executor | None
  program: Any


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
  compiled = executables.Executables(traced.program)

  def plan_fn(profile: profiles.Profile) -> plans.FlatPlan:
    plan = _plan(options, graph, profile, machine)
    return _evaluate(plan, options, graph, profile, machine).flat

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
  return prepared


def _under_plan(
  fn: Callable[..., Any],
  options: Options,
  graph: graphs.Graph,
  profile: profiles.Profile,
  machine: machines.Machine,
  compiled: executables.Executables,
) -> _Prepared:
  plan = _plan(options, graph, profile, machine)
  evaluated = _evaluate(plan, options, graph, profile, machine)
  why_close = _why_close(graph)
  program = runner = None
  devices = _one_program_on(graph, evaluated.flat, machine)
  if devices and not options.staleness:
    mesh = None if len(devices) == 1 else meshes.mesh_of(devices)
    program = flow.fuse(fn, mesh=mesh, donate=(0,) if options.donate else ())
    program = _placed(program, devices)
  else:
    runner = executor.Executor(
      graph,
      tasks.make(evaluated.flat, graph),
      machine,
      compiled=compiled,
      budget_bytes=options.budget_bytes,
      deadline_s=options.deadline_s,
    )
  return _Prepared(
    graph=graph,
    profile=profile,
    plan=plan,
    evaluation=evaluated,
    prediction=_predict(evaluated.flat, options, graph, profile, machine),
    machine=machine,
    compiled=compiled,
    label="close" if why_close else "bitwise",
    why_close=why_close,
    executor=runner,
    program=program,
  )


def _plan(
  options: Options,
  graph: graphs.Graph,
  profile: profiles.Profile,
  machine: machines.Machine,
) -> plans.Plan:
  """Returns the plan asked for.

  Of `auto` the better one, as predicted for this machine, of its plan and of
  all stages in turn: planners know neither that those are one program nor that
  devices of a CPU share its cores.
  """
  if isinstance(options.plan, (plans.TreePlan, plans.FlatPlan)):
    return options.plan
  if options.plan not in planners.PLANNERS:
    return plans.read(options.plan)

  def made_by(name: str, cluster: clusters.Cluster) -> plans.Plan:
    planner = planners.PLANNERS[name]
    return planner(
      graph.workflow, profile, cluster, options.plan_budget, options.seed
    )

  chosen = made_by(str(options.plan), machine.cluster)
  if options.plan != "auto":
    return chosen
  found = [chosen]
  for smaller in (machine.cluster, *machines.of_one_device(machine)):
    with contextlib.suppress(errors.SchedulerError):
      found.append(made_by("collocated", smaller))
  return min(
    found, key=lambda plan: _seconds(plan, options, graph, profile, machine)
  )


def _seconds(
  plan: plans.Plan,
  options: Options,
  graph: graphs.Graph,
  profile: profiles.Profile,
  machine: machines.Machine,
) -> float:
  flat = _evaluate(plan, options, graph, profile, machine).flat
  return _predict(flat, options, graph, profile, machine).seconds


def _evaluate(
  plan: plans.Plan,
  options: Options,
  graph: graphs.Graph,
  profile: profiles.Profile,
  machine: machines.Machine,
) -> evaluation.Evaluation:
  return evaluation.evaluate(
    plan, graph.workflow, profile, machine.cluster, seed=options.seed
  )


def _predict(
  flat: plans.FlatPlan,
  options: Options,
  graph: graphs.Graph,
  profile: profiles.Profile,
  machine: machines.Machine,
) -> predictions.Prediction:
  one_program = _one_program_on(graph, flat, machine)
  return predictions.predict(
    flat,
    graph,
    profile,
    machine,
    is_one_program=bool(one_program) and not options.staleness,
  )


def _one_program_on(
  graph: graphs.Graph, flat: plans.FlatPlan, machine: machines.Machine
) -> tuple[jax.Device, ...]:
  """Returns the devices on which all computes run whole, or ()."""
  computes = [a for a in flat.activities if a.kind == "compute"]
  places = {a.resources for a in computes}
  if len(places) != 1 or any(p != "mesh" for p in graph.place.values()):
    return ()
  if any(a.kind in ("swap_in", "swap_out") for a in flat.activities):
    return ()
  for a in computes:
    if a.items != (0, graph.workflow.stage(a.stage).items):
      return ()
  found = [flat.resources[r].devices for r in places.pop()]
  numbers = sorted(i for devices in found for i in devices)
  return tuple(machine.devices[i] for i in numbers)


def _placed(program: Any, devices: tuple[jax.Device, ...]) -> Any:
  """Returns a program that brings to its devices what is not there yet."""
  whole = executables.place_of(devices).replicated()

  def run(*args: Any) -> Any:
    def place(x: Any) -> Any:
      is_array = isinstance(x, jax.Array)
      is_there = is_array and x.sharding.device_set == set(devices)
      return x if is_there else transport.send(x, whole)

    return program(*jax.tree.map(place, args))

  return run


def _why_close(graph: graphs.Graph) -> tuple[str, ...]:
  """Returns what keeps the flow from giving the same bits under any plan."""
  reasons = [f"glue rounds: {glue}" for glue in graph.traced.inexact]
  for _, node in tracing.stage_nodes(graph.traced.program):
    if (
      not node.is_barrier
      and node.spec.quantum is None
      and node.spec.place == "mesh"
    ):
      reasons.append(f"stage '{node.name}' has no quantum")
  return tuple(reasons)


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


def _state_of(out: Any, state: Any) -> Any:
  given: Any = jax.tree.structure(state)
  returned: Any = jax.tree.structure(out)
  return out if returned == given else out[0]
