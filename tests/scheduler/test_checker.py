"""Each law accepts what it should, and names what breaks it."""

from __future__ import annotations

import dataclasses
import functools
import random
import re
from collections.abc import Callable

import hypothesis
import pytest
from hypothesis import strategies as st

from scheduler import checker, cycles, errors, lowering
from scheduler.clusters import Cluster, DeviceClass, Nodes
from scheduler.devices import Devices
from scheduler.plans import (
  Activity,
  Arc,
  FlatPlan,
  Holding,
  Lanes,
  Resource,
  Slot,
  Spatial,
  Temporal,
  TreePlan,
)
from scheduler.profiles import Config, Profile
from scheduler.workflows import (
  Edge,
  Loop,
  TraceLengths,
  WeightSync,
  Workflow,
)
from tests.scheduler import strategies, toys, trees
from tests.scheduler.toys import S, run, stage


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
  """A plan and what it is checked against."""

  plan: FlatPlan
  workflow: Workflow
  profile: Profile
  cluster: Cluster

  def check(self) -> None:
    checker.check(self.plan, self.workflow, self.profile, self.cluster)


def lowered(
  root, workflow: Workflow, profile: Profile, cluster: Cluster, **fields
) -> Case:
  tree = TreePlan(root=root, **fields)
  return Case(
    plan=lowering.lower(tree, workflow, profile, cluster),
    workflow=workflow,
    profile=profile,
    cluster=cluster,
  )


@functools.cache
def collocated() -> Case:
  """Both stages swap 600 bytes in and out of 1,000."""
  return lowered(
    Temporal(
      children=(
        run("roll", "0-1", 2, is_resident=False),
        run("train", "0-1", 2, is_resident=False),
      )
    ),
    toys.workflow(
      stage("roll", 4, group=2, quantum=2, state_bytes=600),
      stage("train", 4, "train", updates=2, state_bytes=600),
      syncs=(("train", "roll"),),
    ),
    toys.profile(roll=1, train=2),
    toys.cluster(2),
  )


@functools.cache
def streamed(*copies: str) -> Case:
  """One step asynchronous, with transfers and a weight sync of 5 bytes."""
  return lowered(
    Spatial(children=(run("roll", "0-1", 2), run("train", "2", 2))),
    toys.workflow(
      stage("roll", 4, state_bytes=10),
      stage("train", 4, "train", state_bytes=20, item_bytes=3),
      edges=(Edge(source="roll", target="train", item_bytes=2),),
      syncs=(WeightSync(source="train", target="roll", num_bytes=5),),
      staleness=1,
    ),
    toys.profile(roll=1, train=2),
    toys.cluster(3),
    copies=copies,
  )


@functools.cache
def looped() -> Case:
  """Two lanes of two items take three turns."""
  return lowered(
    Spatial(
      children=(
        Lanes(
          loop="loop",
          body=Spatial(children=(run("sim", "0", 1), run("act", "1", 1))),
          lanes=(2, 2),
        ),
        run("train", "2", 4),
      )
    ),
    toys.workflow(
      stage("sim", 4),
      stage("act", 4),
      stage("train", 4, "train"),
      edges=(("sim", "act"), ("act", "sim"), ("act", "train")),
      loops=(Loop(name="loop", stages=("sim", "act"), turns=3),),
    ),
    toys.profile(sim=1, act=1, train=1),
    toys.cluster(3),
  )


@functools.cache
def tailed() -> Case:
  """Of four sequences the longer two go on with one device."""
  return lowered(
    Temporal(
      children=(
        run("roll", "0-1", 2, share=(0, 2), cohort=(0, 4)),
        run("roll", "0", 2, share=(2, 4), cohort=(0, 4)),
        run("train", "0-1", 4),
      )
    ),
    toys.workflow(
      stage("roll", 4, "decode", lengths=TraceLengths(tokens=(1, 2, 3, 4))),
      stage("train", 4, "train"),
    ),
    toys.profile(roll=toys.TOKEN, train=1),
    toys.cluster(2),
  )


