"""Lets a run finish its iteration and save when it is interrupted."""

from __future__ import annotations

import contextlib
import os
import signal
import types
from collections.abc import Callable, Iterator

_MESSAGE = "Finishing this iteration, then saving; again to stop at once."

NotifyFn = Callable[[str], None]


class Interrupt:
  """Whether a run was asked to stop."""

  def __init__(self) -> None:
    self._is_requested = False

  @property
  def is_requested(self) -> bool:
    """True once a signal has come."""
    return self._is_requested

  def request(self) -> None:
    """Asks the run to stop, as a signal does."""
    self._is_requested = True


@contextlib.contextmanager
def graceful_interrupt(
  *, notify: NotifyFn | None = None
) -> Iterator[Interrupt]:
  """Yields an `Interrupt` that Ctrl-C or SIGTERM sets; the next one raises.

  The first signal shows a line and sets the flag, which the caller's loop
  polls; the second raises KeyboardInterrupt where the program stands. On exit
  the handlers that were there before are back.

  Example::

    with interrupts.graceful_interrupt() as interrupt:
      while step < num_steps and not interrupt.is_requested:
        state = iterate(state)
    save(state)

  Args:
    notify: shows the line amid whatever the program does (a display's
      `show_notice`); None writes it to stderr.

  Raises:
    ValueError: called from another thread than the main one, where Python
      allows no handlers.
    KeyboardInterrupt: from the second signal on.
  """
  interrupt = Interrupt()

  def handle(number: int, frame: types.FrameType | None) -> None:
    del frame
    if interrupt.is_requested:
      raise KeyboardInterrupt(signal.Signals(number).name)
    interrupt.request()
    (notify or _write_to_stderr)(_MESSAGE)

  numbers = (signal.SIGINT, signal.SIGTERM)
  before = {number: signal.signal(number, handle) for number in numbers}
  try:
    yield interrupt
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)


def _write_to_stderr(text: str) -> None:
  # Not print: the signal may have come amid another print.
  with contextlib.suppress(OSError):
    os.write(2, f"\n{text}\n".encode())
