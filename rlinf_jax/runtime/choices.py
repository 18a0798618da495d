"""Which plan a macro flow is executed under, and what is known of it."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterator, Mapping

import jax

from rlinf_jax.runtime import graphs, machines, predictions, programs
from scheduler import (
  clusters,
  errors,
  evaluation,
  planners,
  plans,
  profiles,
)

PlanLike = str | pathlib.Path | plans.TreePlan | plans.FlatPlan


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choice:
  """A plan that can run.

  Attributes:
    name: what `alternatives` would call it.
    plan: as it was made.
    evaluation: as planners see it.
    prediction: what an iteration should take on this machine.
    devices: on which everything is one program; () where stages are handed out.
    alternatives: by name, what else was considered; of what cannot run, why.
  """

  name: str = ""
  plan: plans.Plan
  evaluation: evaluation.Evaluation
  prediction: predictions.Prediction
  devices: tuple[jax.Device, ...]
  alternatives: Mapping[str, Choice | str] = dataclasses.field(
    default_factory=dict
  )


def choose(
  asked: PlanLike,
  graph: graphs.Graph,
  profile: profiles.Profile,
  machine: machines.Machine,
  *,
  budget: planners.Budget,
  seed: int,
) -> Choice:
  """Returns the plan asked for, evaluated.

  Of `auto` the best one, as predicted for this machine, of its plan, of all
  stages in turn, on all devices or one, and of the disaggregated plan: planners
  know neither what is one program nor that devices of a CPU share its cores.

  Args:
    asked: a planner's name, a plan, or the path of its JSON.
    graph: the macro flow.
    profile: its durations.
    machine: on what.
    budget: of a planner.
    seed: of a planner.

  Raises:
    SchedulerError: there is no plan that can run.
  """

  def evaluated(plan: plans.Plan) -> Choice:
    found = evaluation.evaluate(
      plan, graph.workflow, profile, machine.cluster, seed=seed
    )
    devices = _one_program_on(graph, found.flat, machine)
    return Choice(
      plan=plan,
      evaluation=found,
      prediction=predictions.predict(
        found.flat, graph, profile, machine, is_one_program=bool(devices)
      ),
      devices=devices,
    )

  def made_by(name: str, cluster: clusters.Cluster) -> Choice:
    planner = planners.PLANNERS[name]
    return evaluated(planner(graph.workflow, profile, cluster, budget, seed))

  if isinstance(asked, (plans.TreePlan, plans.FlatPlan)):
    return evaluated(asked)
  if asked not in planners.PLANNERS:
    return evaluated(plans.read(asked))
  first = made_by(str(asked), machine.cluster)
  if asked != "auto":
    return first
  found: dict[str, Choice | str] = {"auto": first}
  others = [("collocated", "collocated", machine.cluster)]
  for cluster in machines.of_one_device(machine):
    others.append(("collocated on one device", "collocated", cluster))
  others.append(("disaggregated", "disaggregated", machine.cluster))
  for name, planner, cluster in others:
    try:
      found[name] = made_by(planner, cluster)
    except errors.SchedulerError as error:
      found[name] = str(error)
  best = _best(found)
  assert best is not None
  return best


def next_best(choice: Choice, why: str) -> Choice | None:
  """Returns the best of what else was considered; None if nothing can run.

  Args:
    choice: what was to run.
    why: it cannot.
  """
  return _best({choice.name: why, **choice.alternatives})


def _best(found: Mapping[str, Choice | str]) -> Choice | None:
  """Returns what should take the least time, with the rest as alternatives."""
  can_run = {k: c for k, c in found.items() if isinstance(c, Choice)}
  if not can_run:
    return None
  best = min(can_run, key=lambda name: can_run[name].prediction.seconds)
  rest = {name: other for name, other in found.items() if name != best}
  return dataclasses.replace(can_run[best], name=best, alternatives=rest)


def why_close(graph: graphs.Graph) -> Iterator[str]:
  """Yields what keeps the flow from giving the same bits under any plan."""
  for glue in graph.traced.inexact:
    yield f"glue rounds: {glue}"
  for _, node in programs.stage_nodes(graph.traced.program):
    if (
      not node.is_barrier
      and node.spec.quantum is None
      and node.spec.place == "mesh"
    ):
      yield f"stage '{node.name}' has no quantum"


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
  # Iterations that overlap are no program that is called once for each.
  if graph.workflow.staleness:
    return ()
  for a in computes:
    if a.items != (0, graph.workflow.stage(a.stage).items):
      return ()
  found = [flat.resources[r].devices for r in places.pop()]
  numbers = sorted(i for devices in found for i in devices)
  return tuple(machine.devices[i] for i in numbers)
