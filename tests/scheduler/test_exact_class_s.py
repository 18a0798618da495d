"""What belongs to class S, and what is said of what does not."""

from __future__ import annotations

import dataclasses

import pytest

from scheduler import errors
from scheduler.devices import Devices
from scheduler.exact import class_s, modes, shops
from scheduler.profiles import Config, Entry, Profile
from scheduler.workflows import Edge, Loop, WeightSync, Workflow
from tests.scheduler import cases, toys

S = toys.S


def flow(edges: str = "ab", granules: int = 2, **fields) -> Workflow:
  """Returns stages a, b, ... with edges such as "ab bc"."""
  names = sorted(set(edges) - {" "})
  return Workflow(
    name="toy",
    stages=tuple(cases.stage(name, granules, 10) for name in names),
    edges=tuple(Edge(source=s, target=t) for s, t in edges.split()),
    **fields,
  )


def profile(names: str = "ab") -> Profile:
  return cases.times(**{name: [3, 2, 2, 2, 2] for name in names})


def test_a_case_is_read_as_integers():
  # On 1 and 2 devices: a takes 4 s and 3 s, b 2 s and 1 s. 12 bytes of state
  # leave a device in 12 s. All are multiples of a second.
  case = (
    toys.workflow(cases.stage("a", 3, 12), cases.stage("b", 3, 12)),
    cases.times(a=[4, 3, 3], b=[2, 1, 1]),
    cases.cluster(1, 2),
  )
  problem = class_s.read(*case)
  assert problem.stages == ("a", "b")
  assert problem.preds == ((), (0,))
  assert problem.num_granules == 3
  assert problem.tick_ns == S
  assert [(m.groups, m.duration, m.swap) for m in problem.modes[0]] == [
    (0b01, 4, 12),
    (0b10, 3, 12),
    (0b11, 3, 12),
  ]
  # Both groups together are no faster than the large one: nothing is lost
  # without that mode. The small one is slower, but leaves the large one free.
  assert modes.undominated(problem) == [[0, 1], [0, 1]]


def test_granules_may_be_chosen():
  stage = toys.stage("a", 12, granule_max=6)
  case = (toys.workflow(stage), toys.profile(a=1), cases.cluster(1))
  assert class_s.read(*case, num_granules=4).granules == (3,)
  with pytest.raises(errors.OutsideClassError, match="1 to 6 items"):
    class_s.read(*case)
  with pytest.raises(errors.OutsideClassError, match="not 5 equal granules"):
    class_s.read(*case, num_granules=5)
  with pytest.raises(errors.OutsideClassError, match="cannot run 1 granules"):
    class_s.read(*case, num_granules=1)


def test_a_group_that_holds_all_states_and_one_granule_is_not_swapped():
  # 400 + 400 bytes of state and the larger granule's 200 fill 1000 bytes.
  stages = (cases.stage("a", 1, 400), cases.stage("b", 1, 400))
  for granule, swapped in ((200, 0), (201, 1)):
    laws = {
      "a": cases.table(1, num_bytes=granule), "b": cases.table(1, num_bytes=9)
    }  # fmt: skip
    case = (toys.workflow(*stages), toys.profile(**laws), cases.cluster(1))
    problem = class_s.read(*case)
    assert class_s.swapped_groups(problem, ((0,), (0,))) == swapped
    level = shops.SWAPPED if swapped else shops.EXCLUSIVE
    assert shops.of(problem, (0, 0)).conflicts == ((0, level), (level, 0))


