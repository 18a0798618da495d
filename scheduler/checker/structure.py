"""Laws of what a plan names: stages, resources, orders and devices."""

from __future__ import annotations

import collections

from scheduler import errors
from scheduler.checker.view import View
from scheduler.devices import Devices
from scheduler.plans import Activity, Resource


def stages_are_known(view: View) -> None:
  """Activities are of the workflow's stages, edges, syncs and turns."""
  workflow = view.costs.workflow
  edges = {(edge.source, edge.target) for edge in workflow.edges}
  syncs = {(sync.source, sync.target) for sync in workflow.syncs}
  for a in view.plan.activities:
    if a.stage not in view.costs.stages:
      raise errors.InfeasiblePlanError(
        f"{a}: workflow {workflow.name!r} has no such stage, but"
        f" {list(view.costs.stages)}"
      )
    pair = (a.stage, a.target)
    if a.kind == "transfer" and pair not in edges:
      raise errors.InfeasiblePlanError(f"{a}: there is no such edge")
    if a.kind == "weight_sync" and pair not in syncs:
      raise errors.InfeasiblePlanError(f"{a}: there is no such weight sync")
    if a.kind == "compute":
      _check_turn(view, a)


def _check_turn(view: View, a: Activity) -> None:
  loop = view.loop_of(a.stage)
  if loop is not None and not 0 <= a.index < loop.turns:
    raise errors.InfeasiblePlanError(
      f"{a}: loop {loop.name!r} has turns 0 to {loop.turns - 1}; its computes'"
      " index is the turn"
    )


def resources_are_disjoint(view: View) -> None:
  """Resources have names and devices of their own."""
  resources, every = view.plan.resources, view.costs.cluster.devices
  counts = collections.Counter(r.name for r in resources)
  if twice := [name for name, count in counts.items() if count > 1]:
    raise errors.InfeasiblePlanError(f"two resources are called {twice[0]!r}")
  for r in resources:
    if r.kind == "devices" and not r.devices.spans:
      raise errors.InfeasiblePlanError(f"resource {r.name!r} has no devices")
    if not r.devices.issubset(every):
      raise errors.InfeasiblePlanError(
        f"resource {r.name!r} has devices '{r.devices - every}'; the cluster"
        f" has '{every}'"
      )
    if r.kind == "devices":
      _check_class(view, r)
  spans = sorted((span, r.name) for r in resources for span in r.devices.spans)
  for (span, name), (following, other) in zip(spans, spans[1:]):
    if following[0] < span[1]:
      shared = Devices.span(following[0], min(span[1], following[1]))
      raise errors.InfeasiblePlanError(
        f"resources {name!r} and {other!r} share devices '{shared}'; divide"
        " them into disjoint ones, of which an activity may occupy several"
      )


def _check_class(view: View, r: Resource) -> None:
  try:
    view.costs.cluster.class_of(r.devices)
  except errors.ClusterError as error:
    raise errors.InfeasiblePlanError(
      f"resource {r.name!r}: {error}; divide it by class"
    ) from None


def orders_are_complete(view: View) -> None:
  """An activity stands once in the order of each resource it occupies."""
  occupied = [collections.Counter[int]() for _ in view.plan.resources]
  for i, a in enumerate(view.plan.activities):
    for r in a.resources:
      occupied[r][i] += 1
  for r, order in enumerate(view.plan.orders):
    listed = collections.Counter(slot.activity for slot in order)
    name = view.plan.resources[r].name
    for i in {*occupied[r], *listed}:
      if occupied[r][i] != 1 or listed[i] != 1:
        raise errors.InfeasiblePlanError(
          f"{view.words(i)} names resource {name!r} {occupied[r][i]} times and"
          f" stands {listed[i]} times in its order; both must be once"
        )


def devices_fit(view: View) -> None:
  """What occupies devices does so in whole groups, of one class."""
  for i, a in enumerate(view.plan.activities):
    atoms = view.atoms[i]
    if a.kind in ("compute", "apply") and not atoms:
      raise errors.InfeasiblePlanError(f"{a} occupies no devices")
    if a.kind in ("swap_in", "swap_out") and (
      len(atoms) != 1 or len(a.resources) != 1
    ):
      raise errors.InfeasiblePlanError(
        f"{view.words(i)}: a swap occupies one resource, of devices; swap a"
        " stage on several by one activity for each"
      )
    if a.duration_ns and not a.resources:
      raise errors.InfeasiblePlanError(
        f"{a} takes {a.duration_ns} ns and occupies nothing; name the devices"
        " or the link"
      )
  for (_, atoms, _), i in view.placements.items():
    _check_placement(view, i, view.devices(atoms))


def _check_placement(view: View, i: int, devices: Devices) -> None:
  a = view.plan.activities[i]
  if len(devices) % a.config.devices:
    raise errors.InfeasiblePlanError(
      f"{view.words(i)}: {len(devices)} devices do not divide into replicas of"
      f" {a.config.devices} ({a.config})"
    )
  view.device_class(i)
  for group in view.costs.cluster.groups:
    if not group.isdisjoint(devices) and not group.issubset(devices):
      raise errors.InfeasiblePlanError(
        f"{view.words(i)} uses '{group & devices}' of the devices '{group}',"
        " which may be used only together"
      )
