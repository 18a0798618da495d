"""Commands of `experiments`, each in a process of its own, started quickly.

One process imports what takes seconds (JAX, MuJoCo) and is forked for each
command, before any of that has started a thread. The fork then does what
`python -m experiments.NAME` does. What commands have compiled they share.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import pathlib
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from typing import Any

import jax

ROOT = pathlib.Path(__file__).parents[2]
CACHE = f"--compilation_cache={ROOT / '.jax_cache'}"
# Compiles in a third of the time; code runs as fast, with other last bits.
QUICKLY = {
  "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
  "XLA_FLAGS": "--xla_cpu_use_fusion_emitters=false",
}
HAVE_CACHE = ("embodied", "reasoning")


@dataclasses.dataclass
class Process:
  """A command that was started.

  Attributes:
    pid: its process.
    stdout: what it prints.
    stderr: likewise.
  """

  pid: int
  stdout: pathlib.Path
  stderr: pathlib.Path

  def poll(self) -> int | None:
    """Returns its exit code, negative for a signal; None while it runs."""
    return _zygote().ask({"poll": self.pid})

  def wait(self, timeout: float) -> int:
    """Returns its exit code; it is killed if it takes too long."""
    deadline = time.monotonic() + timeout
    while (code := self.poll()) is None:
      if time.monotonic() > deadline:
        self.send_signal(signal.SIGKILL)
        raise TimeoutError(f"after {timeout:g} s: {self.stdout.read_text()}")
      time.sleep(0.02)
    return code

  def send_signal(self, number: int) -> None:
    os.kill(self.pid, number)


def start(module: str, *flags: str, optimised: bool = False) -> Process:
  """Starts a command, such as "embodied".

  Args:
    module: its name.
    *flags: what it is given.
    optimised: whether it compiles as users' do, or quickly.
  """
  folder = pathlib.Path(tempfile.mkdtemp(dir=_zygote().folder.name))
  outputs = folder / "stdout", folder / "stderr"
  if module in HAVE_CACHE:
    flags = (CACHE, *flags)
  pid = _zygote().ask(
    {
      "module": f"experiments.{module}",
      "flags": flags,
      "outputs": [str(path) for path in outputs],
      "optimised": optimised,
    }
  )
  return Process(pid, *outputs)


def run(
  module: str, *flags: str, check: bool = True, optimised: bool = False
) -> subprocess.CompletedProcess:
  """Runs a command to its end, which with `check` must be a good one."""
  process = start(module, *flags, optimised=optimised)
  code = process.wait(timeout=900)
  stdout, stderr = process.stdout.read_text(), process.stderr.read_text()
  if check:
    assert code == 0, stdout + stderr
  return subprocess.CompletedProcess([module, *flags], code, stdout, stderr)


def run_anew(module: str, *flags: str) -> None:
  """Runs a command in a process that shares nothing with other ones.

  Not the order of sets either, which is that of the process that was forked.
  """
  result = subprocess.run(
    [sys.executable, "-m", f"experiments.{module}", CACHE, *flags],
    cwd=ROOT,
    env={**os.environ, **QUICKLY},
    capture_output=True,
    text=True,
    timeout=900,
    check=False,
  )
  assert result.returncode == 0, result.stdout + result.stderr


class _Zygote:
  """The process that is forked, and how to ask it."""

  def __init__(self) -> None:
    self.folder = tempfile.TemporaryDirectory()
    self._process = subprocess.Popen(
      [sys.executable, "-m", "tests.experiments.commands"],
      cwd=ROOT,
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=subprocess.DEVNULL,  # JAX warns of forks
      text=True,
    )

  def ask(self, request: Mapping[str, Any]) -> Any:
    to, back = self._process.stdin, self._process.stdout
    assert to is not None and back is not None
    print(json.dumps(request), file=to, flush=True)
    return json.loads(back.readline())


@functools.cache
def _zygote() -> _Zygote:
  return _Zygote()


def _serve() -> dict[str, Any]:
  """Answers requests; returns, in a fork, what the fork is to run."""
  for line in sys.stdin:
    request = json.loads(line)
    if "poll" in request:
      pid, status = os.waitpid(request["poll"], os.WNOHANG)
      answer = os.waitstatus_to_exitcode(status) if pid else None
    else:
      answer = os.fork()
      if not answer:
        return request
    print(json.dumps(answer), flush=True)
  sys.exit()


def _become(request: Mapping[str, Any]) -> None:
  """Becomes a command."""
  os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
  for number, path in enumerate(request["outputs"], start=1):
    os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
  if not request["optimised"]:
    os.environ |= QUICKLY
    jax.config.update("jax_disable_most_optimizations", True)
  jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
  sys.argv = [request["module"], *request["flags"]]
  runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
  import envs.rendering  # noqa: F401
  import rlinf_jax.models.huggingface
  import rlinf_jax.reporting.curves
  import rlinf_jax.rollout
  import rlinf_jax.training  # noqa: F401

  _become(_serve())
