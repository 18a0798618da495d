"""Planning again while a plan runs.

`online` is a planner whose plan is `auto`'s; `make_policy` is what goes on from
there, for `simulation.run_online`. It is asked when the tail of a decode
empties, devices leave or join, or a stage takes another time than was known.
What can be done then is compared by the time that is left of the iteration at
hand, and the period of those to come.
"""

from __future__ import annotations

import dataclasses
import functools
import graphlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction

from scheduler import cycles, errors, lowering, plans, prices
from scheduler.clusters import Cluster, Nodes
from scheduler.devices import Devices
from scheduler.planners import auto, granules, layouts, seating, tree_moves
from scheduler.planners.layouts import Layout
from scheduler.planners.protocol import Budget
from scheduler.planners.seating import Effort
from scheduler.planners.seats import Piece
from scheduler.plans import Activity, FlatPlan, Plan, Run, TreePlan
from scheduler.prices import Prices
from scheduler.profiles import ComputeLaw, Config, DecodeLaw, Law, Profile
from scheduler.simulation import OnlinePolicy, Snapshot
from scheduler.workflows import Workflow

_EFFORT = Effort(width=24, choices=24, starts=2, beams=1, wide=0, steps=100)
# Into how many granules others are divided beside a tail.
_STREAM = 8
# A new plan has to gain so much of the time that it is compared by.
_GAIN = Fraction(1, 100)


def online(
  workflow: Workflow,
  profile: Profile,
  cluster: Cluster,
  budget: Budget,
  seed: int,
) -> Plan:
  """Returns the plan to begin with: that of `auto`.

  Args:
    workflow: what is planned.
    profile: its durations.
    cluster: on what.
    budget: of `auto`.
    seed: of all choices.

  Raises:
    InfeasiblePlanError: no plan was found that fits.
    ProfileError: a stage is profiled on no class of the cluster.
  """
  plan = auto.auto(workflow, profile, cluster, budget, seed)
  return dataclasses.replace(plan, label="online")


def make_policy(
  workflow: Workflow,
  profile: Profile,
  cluster: Cluster,
  budget: Budget,
  seed: int,
) -> OnlinePolicy:
  """Returns a policy that plans again at every event.

  Where devices left or joined, or a stage drifted, it asks `auto` for a plan on
  the devices that are there, with the stages' times as they are now. Where a
  tail empties, it looks for plans that leave the rest of the decode to a few
  devices, so that what follows can begin on the others.

  Args:
    workflow: what is planned.
    profile: by which the plan was made.
    cluster: with all devices that are ever there.
    budget: of each new plan.
    seed: of all choices.
  """
  costs = prices.of(workflow, profile, cluster)

  def policy(snapshot: Snapshot) -> Plan | None:
    now = scaled(profile, snapshot.ratios)
    try:
      if snapshot.reason == "tail":
        new = prices.of(workflow, now, cluster)
        found = list(_with_tails(snapshot, new, costs, seed))
      else:
        found = [_planned(snapshot.devices, now, costs, budget, seed)]
    except errors.SchedulerError:
      return None
    return _best(snapshot, found)

  return policy


def _best(snapshot: Snapshot, found: Sequence[FlatPlan]) -> Plan | None:
  """Returns the plan that gains most, or None to go on as before."""
  best_ns = None
  used = (resource.devices for resource in snapshot.plan.resources)
  if functools.reduce(Devices.__or__, used).issubset(snapshot.devices):
    best_ns = _score_ns(snapshot.plan, snapshot) * (1 - _GAIN)
  best: Plan | None = None
  for plan in found:
    score_ns = _score_ns(plan, snapshot)
    if best_ns is None or score_ns < best_ns:
      best, best_ns = plan, score_ns
  return best


def _score_ns(plan: FlatPlan, snapshot: Snapshot) -> Fraction:
  """Returns the time of what is left of an iteration, and of the next."""
  now = _retimed(plan, snapshot.ratios)
  return remaining_ns(now, snapshot.begun) + cycles.period_ns(now)


def _retimed(plan: FlatPlan, ratios: Mapping[str, float]) -> FlatPlan:
  """Returns a plan as fast as its stages are now."""
  if all(ratio == 1.0 for ratio in ratios.values()):
    return plan
  return dataclasses.replace(
    plan,
    activities=tuple(
      dataclasses.replace(
        a, duration_ns=round(a.duration_ns * ratios.get(a.stage, 1.0))
      )
      if a.kind == "compute"
      else a
      for a in plan.activities
    ),
  )


