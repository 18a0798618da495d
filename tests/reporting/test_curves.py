"""What a learning curve contains, read back from its picture."""

import math

import numpy as np
import pytest
from matplotlib import image

from rlinf_jax.reporting import curves, metrics

_BLUE = np.asarray([0x1F, 0x5F, 0xA8]) / 255
_GREEN = np.asarray([0x2A, 0x8F, 0x5C]) / 255
_GREY = np.asarray([0x77, 0x80, 0x8A]) / 255


def _draw(directory, rows, **settings):
  path = directory / metrics.FILE_NAME
  writer = metrics.open_jsonl(path)
  for step, values in rows:
    writer.write(step, values)
  writer.close()
  png = curves.plot_learning_curve(
    path, directory / "plots" / "curve.png", title="reacher", **settings
  )
  return image.imread(png)[..., :3]


def _count(picture, color, *, tolerance=0.02):
  is_color = np.abs(picture - color).max(axis=-1) < tolerance
  return int(is_color.sum())


def _rows(num_seeds=None, **values):
  def value(step):
    return step if num_seeds is None else step + np.arange(num_seeds) * 9.0

  return [(i, {"return": value(i), **values}) for i in range(20)]


def test_the_return_alone_is_one_blue_line(tmp_path):
  picture = _draw(tmp_path, _rows())
  assert picture.shape == (750, 1200, 3)
  assert _count(picture, _BLUE) > 500
  assert _count(picture, _GREEN) == 0


def test_a_rising_return_is_drawn_rising(tmp_path):
  picture = _draw(tmp_path, _rows())[100:600, 150:]
  heights, widths = np.nonzero(np.abs(picture - _BLUE).max(axis=-1) < 0.02)
  assert np.corrcoef(widths, -heights)[0, 1] > 0.99


def test_success_has_an_axis_of_its_own(tmp_path):
  picture = _draw(tmp_path, _rows(success=0.5))
  assert _count(picture, _GREEN) > 500


def test_a_task_without_success_has_no_such_axis(tmp_path):
  picture = _draw(tmp_path, _rows(success=0.0), success_name=None)
  assert _count(picture, _GREEN) == 0


def test_speed_has_a_panel_of_its_own_below(tmp_path):
  picture = _draw(tmp_path, _rows(steps_per_s=1000.0))
  assert _count(picture[560:], _GREY) > 500
  assert _count(picture[560:], _BLUE) == 0


@pytest.mark.slow
def test_seeds_have_a_band_around_their_mean(tmp_path):
  # A band of opacity 0.15 over white; a line's smooth edges have some of it.
  band = 1 - 0.15 * (1 - _BLUE)
  assert _count(_draw(tmp_path, _rows(num_seeds=3)), band) > 10_000
  assert _count(_draw(tmp_path, _rows()), band) < 1000


def test_rows_without_numbers_are_skipped(tmp_path):
  gap = [(i, {"return": math.nan, "loss": 1.0}) for i in range(20, 40)]
  picture = _draw(tmp_path, _rows() + gap)
  assert _count(picture, _BLUE) > 500


def test_nothing_to_draw_is_said(tmp_path):
  with pytest.raises(ValueError, match="finite 'return'"):
    _draw(tmp_path, [(1, {"return": math.nan})])
