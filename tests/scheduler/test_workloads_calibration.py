"""The fit of the workloads' laws to published figures."""

from __future__ import annotations

import dataclasses

import pytest

from scheduler.workloads import calibration, constants, figures, fitting


def of_use(use: figures.Use) -> list[figures.Figure]:
  return [figure for figure in figures.FIGURES if figure.use == use]


@pytest.mark.slow
def test_the_committed_constants_are_what_the_fit_finds():
  found = fitting.fit()
  own = fitting.fit_own(constants.FITTED)
  for values, committed in (
    (found, constants.FITTED),
    (own, constants.OWN),
  ):
    assert dataclasses.asdict(values) == pytest.approx(
      dataclasses.asdict(committed), rel=0.01
    )


def test_fitted_figures_are_met_within_five_percent():
  errors = {
    r.figure.name: r.error for r in fitting.residuals() if r.figure.use == "fit"
  }
  assert all(abs(error) < 0.05 for error in errors.values()), errors


def test_the_fit_has_fewer_constants_than_figures():
  num_constants = len(dataclasses.fields(constants.Constants))
  assert (num_constants, len(of_use("fit"))) == (9, 13)


def test_figures_of_their_own_have_one_constant_each_and_are_met():
  num_constants = len(dataclasses.fields(constants.OwnConstants))
  assert num_constants == len(of_use("own"))
  for r in fitting.residuals():
    if r.figure.use == "own":
      assert r.predicted_s == pytest.approx(r.figure.seconds, rel=2e-3)


def test_figures_to_test_depend_on_no_constant_of_theirs():
  rows = {figure.row for figure in of_use("test")}
  assert rows.isdisjoint(f.row for f in of_use("fit") + of_use("own"))


def test_every_row_has_figures_and_every_figure_a_row():
  assert {figure.row for figure in figures.FIGURES} == set(figures.ROWS)
  names = [figure.name for figure in figures.FIGURES]
  assert len(set(names)) == len(names)


def test_published_throughputs_follow_from_the_rows():
  # 512 x 13,975 tokens / (8 x 266.1 s) = 3,361 tokens/s per GPU, and
  # 2,048 x 10,426 / (64 x 317 s) = 1,053.
  published = {"rlinf_1_5b": 3361, "rlinf_7b": 1053}
  for figure in of_use("fit"):
    row = figures.ROWS[figure.row]
    if figure.phase == "generation" and row.mean_tokens:
      tokens = row.sequences * row.mean_tokens
      assert tokens / (row.num_devices * figure.seconds) == pytest.approx(
        published[figure.row], rel=1e-3
      )


def test_under_thirty_percent_of_dynarls_decode_is_alive_at_half_time():
  ready = calibration.ready_s(
    figures.ROWS["dynarl"], calibration.row_lengths("dynarl")
  )
  alive = sum(t > ready[-1] / 2 for t in ready) / len(ready)
  assert alive < 0.3


@pytest.mark.slow
def test_compute_left_out_is_predicted_within_seven_percent():
  left_out = fitting.leave_one_out(phases=("infer", "train"))
  assert len(left_out) == 5
  assert all(abs(r.error) < 0.07 for r in left_out)


@pytest.mark.slow
def test_leaving_out_shows_what_the_fit_cannot_know():
  generation = fitting.leave_one_out(phases=("generation",))
  errors = {r.figure.name: r.error for r in generation}
  # One of DynaRL's two figures alone does not tell its median from its sigma.
  worst = {name: errors.pop(name) for name in list(errors) if "dynarl" in name}
  assert len(errors) == 6 and max(map(abs, errors.values())) < 0.1
  assert max(map(abs, worst.values())) > 0.1
  rows = fitting.leave_row_out()
  assert {r.figure.row for r in rows} == {"rlinf_1_5b", "rlinf_7b"}
  # One model alone does not tell a token's cost from a parameter's.
  compute = [abs(r.error) for r in rows if r.figure.phase != "generation"]
  assert 0.1 < max(compute) < 0.5
