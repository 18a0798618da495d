"""Shows how far a run is: a live display, or plain lines where none can be.

Without a terminal (CI, nohup, a pipe) each phase gets a line when it begins, on
the half minute while it lasts, and when it ends; steps get one now and then.
"""

from __future__ import annotations

import collections
import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import rich.console
import rich.live
import rich.progress_bar
import rich.spinner
import rich.table
import rich.text

_WINDOW_S = 20.0  # over which steps/s is taken
_HEARTBEAT_S = 30.0


class Progress:
  """How far a run is, shown within a `with` block. Made by `open_progress`."""

  def __init__(
    self,
    *,
    total_steps: int,
    first_step: int,
    console: rich.console.Console,
    line_every_s: float,
    clock: Callable[[], float],
  ) -> None:
    self._total_steps = total_steps
    self._console = console
    self._is_live = console.is_terminal and not console.is_dumb_terminal
    self._line_every_s = line_every_s
    self._clock = clock
    self._start_s = self._line_s = clock()
    self._phases: list[tuple[str, float]] = []
    self._paused_s = 0.0
    self._step = self._line_step = first_step
    self._values: dict[str, float] = {}
    self._notice = ""
    self._points = collections.deque([(0.0, first_step)])
    self._spinner = rich.spinner.Spinner("dots")
    # Its thread is a daemon, and ends with the block.
    self._live = rich.live.Live(
      console=console, get_renderable=self.__rich__, refresh_per_second=4
    )

  def __enter__(self) -> Progress:
    if self._is_live:
      self._live.start(refresh=True)
    return self

  def __exit__(self, *error: object) -> None:
    if self._is_live:
      self._live.stop()
    elif self._line_step != self._step:
      self._print_line(self._clock())

  @contextlib.contextmanager
  def phase(self, name: str) -> Iterator[None]:
    """Names and times what is not stepping: "compile", "evaluate".

    Its time does not count in steps/s. The line with its duration is printed
    even where it raises.
    """
    start_s = self._clock()
    self._phases.append((name, start_s))
    stop_heartbeat = self._start_heartbeat(name, start_s)
    try:
      yield
    except BaseException:
      self._end_phase(stop_heartbeat, "failed after ")
      raise
    self._end_phase(stop_heartbeat)

  def name_phase(self, name: str) -> None:
    """Renames the phase that runs, as it comes to another part of its work."""
    _, start_s = self._phases[-1]
    self._phases[-1] = (name, start_s)

  def update(self, step: int, values: Mapping[str, Any]) -> None:
    """Reports that `step` is done, with numbers to show beside it.

    Args:
      step: steps done in all.
      values: numbers, or arrays [num_seeds], of which the mean is shown.
    """
    self._step = step
    self._values = {
      k: float(np.mean(np.asarray(v, np.float64))) for k, v in values.items()
    }
    now_s = self._clock()
    points = self._points
    points.append((self._stepping_s(now_s), step))
    while len(points) > 2 and points[-1][0] - points[1][0] > _WINDOW_S:
      points.popleft()
    if not self._is_live and now_s - self._line_s >= self._line_every_s:
      self._print_line(now_s)

  def print(self, text: str) -> None:
    """Prints a line that stays, above the live display."""
    self._console.print(text, markup=False, highlight=False, soft_wrap=True)

  def show_notice(self, text: str) -> None:
    """Shows a line as long as the run lasts; safe in a signal handler."""
    self._notice = text
    if not self._is_live:
      # Not print: the signal may have come amid another print.
      with contextlib.suppress(OSError):
        os.write(2, f"{text}\n".encode())

  @property
  def steps_per_s(self) -> float:
    """Steps per second of late, without the phases; NaN before the first."""
    (start_s, first_step), (end_s, last_step) = (
      self._points[0],
      self._points[-1],
    )
    if end_s <= start_s:
      return math.nan
    return (last_step - first_step) / (end_s - start_s)

  def __rich__(self) -> rich.console.RenderableType:
    """Returns the live display: a bar, the numbers, the phase."""
    grid = rich.table.Table.grid(padding=(0, 1))
    bar = rich.progress_bar.ProgressBar(
      total=max(1, self._total_steps), completed=self._step, width=30
    )
    grid.add_row(bar, rich.text.Text(self._describe_steps()))
    lines: list[rich.console.RenderableType] = [
      grid,
      rich.text.Text(self._describe_numbers(), style="bold"),
    ]
    # The display's thread must not see the list empty between two looks.
    for name, start_s in self._phases[-1:]:
      duration = format_duration(self._clock() - start_s)
      self._spinner.update(text=rich.text.Text(f"{name} {duration}"))
      lines.append(self._spinner)
    if self._notice:
      lines.append(rich.text.Text(self._notice, style="yellow"))
    return rich.console.Group(*lines)

  def _start_heartbeat(self, name: str, start_s: float) -> threading.Event:
    stop = threading.Event()
    if self._is_live:
      return stop
    self.print(f"{name} ...")

    def beat() -> None:
      while not stop.wait(_HEARTBEAT_S):
        duration = format_duration(self._clock() - start_s)
        self.print(f"{name} ... {duration}")

    threading.Thread(target=beat, daemon=True).start()
    return stop

  def _end_phase(self, stop_heartbeat: threading.Event, how: str = "") -> None:
    stop_heartbeat.set()
    name, start_s = self._phases.pop()
    duration_s = self._clock() - start_s
    if not self._phases:
      self._paused_s += duration_s
    self.print(f"{name} {how}{format_duration(duration_s)}")

  def _print_line(self, now_s: float) -> None:
    self._line_s, self._line_step = now_s, self._step
    self.print(f"{self._describe_steps()}  {self._describe_numbers()}")

  def _stepping_s(self, now_s: float) -> float:
    return now_s - self._start_s - self._paused_s

  def _describe_steps(self) -> str:
    share = self._step / max(1, self._total_steps)
    return f"{self._step:,} of {self._total_steps:,} steps ({share:.0%})"

  def _describe_numbers(self) -> str:
    rate = self.steps_per_s
    parts = [f"{format_number(rate)} steps/s"]
    parts += [f"{k} {format_number(v)}" for k, v in self._values.items()]
    if rate > 0 and self._step < self._total_steps:
      left_s = (self._total_steps - self._step) / rate
      parts.append(f"{format_duration(left_s)} left")
    else:
      parts.append(format_duration(self._clock() - self._start_s))
    return "  ".join(parts)