def _planned(
  devices: Devices,
  now: Profile,
  costs: Prices,
  budget: Budget,
  seed: int,
) -> FlatPlan:
  """Returns `auto`'s plan on the devices that are there."""
  workflow, cluster = costs.workflow, costs.cluster
  if devices == cluster.devices:
    return _lowered(auto.auto(workflow, now, cluster, budget, seed), costs)
  part = _restricted(cluster, devices)
  index = list(devices)
  plan = auto.auto(workflow, now, part, budget, seed)
  moved = _moved(plan, lambda own: Devices.of(index[i] for i in own))
  return _lowered(moved, costs)


def _restricted(cluster: Cluster, devices: Devices) -> Cluster:
  """Returns a cluster of some devices, which are numbered from 0."""
  nodes: list[Nodes] = []
  start = 0
  for kind in cluster.nodes:
    for _ in range(kind.num_nodes):
      stop = start + kind.devices_per_node
      left = len(devices & Devices.span(start, stop))
      start = stop
      if not left:
        continue
      if (
        nodes
        and nodes[-1].devices_per_node == left
        and nodes[-1].device_class == kind.device_class
      ):
        nodes[-1] = dataclasses.replace(
          nodes[-1], num_nodes=nodes[-1].num_nodes + 1
        )
      else:
        nodes.append(
          dataclasses.replace(kind, num_nodes=1, devices_per_node=left)
        )
  index = {device: i for i, device in enumerate(devices)}
  groups = (
    Devices.of(index[i] for i in group & devices) for group in cluster.groups
  )
  return dataclasses.replace(
    cluster,
    nodes=tuple(nodes),
    groups=tuple(group for group in groups if group.spans),
  )


def _moved(plan: Plan, devices_fn: Callable[[Devices], Devices]) -> Plan:
  """Returns a plan on other devices, as many."""
  if isinstance(plan, TreePlan):
    root = tree_moves.on_devices(plan.root, lambda run: devices_fn(run.devices))
    return plan if root is None else dataclasses.replace(plan, root=root)
  resources = []
  for resource in plan.resources:
    own = devices_fn(resource.devices)
    name = str(own) if own.spans else f"link {resource.name}"
    resources.append(dataclasses.replace(resource, name=name, devices=own))
  return dataclasses.replace(plan, resources=tuple(resources))


def _lowered(plan: Plan, costs: Prices) -> FlatPlan:
  """Returns a plan as flat, with the times of the profile."""
  if isinstance(plan, TreePlan):
    given = costs.workflow, costs.profile, costs.cluster
    return lowering.lower(plan, *given)
  return dataclasses.replace(
    plan,
    activities=tuple(
      dataclasses.replace(a, duration_ns=_nominal_ns(plan, a, costs))
      if a.kind == "compute"
      else a
      for a in plan.activities
    ),
  )


def _nominal_ns(plan: FlatPlan, activity: Activity, costs: Prices) -> int:
  """Returns the time of a compute by the profile."""
  owned = (plan.resources[r].devices for r in activity.resources)
  run = Run(
    stage=activity.stage,
    devices=functools.reduce(Devices.__or__, owned),
    granule=activity.items[1] - activity.items[0],
    config=activity.config,
    share=activity.items,
    cohort=activity.cohort,
  )
  return sum(costs.granules(run, activity.items).durations_ns)


def _with_tails(
  snapshot: Snapshot, now: Prices, costs: Prices, seed: int
) -> Iterator[FlatPlan]:
  """Yields plans in which a few devices keep the tail that is left."""
  stage = now.stages[snapshot.stage]
  done = max((stop for _, stop in snapshot.begun[stage.name]), default=0)
  done = done // stage.group * stage.group
  fits = stage.granule_min <= done <= stage.items - stage.granule_min
  if not fits or not layouts.applies_to(now):
    return
  tails = [
    Piece(
      stage=stage.name,
      granule=_granule(snapshot.plan, stage.name),
      share=share,
      cohort=(0, stage.items),
    )
    for share in ((0, done), (done, stage.items))
  ]
  place = _place(snapshot.plan, stage.name)
  for atoms, stream in itertools.product(layouts.usual(now), (0, _STREAM)):
    here = (atom & snapshot.devices for atom in atoms)
    layout = Layout(
      atoms=tuple(atom for atom in here if atom.spans),
      pieces=tuple(_pieces(snapshot.plan, now, tails, stream)),
    )
    board = layout.board(now)
    # What is done was done as the plan in force says.
    board.fix(layout.pieces.index(tails[0]), *place)
    for found in seating.search(board, _EFFORT, seed)[:1]:
      yield _lowered(seating.flat(board, found, "online"), costs)


