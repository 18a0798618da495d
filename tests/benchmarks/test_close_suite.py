"""What the benchmark of the exact solver reports, and that it goes on."""

from __future__ import annotations

import json

import pytest
from absl import flags
from absl.testing import flagsaver

from benchmarks import close_suite


def record(name: str, **fields) -> close_suite.Record:
  known = {
    "name": name,
    "stages": 4,
    "groups": 3,
    "granules": 8,
    "status": "optimal",
    "period_ms": 100.0,
    "bound_ms": 100.0,
    "gap": 0.0,
    "first_period_ms": 110.0,
    "first_bound_ms": 90.0,
    "collocated_ms": 130.0,
    "disaggregated_ms": 120.0,
    "seconds": 1.0,
  }
  return {**known, **fields}


@pytest.mark.parametrize(
  "fields, expected",
  [
    ({}, False),
    # List scheduling met the bound before anything was proven.
    ({"first_period_ms": 100.0, "first_bound_ms": 100.0}, True),
    # The better of the two is 9 % above the optimum; or 10 %.
    ({"disaggregated_ms": 109.0}, True),
    ({"disaggregated_ms": 110.0}, False),
    ({"disaggregated_ms": None, "collocated_ms": 105.0}, True),
    ({"disaggregated_ms": None, "collocated_ms": None}, False),
  ],
)
def test_trivial_is_what_says_little_about_planners(fields, expected):
  assert close_suite.is_trivial(record("a", **fields)) == expected


def test_the_summary_names_what_is_open():
  text = close_suite.summary(
    [
      record("a"),
      record("b", stages=6, status="bounded", bound_ms=98.0, gap=0.02),
      record("c", stages=6, status="bounded", bound_ms=96.0, gap=0.04),
      record("d", granules=32, collocated_ms=100.0),
    ]
  ).splitlines()
  assert text[0] == "closed: 2 of 4; not trivial: 1"
  assert text[1] == "closed by stages: 4: 2 of 2, 6: 0 of 2"
  assert text[2] == "closed by granules: 8: 1 of 3, 32: 1 of 1"
  assert text[5] == "open: 2; gap: median 3.00%, largest 4.00%"
  assert text[6].startswith("  c: gap 4.00%")
  assert text[7].startswith("  b: gap 2.00%")


@pytest.mark.slow
def test_a_run_goes_on_where_it_was_stopped(tmp_path, capsys):
  path = tmp_path / "out.jsonl"
  if not flags.FLAGS.is_parsed():
    flags.FLAGS.mark_as_parsed()
  options = {
    "draw": "development",
    "every": 72,
    "workers": 1,
    "time_limit_s": 20.0,
    "replay": True,
    "output": str(path),
  }
  with flagsaver.flagsaver(**options):
    close_suite.main(["close_suite"])
    lines = path.read_text().splitlines()
    assert len(lines) == 2
    for line in map(json.loads, lines):
      assert line["is_replayed"]
      assert line["any_plan_bound_ms"] <= line["period_ms"]
      assert line["single_mode_bound_ms"] <= line["period_ms"]
      assert line["bound_ms"] <= line["period_ms"] <= line["first_period_ms"]
    # The last line was cut off as the run was killed.
    path.write_text("\n".join(lines[:1]) + "\n" + lines[1][:40])
    capsys.readouterr()
    close_suite.main(["close_suite"])
    shown = capsys.readouterr().out
  assert "2/2" in shown
  assert "1/2" not in shown
  assert len(path.read_text().splitlines()) == 2
  with flagsaver.flagsaver(**{**options, "time_limit_s": 5.0}):
    with pytest.raises(ValueError, match="give another --output"):
      close_suite.main(["close_suite"])
