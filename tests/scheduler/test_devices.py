"""Sets of devices against Python's own sets, and by hand."""

from __future__ import annotations

import hypothesis
import pytest
from hypothesis import strategies as st

from scheduler import devices as device_sets
from scheduler import errors
from scheduler.devices import Devices

indices = st.sets(st.integers(0, 20))


@pytest.mark.parametrize(
  ("text", "spans"),
  [
    ("", ()),
    ("3", ((3, 4),)),
    ("0-7,12", ((0, 8), (12, 13))),
    ("12, 0-7", ((0, 8), (12, 13))),
    ("0-3,4-7,6", ((0, 8),)),
  ],
)
def test_a_set_is_parsed_into_disjoint_spans(text, spans):
  assert Devices.parse(text).spans == spans


@hypothesis.given(indices)
def test_a_set_comes_back_from_its_text(a):
  assert Devices.parse(str(Devices.of(a))) == Devices.of(a)


@hypothesis.given(indices, indices)
def test_operations_are_those_of_sets(a, b):
  x, y = Devices.of(a), Devices.of(b)
  assert list(x) == sorted(a)
  assert len(x) == len(a)
  assert x | y == Devices.of(a | b)
  assert x & y == Devices.of(a & b)
  assert x - y == Devices.of(a - b)
  assert x.isdisjoint(y) == a.isdisjoint(b)
  assert x.issubset(y) == a.issubset(b)


@hypothesis.given(indices, st.integers(0, 25))
def test_the_first_are_the_lowest(a, count):
  assert list(Devices.of(a).first(count)) == sorted(a)[:count]


def test_atoms_by_hand():
  # 0-3 and 2-5 overlap in 2-3; 8 is by itself.
  sets = [Devices.parse(t) for t in ("0-3", "2-5", "8")]
  assert list(map(str, device_sets.atoms(sets))) == ["0-1", "2-3", "4-5", "8"]


@hypothesis.given(st.lists(indices, max_size=5))
def test_atoms_are_the_coarsest_division_of_all_sets(groups):
  atoms = [set(a) for a in device_sets.atoms(map(Devices.of, groups))]
  # Two devices share an atom exactly when the same sets hold them.
  holders = {}
  for i in set().union(*groups):
    key = tuple(i in group for group in groups)
    holders.setdefault(key, set()).add(i)
  assert sorted(map(sorted, atoms)) == sorted(map(sorted, holders.values()))


@pytest.mark.parametrize(
  "spans",
  [((0, 0),), ((2, 1),), ((0, 2), (1, 3)), ((0, 1), (1, 2)), ((-1, 1),)],
)
def test_spans_that_are_not_a_set_are_refused(spans):
  with pytest.raises(errors.DocumentError, match="not ascending, disjoint"):
    Devices(spans)