CASES = (collocated, streamed, lambda: streamed("roll"), looped, tailed)


@pytest.mark.parametrize("make_fn", CASES)
def test_a_valid_plan_is_accepted(make_fn: Callable[[], Case]):
  make_fn().check()


def by_hand() -> Case:
  """Two stages on one device, written without lowering."""
  workflow = toys.workflow(
    stage("a", 2, state_bytes=4), stage("b", 2, item_bytes=3)
  )
  plan = FlatPlan(
    resources=(Resource(name="all", devices=Devices.span(0, 2)),),
    activities=(
      Activity(
        kind="compute", stage="a", resources=(0,), duration_ns=S, items=(0, 2)
      ),
      Activity(
        kind="compute",
        stage="b",
        resources=(0,),
        duration_ns=2 * S,
        items=(0, 2),
      ),
    ),
    arcs=(),
    orders=((Slot(activity=0), Slot(activity=1)),),
    holdings=(
      Holding(resource=0, bytes_per_device=4, what="state of a"),
      # One of the two items of b on each device.
      Holding(resource=0, bytes_per_device=3, what="b", begin=1, end=1),
    ),
  )
  return Case(
    plan=plan,
    workflow=workflow,
    profile=toys.profile(a=1, b=2),
    cluster=toys.cluster(2, memory=7),
  )


def test_a_plan_written_by_hand_is_accepted():
  by_hand().check()


def index_of(plan: FlatPlan, words: str) -> int:
  (found,) = [i for i, a in enumerate(plan.activities) if str(a) == words]
  return found


Edit = Callable[[FlatPlan], FlatPlan]


def edit(words: str, **fields) -> Edit:
  """Changes an activity."""

  def edited(plan: FlatPlan) -> FlatPlan:
    activities = list(plan.activities)
    i = index_of(plan, words)
    activities[i] = dataclasses.replace(activities[i], **fields)
    return dataclasses.replace(plan, activities=tuple(activities))

  return edited


def drop(*all_words: str) -> Edit:
  """Leaves activities out, and all that names them."""

  def edited(plan: FlatPlan) -> FlatPlan:
    gone = {index_of(plan, words) for words in all_words}
    kept = [i for i in range(len(plan.activities)) if i not in gone]
    new = {i: k for k, i in enumerate(kept)}
    return dataclasses.replace(
      plan,
      activities=tuple(plan.activities[i] for i in kept),
      arcs=tuple(
        dataclasses.replace(arc, source=new[arc.source], target=new[arc.target])
        for arc in plan.arcs
        if not {arc.source, arc.target} & gone
      ),
      orders=tuple(
        tuple(
          dataclasses.replace(slot, activity=new[slot.activity])
          for slot in order
          if slot.activity not in gone
        )
        for order in plan.orders
      ),
      holdings=tuple(
        dataclasses.replace(h, begin=new.get(h.begin), end=new.get(h.end))
        for h in plan.holdings
        if not {h.begin, h.end} & gone
      ),
    )

  return edited


def cut(source: str, target: str) -> Edit:
  """Leaves out the arcs between two activities."""

  def edited(plan: FlatPlan) -> FlatPlan:
    pair = (index_of(plan, source), index_of(plan, target))
    return dataclasses.replace(
      plan,
      arcs=tuple(a for a in plan.arcs if (a.source, a.target) != pair),
    )

  return edited


def relag(source: str, target: str, lag: int) -> Edit:
  """Changes the lag of an arc."""

  def edited(plan: FlatPlan) -> FlatPlan:
    arc = Arc(
      source=index_of(plan, source), target=index_of(plan, target), lag=lag
    )
    less = cut(source, target)(plan)
    return dataclasses.replace(less, arcs=(*less.arcs, arc))

  return edited


def reorder(resource: str, *positions: int) -> Edit:
  """Puts slots of an order elsewhere; some may be left out or repeated."""

  def edited(plan: FlatPlan) -> FlatPlan:
    (r,) = [i for i, x in enumerate(plan.resources) if x.name == resource]
    orders = list(plan.orders)
    orders[r] = tuple(orders[r][p] for p in positions)
    return dataclasses.replace(plan, orders=tuple(orders))

  return edited