def _pieces(
  plan: FlatPlan, now: Prices, tails: list[Piece], stream: int
) -> Iterator[Piece]:
  """Yields a decode in two, and all others as a plan has them, or finer."""
  for name in now.order:
    if name == tails[0].stage:
      yield from tails
      continue
    granule = _granule(plan, name)
    if stream:
      granule = min(granule, granules.of_stream(now.stages[name], stream))
    yield Piece(stage=name, granule=granule)


def _place(plan: FlatPlan, name: str) -> tuple[Devices, Config]:
  """Returns where a plan runs a stage's first granule, and how."""
  first = next(
    a for a in plan.activities if a.kind == "compute" and a.stage == name
  )
  owned = (plan.resources[r].devices for r in first.resources)
  return functools.reduce(Devices.__or__, owned), first.config


def _granule(plan: FlatPlan, name: str) -> int:
  return max(
    a.items[1] - a.items[0]
    for a in plan.activities
    if a.kind == "compute" and a.stage == name
  )


def scaled(profile: Profile, ratios: Mapping[str, float]) -> Profile:
  """Returns a profile in which stages take so many times as long."""
  return dataclasses.replace(
    profile,
    entries=tuple(
      dataclasses.replace(entry, law=_slowed(entry.law, ratios[entry.stage]))
      if ratios.get(entry.stage, 1.0) != 1.0
      else entry
      for entry in profile.entries
    ),
  )


def remaining_ns(
  plan: FlatPlan, begun: Mapping[str, Sequence[tuple[int, int]]]
) -> int:
  """Returns the time of what is left of one iteration.

  Args:
    plan: in the order in which it would have run.
    begun: by stage the items that are done or under way; what is under way is
      taken to be done.
  """
  left = [_left_ns(a, begun) for a in plan.activities]
  sorter: graphlib.TopologicalSorter[int] = graphlib.TopologicalSorter()
  before: list[list[int]] = [[] for _ in plan.activities]
  for arc in (*plan.arcs, *plans.order_arcs(plan)):
    if arc.lag == 0 and arc.source != arc.target:
      before[arc.target].append(arc.source)
  for i, sources in enumerate(before):
    sorter.add(i, *sources)
  ends = [0] * len(left)
  for i in sorter.static_order():
    ends[i] = max((ends[j] for j in before[i]), default=0) + left[i]
  return max(ends, default=0)


def _left_ns(
  activity: Activity, begun: Mapping[str, Sequence[tuple[int, int]]]
) -> int:
  """Returns the time of what is left of an activity."""
  if activity.kind == "compute":
    start, stop = activity.items
    done = sum(
      max(0, min(b, stop) - max(a, start))
      for a, b in begun.get(activity.stage, ())
    )
    return activity.duration_ns * (stop - start - done) // (stop - start)
  reader = activity.target or activity.stage
  return 0 if begun.get(reader) else activity.duration_ns


def _slowed(law: Law, ratio: float) -> Law:
  if isinstance(law, ComputeLaw):
    return dataclasses.replace(
      law,
      flop_per_item=law.flop_per_item * ratio,
      overhead_s=law.overhead_s * ratio,
    )
  if isinstance(law, DecodeLaw):
    return dataclasses.replace(
      law,
      t0_s=law.t0_s * ratio,
      weight_bytes=law.weight_bytes * ratio,
      kv_bytes_per_token=law.kv_bytes_per_token * ratio,
      num_params=law.num_params * ratio,
    )
  return dataclasses.replace(
    law,
    samples=tuple(
      dataclasses.replace(sample, seconds=sample.seconds * ratio)
      for sample in law.samples
    ),
  )
