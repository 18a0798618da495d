"""The frozen suite of class S."""

from __future__ import annotations

import collections
import hashlib
import itertools
import typing

import pytest

from scheduler import documents
from scheduler.exact import class_s, suite

# python -c "from tests.scheduler import test_exact_suite as t;
#            print({d: t.digest(d) for d in ('development', 'test')})"
DIGESTS = {
  "development": (
    "011704fcd14ea0722ce15735a335b5dcc29e9190f5c19d62214759f213870487"
  ),
  "test": ("b6410b36d902f382b57221729de3c78e9493854fc8cf6e98c12e8280c70d13ff"),
}


def digest(draw: suite.Draw) -> str:
  text = hashlib.sha256()
  for instance in suite.draw(draw):
    for part in (instance.workflow, instance.profile, instance.cluster):
      text.update(documents.to_json(part).encode())
  return text.hexdigest()


@pytest.mark.parametrize("draw", typing.get_args(suite.Draw))
def test_a_draw_is_frozen(draw):
  assert digest(draw) == DIGESTS[draw]


@pytest.mark.slow
@pytest.mark.parametrize("draw", typing.get_args(suite.Draw))
def test_every_choice_is_drawn_once_and_belongs_to_the_class(draw):
  instances = suite.draw(draw)
  assert len({instance.name for instance in instances}) == 144
  strata = collections.Counter(
    (i.num_stages, i.num_groups, i.num_granules) for i in instances
  )
  expected = itertools.product((4, 5, 6), (3, 4), (8, 16, 32))
  assert strata == dict.fromkeys(expected, 8)
  for instance in instances:
    problem = class_s.read(
      instance.workflow, instance.profile, instance.cluster
    )
    assert len(problem.stages) == instance.num_stages
    assert len(problem.groups) == instance.num_groups
    assert problem.num_granules == instance.num_granules
    assert problem.tick_ns == 1_000_000


def test_choices_mean_what_they_say():
  for instance in suite.draw("test"):
    sizes = {len(group) for group in instance.cluster.groups}
    assert (len(sizes) == 1) == (instance.groups == "equal")
    is_chain = len(instance.workflow.edges) == instance.num_stages - 1 and all(
      len([e for e in instance.workflow.edges if e.source == stage.name]) <= 1
      for stage in instance.workflow.stages
    )
    assert is_chain == (instance.shape == "chain")
    state = sum(stage.state_bytes for stage in instance.workflow.stages)
    memory = instance.cluster.classes[0].memory_bytes
    assert (state < memory) == (instance.memory == "loose")


def test_more_devices_are_faster_but_not_in_proportion():
  for instance in suite.draw("test"):
    for entry in instance.profile.entries:
      seconds = {s.devices: s.seconds for s in entry.law.samples}
      for few, many in itertools.pairwise(sorted(seconds)):
        assert seconds[many] <= seconds[few]
        # Times are rounded up to milliseconds.
        assert seconds[many] * many >= seconds[few] * few - 0.001 * few


def test_there_is_no_other_draw():
  with pytest.raises(ValueError, match="no draw 'all'"):
    suite.draw("all")