def resource(which: str, /, **fields) -> Edit:
  """Changes a resource."""

  def edited(plan: FlatPlan) -> FlatPlan:
    return dataclasses.replace(
      plan,
      resources=tuple(
        dataclasses.replace(r, **fields) if r.name == which else r
        for r in plan.resources
      ),
    )

  return edited


def with_own_link(words: str) -> Edit:
  """Moves an activity to a link that only it occupies."""

  def edited(plan: FlatPlan) -> FlatPlan:
    i = index_of(plan, words)
    (old,) = plan.activities[i].resources
    orders = list(plan.orders)
    orders[old] = tuple(slot for slot in orders[old] if slot.activity != i)
    wider = dataclasses.replace(
      plan,
      resources=(*plan.resources, Resource(name="bypass", kind="link")),
      orders=(*orders, (Slot(activity=i),)),
    )
    return edit(words, resources=(len(plan.resources),))(wider)

  return edited


def unheld(what: str) -> Edit:
  """Leaves holdings out."""

  def edited(plan: FlatPlan) -> FlatPlan:
    kept = tuple(h for h in plan.holdings if h.what != what)
    assert len(kept) < len(plan.holdings)
    return dataclasses.replace(plan, holdings=kept)

  return edited


def both(first: Edit, second: Edit) -> Edit:
  return lambda plan: second(first(plan))


