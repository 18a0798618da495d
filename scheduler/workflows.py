"""Workflows: stages, the edges between them, loops and weight syncs."""

from __future__ import annotations

import dataclasses
import functools
import graphlib
from typing import Literal

from scheduler import errors

Kind = Literal["decode", "infer", "train", "simulate", "host", "sync"]
MAX_ITEMS = 1 << 20


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LogNormalLengths:
  """Lengths drawn from a log-normal distribution cut at a maximum.

  Attributes:
    median_tokens: of the generated tokens, before the cut.
    sigma: standard deviation of the logarithm.
    max_tokens: longer draws are cut to this.
    prompt_tokens: context before the first generated token.
    correlation: of the logarithms within a group, in [0, 1].
  """

  median_tokens: float
  sigma: float
  max_tokens: int
  prompt_tokens: int = 0
  correlation: float = 0.0

  def __post_init__(self) -> None:
    if self.median_tokens <= 0 or self.max_tokens < 1:
      raise errors.WorkflowError(
        f"lengths need a positive median_tokens and max_tokens, got {self}"
      )
    # e^10 times the median is no length any more, and larger ones overflow.
    if not 0 <= self.sigma <= 10 or self.median_tokens > 1e12:
      raise errors.WorkflowError(
        "lengths need a sigma in [0, 10] and a median_tokens up to 1e12, got"
        f" {self}"
      )
    if self.prompt_tokens < 0 or not 0 <= self.correlation <= 1:
      raise errors.WorkflowError(
        "lengths need prompt_tokens >= 0 and a correlation in [0, 1], got"
        f" {self}"
      )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TraceLengths:
  """Lengths that were recorded; items take them in turn.

  Attributes:
    tokens: generated tokens of each recorded item.
    prompt_tokens: context before the first generated token.
  """

  tokens: tuple[int, ...]
  prompt_tokens: int = 0

  def __post_init__(self) -> None:
    if not self.tokens or min(self.tokens) < 1 or self.prompt_tokens < 0:
      raise errors.WorkflowError(
        "a trace of lengths needs at least one item, each of at least one"
        " token, and prompt_tokens >= 0"
      )


