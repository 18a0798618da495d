"""What the display says, on a clock that the tests turn."""

import io
import re
import subprocess
import sys

import numpy as np
import pytest
import rich.console

from rlinf_jax.reporting import progress


class _Clock:
  now_s = 0.0

  def __call__(self):
    return self.now_s


def _open(*, is_terminal=False, **settings):
  clock = _Clock()
  console = rich.console.Console(
    file=io.StringIO(), force_terminal=is_terminal, width=100
  )
  display = progress.open_progress(
    **{"total_steps": 1000, "console": console, "clock": clock, **settings}
  )
  return display, clock, console


def test_plain_lines_come_now_and_then_and_at_the_end():
  display, clock, console = _open(line_every_s=10)
  with display:
    for step in range(100, 600, 100):
      clock.now_s += 4
      display.update(step, {"return": step / 8, "success": np.nan})
  # 25 steps/s throughout; a line at 12 s, and the last one at the end.
  assert console.file.getvalue().splitlines() == [
    "300 of 1,000 steps (30%)  25 steps/s  return 37.5  success -  28.0 s left",
    "500 of 1,000 steps (50%)  25 steps/s  return 62.5  success -  20.0 s left",
  ]


def test_a_phase_is_named_timed_and_no_part_of_the_speed():
  display, clock, console = _open(line_every_s=0)
  with display:
    with display.phase("compile iteration"):
      clock.now_s += 4.2
    clock.now_s += 10
    display.update(500, {})
    with display.phase("evaluate"):
      clock.now_s += 100
      with display.phase("render"):
        clock.now_s += 50
    clock.now_s += 10
    display.update(1000, {})
  # At the end there is nothing left to wait for: 4.2 + 10 + 150 + 10 s passed.
  assert console.file.getvalue().splitlines() == [
    "compile iteration ...",
    "compile iteration 4.2 s",
    "500 of 1,000 steps (50%)  50 steps/s  10.0 s left",
    "evaluate ...",
    "render ...",
    "render 50.0 s",
    "evaluate 2 min 30 s",
    "1,000 of 1,000 steps (100%)  50 steps/s  2 min 54 s",
  ]
  assert display.steps_per_s == 50


def test_the_speed_is_that_of_late():
  display, clock, _ = _open()
  step = 0
  for rate in (100, 10):
    for _ in range(50):
      clock.now_s += 1
      step += rate
      display.update(step, {})
  assert display.steps_per_s == 10


def test_a_resumed_run_does_not_count_what_was_done_before():
  display, clock, _ = _open(first_step=900)
  clock.now_s = 2
  display.update(950, {})
  assert display.steps_per_s == 25


def test_several_seeds_are_shown_by_their_mean():
  display, _, console = _open()
  with display:
    display.update(1, {"return": np.asarray([1.0, 2.0], np.float32)})
  assert "return 1.5" in console.file.getvalue()


def test_a_long_phase_is_heard_of_without_a_terminal(monkeypatch):
  monkeypatch.setattr(progress, "_HEARTBEAT_S", 0.001)
  display, clock, console = _open()
  with display, display.phase("compile"):
    clock.now_s = 61
    while "compile ... 1 min 01 s" not in console.file.getvalue():
      pass
  assert console.file.getvalue().splitlines()[-1] == "compile 1 min 01 s"


def test_a_failed_phase_is_named_and_the_error_goes_on():
  display, clock, console = _open()
  with (
    pytest.raises(ZeroDivisionError),
    display,
    display.phase("compile"),
  ):
    clock.now_s = 2
    _ = 1 // 0
  assert (
    console.file.getvalue().splitlines()[-1] == "compile failed after 2.0 s"
  )


def test_no_control_codes_without_a_terminal():
  display, _, console = _open()
  with display:
    display.print("physics: [auto] mujoco")
    display.update(1000, {"return": 1.0})
  text = console.file.getvalue()
  assert text.startswith("physics: [auto] mujoco\n")
  assert "\x1b" not in text and "\r" not in text


def test_the_live_display_shows_steps_numbers_phase_and_notice():
  display, clock, console = _open(is_terminal=True)
  with display:
    clock.now_s = 10
    display.update(500, {"return": 12.5})
    display.show_notice("stopping soon")
    with display.phase("evaluate"):
      clock.now_s = 13
      console.print(display)
  text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", console.file.getvalue())
  lines = [line.rstrip() for line in text.splitlines()]
  begin = next(i for i, line in enumerate(lines) if "━" in line)
  while "evaluate" not in lines[begin + 2]:
    begin += 1
  assert lines[begin].endswith("500 of 1,000 steps (50%)")
  assert lines[begin + 1] == "50 steps/s  return 12.5  10.0 s left"
  assert lines[begin + 2].endswith("evaluate 3.0 s")
  assert lines[begin + 3] == "stopping soon"
  assert "evaluate 3.0 s" in lines


_CHILD = """
import io, rich.console
from rlinf_jax.reporting import progress
console = rich.console.Console(force_terminal={is_terminal})
with progress.open_progress(total_steps=9, console=console) as display:
  with display.phase("compile"):
    raise ValueError("the first error")
"""


@pytest.mark.parametrize("is_terminal", [True, False])
def test_the_first_error_is_the_last_that_one_reads(is_terminal):
  child = subprocess.run(
    [sys.executable, "-c", _CHILD.format(is_terminal=is_terminal)],
    capture_output=True,
    text=True,
    timeout=30,
  )
  assert child.returncode == 1
  assert child.stderr.startswith("Traceback")
  assert child.stderr.endswith("ValueError: the first error\n")


@pytest.mark.parametrize(
  "duration_s, text",
  [
    (0.04, "0.0 s"),
    (59.94, "59.9 s"),
    (59.96, "1 min 00 s"),
    (200, "3 min 20 s"),
    (3599.6, "1 h 00 min"),
    (3720, "1 h 02 min"),
  ],
)
def test_durations_read_well(duration_s, text):
  assert progress.format_duration(duration_s) == text


@pytest.mark.parametrize(
  "value, text",
  [(83210.4, "83,210"), (12.345, "12.3"), (0.5, "0.5"), (np.nan, "-")],
)
def test_numbers_read_well(value, text):
  assert progress.format_number(value) == text
