"""Moves: trees that differ from one tree in a single respect.

The neighbourhood is that of ReaL (arXiv 2406.14088), where one model function
changes its devices or layout, with what trees have besides: granules, turns,
lanes, and sets of stages that divide a set of devices or take turns on it.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator

from scheduler import errors, plans
from scheduler.devices import Devices
from scheduler.planners import granules
from scheduler.plans import (
  Lanes,
  Node,
  Run,
  Spatial,
  Temporal,
  TreePlan,
)
from scheduler.prices import Prices

_STREAMS = (1, 2, 4, 8, 16, 32, 64)
# Shares of a set of devices, or of a lane, that move at once.
_MOVED = (2, 4, 8, 16)


def neighbours(plan: TreePlan, costs: Prices) -> Iterator[TreePlan]:
  """Yields trees that differ from a tree in one respect.

  Not all of them can run.
  """
  for root in _changed(plan.root, costs, is_inside=False):
    yield dataclasses.replace(plan, root=root)


def _changed(node: Node, costs: Prices, *, is_inside: bool) -> Iterator[Node]:
  """Yields changes of a node, or of one below it.

  Args:
    node: the node.
    costs: of the workflow.
    is_inside: whether it is part of a loop's body.
  """
  if isinstance(node, Run):
    yield from _other_runs(node, costs, is_inside=is_inside)
    return
  if isinstance(node, Lanes):
    for body in _changed(node.body, costs, is_inside=True):
      yield dataclasses.replace(node, body=body)
    for lanes in _other_lanes(node, costs):
      yield dataclasses.replace(node, lanes=lanes)
    return
  for i, child in enumerate(node.children):
    for changed in _changed(child, costs, is_inside=is_inside):
      yield _with_child(node, i, changed)
  if isinstance(node, Spatial):
    yield from _resized(node, costs)
    if not is_inside:
      yield from _regrouped(node, costs)
  elif not is_inside:
    yield from _other_turns(node, costs)
  for i in range(len(node.children) - 1):
    children = list(node.children)
    children[i], children[i + 1] = children[i + 1], children[i]
    yield dataclasses.replace(node, children=tuple(children))


def _other_runs(run: Run, costs: Prices, *, is_inside: bool) -> Iterator[Node]:
  stage = costs.stages[run.stage]
  if not is_inside:
    sizes = {granules.of_stream(stage, stream) for stream in _STREAMS}
    for granule in sorted(sizes - {run.granule}):
      yield dataclasses.replace(run, granule=granule)
  name = costs.device_class(run).name
  for config in costs.profile.configs(run.stage, name):
    if config != run.config and len(run.devices) % config.devices == 0:
      yield dataclasses.replace(run, config=config)


def _other_turns(node: Temporal, costs: Prices) -> Iterator[Node]:
  first = next(plans.runs(node))
  stage = costs.stages[first.stage]
  turns = {granules.of_stream(stage, stream) for stream in _STREAMS[1:]}
  for turn in (None, *sorted(turns)):
    if turn != node.turn:
      yield dataclasses.replace(node, turn=turn)


def _other_lanes(node: Lanes, costs: Prices) -> Iterator[tuple[int, ...]]:
  """Yields other divisions of a loop's items into lanes."""
  stages = tuple(costs.stages[run.stage] for run in plans.runs(node.body))
  replicas = tuple(
    len(run.devices) // run.config.devices for run in plans.runs(node.body)
  )
  found = dict.fromkeys(granules.lane_candidates(stages, replicas))
  for i, j in itertools.permutations(range(len(node.lanes)), 2):
    for part in (*_MOVED, node.lanes[i]):
      moved = max(1, node.lanes[i] // part)
      lanes = list(node.lanes)
      lanes[i], lanes[j] = lanes[i] - moved, lanes[j] + moved
      found[tuple(size for size in lanes if size)] = None
  for lanes_found in found:
    if lanes_found != node.lanes:
      yield lanes_found


def _resized(node: Spatial, costs: Prices) -> Iterator[Node]:
  """Yields the node with devices moved from one child to another."""
  for i, j in itertools.permutations(range(len(node.children)), 2):
    giver = _devices(node.children[i])
    for count in sorted({1, 2, *(len(giver) // part for part in _MOVED)}):
      if not 0 < count < len(giver):
        continue
      moved = giver.first(count)
      given = _without(node.children[i], moved)
      taken = _with(node.children[j], moved, costs)
      if given is not None and taken is not None:
        yield _with_child(_with_child(node, i, given), j, taken)


def _regrouped(node: Spatial, costs: Prices) -> Iterator[Node]:
  """Yields the node with a Run moved to another child's devices, in turn."""
  for i, child in enumerate(node.children):
    for run in plans.runs(child) if not isinstance(child, Lanes) else ():
      rest = _removed(child, run)
      for j, other in enumerate(node.children):
        target = _devices(other)
        if i == j or len(target) % run.config.devices:
          continue
        moved = dataclasses.replace(run, devices=target)
        try:
          costs.device_class(moved)
        except errors.InfeasiblePlanError:
          continue
        if rest is None:
          joined = _with(other, _devices(child), costs)
          target = target | _devices(child)
          if joined is None or len(target) % run.config.devices:
            continue
          moved = dataclasses.replace(run, devices=target)
        else:
          joined = other
        pair = (moved, joined) if i < j else (joined, moved)
        children = list(node.children)
        children[j] = Temporal(children=pair)
        if rest is None:
          del children[i]
        else:
          children[i] = rest
        if len(children) == 1:
          yield children[0]
        else:
          yield dataclasses.replace(node, children=tuple(children))


def _devices(node: Node) -> Devices:
  return functools.reduce(
    Devices.__or__, (run.devices for run in plans.runs(node))
  )


def _with_child(
  node: Temporal | Spatial, i: int, child: Node
) -> Temporal | Spatial:
  children = (*node.children[:i], child, *node.children[i + 1 :])
  return dataclasses.replace(node, children=children)


def _without(node: Node, moved: Devices) -> Node | None:
  """Returns a subtree on fewer devices; None: a Run keeps none, or a part."""
  return on_devices(node, lambda run: run.devices - moved)


def _with(node: Node, moved: Devices, costs: Prices) -> Node | None:
  """Returns a subtree on more devices: Runs that had all get all."""
  whole = _devices(node)
  try:
    costs.cluster.class_of(whole | moved)
  except errors.ClusterError:
    return None
  return on_devices(
    node,
    lambda run: run.devices | moved if run.devices == whole else run.devices,
  )


def on_devices(node: Node, devices_fn: Callable[[Run], Devices]) -> Node | None:
  """Returns a subtree with other devices; None: they do not divide."""
  if isinstance(node, Run):
    devices = devices_fn(node)
    if not devices.spans or len(devices) % node.config.devices:
      return None
    return dataclasses.replace(node, devices=devices)
  if isinstance(node, Lanes):
    body = on_devices(node.body, devices_fn)
    return body and dataclasses.replace(node, body=body)
  children = [on_devices(child, devices_fn) for child in node.children]
  found = tuple(child for child in children if child is not None)
  if len(found) < len(children):
    return None
  return dataclasses.replace(node, children=found)


def _removed(node: Node, run: Run) -> Node | None:
  """Returns a subtree without a Run; None: nothing is left."""
  if isinstance(node, Run):
    return None if node is run else node
  if isinstance(node, Lanes):
    return node
  left = [_removed(child, run) for child in node.children]
  found = tuple(child for child in left if child is not None)
  if len(found) < 2:
    return found[0] if found else None
  return dataclasses.replace(node, children=found)