Lengths = LogNormalLengths | TraceLengths


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
  """One stage of the workflow.

  Attributes:
    name: unique.
    kind: what it does; "decode" emits items as they finish, "train" divides
      its items into updates, "host" runs on host cores, "sync" moves weights.
    items: items of one iteration; in a loop, of one turn.
    granule_min: the smallest granule.
    granule_max: the largest granule; None: all items.
    quantum: granules are multiples of it, but for the last one.
    group: items that must be complete together before one of them is used.
    updates: optimizer updates of one iteration; update u takes the u-th equal
      part of the items, by index, and begins when all of them were reduced.
    needs_all: the first granule waits for the whole batch (statistics).
    state_bytes: resident state, over all devices of one replica.
    item_bytes: transient bytes per item of a granule, over its devices.
    lengths: tokens per item, where they vary.
  """

  name: str
  kind: Kind
  items: int
  granule_min: int = 1
  granule_max: int | None = None
  quantum: int = 1
  group: int = 1
  updates: int = 1
  needs_all: bool = False
  state_bytes: int = 0
  item_bytes: int = 0
  lengths: Lengths | None = None

  def __post_init__(self) -> None:
    if not self.name:
      raise errors.WorkflowError("a stage needs a name")
    counts = (
      self.items,
      self.granule_min,
      self.quantum,
      self.group,
      self.updates,
    )
    if min(counts) < 1:
      raise errors.WorkflowError(
        f"stage {self.name!r}: items, granule_min, quantum, group and updates"
        f" must be at least 1, got {counts}"
      )
    if self.items > MAX_ITEMS:
      raise errors.WorkflowError(
        f"stage {self.name!r} has {self.items} items; at most {MAX_ITEMS} are"
        " planned one by one: let an item stand for several"
      )
    if min(self.state_bytes, self.item_bytes) < 0:
      raise errors.WorkflowError(
        f"stage {self.name!r}: bytes cannot be negative, got"
        f" state_bytes={self.state_bytes}, item_bytes={self.item_bytes}"
      )
    if not self.granule_min <= self.largest_granule <= self.items:
      raise errors.WorkflowError(
        f"stage {self.name!r}: granules from {self.granule_min} to"
        f" {self.largest_granule} of {self.items} items; need"
        " granule_min <= granule_max <= items"
      )
    if self.items % self.updates or self.items % self.group:
      raise errors.WorkflowError(
        f"stage {self.name!r}: {self.items} items are not divided evenly by"
        f" {self.updates} updates and groups of {self.group}"
      )
    if self.updates > 1 and self.kind != "train":
      raise errors.WorkflowError(
        f"stage {self.name!r} is of kind {self.kind!r} and cannot have"
        f" {self.updates} updates; only train stages have them"
      )

  @property
  def largest_granule(self) -> int:
    return self.items if self.granule_max is None else self.granule_max

  def check_granule(self, granule: int) -> None:
    """Raises InfeasiblePlanError unless the stage allows such granules."""
    if (
      not self.granule_min <= granule <= self.largest_granule
      or granule % self.quantum
      and granule != self.items
    ):
      raise errors.InfeasiblePlanError(
        f"stage {self.name!r} cannot run granules of {granule}: it allows"
        f" {self.granule_min} to {self.largest_granule}, in multiples of"
        f" {self.quantum}"
      )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Edge:
  """Items of `source` that `target` reads.

  Item i of n of the target reads the same fraction of the source's items.
  Inside a loop an edge against the loop's order reaches the next turn.

  Attributes:
    source: a stage's name.
    target: a stage's name.
    item_bytes: bytes per item of the source.
    reads: "all" where every item of the target reads all of the source's.
    name: what the target calls it, for people; edges that differ in it are
      equal.
    is_invariant: whether it is known to be the same in every iteration; for
      people too.
  """

  source: str
  target: str
  item_bytes: int = 0
  reads: Literal["items", "all"] = "items"
  name: str = dataclasses.field(default="", compare=False)
  is_invariant: bool = dataclasses.field(default=False, compare=False)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Loop:
  """Stages that take turns, such as a simulator and a policy.

  Attributes:
    name: unique among loops.
    stages: names in the order of one turn; all have the same items.
    turns: how often they take turns in one iteration.
  """

  name: str
  stages: tuple[str, ...]
  turns: int


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class WeightSync:
  """Parameters, or other state, that `target` reads and `source` has updated.

  Attributes:
    source: a stage's name.
    target: a stage's name.
    num_bytes: of one copy of the parameters.
    is_fresh: whether they are those of the last iteration, whatever the
      workflow's staleness; else they are that many iterations older, exactly.
    name: what the state calls them, for people, as an edge's.
  """

  source: str
  target: str
  num_bytes: int = 0
  is_fresh: bool = False
  name: str = dataclasses.field(default="", compare=False)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Constant:
  """State that a stage reads and that no iteration changes.

  Attributes:
    target: the stage's name.
    name: what the state calls it.
    num_bytes: of one copy.
  """

  target: str
  name: str
  num_bytes: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Workflow:
  """One iteration, and what the next reads of it.

  Attributes:
    name: for people.
    stages: the stages.
    edges: without the loops' own back edges they form no cycle.
    loops: disjoint.
    syncs: back edges.
    constants: what is read and never changes; planners do without.
    staleness: how many updates old the weights of a rollout are, exactly.
  """

  name: str
  stages: tuple[Stage, ...]
  edges: tuple[Edge, ...] = ()
  loops: tuple[Loop, ...] = ()
  syncs: tuple[WeightSync, ...] = ()
  constants: tuple[Constant, ...] = ()
  staleness: int = 0

  def __post_init__(self) -> None:
    names = [stage.name for stage in self.stages]
    if not names:
      raise errors.WorkflowError(f"workflow {self.name!r} has no stages")
    if twice := sorted({n for n in names if names.count(n) > 1}):
      raise errors.WorkflowError(f"two stages are called {twice[0]!r}")
    if self.staleness < 0:
      raise errors.WorkflowError(
        f"staleness is {self.staleness}; it counts updates, from 0"
      )
    self._check_loops(names)
    links = [(e.source, e.target, e.item_bytes) for e in self.edges]
    links += [(s.source, s.target, s.num_bytes) for s in self.syncs]
    for source, target, num_bytes in links:
      for end in (source, target):
        if end not in names:
          raise errors.WorkflowError(
            f"{source!r} -> {target!r} names the stage {end!r}; known: {names}"
          )
      if num_bytes < 0:
        raise errors.WorkflowError(
          f"{source!r} -> {target!r} carries a negative number of bytes"
        )
    for c in self.constants:
      if c.target not in names or c.num_bytes < 0:
        raise errors.WorkflowError(
          f"constant {c.name!r} of {c.num_bytes} bytes is read by {c.target!r};"
          f" need no negative number, and one of {names}"
        )
    pairs = [(e.source, e.target) for e in self.edges]
    if twice_pairs := sorted({p for p in pairs if pairs.count(p) > 1}):
      raise errors.WorkflowError(f"the edge {twice_pairs[0]} is given twice")
    topological_order(self)

  def __str__(self) -> str:
    return format_workflow(self)

  def _check_loops(self, names: list[str]) -> None:
    seen: set[str] = set()
    for loop in self.loops:
      if loop.turns < 1 or not loop.stages:
        raise errors.WorkflowError(
          f"loop {loop.name!r} needs stages and at least one turn"
        )
      for name in loop.stages:
        if name not in names or name in seen:
          raise errors.WorkflowError(
            f"loop {loop.name!r} names {name!r}, which is no stage or in a"
            " loop already"
          )
        seen.add(name)
      items = {name: self.stage(name).items for name in loop.stages}
      if len(set(items.values())) > 1:
        raise errors.WorkflowError(
          f"the stages of loop {loop.name!r} have different items: {items}"
        )

  def lag(self, sync: WeightSync) -> int:
    """Returns how many iterations later a sync's weights are read."""
    return 1 if sync.is_fresh else 1 + self.staleness

  def stage(self, name: str) -> Stage:
    """Returns the stage of this name.

    Raises:
      WorkflowError: there is none.
    """
    for stage in self.stages:
      if stage.name == name:
        return stage
    raise errors.WorkflowError(
      f"workflow {self.name!r} has no stage {name!r}; it has"
      f" {[stage.name for stage in self.stages]}"
    )

  def loop_of(self, name: str) -> Loop | None:
    """Returns the loop that the stage is part of, if any."""
    for loop in self.loops:
      if name in loop.stages:
        return loop
    return None

  def is_back_edge(self, edge: Edge) -> bool:
    """Returns whether an edge reaches the next turn of a loop."""
    loop = self.loop_of(edge.source)
    if loop is None or edge.target not in loop.stages:
      return False
    order = loop.stages
    return order.index(edge.source) >= order.index(edge.target)

  @property
  def forward_edges(self) -> tuple[Edge, ...]:
    """Edges within one iteration and one turn."""
    return tuple(e for e in self.edges if not self.is_back_edge(e))


