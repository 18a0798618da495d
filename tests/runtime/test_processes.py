"""Host stages with a deadline are killed, with all that they started."""

import os
import signal
import subprocess
import sys
import time

import jax.numpy as jnp
import numpy as np
import psutil
import pytest

from rlinf_jax import flow, runtime
from rlinf_jax.runtime import machines
from tests.runtime import host_stages

pytestmark = pytest.mark.slow  # a process imports JAX, for seconds


def below_us(text):
  """Returns the processes below this one whose command line has a text."""
  found = psutil.Process().children(recursive=True)
  return [p for p in found if any(text in part for part in p.cmdline())]


def items(*values):
  return np.array(values, np.int32)


def test_a_stage_in_a_process_gives_what_it_returns():
  np.testing.assert_array_equal(host_stages.tool(items(1, 2)), [2, 4])


def test_a_late_call_is_killed_with_what_it_started():
  host_stages.tool(items(1))
  start_s = time.monotonic()
  with pytest.raises(TimeoutError, match=r"'tool' did not return within 1 s"):
    host_stages.tool(items(-1))
  assert time.monotonic() - start_s < 3 * host_stages.DEADLINE_S
  assert not below_us("time.sleep(60)")
  np.testing.assert_array_equal(host_stages.tool(items(3)), [6])


def test_a_process_that_ends_is_named_and_replaced():
  with pytest.raises(RuntimeError, match="'tool' ended its process.* 7"):
    host_stages.tool(items(-2))
  np.testing.assert_array_equal(host_stages.tool(items(3)), [6])


def test_what_a_call_raises_is_raised_here():
  with pytest.raises(ZeroDivisionError, match="no tool for that"):
    host_stages.tool(items(-3))


def test_processes_are_kept_for_later_calls():
  stage = flow.stage(
    host_stages.process_of,
    items={0: 0},
    place="host",
    out_fn=host_stages.same,
    deadline_s=5.0,
  )
  first, second = stage(items(1)), stage(items(1))
  assert first == second != 0


def test_a_process_that_does_not_read_is_killed_too():
  stage = flow.stage(
    host_stages.process_of,
    items={0: 0},
    place="host",
    out_fn=host_stages.same,
    deadline_s=3.0,
  )
  (child,) = set(stage(items(1)).tolist())
  os.kill(child, signal.SIGSTOP)
  more_than_a_pipe_holds = np.zeros(1_000_000, np.int32)
  with pytest.raises(TimeoutError, match="did not return within 3 s"):
    stage(more_than_a_pipe_holds)
  (other,) = set(stage(items(1)).tolist())
  assert other != child


def test_a_process_that_stops_in_the_middle_of_a_result_is_killed():
  stage = flow.stage(
    host_stages.stops_after_a_while,
    items={0: 0},
    place="host",
    out_fn=host_stages.same,
    deadline_s=3.0,
  )
  with pytest.raises(TimeoutError, match="did not return within 3 s"):
    stage(np.zeros(20_000_000, np.int32))


def test_a_planned_flow_ends_within_the_deadline_and_names_the_stage():
  run = runtime.m2flow(
    lambda x_b: host_stages.tool(x_b),
    plan="collocated",
    machine=machines.of_process(1),
  )
  run.prepare(jnp.asarray(items(1, 2)))
  start_s = time.monotonic()
  with pytest.raises(
    runtime.StageError, match="'tool' failed on items 0 to [12]"
  ):
    run(jnp.asarray(items(-1, 2)))
  assert time.monotonic() - start_s < 3 * host_stages.DEADLINE_S
  assert not below_us("time.sleep(60)")


def test_processes_do_not_outlive_us():
  program = (
    "import os, signal, numpy as np\n"
    "from tests.runtime import host_stages\n"
    "from rlinf_jax import flow\n"
    "stage = flow.stage(host_stages.process_of, items={0: 0}, place='host',"
    " out_fn=host_stages.same, deadline_s=5.0)\n"
    "if __name__ == '__main__':\n"
    "  print(int(stage(np.zeros(1, np.int32))[0]), flush=True)\n"
    "  os.kill(os.getpid(), signal.SIGKILL)\n"
  )
  done = subprocess.run(
    [sys.executable, "-c", program], capture_output=True, check=False, text=True
  )
  child, deadline_s = int(done.stdout), time.monotonic() + 10.0
  while psutil.pid_exists(child) and time.monotonic() < deadline_s:
    time.sleep(0.05)
  assert not psutil.pid_exists(child)


def test_a_local_function_is_refused():
  with pytest.raises(ValueError, match="define it at the top level"):
    flow.stage(
      lambda x_b: x_b, place="host", out_fn=host_stages.same, deadline_s=1.0
    )


def test_only_host_stages_can_be_killed():
  with pytest.raises(ValueError, match="only a stage with place='host'"):
    flow.stage(host_stages.process_of, deadline_s=1.0)
