"""Signals, by really sending them to a child process."""

import os
import signal
import subprocess
import sys

import pytest

from rlinf_jax.reporting import interrupts

_CHILD = """
import time
from rlinf_jax.reporting import interrupts
with interrupts.graceful_interrupt() as interrupt:
  print("ready", flush=True)
  while not interrupt.is_requested:
    time.sleep(0.01)
  print("asked", flush=True)
  {then}
print("saved", flush=True)
"""


def _start(then):
  child = subprocess.Popen(
    [sys.executable, "-c", _CHILD.format(then=then)],
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )
  assert child.stdout.readline() == "ready\n"
  return child


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_lets_the_loop_finish(number):
  child = _start("pass")
  child.send_signal(number)
  stdout, stderr = child.communicate(timeout=30)
  assert stdout == "asked\nsaved\n"
  assert stderr.strip() == (
    "Finishing this iteration, then saving; again to stop at once."
  )
  assert child.returncode == 0


def test_the_second_signal_stops_at_once():
  child = _start("time.sleep(60)")
  child.send_signal(signal.SIGINT)
  assert child.stdout.readline() == "asked\n"
  child.send_signal(signal.SIGINT)
  stdout, stderr = child.communicate(timeout=30)
  assert stdout == ""
  assert stderr.strip().endswith("KeyboardInterrupt: SIGINT")
  assert child.returncode == -signal.SIGINT


def test_the_old_handlers_come_back():
  before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
  with interrupts.graceful_interrupt():
    assert signal.getsignal(signal.SIGINT) not in before
  assert before == [
    signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)
  ]


def test_the_line_goes_where_it_is_wanted():
  lines = []
  with interrupts.graceful_interrupt(notify=lines.append) as interrupt:
    assert not interrupt.is_requested
    os.kill(os.getpid(), signal.SIGINT)
    assert interrupt.is_requested
  assert len(lines) == 1