def open_progress(
  *,
  total_steps: int,
  first_step: int = 0,
  console: rich.console.Console | None = None,
  line_every_s: float = 10.0,
  clock: Callable[[], float] = time.monotonic,
) -> Progress:
  """Returns a `Progress`; an error in its block is shown as ever.

  Example::

    with progress.open_progress(total_steps=1_000_000) as display:
      with display.phase("compile iteration"):
        program = lowered.compile()
      while step < 1_000_000:
        step, state = program(state)
        display.update(step, {"return": 12.3, "success": 0.5})

  Args:
    total_steps: at which the run ends.
    first_step: at which it begins, where it is resumed.
    console: where to show it; None is stdout.
    line_every_s: how often steps get a plain line.
    clock: the time in seconds.
  """
  return Progress(
    total_steps=total_steps,
    first_step=first_step,
    console=console or rich.console.Console(),
    line_every_s=line_every_s,
    clock=clock,
  )


def format_duration(duration_s: float) -> str:
  """Returns for instance "4.2 s", "3 min 20 s" or "1 h 02 min"."""
  if duration_s < 59.95:
    return f"{duration_s:.1f} s"
  minutes, seconds = divmod(round(duration_s), 60)
  if minutes < 60:
    return f"{minutes} min {seconds:02d} s"
  hours, minutes = divmod(minutes, 60)
  return f"{hours} h {minutes:02d} min"


def format_number(value: float) -> str:
  """Returns for instance "83,210", "12.3", "0.612"; "-" where not a number."""
  if not math.isfinite(value):
    return "-"
  return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