BROKEN = [
  # Stages, edges, syncs and turns that are not the workflow's.
  (
    collocated,
    edit("compute of 'roll' [0, 2)", stage="critic"),
    "compute of 'critic' [0, 2): workflow 'toy' has no such stage, but"
    " ['roll', 'train']",
  ),
  (
    streamed,
    edit("transfer of 'roll' to 'train' [0, 2)", target="roll"),
    "transfer of 'roll' to 'roll' [0, 2): there is no such edge",
  ),
  (
    streamed,
    edit("weight_sync of 'train' to 'roll'", target="train"),
    "there is no such weight sync",
  ),
  (
    looped,
    edit("compute of 'sim' [0, 2) (2)", index=3),
    "loop 'loop' has turns 0 to 2",
  ),
  # Resources.
  (
    streamed,
    resource("2", devices=Devices.span(1, 3)),
    "resources '0-1' and '2' share devices '1'",
  ),
  (
    streamed,
    resource("2", devices=Devices.span(2, 5)),
    "resource '2' has devices '3-4'; the cluster has '0-2'",
  ),
  (
    streamed,
    resource("2", name="0-1"),
    "two resources are called '0-1'",
  ),
  (
    streamed,
    resource("2", devices=Devices()),
    "resource '2' has no devices",
  ),
  # Orders.
  (
    streamed,
    reorder("0-1", 0, 1),
    "compute of 'roll' [2, 4) (1) on '0-1' names resource '0-1' 1 times and"
    " stands 0 times in its order",
  ),
  (
    streamed,
    reorder("0-1", 0, 1, 2, 1),
    "compute of 'roll' [0, 2) on '0-1' names resource '0-1' 1 times and stands"
    " 2 times",
  ),
  (
    streamed,
    edit("compute of 'roll' [0, 2)", resources=(0, 1)),
    "names resource '2' 1 times and stands 0 times",
  ),
  # What occupies devices.
  (
    streamed,
    both(edit("compute of 'roll' [0, 2)", resources=()), reorder("0-1", 0, 2)),
    "compute of 'roll' [0, 2) occupies no devices",
  ),
  (
    streamed,
    both(
      edit("transfer of 'roll' to 'train' [0, 2)", resources=()),
      reorder("0-1 > 2", 1),
    ),
    "takes 4000000000 ns and occupies nothing",
  ),
  (
    streamed,
    edit("compute of 'roll' [0, 2)", config=Config(tp=3)),
    "2 devices do not divide into replicas of 3 (tp3)",
  ),
  # Items.
  (
    streamed,
    edit("compute of 'roll' [2, 4) (1)", items=(3, 4)),
    "no compute of stage 'roll' handles items 2 to 2",
  ),
  (
    streamed,
    edit("compute of 'roll' [2, 4) (1)", items=(1, 4)),
    "compute of 'roll' [1, 4) (1) on '0-1' does not go on from item 2; each of"
    " the 4 items is handled once",
  ),
  (
    streamed,
    edit("compute of 'roll' [2, 4) (1)", items=(2, 5)),
    "compute of 'roll' [2, 5) (1) on '0-1' does not go on from item 2",
  ),
  (
    looped,
    drop("compute of 'act' [2, 4) (1)"),
    "no compute of stage 'act' handles items 2 to 3 in turn 1",
  ),
  # Granules.
  (
    collocated,
    both(
      edit("compute of 'train' [0, 2)", items=(0, 3)),
      edit("compute of 'train' [2, 4) (1)", items=(3, 4)),
    ),
    "compute of 'train' [0, 3) on '0-1' belongs to two updates, of 2 items",
  ),
  (
    collocated,
    both(
      edit("compute of 'roll' [0, 2)", items=(0, 3)),
      edit("compute of 'roll' [2, 4) (1)", items=(3, 4)),
    ),
    "compute of 'roll' [0, 3) on '0-1' cuts a quantum of stage 'roll'; begin"
    " and end granules at multiples of 2 items",
  ),
  # Decoding.
  (
    tailed,
    edit("compute of 'roll' [2, 4) (1)", cohort=(2, 4)),
    "compute of 'roll' [0, 2) on '0, 1' belongs to the cohort [0, 4], whose"
    " items are decoded together",
  ),
  # Updates.
  (
    collocated,
    drop("apply of 'train' (1)"),
    "stage 'train' has applies with the indices [0]; its updates need [0, 1]",
  ),
  # Times. Two items of 1 s on two devices, of 2 s on one: 1 s, and 4 s.
  (
    streamed,
    edit("compute of 'roll' [0, 2)", duration_ns=S - 1),
    "compute of 'roll' [0, 2) on '0-1' takes 999999999 ns; by the profile it"
    " takes 1000000000 ns",
  ),
  (
    collocated,
    edit("apply of 'train'", duration_ns=1),
    "apply of 'train' on '0-1' takes 1 ns",
  ),
  # Deadlocks: training first, then the rollouts that it reads.
  (
    collocated,
    reorder("0-1", 4, 5, 6, 7, 8, 9, 0, 1, 2, 3),
    "the plan deadlocks: within one iteration",
  ),
  # Swaps. 600 bytes at 1 byte/s.
  (
    collocated,
    edit("swap_out of 'roll'", kind="swap_in"),
    "swap_in of 'roll' on '0-1' follows another swap_in",
  ),
  (
    collocated,
    drop("swap_out of 'roll'"),
    "swap_in of 'roll' on '0-1' follows another swap_in of the stage on '0-1'",
  ),
  (
    collocated,
    edit("swap_out of 'roll'", duration_ns=1),
    "swap_out of 'roll' on '0-1' takes 1 ns; the 600 bytes on each device of"
    " '0-1' take 600000000000 ns",
  ),
  (
    collocated,
    both(
      edit("swap_out of 'roll'", resources=()),
      reorder("0-1", 0, 1, 2, 4, 5, 6, 7, 8, 9),
    ),
    "a swap occupies one resource, of devices",
  ),
  # Transfers. 4 bytes at 1 byte/s.
  (
    streamed,
    drop("transfer of 'roll' to 'train' [2, 4) (1)"),
    "no transfer that waits for compute of 'roll' [2, 4) (1) on '0-1' brings"
    " its items [2, 4) to 'train' on '2', where they are read",
  ),
  (
    streamed,
    edit("transfer of 'roll' to 'train' [2, 4) (1)", duration_ns=1),
    "takes 1 ns; 4 bytes from '0-1' to '2' take 4000000000 ns",
  ),
  (
    streamed,
    edit("transfer of 'roll' to 'train' [2, 4) (1)", items=(2, 3)),
    "brings its items [3, 4) to 'train' on '2'",
  ),
  (
    streamed,
    with_own_link("transfer of 'roll' to 'train' [2, 4) (1)"),
    "transfer of 'roll' to 'train' [2, 4) (1) on 'bypass' is not on"
    " ['0-1 > 2'], as others are from '0-1' to '2'",
  ),
  # Weights. 5 bytes at 1 byte/s.
  (
    streamed,
    drop("weight_sync of 'train' to 'roll'"),
    "stage 'roll' on '0-1' receives no weights of 'train' on '0-1'",
  ),
  (
    streamed,
    edit("weight_sync of 'train' to 'roll'", duration_ns=1),
    "takes 1 ns; 5 bytes to the devices of 'roll' that wait for it take"
    " [5000000000] ns",
  ),
  (
    streamed,
    relag("apply of 'train'", "weight_sync of 'train' to 'roll'", 1),
    "brings weights of 1 iterations ago; with staleness 1 it has to be 2",
  ),
  (
    streamed,
    cut("weight_sync of 'train' to 'roll'", "compute of 'roll' [0, 2)"),
    "has arcs of lags [2] from the last update of 'train' and of lags [] to"
    " computes of 'roll'",
  ),
  # Waiting.
  (
    streamed,
    cut("transfer of 'roll' to 'train' [0, 2)", "compute of 'train' [0, 2)"),
    "compute of 'train' [0, 2) on '2' reads items [0, 2) of 'roll', but does"
    " not wait for compute of 'roll' [0, 2) on '0-1' of the same iteration;"
    " add an arc of lag 0",
  ),
  (
    looped,
    cut("compute of 'sim' [0, 2) (1)", "compute of 'act' [0, 2) (1)"),
    "compute of 'act' [0, 2) (1) on '1' reads items [0, 2) of 'sim', but does"
    " not wait for compute of 'sim' [0, 2) (1) on '0' of the same iteration",
  ),
  (
    looped,
    cut("compute of 'act' [0, 2) (1)", "compute of 'sim' [0, 2) (2)"),
    "compute of 'sim' [0, 2) (2) on '0' reads items [0, 2) of 'act', but does"
    " not wait for compute of 'act' [0, 2) (1) on '1'",
  ),
  (
    looped,
    cut("apply of 'train'", "compute of 'sim' [0, 2)"),
    "compute of 'sim' [0, 2) on '0' begins an iteration, of which at most 1 may"
    " be alive, but does not wait for compute of 'act' [2, 4) (2) on '1' of the"
    " iteration before; add an arc of lag 1",
  ),
  (
    looped,
    relag("apply of 'train'", "compute of 'sim' [0, 2)", 2),
    "begins an iteration, of which at most 1 may be alive",
  ),
  # Memory.
  (
    streamed,
    unheld("state of roll"),
    "holdings miss 10 bytes on each device of '0-1' 0 ns into the period; they"
    " are nothing, but needed are state of roll (10)",
  ),
  (
    collocated,
    unheld("state of roll"),
    "holdings miss 600 bytes on each device of '0-1'",
  ),
  (
    streamed,
    unheld("granule of train"),
    # Two items of 3 bytes while the granule runs, which begins when 2 of the 4
    # items of 2 bytes, for which there is place, have arrived: 20 + 6 + 4 are
    # needed, 20 + 8 are held.
    "holdings miss 2 bytes on each device of '2' 1000000000 ns into the period;"
    " they are state of train (20), items from roll to train (8), but needed"
    " are state of train (20), granule of train (6), items from roll to train"
    " (4)",
  ),
  (
    lambda: streamed("roll"),
    unheld("second copy of the weights of roll"),
    "needed are state of roll (10), second copy of weights of roll (5)",
  ),
  (
    streamed,
    lambda plan: dataclasses.replace(
      plan,
      holdings=(
        *plan.holdings,
        Holding(resource=0, bytes_per_device=-9, what="a loan"),
      ),
    ),
    "the holding 'a loan' is of -9 bytes",
  ),
  (
    collocated,
    lambda plan: dataclasses.replace(
      plan,
      holdings=(
        *plan.holdings,
        Holding(resource=0, bytes_per_device=0, what="a wait", begin=3, end=0),
      ),
    ),
    "the holding 'a wait' would end",
  ),
  # The rollouts' state leaves when training has begun.
  (
    collocated,
    reorder("0-1", 0, 1, 2, 4, 5, 6, 7, 8, 3, 9),
    # 600 s swap and twice 1 s of rollouts go before the second swap.
    "each device of '0-1' holds 1200 bytes 602000000000 ns into the period, of"
    " 1000: state of roll (600), state of train (600); swap the state of a"
    " stage, or use smaller granules or more devices",
  ),
]


