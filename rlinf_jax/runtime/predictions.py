"""How long a plan will take here, beyond what planners count.

Planners take devices to be independent and every activity to be handed out by
itself. Here devices of a CPU, and host slots, are threads that share its cores;
and a loop on one set of devices is one program. An iteration is simulated with
both: activities that run at the same time and want more cores than there are
are slowed down in proportion.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rlinf_jax.runtime import graphs, machines, measurements, tasks
from scheduler import plans, profiles, timelines
from scheduler.simulation import clock as clocks
from scheduler.simulation import fairness, instances, routes

NUM_ITERATIONS = 6
_CORES = "cores"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prediction:
  """What an iteration of a plan takes.

  Attributes:
    seconds: from one iteration to the next.
    apart_s: the same if every device had cores of its own.
    busy_cores: cores that are busy on average; 0 where that is not known.
    num_cores: of the host.
    stage_s: seconds of an iteration in which each stage is at work by itself;
      of a loop that is one program all are its first stage's.
    timeline: of `NUM_ITERATIONS`, with an event for each task.
  """

  seconds: float
  apart_s: float
  busy_cores: float
  num_cores: int
  stage_s: dict[str, float]
  timeline: timelines.Timeline

  def __str__(self) -> str:
    text = f"{self.seconds:.6f} s"
    if self.seconds > 1.02 * self.apart_s:
      text += (
        f" ({self.apart_s:.6f} s if devices did not share {self.num_cores}"
        f" cores, of which {self.busy_cores:.1f} are busy)"
      )
    return text


def predict(
  plan: plans.FlatPlan,
  graph: graphs.Graph,
  profile: profiles.Profile,
  machine: machines.Machine,
  *,
  is_one_program: bool = False,
) -> Prediction:
  """Returns what an iteration takes on this machine.

  Args:
    plan: whose durations are the profile's.
    graph: the macro flow.
    profile: measured; of one made by hand the plan's own durations are all that
      is known.
    machine: its devices.
    is_one_program: whether nothing is handed out.
  """
  made = tasks.make(plan, graph).tasks
  plan = _fused(plan, made, profile, machine, is_one_program)
  cores = _cores(plan, profile, machine)
  num_cores = machine.cluster.nodes[0].num_cores
  between_s = _constant(profile, machine, measurements.BETWEEN)
  if is_one_program or graph.workflow.staleness:
    between_s = 0.0
  apart_s = _period_s(_instants_ns(plan, [0.0] * len(cores), num_cores))
  instants_ns = _instants_ns(plan, cores, num_cores)
  seconds = _period_s(instants_ns) + between_s
  apart_s += between_s
  busy_s = sum(u * a.duration_ns * 1e-9 for u, a in zip(cores, plan.activities))
  stage_s: dict[str, float] = {}
  for task in made:
    busy_ns = sum(plan.activities[i].duration_ns for i in task.activities)
    stage_s[task.stage] = stage_s.get(task.stage, 0.0) + busy_ns * 1e-9
  return Prediction(
    seconds=max(seconds, apart_s),
    apart_s=apart_s,
    busy_cores=busy_s / seconds if seconds else 0.0,
    num_cores=num_cores,
    stage_s=stage_s,
    timeline=_timeline(plan, made, instants_ns),
  )


def _fused(
  plan: plans.FlatPlan,
  made: Sequence[tasks.Task],
  profile: profiles.Profile,
  machine: machines.Machine,
  is_one_program: bool,
) -> plans.FlatPlan:
  """Returns a plan with the durations of loops that are one program."""
  hand_off_ns = round(1e9 * _constant(profile, machine, measurements.HAND_OFF))
  durations = [a.duration_ns for a in plan.activities]
  for task in made:
    if task.kind == "loop" and task.node is not None:
      table = _table(profile, task.node.name, machine.mesh_class)
      if table is None:
        continue
      whole_ns = 1e9 * table.seconds(1, len(task.devices))
      whole_ns -= hand_off_ns * is_one_program
      now_ns = sum(durations[i] for i in task.activities)
      for i in task.activities:
        durations[i] = round(whole_ns * durations[i] / max(1, now_ns))
    elif task.kind == "compute" and is_one_program:
      for i in task.activities:
        durations[i] = max(0, durations[i] - hand_off_ns)
  return dataclasses.replace(
    plan,
    activities=tuple(
      dataclasses.replace(a, duration_ns=ns)
      for a, ns in zip(plan.activities, durations)
    ),
  )


def _cores(
  plan: plans.FlatPlan,
  profile: profiles.Profile,
  machine: machines.Machine,
) -> list[float]:
  """Returns how many of the host's cores each activity keeps busy."""
  first_slot = len(machine.devices)
  on_cpu = machine.devices[0].platform == "cpu"
  found = []
  for a in plan.activities:
    numbers = [i for r in a.resources for i in plan.resources[r].devices]
    is_host = bool(numbers) and numbers[0] >= first_slot
    name = machines.HOST if is_host else machine.mesh_class
    table = _table(profile, a.stage, name)
    if a.kind != "compute" or table is None or not (on_cpu or is_host):
      found.append(0.0)
      continue
    granule = a.items[1] - a.items[0]
    near = min(
      table.samples,
      key=lambda s: (
        abs(s.devices - len(numbers)),
        abs(s.granule - granule),
      ),
    )
    found.append(near.cores)
  return found