@functools.lru_cache(maxsize=256)
def topological_order(workflow: Workflow) -> tuple[str, ...]:
  """Returns the stages' names, each after those it reads from.

  Stages that do not depend on each other stand in the workflow's order.

  Raises:
    WorkflowError: the edges form a cycle, which is named.
  """
  sorter: graphlib.TopologicalSorter[str] = graphlib.TopologicalSorter()
  for stage in workflow.stages:
    sorter.add(stage.name)
  for edge in workflow.forward_edges:
    sorter.add(edge.target, edge.source)
  try:
    sorter.prepare()
  except graphlib.CycleError as error:
    cycle = " -> ".join(error.args[1])
    raise errors.WorkflowError(
      f"workflow {workflow.name!r} has the cycle {cycle}; stages that take"
      " turns belong to a Loop, and parameters that return to a WeightSync"
    ) from None
  position = {s.name: i for i, s in enumerate(workflow.stages)}
  order: list[str] = []
  while sorter.is_active():
    ready = sorted(sorter.get_ready(), key=position.__getitem__)
    order += ready
    sorter.done(*ready)
  return tuple(order)


def format_workflow(workflow: Workflow) -> str:
  """Returns the workflow as text that one can read."""
  lines = [f"workflow {workflow.name} (staleness {workflow.staleness})"]
  for name in topological_order(workflow):
    stage = workflow.stage(name)
    reads = [_read(e) for e in workflow.edges if e.target == name]
    loop = workflow.loop_of(name)
    extra = f", {stage.updates} updates" if stage.updates > 1 else ""
    turns = f", {loop.turns} turns of loop {loop.name}" if loop else ""
    source = f" <- {', '.join(reads)}" if reads else ""
    lines.append(
      f"  {name}: {stage.kind}, {stage.items} items{extra}{turns}{source}"
    )
  for sync in workflow.syncs:
    lines.append(
      f"  {sync.source} => {sync.target}: {sync.name or 'weights'},"
      f" {sync.num_bytes:,} bytes" + ", fresh" * sync.is_fresh
    )
  for c in workflow.constants:
    lines.append(
      f"  {c.target} reads {c.name}, {c.num_bytes:,} bytes: the same in every"
      " iteration"
    )
  return "\n".join(lines)


def _read(edge: Edge) -> str:
  """Returns where an edge comes from, and what it carries."""
  carried = [edge.name] if edge.name else []
  carried += ["the same in every iteration"] * edge.is_invariant
  return f"{edge.source} ({'; '.join(carried)})" if carried else edge.source
