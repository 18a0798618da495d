"""Plans that are replaced while they run.

A policy is asked at events. Where it returns a plan, that plan is of the whole
workflow, and of it runs what is left to do: what is done stays done, what is
under way ends as it began, and the rest waits for it where it shares devices or
items with it.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler import errors, lowering, timelines
from scheduler.clusters import Cluster
from scheduler.devices import Devices
from scheduler.plans import FlatPlan, Plan
from scheduler.profiles import Profile
from scheduler.simulation import (
  instances,
  loads,
  perturbations,
  records,
  remainders,
  routes,
  snapshots,
  stretches,
)
from scheduler.simulation.clock import Clock
from scheduler.simulation.epochs import Epoch
from scheduler.simulation.stretches import NEVER_NS
from scheduler.workflows import Workflow


def run_online(
  plan: Plan,
  policy: snapshots.OnlinePolicy,
  *,
  iterations: int,
  workflow: Workflow,
  profile: Profile,
  cluster: Cluster,
  disturbances: Sequence[snapshots.Disturbance] = (),
  durations_fn: perturbations.DurationsFn | None = None,
  tail_share: float = 0.1,
  drift_share: float = 0.15,
) -> timelines.Timeline:
  """Returns what happens when a policy may change the plan at events.

  Links are shared fairly, as `simulation.run` does on a cluster. Where a new
  plan has a stage's state stay on devices that did not have it, the state is
  loaded first, in the time of a swap; what leaves makes room at once.

  Args:
    plan: to begin with.
    policy: asked when at most `tail_share` of a decode's items are left, when
      devices leave or join, and when a stage took `drift_share` more or less
      in an iteration than was known.
    iterations: how many.
    workflow: that is planned.
    profile: by which trees are lowered, a policy's too; a flat plan has to have
      its durations.
    cluster: with all devices that are ever there.
    disturbances: what happens meanwhile.
    durations_fn: how long activities take before drifts; None: as planned.
    tail_share: of a decode's items.
    drift_share: of a stage's time.

  Raises:
    InfeasiblePlanError: activities wait for each other, or for devices that do
      not return.
    SchedulerError: a disturbance is of no stage, or before the start.
  """
  stretches.check_iterations(iterations)
  for disturbance in disturbances:
    if disturbance.at_ns < 0:
      raise errors.SchedulerError(
        f"{disturbance} lies before the start; at_ns has to be at least 0"
      )
    if isinstance(disturbance, snapshots.Drift):
      workflow.stage(disturbance.stage)
  online = _Online(
    policy,
    iterations,
    workflow,
    profile,
    cluster,
    disturbances,
    durations_fn or (lambda plan, i: [a.duration_ns for a in plan.activities]),
    tail_share,
    drift_share,
  )
  return online.run(plan)


class _Online:
  """A run under way."""

  def __init__(
    self,
    policy: snapshots.OnlinePolicy,
    iterations: int,
    workflow: Workflow,
    profile: Profile,
    cluster: Cluster,
    disturbances: Sequence[snapshots.Disturbance],
    durations_fn: perturbations.DurationsFn,
    tail_share: float,
    drift_share: float,
  ):
    self._policy, self._durations_fn = policy, durations_fn
    self._iterations = iterations
    self._workflow, self._profile = workflow, profile
    self._cluster = cluster
    self._tail_share, self._drift_share = tail_share, drift_share
    self._to_come = sorted(disturbances, key=lambda d: d.at_ns)
    self._away = _away_at_first(self._to_come)
    self._clock = Clock()
    self._begun = remainders.Begun(workflow)
    self._present: dict[str, Devices] = {}  # state, by stage
    self._epochs: list[Epoch] = []
    self._where: dict[int, tuple[Epoch, int]] = {}  # of nodes: instances
    self._waiting: set[int] = set()  # nodes of epochs that have not begun
    self._running: set[int] = set()
    self._gates: dict[int, int] = {}  # by instant, nodes that stop at it
    self._factors: dict[str, float] = {}
    self._ratios = {stage.name: 1.0 for stage in workflow.stages}
    # Of a stage in an iteration: items, time, and time that was planned.
    self._sums: dict[tuple[str, int], tuple[float, int, float]] = {}
    self._tails: set[tuple[str, int]] = set()

  def run(self, plan: Plan) -> timelines.Timeline:
    self._load(plan)
    self._clock.run(self._observe, [d.at_ns for d in self._to_come])
    self._check_all_ran()
    ends = [*(epoch.begin_ns for epoch in self._epochs[1:]), NEVER_NS]
    return records.timeline(
      [e.stretch(self._clock, stop) for e, stop in zip(self._epochs, ends)]
    )

  def _load(self, plan: Plan) -> None:
    """Puts a plan in force, in the place of the one that was."""
    given = lowering.lower(plan, self._workflow, self._profile, self._cluster)
    flat = given
    if self._epochs:
      for node in self._waiting:
        self._clock.cancel(node)
      self._waiting.clear()
      flat = loads.added(flat, self._present, self._workflow, self._cluster)
      kept = loads.residents(flat)
      self._present = {
        stage: devices & kept.get(stage, Devices())
        for stage, devices in self._present.items()
      }
    else:
      self._present = loads.residents(flat)
    left = self._left(flat)
    lengths_ns: list[int] = []
    for i in range(self._iterations):
      lengths_ns += self._durations_fn(flat, i)
    for instance, share in left.shares.items():
      lengths_ns[instance] = round(lengths_ns[instance] * share)
    nodes = instances.add(
      self._clock,
      flat,
      lengths_ns,
      routes.routes(flat, self._cluster),
      inherited=left.inherited,
      before=self._under_way(flat),
    )
    epoch = Epoch(
      given=given,
      plan=flat,
      left=left,
      lengths_ns=lengths_ns,
      nodes=nodes,
      begin_ns=self._clock.now_ns,
    )
    self._epochs.append(epoch)
    for instance, node in enumerate(nodes):
      if node >= 0:
        self._where[node] = (epoch, instance)
        self._waiting.add(node)
    for stage in self._factors:
      self._slow_down(stage)
    self._hold_back(self._away)

  def _left(self, flat: FlatPlan) -> remainders.Remainder:
    """Returns what is left; of loads only the first that is needed."""
    left = remainders.remainder(
      flat, self._begun, self._workflow, self._iterations
    )
    n = len(flat.activities)
    for k, a in enumerate(flat.activities):
      if loads.is_load(a):
        all_of_it = range(k, n * self._iterations, n)
        needed = [x for x in all_of_it if x not in left.inherited]
        left.inherited.update((x, ()) for x in needed[1:])
    return left

  def _under_way(self, flat: FlatPlan) -> dict[int, list[int]]:
    """Returns which nodes each resource of a new plan has to wait for."""
    found: dict[int, list[int]] = {r: [] for r in range(len(flat.resources))}
    for node in sorted(self._running):
      epoch, instance = self._where[node]
      activity = epoch.activity(instance)
      names = {epoch.plan.resources[r].name for r in activity.resources}
      devices = epoch.devices(instance)
      for r, resource in enumerate(flat.resources):
        if resource.name in names or not devices.isdisjoint(resource.devices):
          found[r].append(node)
    return found

  def _observe(self, stopped: Sequence[int]) -> None:
    """Lets happen what happens now, and asks the policy about it."""
    reasons: list[tuple[snapshots.Reason, str]] = []
    while self._to_come and self._to_come[0].at_ns == self._clock.now_ns:
      reasons += self._disturb(self._to_come.pop(0))
    for node in stopped:
      if node in self._where:
        reasons += self._account(*self._where[node], node)
    for reason, stage in reasons:
      self._ask(reason, stage)

  def _disturb(
    self, happened: snapshots.Disturbance
  ) -> list[tuple[snapshots.Reason, str]]:
    if isinstance(happened, snapshots.Leave):
      self._away = self._away | happened.devices
      self._hold_back(happened.devices)
      return [("leave", "")]
    if isinstance(happened, snapshots.Join):
      self._away = self._away - happened.devices
      return [("join", "")]
    self._factors[happened.stage] = happened.factor
    self._slow_down(happened.stage)
    return []

  def _account(
    self, epoch: Epoch, instance: int, node: int
  ) -> list[tuple[snapshots.Reason, str]]:
    """Counts what is done, and returns what is remarkable about it."""
    a, iteration = epoch.activity(instance), epoch.iteration(instance)
    if a.kind != "compute":
      return []
    stage = self._workflow.stage(a.stage)
    loop = self._workflow.loop_of(a.stage)
    share = epoch.left.shares.get(instance, 1.0)
    start, stop = remainders.span(a)
    done, spent_ns, planned_ns = self._sums.get((a.stage, iteration), (0, 0, 0))
    done += round(share * (stop - start))
    spent_ns += self._clock.stops_ns[node] - self._clock.starts_ns[node]
    planned_ns += a.duration_ns * share
    self._sums[a.stage, iteration] = done, spent_ns, planned_ns
    reasons: list[tuple[snapshots.Reason, str]] = []
    left = stage.items * (loop.turns if loop else 1) - done
    if stage.kind == "decode" and left <= self._tail_share * stage.items:
      if loop is None and (a.stage, iteration) not in self._tails:
        self._tails.add((a.stage, iteration))
        reasons.append(("tail", a.stage))
    if left == 0 and planned_ns > 0:
      ratio, known = spent_ns / planned_ns, self._ratios[a.stage]
      if abs(ratio - known) >= self._drift_share * known:
        self._ratios[a.stage] = ratio
        reasons.append(("drift", a.stage))
    return reasons

  def _ask(self, reason: snapshots.Reason, stage: str) -> None:
    self._note()
    iterations = [
      epoch.iteration(instance)
      for epoch, instance in map(
        self._where.__getitem__, self._waiting | self._running
      )
      if epoch.activity(instance).kind in remainders.COMPUTES
    ]
    if not iterations or not self._waiting:
      return
    answer = self._policy(
      snapshots.Snapshot(
        reason=reason,
        stage=stage,
        now_ns=self._clock.now_ns,
        plan=self._epochs[-1].given,
        devices=self._cluster.devices - self._away,
        iteration=min(iterations),
        begun={
          s.name: self._begun.items(s.name, min(iterations))
          for s in self._workflow.stages
        },
        ratios=dict(self._ratios),
      )
    )
    if answer is not None:
      self._load(answer)

  def _note(self) -> None:
    """Notes which nodes have begun, and which of them are done."""
    clock = self._clock
    begun = [n for n in self._waiting if clock.starts_ns[n] != NEVER_NS]
    for node in sorted(begun):
      epoch, instance = self._where[node]
      a = epoch.activity(instance)
      self._begun.add(
        epoch.plan, a, epoch.iteration(instance), epoch.items(instance), node
      )
      if loads.is_load(a):
        devices = epoch.devices(instance)
        present = self._present.get(a.stage, Devices())
        self._present[a.stage] = present | devices
    self._waiting -= set(begun)
    self._running |= set(begun)
    self._running = {n for n in self._running if clock.stops_ns[n] == NEVER_NS}

  def _slow_down(self, stage: str) -> None:
    """Gives what a stage has not begun its length after a drift."""
    epoch = self._epochs[-1]
    for instance, node in enumerate(epoch.nodes):
      a = epoch.activity(instance)
      if node >= 0 and a.stage == stage and a.kind in remainders.COMPUTES:
        length_ns = round(epoch.lengths_ns[instance] * self._factors[stage])
        self._clock.lengths_ns[node] = length_ns

  def _hold_back(self, devices: Devices) -> None:
    """Lets what has not begun on devices wait until they are back."""
    if not devices.spans:
      return
    for node in sorted(self._waiting):
      epoch, instance = self._where[node]
      own = epoch.devices(instance)
      if own.isdisjoint(devices) or self._clock.starts_ns[node] != NEVER_NS:
        continue
      back_ns = self._back_ns(own)
      if back_ns == NEVER_NS:
        self._clock.cancel(node)
        continue
      if back_ns not in self._gates:
        length_ns = back_ns - self._clock.now_ns
        self._gates[back_ns] = self._clock.add(length_ns)
      self._clock.wait(node, self._gates[back_ns])

  def _back_ns(self, devices: Devices) -> int:
    """Returns when those of the devices that are away will be back."""
    missing = devices & self._away
    for d in self._to_come:
      if not missing.spans:
        break
      if isinstance(d, snapshots.Join):
        missing = missing - d.devices
        back_ns = d.at_ns
    return NEVER_NS if missing.spans else back_ns

  def _check_all_ran(self) -> None:
    self._note()
    if not self._waiting:
      return
    stuck = [self._where[node] for node in sorted(self._waiting)]
    for epoch, instance in stuck:
      devices = epoch.devices(instance) & self._away
      if devices.spans:
        raise errors.InfeasiblePlanError(
          f"{epoch.activity(instance)} of iteration"
          f" {epoch.iteration(instance)} needs the devices '{devices}', which"
          " left and do not return; the policy has to answer with a plan that"
          " does without them"
        )
    epoch, instance = stuck[0]
    raise errors.InfeasiblePlanError(
      f"plan {epoch.plan.label!r} stops before {epoch.activity(instance)} of"
      f" iteration {epoch.iteration(instance)}: activities wait for each other"
      " in a circle; change an order or a lag"
    )


def _away_at_first(to_come: Sequence[snapshots.Disturbance]) -> Devices:
  """Returns the devices that join before they ever left."""
  away, seen = Devices(), Devices()
  for d in to_come:
    if not isinstance(d, snapshots.Drift):
      if isinstance(d, snapshots.Join):
        away = away | (d.devices - seen)
      seen = seen | d.devices
  return away
