"""Plans: trees for planners and people, flat ones for everything else."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Iterator, Sequence
from typing import Literal

from scheduler import documents, errors
from scheduler.devices import Devices
from scheduler.profiles import Config


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Run:
  """A stage on devices.

  Attributes:
    stage: its name.
    devices: all devices of all its replicas.
    granule: items handled at once, by all replicas together.
    config: of each replica.
    share: the items it emits, as a half-open interval in the order in which
      the stage emits them (a decode: shortest groups first); None: all.
    cohort: of a decode, the items that are decoded together, of which `share`
      is a part; a Run whose share begins after its cohort's goes on with what
      an earlier Run left unfinished, at the length where that one stopped.
      None: the share.
    is_resident: its state stays in device memory; otherwise it is swapped in
      before its first granule of a turn and out after its last.
  """

  stage: str
  devices: Devices
  granule: int
  config: Config = Config()
  share: tuple[int, int] | None = None
  cohort: tuple[int, int] | None = None
  is_resident: bool = True

  def __post_init__(self) -> None:
    if not self.devices.spans or self.granule < 1:
      raise errors.InfeasiblePlanError(
        f"stage {self.stage!r} needs devices and a positive granule, got"
        f" '{self.devices}' and {self.granule}"
      )
    if len(self.devices) % self.config.devices:
      raise errors.InfeasiblePlanError(
        f"stage {self.stage!r} on {len(self.devices)} devices cannot have"
        f" replicas of {self.config.devices} ({self.config})"
      )
    for part in (self.share, self.cohort):
      if part is not None and not 0 <= part[0] < part[1]:
        raise errors.InfeasiblePlanError(
          f"stage {self.stage!r} has the share or cohort {part}; expected"
          " 0 <= start < stop"
        )
    if self.cohort is not None and (
      self.share is None
      or not self.cohort[0] <= self.share[0] < self.share[1] <= self.cohort[1]
    ):
      raise errors.InfeasiblePlanError(
        f"stage {self.stage!r} has the share {self.share}, which is no part of"
        f" its cohort {self.cohort}"
      )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Temporal:
  """Children that take turns on the same devices.

  Attributes:
    children: in the order of their turns.
    turn: items of a turn, after which the next child runs, until all items
      are done; None: each child runs once, with all its items.
  """

  children: tuple[Node, ...]
  turn: int | None = None

  def __post_init__(self) -> None:
    if not self.children or (self.turn is not None and self.turn < 1):
      raise errors.InfeasiblePlanError(
        "a Temporal needs children and a positive turn"
      )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Spatial:
  """Children on disjoint devices, joined by channels.

  Attributes:
    children: in the order in which items pass them.
    capacity: items that a channel between two of them holds; None: all.
  """

  children: tuple[Node, ...]
  capacity: int | None = None

  def __post_init__(self) -> None:
    if not self.children or (self.capacity is not None and self.capacity < 1):
      raise errors.InfeasiblePlanError(
        "a Spatial needs children and a positive capacity"
      )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Lanes:
  """A loop of the workflow, its items divided into lanes in flight.

  Attributes:
    loop: the loop's name.
    body: Runs of the loop's stages, under Temporal (one set of devices) or
      Spatial (the stages on devices of their own).
    lanes: items of each lane; equal or not, they add up to the loop's items.
      A Run's granule is not used inside: each lane is one granule.
  """

  loop: str
  body: Node
  lanes: tuple[int, ...]

  def __post_init__(self) -> None:
    if not self.lanes or min(self.lanes) < 1:
      raise errors.InfeasiblePlanError(
        f"loop {self.loop!r} needs lanes of at least one item, got {self.lanes}"
      )


Node = Run | Temporal | Spatial | Lanes


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TreePlan:
  """A plan as a tree.

  Attributes:
    root: the tree. Every stage of the workflow is in it.
    copies: stages that keep a second copy of their weights, so that a weight
      sync overlaps with their work; for others it occupies their devices.
    label: who made it, for people.
  """

  root: Node
  copies: tuple[str, ...] = ()
  label: str = ""


def runs(node: Node) -> Iterator[Run]:
  """Yields every Run of a tree, in its order."""
  if isinstance(node, Run):
    yield node
  elif isinstance(node, Lanes):
    yield from runs(node.body)
  else:
    for child in node.children:
      yield from runs(child)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Resource:
  """What one activity at a time occupies.

  Attributes:
    name: unique, such as "0-7" or "host link of node 0".
    kind: "devices" or "link".
    devices: of kind "devices", those that it stands for.
  """

  name: str
  kind: Literal["devices", "link"] = "devices"
  devices: Devices = Devices()


ActivityKind = Literal[
  "compute", "apply", "swap_in", "swap_out", "transfer", "reshard",
  "weight_sync",
]  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Activity:
  """Something that happens once per iteration.

  Attributes:
    kind: "compute" handles items, "apply" is one update; the others move
      bytes.
    stage: its stage; of a transfer the source's.
    resources: indices of the resources it occupies from start to end.
    duration_ns: nanoseconds.
    items: half-open interval of the stage's items, of a compute.
    index: which of the stage's activities of this kind; in a loop, the turn.
    target: of transfers and weight syncs, the stage that receives.
    num_bytes: moved.
    config: of a compute.
    cohort: of a compute, see `Run`; None: not a decode.
  """

  kind: ActivityKind
  stage: str
  resources: tuple[int, ...]
  duration_ns: int
  items: tuple[int, int] = (0, 0)
  index: int = 0
  target: str = ""
  num_bytes: int = 0
  config: Config = Config()
  cohort: tuple[int, int] | None = None

  def __post_init__(self) -> None:
    if self.duration_ns < 0 or self.num_bytes < 0:
      raise errors.InfeasiblePlanError(
        f"{self.kind} of {self.stage!r} takes {self.duration_ns} ns for"
        f" {self.num_bytes} bytes; neither may be negative"
      )

  def __str__(self) -> str:
    target = f" to {self.target!r}" if self.target else ""
    items = f" [{self.items[0]}, {self.items[1]})" if any(self.items) else ""
    index = f" ({self.index})" if self.index else ""
    return f"{self.kind} of {self.stage!r}{target}{items}{index}"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Arc:
  """`target` in iteration i waits for `source` in iteration i - lag.

  Attributes:
    source: index of an activity.
    target: index of an activity.
    lag: iterations; it may be negative where an order mixes iterations.
    after: whether it waits for the source's end or start (back-pressure).
  """

  source: int
  target: int
  lag: int = 0
  after: Literal["end", "start"] = "end"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Slot:
  """A place in a resource's cyclic order.

  Attributes:
    activity: index of an activity that occupies the resource.
    shift: in period k the resource runs it for iteration k - shift.
  """

  activity: int
  shift: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Holding:
  """Memory that is taken from one activity's start to another's end.

  Attributes:
    resource: index of the resource on whose devices it lies.
    bytes_per_device: taken on each of them.
    what: for messages, such as "state of actor".
    begin: index of the activity at whose start it is taken; None: always.
    end: index of the activity at whose end it is freed; None: never.
    lag: the end's iteration less the begin's.
  """

  resource: int
  bytes_per_device: int
  what: str
  begin: int | None = None
  end: int | None = None
  lag: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class FlatPlan:
  """Activities and arcs, with one cyclic order for each resource.

  Start times are derived (`scheduler.cycles`), never stored.

  Attributes:
    resources: what activities occupy; devices of different ones are disjoint.
    activities: of one iteration.
    arcs: what waits for what.
    orders: for each resource the cyclic order of all that occupy it.
    holdings: memory.
    label: who made it, for people.
  """

  resources: tuple[Resource, ...]
  activities: tuple[Activity, ...]
  arcs: tuple[Arc, ...]
  orders: tuple[tuple[Slot, ...], ...]
  holdings: tuple[Holding, ...] = ()
  label: str = ""

  def __post_init__(self) -> None:
    if len(self.orders) != len(self.resources):
      raise errors.InfeasiblePlanError(
        f"{len(self.orders)} orders for {len(self.resources)} resources"
      )
    n, r = len(self.activities), len(self.resources)
    used = [i for a in self.activities for i in a.resources]
    used += [h.resource for h in self.holdings]
    if any(not 0 <= i < r for i in used):
      raise errors.InfeasiblePlanError(
        f"an activity or holding names a resource outside 0 to {r - 1}"
      )
    named = [i for arc in self.arcs for i in (arc.source, arc.target)]
    named += [slot.activity for order in self.orders for slot in order]
    named += [
      i for h in self.holdings for i in (h.begin, h.end) if i is not None
    ]
    if any(not 0 <= i < n for i in named):
      raise errors.InfeasiblePlanError(
        f"an arc, order or holding names an activity outside 0 to {n - 1}"
      )


Plan = TreePlan | FlatPlan


def read(path: str | pathlib.Path) -> Plan:
  """Returns the plan in a JSON file, a tree or a flat one.

  Raises:
    DocumentError: it is neither.
  """
  try:
    text = pathlib.Path(path).read_text(encoding="utf-8")
    is_flat = json.loads(text)["format"] == "flatplan"
  except (OSError, ValueError, TypeError, LookupError, RecursionError):
    is_flat = False  # what is wrong is said below
  if is_flat:
    return documents.read(FlatPlan, path)
  return documents.read(TreePlan, path)


def order_arcs(plan: FlatPlan) -> tuple[Arc, ...]:
  """Returns the arcs that the resources' cyclic orders stand for."""
  return tuple(arc for order in plan.orders for arc in cycle_arcs(order))


def cycle_arcs(order: Sequence[Slot]) -> Iterator[Arc]:
  """Yields the arcs that one cyclic order stands for."""
  for i, slot in enumerate(order):
    following = order[(i + 1) % len(order)]
    wraps = i + 1 == len(order)
    yield Arc(
      source=slot.activity,
      target=following.activity,
      lag=slot.shift - following.shift + int(wraps),
    )