def test_a_mode_must_fit_by_itself():
  # 10 bytes of state and 12 of a granule; halved by two devices each.
  entries = tuple(
    Entry(
      stage="a",
      device_class="d",
      config=config,
      law=cases.table(1, 1, num_bytes=12 // config.tp),
    )
    for config in (Config(), Config(tp=2))
  )
  one = toys.workflow(cases.stage("a", 1, 10))
  problem = class_s.read(
    one, Profile(entries=entries), cases.cluster(2, memory=15)
  )
  assert [m.config.tp for m in problem.modes[0]] == [2]
  with pytest.raises(errors.InfeasiblePlanError, match="'a' fits nowhere"):
    class_s.read(one, Profile(entries=entries), cases.cluster(2, memory=10))


@pytest.mark.parametrize(
  "edges",
  [
    "ab bc cd",
    "ab ac bd cd",
    "ab ac ad be ce de",
    "ab bc ac",
    "ab ac bd cd de df eg fg",
  ],
)
def test_series_parallel_graphs_belong(edges):
  names = "".join(sorted(set(edges) - {" "}))
  case = (flow(edges), profile(names), cases.cluster(1, 1))
  assert class_s.read(*case).stages == tuple(names)


def two_classes():
  plain = cases.cluster(1, 1)
  other = dataclasses.replace(plain.classes[0], name="e")
  (nodes,) = plain.nodes
  one = dataclasses.replace(nodes, devices_per_node=1)
  return dataclasses.replace(
    plain,
    classes=(plain.classes[0], other),
    nodes=(one, dataclasses.replace(one, device_class="e")),
  )


def unlike_nodes():
  """Returns a node of 1 device and one of 2, which share a slow link."""
  plain = cases.cluster(1, 2)
  nodes = plain.nodes[0]
  return dataclasses.replace(
    plain,
    nodes=tuple(
      dataclasses.replace(nodes, devices_per_node=size) for size in (1, 2)
    ),
    links=dataclasses.replace(plain.links, host_cap_bytes_per_s=1.0),
  )


OUTSIDE = {
  "has staleness 1": lambda: (flow(staleness=1), profile(), cases.cluster(1)),
  "has the loop 'l'": lambda: (
    flow(loops=(Loop(name="l", stages=("a",), turns=2),)),
    profile(),
    cases.cluster(1),
  ),
  "'b' -> 'a' moves 5 bytes": lambda: (
    flow(syncs=(WeightSync(source="b", target="a", num_bytes=5),)),
    profile(),
    cases.cluster(1),
  ),
  "'a' -> 'b' moves 7 bytes": lambda: (
    toys.workflow(
      cases.stage("a", 2),
      cases.stage("b", 2),
      edges=(Edge(source="a", target="b", item_bytes=7),),
    ),
    profile(),
    cases.cluster(1),
  ),
  "waits for all items": lambda: (
    toys.workflow(cases.stage("a", 2), cases.stage("b", 2, needs_all=True)),
    profile(),
    cases.cluster(1),
  ),
  r"the sources \['a', 'b'\]": lambda: (
    flow("ac bc"),
    profile("abc"),
    cases.cluster(1),
  ),
  "linked across branches": lambda: (
    flow("ab ac bd cd be de"),
    profile("abcde"),
    cases.cluster(1),
  ),
  "has 0 groups": lambda: (flow(), profile(), toys.cluster(1)),
  "has 5 groups": lambda: (flow(), profile(), cases.cluster(1, 1, 1, 1, 1)),
  "'1' belong to no group": lambda: (
    flow(),
    profile(),
    dataclasses.replace(cases.cluster(2), groups=(Devices.span(0, 1),)),
  ),
  r"the device classes \['d', 'e'\]": lambda: (
    flow(),
    profile(),
    two_classes(),
  ),
  "not 2 equal granules": lambda: (
    toys.workflow(cases.stage("a", 2), cases.stage("b", 3)),
    profile(),
    cases.cluster(1),
  ),
  "and 1 per update": lambda: (
    toys.workflow(
      cases.stage("a", 2),
      toys.stage("b", 4, "train", granule_max=2, granule_min=2, updates=4),
    ),
    toys.profile(a=1, b=1),
    cases.cluster(1),
  ),
  r"take \[0\] ns": lambda: (
    flow(),
    cases.times(a=[0], b=[1]),
    cases.cluster(1),
  ),
  "by the group": lambda: (flow(), profile(), unlike_nodes()),
  "may not hold the state of all": lambda: (
    flow(),
    profile(),
    dataclasses.replace(
      cases.cluster(1),
      nodes=(dataclasses.replace(cases.cluster(1).nodes[0], host_bytes=19),),
    ),
  ),
}


@pytest.mark.parametrize("message", OUTSIDE)
def test_what_is_outside_is_told_why(message):
  with pytest.raises(errors.OutsideClassError, match=message):
    class_s.read(*OUTSIDE[message]())
