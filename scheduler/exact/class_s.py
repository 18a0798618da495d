"""Class S: what the exact solver solves, as integers.

A case (workflow, profile, cluster) belongs to class S if
- its stages form a series-parallel graph with one source and one sink;
- its cluster is divided into at most 4 disjoint groups of one device class;
- every stage has the same number of equal granules, handled first in, first
  out, whose times depend on nothing but the mode: a union of groups and a
  configuration, the same for the whole iteration;
- nothing but computing and swapping takes time, and channels hold everything;
- the staleness is 0, so that one iteration is alive at a time.

If all stages on a group fit into its memory together they stay there.
Otherwise only one does at a time, and a change from stage u to stage v takes
the group swap_out(u) + swap_in(v). What is minimised is the period of a
1-periodic schedule. Swaps between an iteration's last stage on a group and the
next iteration's first are part of the period, but may overlap with what other
groups do.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Collection, Sequence

from scheduler import durations, errors, transfers, workflows
from scheduler.clusters import Cluster, DeviceClass
from scheduler.devices import Devices
from scheduler.profiles import Config, Profile
from scheduler.workflows import Stage, Workflow

MAX_GROUPS = 4


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Mode:
  """How a stage may run.

  Attributes:
    groups: bit g is set where group g is used.
    config: of each replica.
    duration: ticks of a granule.
    swap: ticks in which its state leaves a group, or returns.
    state_bytes: resident, per device.
    transient_bytes: of a granule, per device.
  """

  groups: int
  config: Config
  duration: int
  swap: int
  state_bytes: int
  transient_bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
  """A case of class S.

  Attributes:
    stages: names, each after those it reads from.
    preds: for each stage the indices of those it reads from.
    num_granules: of every stage.
    granules: items of a granule, by stage.
    groups: the devices of each group.
    memory_bytes: of one device.
    modes: of each stage.
    tick_ns: nanoseconds of a tick.
  """

  stages: tuple[str, ...]
  preds: tuple[tuple[int, ...], ...]
  num_granules: int
  granules: tuple[int, ...]
  groups: tuple[Devices, ...]
  memory_bytes: int
  modes: tuple[tuple[Mode, ...], ...]
  tick_ns: int


Assignment = tuple[int, ...]  # for each stage the index of its mode


def read(
  workflow: Workflow,
  profile: Profile,
  cluster: Cluster,
  *,
  num_granules: int | None = None,
) -> Problem:
  """Returns a case as integers.

  Args:
    workflow: what is planned.
    profile: its durations.
    cluster: divided into groups.
    num_granules: of every stage; None: the only number that it allows.

  Raises:
    OutsideClassError: saying why the case is not in class S.
    InfeasiblePlanError: a stage fits into memory nowhere.
    ProfileError: the profile was not measured where it is needed.
  """
  device = _device_class(cluster)
  _check_workflow(workflow)
  names = workflows.topological_order(workflow)
  stages = tuple(workflow.stage(name) for name in names)
  if num_granules is None:
    num_granules = _only_number(stages[0])
  granules = tuple(_granule(stage, num_granules) for stage in stages)
  modes = [
    _modes(stage, granule, profile, cluster, device)
    for stage, granule in zip(stages, granules)
  ]
  _check_hosts(stages, cluster)
  times = [x for own in modes for m in own for x in (m.duration, m.swap)]
  tick_ns = math.gcd(*times)
  return Problem(
    stages=names,
    preds=tuple(
      tuple(i for i, s in enumerate(names) if (s, name) in _pairs(workflow))
      for name in names
    ),
    num_granules=num_granules,
    granules=granules,
    groups=cluster.groups,
    memory_bytes=device.memory_bytes,
    modes=tuple(
      tuple(
        dataclasses.replace(
          m, duration=m.duration // tick_ns, swap=m.swap // tick_ns
        )
        for m in own
      )
      for own in modes
    ),
    tick_ns=tick_ns,
  )


def swapped_groups(problem: Problem, used: Sequence[Collection[int]]) -> int:
  """Returns the groups, as bits, whose stages do not fit together.

  Args:
    problem: the case.
    used: for each stage the indices of its modes.
  """
  swapped = 0
  for g in range(len(problem.groups)):
    state = transient = 0
    for own, chosen in zip(problem.modes, used):
      on = [own[i] for i in set(chosen) if own[i].groups >> g & 1]
      state += max((m.state_bytes for m in on), default=0)
      transient = max([transient, *(m.transient_bytes for m in on)])
    if state + transient > problem.memory_bytes:
      swapped |= 1 << g
  return swapped


def _device_class(cluster: Cluster) -> DeviceClass:
  groups = cluster.groups
  if not 1 <= len(groups) <= MAX_GROUPS:
    raise errors.OutsideClassError(
      f"the cluster has {len(groups)} groups; class S has 1 to {MAX_GROUPS}:"
      " set Cluster.groups"
    )
  rest = functools.reduce(Devices.__sub__, groups, cluster.devices)
  if rest.spans:
    raise errors.OutsideClassError(
      f"devices '{rest}' belong to no group; in class S groups cover the"
      " cluster"
    )
  try:
    return cluster.class_of(cluster.devices)
  except errors.ClusterError:
    raise errors.OutsideClassError(
      f"the cluster has the device classes {[c.name for c in cluster.classes]};"
      " class S has one"
    ) from None


def _check_workflow(workflow: Workflow) -> None:
  if workflow.staleness:
    raise errors.OutsideClassError(
      f"workflow {workflow.name!r} has staleness {workflow.staleness}; class S"
      " has 0"
    )
  if workflow.loops:
    raise errors.OutsideClassError(
      f"workflow {workflow.name!r} has the loop {workflow.loops[0].name!r};"
      " class S has none"
    )
  links = [(e.source, e.target, e.item_bytes) for e in workflow.edges]
  links += [(s.source, s.target, s.num_bytes) for s in workflow.syncs]
  for source, target, moved in links:
    if moved:
      raise errors.OutsideClassError(
        f"{source!r} -> {target!r} moves {moved} bytes; in class S nothing that"
        " is moved takes time or memory"
      )
  for edge in workflow.edges:
    if edge.reads == "all" or workflow.stage(edge.target).needs_all:
      raise errors.OutsideClassError(
        f"{edge.target!r} waits for all items of {edge.source!r}; in class S"
        " granule i waits for granule i"
      )
  _check_series_parallel(workflow)


def _pairs(workflow: Workflow) -> set[tuple[str, str]]:
  return {(e.source, e.target) for e in workflow.edges}


def _check_series_parallel(workflow: Workflow) -> None:
  names = {stage.name for stage in workflow.stages}
  pairs = _pairs(workflow)
  sources = sorted(names - {t for _, t in pairs})
  sinks = sorted(names - {s for s, _ in pairs})
  if len(sources) != 1 or len(sinks) != 1:
    raise errors.OutsideClassError(
      f"workflow {workflow.name!r} has the sources {sources} and the sinks"
      f" {sinks}; class S has one of each"
    )
  # A stage between two others in series is taken out; edges in parallel are
  # one, as `pairs` is a set. A series-parallel graph ends as one edge.
  inner = names - {*sources, *sinks}
  is_reduced = True
  while is_reduced:
    is_reduced = False
    for name in sorted(inner):
      before = [s for s, t in pairs if t == name]
      after = [t for s, t in pairs if s == name]
      if len(before) == 1 and len(after) == 1:
        pairs -= {(before[0], name), (name, after[0])}
        pairs.add((before[0], after[0]))
        inner.remove(name)
        is_reduced = True
  if inner:
    raise errors.OutsideClassError(
      f"workflow {workflow.name!r} is not series-parallel: the stages"
      f" {sorted(inner)} are linked across branches"
    )


def _only_number(stage: Stage) -> int:
  if stage.granule_min != stage.largest_granule:
    raise errors.OutsideClassError(
      f"stage {stage.name!r} allows granules of {stage.granule_min} to"
      f" {stage.largest_granule} items; say how many granules by num_granules,"
      " or let granule_min and granule_max be equal"
    )
  return max(1, stage.items // stage.granule_min)


def _granule(stage: Stage, num_granules: int) -> int:
  granule = stage.items // max(num_granules, 1)
  if num_granules < 1 or granule * num_granules != stage.items:
    raise errors.OutsideClassError(
      f"the {stage.items} items of stage {stage.name!r} are not {num_granules}"
      " equal granules; in class S every stage has the same number of them"
    )
  whole = math.lcm(stage.quantum, stage.group)
  if (
    not stage.granule_min <= granule <= stage.largest_granule
    or granule % whole
    or stage.items // stage.updates % granule
  ):
    raise errors.OutsideClassError(
      f"stage {stage.name!r} cannot run {num_granules} granules of {granule}"
      f" items: it allows {stage.granule_min} to {stage.largest_granule}, in"
      f" multiples of {whole}, and {stage.items // stage.updates} per update"
    )
  return granule


def _modes(
  stage: Stage,
  granule: int,
  profile: Profile,
  cluster: Cluster,
  device: DeviceClass,
) -> list[Mode]:
  found = []
  needed = 0
  for config in profile.configs(stage.name, device.name):
    for groups in range(1, 1 << len(cluster.groups)):
      used = [d for g, d in enumerate(cluster.groups) if groups >> g & 1]
      devices = sum(map(len, used))
      if devices % config.devices:
        continue
      state = durations.state_bytes(stage, config)
      transient = durations.transient_bytes(
        stage, profile, device, devices, config, granule
      )
      needed = state + transient
      if needed <= device.memory_bytes:
        found.append(
          Mode(
            groups=groups,
            config=config,
            duration=_duration_ns(
              stage, granule, profile, device, devices, config
            ),
            swap=_swap_ns(stage, cluster, state),
            state_bytes=state,
            transient_bytes=transient,
          )
        )
  if not found:
    raise errors.InfeasiblePlanError(
      f"stage {stage.name!r} fits nowhere: devices {device.name!r} have"
      f" {device.memory_bytes} bytes, and it needs"
      f" {needed or 'a configuration that divides some union of groups'}"
    )
  return found


def _duration_ns(
  stage: Stage,
  granule: int,
  profile: Profile,
  device: DeviceClass,
  devices: int,
  config: Config,
) -> int:
  each = set(
    durations.granules_ns(
      stage, profile, device, devices, config, granule, (0, stage.items)
    )
  )
  if len(each) != 1 or not min(each):
    raise errors.OutsideClassError(
      f"granules of stage {stage.name!r} on {devices} devices take"
      f" {sorted(each)} ns; in class S all take the same time, more than 0"
    )
  return each.pop()


def _swap_ns(stage: Stage, cluster: Cluster, state_bytes: int) -> int:
  each = {transfers.swap_ns(cluster, d, state_bytes) for d in cluster.groups}
  if len(each) != 1:
    raise errors.OutsideClassError(
      f"to swap stage {stage.name!r} takes {sorted(each)} ns, by the group; in"
      " class S it takes the same time on all, as where nodes are alike"
    )
  return each.pop()


def _check_hosts(stages: tuple[Stage, ...], cluster: Cluster) -> None:
  needed = sum(stage.state_bytes for stage in stages)
  for nodes in cluster.nodes:
    if needed * nodes.devices_per_node > nodes.host_bytes:
      raise errors.OutsideClassError(
        f"a host with {nodes.host_bytes} bytes may not hold the state of all"
        f" stages, {needed} bytes for each of its {nodes.devices_per_node}"
        " devices; in class S host memory never binds"
      )
