"""Host stages that other processes import, for tests of killing them."""

import os
import signal
import subprocess
import sys
import threading
import time

import jax

from rlinf_jax import flow

DEADLINE_S = 1.0


def same(x_b):
  return jax.ShapeDtypeStruct(x_b.shape, x_b.dtype)


@flow.stage(items={0: 0}, place="host", out_fn=same, deadline_s=DEADLINE_S)
def tool(x_b):
  """Doubles; an item of -1 hangs, -2 ends the process, -3 raises."""
  first = int(x_b[0])
  if first == -1:
    # What it starts hangs too.
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    time.sleep(60)
  if first == -2:
    os._exit(7)
  if first == -3:
    raise ZeroDivisionError("no tool for that")
  return 2 * x_b


def process_of(x_b):
  """Gives the number of the process for every item."""
  return 0 * x_b + os.getpid()


def stops_after_a_while(x_b):
  """Gives what it was given; its process stops while that is being sent."""
  stop = lambda: os.kill(os.getpid(), signal.SIGSTOP)
  threading.Timer(0.02, stop).start()
  return x_b