@pytest.mark.parametrize(("make_fn", "edit_fn", "message"), BROKEN)
def test_a_broken_plan_is_named(
  make_fn: Callable[[], Case], edit_fn: Edit, message: str
):
  case = make_fn()
  broken = dataclasses.replace(case, plan=edit_fn(case.plan))
  assert broken.plan != case.plan
  with pytest.raises(errors.InfeasiblePlanError, match=re.escape(message)):
    broken.check()


def with_cluster(case: Case, **fields) -> Case:
  return dataclasses.replace(
    case, cluster=dataclasses.replace(case.cluster, **fields)
  )


def with_stage(case: Case, name: str, **fields) -> Case:
  stages = tuple(
    dataclasses.replace(s, **fields) if s.name == name else s
    for s in case.workflow.stages
  )
  return dataclasses.replace(
    case, workflow=dataclasses.replace(case.workflow, stages=stages)
  )


UNFIT = [
  (
    lambda: with_cluster(
      collocated(), groups=(Devices.span(0, 1), Devices.span(1, 2))
    ),
    None,
  ),
  (
    lambda: with_cluster(
      streamed(), groups=(Devices.span(0, 1), Devices.span(1, 3))
    ),
    "uses '1' of the devices '1-2', which may be used only together",
  ),
  (
    lambda: with_cluster(
      streamed(),
      classes=(
        *streamed().cluster.classes,
        DeviceClass(name="e", memory_bytes=1000),
      ),
      nodes=(
        Nodes(device_class="d", num_nodes=1, devices_per_node=1),
        Nodes(device_class="e", num_nodes=1, devices_per_node=2),
      ),
    ),
    "resource '0-1': devices '0-1' are not all of one class of this cluster;"
    " divide it by class",
  ),
  # Both stages' state is on the host, for a while: 2 x 600 + 2 x 600.
  (
    lambda: with_cluster(
      collocated(),
      nodes=(
        Nodes(
          device_class="d", num_nodes=1, devices_per_node=2, host_bytes=2399
        ),
      ),
    ),
    "the host of devices '0-1' holds 2400 bytes",
  ),
  (
    lambda: with_cluster(
      collocated(),
      nodes=(
        Nodes(
          device_class="d", num_nodes=1, devices_per_node=2, host_bytes=2400
        ),
      ),
    ),
    None,
  ),
  (
    lambda: with_stage(streamed(), "roll", granule_max=1),
    "compute of 'roll' [0, 2) on '0-1' has 2 items; stage 'roll' allows 1 to 1",
  ),
  (
    lambda: with_stage(streamed(), "roll", granule_min=3),
    "compute of 'roll' [0, 2) on '0-1' has 2 items; stage 'roll' allows 3 to 4,"
    " and fewer only as the rest of an update or share",
  ),
  # Of a group of 4 the first two are there.
  (
    lambda: with_stage(looped(), "act", group=4),
    "compute of 'sim' [0, 2) (1) on '0' reads items [0, 4) of 'act', but does"
    " not wait for compute of 'act' [2, 4) on '1'",
  ),
  (
    lambda: with_stage(streamed(), "train", needs_all=True),
    "compute of 'train' [0, 2) on '2' reads items [0, 4) of 'roll', but does"
    " not wait for compute of 'roll' [2, 4) (1) on '0-1'",
  ),
  (
    lambda: dataclasses.replace(by_hand(), cluster=toys.cluster(2, memory=6)),
    "each device of '0-1' holds 7 bytes 1000000000 ns into the period, of 6:"
    " state of a (4), b (3)",
  ),
]


