"""Whether a tree fits its workflow, and what its Runs stand for."""

from __future__ import annotations

import dataclasses
import itertools

from scheduler import errors, plans
from scheduler.devices import Devices
from scheduler.lowering import limits, loops
from scheduler.plans import Lanes, Node, Run, Spatial, Temporal, TreePlan
from scheduler.prices import Interval, Prices
from scheduler.workflows import Edge, Stage


@dataclasses.dataclass(kw_only=True, slots=True)
class Track:
  """A Run, and what it became.

  Granules are listed in item order. In a loop there is one for each lane, of
  which `first` and `last` name the activities of the first and last turn.

  Attributes:
    run: the Run.
    stage: its stage.
    share: the items it emits.
    cohort: what it decodes together; None: granules by themselves.
    resources: indices of the atoms of its devices.
    starts: first item of each granule.
    stops: last item of each granule, plus one.
    first: the activity that reads a granule's items.
    last: the activity that emits them.
    turns: in a loop, the activity of each turn and lane.
    visits: of each stretch on its devices the first and last
      compute, and how many items its largest granule has.
    swaps: of each stretch and resource the swap_in and swap_out.
    applies: the apply of each update that ends in this Run.
    syncs: the weight sync before its first granule, by the sync's source.
  """

  run: Run
  stage: Stage
  share: Interval
  cohort: Interval | None
  resources: tuple[int, ...]
  starts: list[int] = dataclasses.field(default_factory=list)
  stops: list[int] = dataclasses.field(default_factory=list)
  first: list[int] = dataclasses.field(default_factory=list)
  last: list[int] = dataclasses.field(default_factory=list)
  turns: list[list[int]] = dataclasses.field(default_factory=list)
  visits: list[tuple[int, int, int]] = dataclasses.field(default_factory=list)
  swaps: list[tuple[int, int, int]] = dataclasses.field(default_factory=list)
  applies: dict[int, int] = dataclasses.field(default_factory=dict)
  syncs: dict[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
  """A tree that fits its workflow.

  Attributes:
    atoms: disjoint sets of devices, of which each Run's are a union.
    tracks: in the order of the tree.
    of_run: the track of each Run, by the Run's identity.
    of_stage: the tracks of each stage, by share.
  """

  atoms: tuple[Devices, ...]
  tracks: tuple[Track, ...]
  of_run: dict[int, Track]
  of_stage: dict[str, tuple[Track, ...]]


def arrange(plan: TreePlan, costs: Prices) -> Layout:
  """Returns the tracks of a tree.

  Raises:
    InfeasiblePlanError: the tree contradicts itself or the workflow.
  """
  found = tuple(plans.runs(plan.root))
  _check_stages(plan, found, costs)
  devices_of(plan.root)
  loops.check(plan.root, costs)
  for run in found:
    costs.check_no_queue(run)
  return laid_out(found, costs)


def laid_out(found: tuple[Run, ...], costs: Prices) -> Layout:
  """Returns the tracks of Runs, on whatever devices.

  Raises:
    InfeasiblePlanError: the Runs of a stage do not add up to it.
  """
  looped = {name for loop in costs.workflow.loops for name in loop.stages}
  atoms, parts = costs.atoms(tuple(run.devices for run in found))
  tracks = tuple(
    Track(
      run=run,
      stage=costs.stages[run.stage],
      share=costs.share(run),
      cohort=None if run.stage in looped else costs.cohort(run),
      resources=part,
    )
    for run, part in zip(found, parts)
  )
  of_stage: dict[str, tuple[Track, ...]] = {}
  for name in costs.stages:
    own = [track for track in tracks if track.run.stage == name]
    of_stage[name] = tuple(sorted(own, key=lambda track: track.share))
    _check_shares(costs.stages[name], of_stage[name], name in looped)
  count = sum(
    -(-(t.share[1] - t.share[0]) // t.run.granule)
    for t in tracks
    if t.run.stage not in looped
  )
  if count > limits.MAX_ACTIVITIES:
    raise limits.too_many(count)
  return Layout(
    atoms=atoms,
    tracks=tracks,
    of_run={id(track.run): track for track in tracks},
    of_stage=of_stage,
  )


def devices_of(node: Node) -> Devices:
  """Returns the devices of a subtree.

  Raises:
    InfeasiblePlanError: children of a Spatial share devices, or those of a
      Temporal do not take turns on one set of which the others are parts.
  """
  if isinstance(node, Run):
    return node.devices
  if isinstance(node, Lanes):
    return devices_of(node.body)
  sets = [devices_of(child) for child in node.children]
  union = sets[0]
  for i, devices in enumerate(sets[1:], start=1):
    if isinstance(node, Spatial) and not devices.isdisjoint(union):
      j = next(j for j in range(i) if not devices.isdisjoint(sets[j]))
      raise errors.InfeasiblePlanError(
        f"{_name(node.children[j])} and {_name(node.children[i])} run side by"
        f" side (Spatial) but share the devices '{devices & sets[j]}'; give"
        " them disjoint ones, or let them take turns (Temporal)"
      )
    if devices != union:
      union = union | devices
  if isinstance(node, Temporal) and union not in sets:
    listed = ", ".join(
      f"{_name(child)} on '{devices}'"
      for child, devices in zip(node.children, sets)
    )
    raise errors.InfeasiblePlanError(
      f"children of a Temporal take turns on one set of devices: {listed}; one"
      " of them must have all the devices of the others, or use Spatial"
    )
  return union


def lane_spans(lanes: Lanes) -> tuple[Interval, ...]:
  """Returns the items of each lane."""
  stops = tuple(itertools.accumulate(lanes.lanes))
  return tuple(zip((0, *stops), stops))


def awaited(edge: Edge, source: Stage, reader: Track) -> list[int]:
  """Returns how many items are there before each of a reader's granules.

  A decode works on its whole cohort from its first granule on.
  """
  target = reader.stage
  if target.needs_all:
    return [source.items] * len(reader.stops)
  stops = reader.stops
  if reader.cohort is not None:
    stops = [reader.cohort[1]] * len(stops)
  return [needed(edge, source, target, (0, stop))[1] for stop in stops]


def received(edge: Edge, source: Stage, reader: Track) -> Interval:
  """Returns the source's items that are brought to a reader's devices.

  A decode takes those of its cohort where that begins, and none later.
  """
  items = reader.cohort or reader.share
  if items[0] != reader.share[0]:
    return 0, 0
  return needed(edge, source, reader.stage, items)


def needed(
  edge: Edge, source: Stage, target: Stage, items: Interval
) -> Interval:
  """Returns the source's items that some items of the target read.

  They are widened to whole groups, which are complete together.
  """
  if edge.reads == "all":
    return 0, source.items
  start = items[0] * source.items // target.items
  stop = -(-items[1] * source.items // target.items)
  group = source.group
  return start // group * group, min(source.items, -(-stop // group) * group)


def capacities(node: Node, layout: Layout) -> dict[tuple[int, int], int]:
  """Returns what channels hold, by the identities of writer and reader."""
  if isinstance(node, (Run, Lanes)):
    return {}
  found: dict[tuple[int, int], int] = {}
  for child in node.children:
    found |= capacities(child, layout)
  if isinstance(node, Spatial) and node.capacity is not None:
    sides = [
      [id(layout.of_run[id(run)]) for run in plans.runs(child)]
      for child in node.children
    ]
    for writers, readers in itertools.permutations(sides, 2):
      for pair in itertools.product(writers, readers):
        found[pair] = node.capacity
  return found


def _name(node: Node) -> str:
  names = list(dict.fromkeys(run.stage for run in plans.runs(node)))
  return " + ".join(repr(name) for name in names)


def _check_stages(
  plan: TreePlan, found: tuple[Run, ...], costs: Prices
) -> None:
  placed = {run.stage for run in found}
  if unknown := sorted(placed - costs.stages.keys()):
    raise errors.InfeasiblePlanError(
      f"the tree runs {unknown[0]!r}, which is no stage of workflow"
      f" {costs.workflow.name!r}; it has {list(costs.stages)}"
    )
  if missing := [name for name in costs.stages if name not in placed]:
    raise errors.InfeasiblePlanError(
      f"the tree does not run stage {missing[0]!r} of workflow"
      f" {costs.workflow.name!r}; add a Run of it"
    )
  targets = {sync.target for sync in costs.workflow.syncs}
  if strange := [name for name in plan.copies if name not in targets]:
    raise errors.InfeasiblePlanError(
      f"copies names {strange[0]!r}, which receives no weights; those that do:"
      f" {sorted(targets)}"
    )


def _check_shares(
  stage: Stage, own: tuple[Track, ...], is_looped: bool
) -> None:
  reached = 0
  for track in own:
    start, stop = track.share
    if start < reached:
      raise errors.InfeasiblePlanError(
        f"two Runs of stage {stage.name!r} emit items {start} to"
        f" {min(reached, stop) - 1}; give them shares that do not overlap"
      )
    if start > reached:
      raise errors.InfeasiblePlanError(
        f"no Run of stage {stage.name!r} emits items {reached} to {start - 1}"
      )
    size = stage.items // stage.updates
    if start % size % stage.quantum:
      raise errors.InfeasiblePlanError(
        f"a share of stage {stage.name!r} begins at item {start} and cuts a"
        f" quantum; begin shares at multiples of {stage.quantum} items"
      )
    if stop - start < stage.granule_min:
      raise errors.InfeasiblePlanError(
        f"a share of {stop - start} items of stage {stage.name!r}, whose"
        f" granules have at least {stage.granule_min}"
      )
    if track.run.cohort is not None:
      _check_cohort(stage, track.run.cohort, own)
    if not is_looped:
      stage.check_granule(track.run.granule)
    reached = stop
  if reached != stage.items:
    raise errors.InfeasiblePlanError(
      f"the shares of stage {stage.name!r} end at item {reached}; it has"
      f" {stage.items} items"
    )


def _check_cohort(
  stage: Stage, cohort: Interval, own: tuple[Track, ...]
) -> None:
  if stage.kind != "decode":
    raise errors.InfeasiblePlanError(
      f"stage {stage.name!r} is of kind {stage.kind!r} and cannot have the"
      f" cohort {cohort}; only a decode works on items before it emits them"
    )
  if cohort[1] > stage.items:
    raise errors.InfeasiblePlanError(
      f"stage {stage.name!r} has the cohort {cohort} of {stage.items} items"
    )
  if len({t.cohort for t in own if t.run.cohort == cohort}) > 1:
    raise errors.InfeasiblePlanError(
      f"the Runs of stage {stage.name!r} with the cohort {cohort} are not all"
      " timed by a DecodeLaw; one cannot go on with what another has begun"
    )
  begun = [t.share for t in own if t.run.cohort == cohort]
  if begun[0][0] != cohort[0] or begun[-1][1] != cohort[1]:
    raise errors.InfeasiblePlanError(
      f"the Runs of stage {stage.name!r} with the cohort {cohort} emit only"
      f" {begun}; all its items are decoded together and have to be emitted"
    )