def _instants_ns(
  plan: plans.FlatPlan, cores: Sequence[float], num_cores: int
) -> list[list[tuple[int, int]]]:
  """Returns when each activity starts and stops, in every iteration."""
  flows: dict[float, int] = {}
  for u in cores:
    if u:
      flows.setdefault(u, len(flows))
  lengths = [a.duration_ns for a in plan.activities]
  shared = routes.Routes(
    flows=tuple(
      fairness.Flow(cap=1.0, uses=((_CORES, u / max(1, num_cores)),))
      for u in flows
    ),
    of_activity=tuple(flows.get(u) for u in cores),
    lengths_ns=tuple(lengths),
  )
  clock = clocks.Clock()
  nodes = instances.add(clock, plan, lengths * NUM_ITERATIONS, shared)
  clock.run()
  instants = [(clock.starts_ns[k], clock.stops_ns[k]) for k in nodes]
  n = len(lengths)
  return [instants[i * n : (i + 1) * n] for i in range(NUM_ITERATIONS)]


def _period_s(instants_ns: Sequence[Sequence[tuple[int, int]]]) -> float:
  """Returns the seconds of an iteration in the steady state."""
  half = NUM_ITERATIONS // 2
  stops = [max(stop for _, stop in iteration) for iteration in instants_ns]
  return (stops[-1] - stops[half - 1]) / (NUM_ITERATIONS - half) * 1e-9


def _timeline(
  plan: plans.FlatPlan,
  made: Sequence[tasks.Task],
  instants_ns: Sequence[Sequence[tuple[int, int]]],
) -> timelines.Timeline:
  """Returns what an executor's timeline should be."""
  events = [
    timelines.Event(
      kind=plan.activities[task.activities[0]].kind,
      stage=task.stage,
      iteration=i,
      resources=tuple(plan.resources[r].name for r in task.resources),
      start_ns=min(iteration[a][0] for a in task.activities),
      stop_ns=max(iteration[a][1] for a in task.activities),
      items=task.items,
      index=task.activities[0],
      target=plan.activities[task.activities[0]].target,
    )
    for i, iteration in enumerate(instants_ns)
    for task in made
  ]
  return timelines.Timeline(
    source="simulated",
    events=tuple(sorted(events, key=lambda e: (e.start_ns, e.stop_ns))),
    label=plan.label,
  )


def _constant(
  profile: profiles.Profile, machine: machines.Machine, name: str
) -> float:
  table = _table(profile, name, machine.mesh_class)
  return 0.0 if table is None else table.samples[0].seconds


def _table(
  profile: profiles.Profile, stage: str, device_class: str
) -> profiles.Table | None:
  for entry in profile.entries:
    if (entry.stage, entry.device_class) == (stage, device_class):
      return entry.law if isinstance(entry.law, profiles.Table) else None
  return None