@pytest.mark.parametrize(("make_fn", "message"), UNFIT)
def test_what_does_not_fit_is_named(
  make_fn: Callable[[], Case], message: str | None
):
  case = make_fn()
  if message is None:
    case.check()
    return
  with pytest.raises(errors.InfeasiblePlanError, match=re.escape(message)):
    case.check()


def random_case(rng: random.Random) -> Case | None:
  """Returns a lowered random tree; None where it is refused or deadlocks."""
  if rng.random() < 0.5:
    tree, *parts = trees.problem(rng, has_channels=True)
  else:
    given = strategies.problem(rng)
    tree = strategies.tree(rng, given)
    parts = [given.workflow, given.profile, given.cluster]
  fields = dict(zip(("workflow", "profile", "cluster"), parts, strict=True))
  try:
    case = Case(plan=lowering.lower(tree, **fields), **fields)
    cycles.schedule(case.plan)
  except errors.InfeasiblePlanError:
    return None
  return case


cases = strategies.drawn(random_case).filter(bool)


@hypothesis.settings(
  suppress_health_check=[hypothesis.HealthCheck.filter_too_much]
)
@hypothesis.given(cases)
def test_a_tree_that_is_lowered_is_accepted(case: Case):
  case.check()


@pytest.mark.slow
@hypothesis.given(cases, st.randoms(use_true_random=False))
def test_activities_and_resources_have_no_order_of_their_own(
  case: Case, rng: random.Random
):
  plan = case.plan
  n, r = len(plan.activities), len(plan.resources)
  new, place = rng.sample(range(n), n), rng.sample(range(r), r)
  activities, resources, orders = [None] * n, [None] * r, [None] * r
  for i, a in enumerate(plan.activities):
    occupied = tuple(place[j] for j in a.resources)
    activities[new[i]] = dataclasses.replace(a, resources=occupied)
  for j, order in enumerate(plan.orders):
    resources[place[j]] = plan.resources[j]
    orders[place[j]] = tuple(
      dataclasses.replace(slot, activity=new[slot.activity]) for slot in order
    )
  renamed = FlatPlan(
    resources=tuple(resources),
    activities=tuple(activities),
    arcs=tuple(
      dataclasses.replace(a, source=new[a.source], target=new[a.target])
      for a in plan.arcs
    ),
    orders=tuple(orders),
    holdings=tuple(
      dataclasses.replace(
        h,
        resource=place[h.resource],
        begin=None if h.begin is None else new[h.begin],
        end=None if h.end is None else new[h.end],
      )
      for h in plan.holdings
    ),
  )
  dataclasses.replace(case, plan=renamed).check()


@pytest.mark.slow
@hypothesis.given(cases, st.randoms(use_true_random=False))
def test_no_duration_can_be_shortened(case: Case, rng: random.Random):
  activities = list(case.plan.activities)
  timed = [i for i, a in enumerate(activities) if a.duration_ns]
  hypothesis.assume(timed)
  i = rng.choice(timed)
  activities[i] = dataclasses.replace(
    activities[i], duration_ns=rng.randrange(activities[i].duration_ns)
  )
  quicker = dataclasses.replace(case.plan, activities=tuple(activities))
  with pytest.raises(errors.InfeasiblePlanError, match=r"takes \d+ ns"):
    dataclasses.replace(case, plan=quicker).check()


@hypothesis.given(cases, st.randoms(use_true_random=False))
def test_no_compute_can_be_left_out(case: Case, rng: random.Random):
  words = [str(a) for a in case.plan.activities if a.kind == "compute"]
  words = [w for w in words if words.count(w) == 1]
  hypothesis.assume(words)
  fewer = drop(rng.choice(words))(case.plan)
  with pytest.raises(errors.InfeasiblePlanError, match="handle"):
    dataclasses.replace(case, plan=fewer).check()
