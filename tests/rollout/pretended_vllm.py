"""A rollout process without vLLM: the real loop around arithmetic.

Run as a program in place of the real one. A sample's token at position p is

  (seed + p + the sum of its prompt + the weight "a"[0, 0]) mod 100

and its log-probability is -token / 10. `engine_arguments` choose what goes
wrong.
"""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np

CHILD = pathlib.Path(__file__).parents[2] / "rlinf_jax/rollout/vllm/child"
sys.path.insert(0, str(CHILD))

import loop  # noqa: E402


class Arithmetic:
  """See above."""

  tensors = {"a": [2, 3], "b": [4]}
  description = "arithmetic"
  dtype = "float32"
  vocabulary_size = 100

  def __init__(self, settings):
    arguments = settings["engine"]
    self.context_size = arguments["max_model_len"] or 1000
    self.step_s = arguments.get("step_s", 0.0)
    self.fault = arguments.get("fault")
    self.at = arguments.get("at", 3)  # the token at which the fault happens
    self.samples = {}
    self.bias, self.version = 0, -1
    print("started", flush=True)
    if self.fault == "is unknown":
      raise ValueError("Model architectures ['X'] are not supported.")
    if self.fault == "lacks vllm":
      import vllm_is_not_here  # noqa: F401
    if self.fault == "dies at start":
      print("no memory left", flush=True)
      os._exit(3)
    if self.fault == "starts late":
      time.sleep(1000)
    if arguments.get("has_worker"):
      subprocess.Popen(["sleep", "1000"])

  def add(self, name, prompt, seed, sampling):
    self.samples[name] = (prompt, seed, sampling, [], [])

  def step(self):
    time.sleep(self.step_s)
    print(f"step of {len(self.samples)}", flush=True)
    finished = []
    for name, (prompt, seed, sampling, token, version) in [
      *self.samples.items()
    ]:
      position = len(prompt) + len(token)
      token.append((seed + position + sum(prompt) + self.bias) % 100)
      version.append(self.version)
      if len(token) == self.at:
        self.fail()
      is_stopped = token[-1] in sampling["stop_tokens"]
      if is_stopped or len(token) == sampling["max_new_tokens"]:
        del self.samples[name]
        log_prob = [-x / 10 for x in token]
        finished.append(
          loop.Finished(name, token, log_prob, version, is_stopped)
        )
    return finished

  def load(self, version, path, tensors):
    print(f"load {version}", flush=True)
    places = {name: (dtype, shape, at) for name, dtype, shape, at in tensors}
    assert {k: shape for k, (_, shape, _) in places.items()} == self.tensors
    dtype, shape, begin = places["a"]
    a = np.memmap(path, dtype, mode="r", offset=begin, shape=tuple(shape))
    self.bias, self.version = int(a[0, 0]), version

  def fail(self):
    if self.fault == "dies":
      print("out of memory", flush=True)
      os.kill(os.getpid(), signal.SIGKILL)
    if self.fault == "hangs":
      time.sleep(1000)
    if self.fault == "raises":
      raise RuntimeError("an odd step")


if __name__ == "__main__":
  loop.run(Arithmetic)
