"""An engine that generates by vLLM, in a process group of its own."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import pathlib
import shutil
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent import futures
from typing import Any

import numpy as np

from rlinf_jax import rollout
from rlinf_jax.rollout.vllm import calls, process, replicas, versions
from rlinf_jax.types import Params

_PROGRAM = pathlib.Path(__file__).parent / "child" / "main.py"

# Arguments of vLLM's engine that are chosen here, or in the process.
_OURS = {
  "async_scheduling",
  "generation_config",
  "load_format",
  "logprobs_mode",
  "max_model_len",
  "model",
  "skip_tokenizer_init",
  "weight_transfer_config",
  "worker_extension_cls",
}

ToTensors = Callable[[Params], Mapping[str, Any]]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class WeightSync:
  """How a version of the weights reached the processes.

  Attributes:
    version: how many updates made it.
    num_bytes: of its tensors.
    publish_s: copying them into shared memory, from wherever they were.
    load_s: vLLM's own reload of them, of the slowest process.
    end_to_end_s: from the first of these to the end of the last; where samples
      were under way, with the wait for them.
  """

  version: int
  num_bytes: int
  publish_s: float
  load_s: float
  end_to_end_s: float

  def metrics(self) -> dict[str, float]:
    """Returns what a row of metrics takes."""
    return {
      "sync/publish_s": self.publish_s,
      "sync/load_s": self.load_s,
      "sync/end_to_end_s": self.end_to_end_s,
      "sync/publish_bytes_per_s": self.num_bytes / self.publish_s,
      "sync/end_to_end_bytes_per_s": self.num_bytes / self.end_to_end_s,
    }


class VllmEngine:
  """Generates by vLLM; see `engines.Engine`.

  A context manager; use it in one, or call `close`. Calls may come from several
  threads: their samples share one batch. Processes that end, or say nothing for
  too long, are replaced; what they had begun is asked for again.

  Weights reach them through shared memory, with the first call of a version.
  A version is loaded when samples of another have ended; with `interrupt`
  at once, where it is newer: samples under way are read again by it and go on,
  and each token has the version that it was sampled from.

  Args:
    folder: with the config.json of a checkpoint; nothing else of it is read.
    sampling: how prompts are continued, where a call does not say.
    to_tensors: from parameters to arrays, by the names and in the shapes of the
      checkpoint. Views of arrays of NumPy cost nothing; arrays of JAX are
      copied to the host one by one.
    log_path: what the processes print, each to a file of its own: of
      "rollout.log" the first to "rollout_0.log".
    python: of an environment with vLLM; ours or another.
    num_replicas: processes, each with a copy of the weights. On GPUs each would
      take the same ones: give one.
    context_size: the most tokens of a prompt and its continuation; None is what
      the model was made for.
    engine_arguments: further arguments of vLLM's engine, by name, such as
      tensor_parallel_size. Of a GPU it takes 0.45 of the memory where
      gpu_memory_utilization does not say otherwise.
    interrupt: see above.
    num_threads: that a process computes with on a CPU; None divides the cores.
    start_deadline_s: for a process to start.
    deadline_s: for a process to say something. It does each second, but not in
      the middle of a step or while it loads weights.
    num_retries: how often processes may end in a row with no sample between.

  Raises:
    ValueError: there is no such folder or Python, vLLM does not know the
      network, or an argument.
    ModuleNotFoundError: that Python lacks vLLM.
    EngineError: a process ended while it started, or was late.
  """

  place = "process"

  def __init__(
    self,
    folder: str | pathlib.Path,
    sampling: rollout.Sampling,
    to_tensors: ToTensors,
    *,
    log_path: str | pathlib.Path,
    python: str = sys.executable,
    num_replicas: int = 1,
    context_size: int | None = None,
    engine_arguments: Mapping[str, Any] | None = None,
    interrupt: bool = False,
    num_threads: int | None = None,
    start_deadline_s: float = 300.0,
    deadline_s: float = 120.0,
    num_retries: int = 3,
  ) -> None:
    self._folder = pathlib.Path(folder).resolve()
    if not (self._folder / "config.json").is_file():
      raise ValueError(
        f"Given {folder}, expected a folder with a config.json, as Hugging"
        " Face's `save_pretrained` writes it; check the path."
      )
    if num_replicas < 1:
      raise ValueError(
        f"Given num_replicas={num_replicas}, expected at least 1."
      )
    if taken := sorted(_OURS & (engine_arguments or {}).keys()):
      raise ValueError(
        f"Given {', '.join(taken)} for vLLM's engine, which weights, seeds and"
        " probabilities depend on here; leave it out. The context's size"
        " follows from the lengths of prompts and answers."
      )
    found = shutil.which(python)
    if found is None:
      raise ValueError(
        f"Given python {python!r}, expected a Python that can be run; give the"
        " path of bin/python in the environment that vLLM is in."
      )
    self._python = found
    self._sampling = sampling
    self._to_tensors = to_tensors
    self._is_interrupting = interrupt
    self._start_deadline_s = start_deadline_s
    self._deadline_s = deadline_s
    num_cores = len(os.sched_getaffinity(0))
    self._num_threads = num_threads or max(1, num_cores // num_replicas)
    self._settings = {
      "engine": {
        "model": str(self._folder),
        "max_model_len": context_size,
        **(engine_arguments or {}),
      }
    }
    self._numbers = itertools.count()
    self._lock = threading.Lock()
    self._last_sync: WeightSync | None = None
    self._newest: versions.Published | None = None  # held, if interrupting
    self._shapes: dict[str, tuple[int, ...]] = {}
    self._vocabulary_size = 0
    self._context_size = 0
    self._description = self._dtype = ""
    self._versions = versions.Versions(num_threads=min(4, num_cores))
    log_path = pathlib.Path(log_path)
    failures = replicas.Failures(num_retries)
    self._replicas = [
      replicas.Replica(
        functools.partial(
          self._start, log_path.with_stem(f"{log_path.stem}_{i}")
        ),
        held=self._versions,
        failures=failures,
        is_interrupting=interrupt,
        on_loaded=self._on_loaded,
      )
      for i in range(num_replicas)
    ]
    try:
      with futures.ThreadPoolExecutor(num_replicas) as pool:
        list(pool.map(lambda replica: replica.start(), self._replicas))
    except BaseException:
      self.close()
      raise

  def __enter__(self) -> VllmEngine:
    return self

  def __exit__(self, *error: object) -> None:
    self.close()

  @property
  def description(self) -> str:
    """What generates, in words."""
    return self._description

  @property
  def dtype(self) -> str:
    """Of its products, such as "float32"."""
    return self._dtype

  @property
  def context_size(self) -> int:
    """The most tokens of a prompt and its continuation."""
    return self._context_size

  @property
  def last_sync(self) -> WeightSync | None:
    """How the version that was loaded last got there."""
    return self._last_sync

  def generate(
    self,
    weights: rollout.Weights,
    request: rollout.Request,
    *,
    sampling: rollout.Sampling | None = None,
  ) -> rollout.Completions:
    """See `engines.Engine.generate`.

    Raises:
      ValueError: a prompt is empty, longer than its row or, with the tokens to
        come, than the context, or has unknown tokens; or the weights are of
        other names or shapes.
      EngineError: this was closed, or generation failed too often in a row.
    """
    sampling = sampling or self._sampling
    as_numpy: Any = np.asarray
    request = rollout.Request(
      prompt=as_numpy(request.prompt, np.int32),
      length=as_numpy(request.length, np.int32),
      seed=as_numpy(request.seed, np.uint32),
      is_asked=as_numpy(request.is_asked, bool),
    )
    self._check(request, sampling)
    call = calls.Call(next(self._numbers), request, sampling)
    rows = call.rows
    while len(rows):
      published = self._hold(weights)
      try:
        self._submit(call, rows, published)
        if not self._is_interrupting:
          rows = call.wait()
      finally:
        self._versions.release(published)
      if self._is_interrupting:
        # Of what it began with no more is needed: it goes on with the newest.
        # Held, it would leave no memory for a second newer version.
        rows = call.wait()
    return call.completions()

  def sync(self, weights: rollout.Weights) -> WeightSync:
    """Has all processes load a version, and waits until they have.

    `generate` does as much as it needs of this by itself.

    Raises:
      ValueError: the weights are of other names or shapes.
      EngineError: this was closed, or a process ended meanwhile.
    """
    published = self._hold(weights)
    try:
      loads = [replica.load(published) for replica in self._replicas]
      for load in loads:
        load.result()
    finally:
      self._versions.release(published)
    assert self._last_sync is not None
    return self._last_sync

  def close(self) -> None:
    """Ends the processes."""
    for replica in self._replicas:
      replica.close()
    self._versions.close()

  def _start(self, log_path: pathlib.Path) -> process.Process:
    started = process.Process(
      [self._python, str(_PROGRAM)],
      env=_environment(self._python, self._num_threads),
      log_path=log_path,
      deadline_s=self._deadline_s,
    )
    message = started.start(self._settings, deadline_s=self._start_deadline_s)
    ready = message.content
    if ready["kind"] == "failed":
      started.close()
      raise self._refusal(ready, log_path)
    self._shapes = {
      name: tuple(shape) for name, shape in ready["tensors"].items()
    }
    self._vocabulary_size = ready["vocabulary_size"]
    self._context_size = ready["context_size"]
    self._description = ready["description"]
    self._dtype = ready["dtype"]
    return started

  def _refusal(
    self, content: Mapping[str, Any], log_path: pathlib.Path
  ) -> Exception:
    if content["missing"] is not None:
      return ModuleNotFoundError(
        f"{self._python} has no module {content['missing']!r}, which generating"
        " by vLLM needs. Run `make vllm`, or give the Python of an environment"
        " that has it by --rollout_python; --engine=jax needs none.",
        name=content["missing"],
      )
    return ValueError(
      f"vLLM cannot generate with {self._folder}: {content['text']}\nAll that"
      f" it printed is in {log_path}."
    )

  def _check(
    self, request: rollout.Request, sampling: rollout.Sampling
  ) -> None:
    size, num_new = request.prompt.shape[1], sampling.max_new_tokens
    for b in np.flatnonzero(request.is_asked):
      length = int(request.length[b])
      if not 1 <= length <= size:
        raise ValueError(
          f"Prompt {b} is said to have {length} tokens; its row has {size}, and"
          " a prompt has at least 1."
        )
      token = request.prompt[b, :length]
      if token.min() < 0 or token.max() >= self._vocabulary_size:
        raise ValueError(
          f"Prompt {b} has tokens from {token.min()} to {token.max()}; the"
          f" network of {self._folder} knows {self._vocabulary_size}. Give the"
          " tokenizer of that folder."
        )
      if length + num_new > self._context_size:
        raise ValueError(
          f"Prompt {b} has {length} tokens, and {num_new} more may come; the"
          f" context has {self._context_size}. Drop such prompts, ask for fewer"
          " new tokens, or give the engine a greater context_size, as far as"
          " the model was made for it."
        )

  def _hold(self, weights: rollout.Weights) -> versions.Published:
    """Returns the version to generate with, held for the caller."""
    version = int(weights.version)
    tensors_fn = lambda: self._tensors(weights)
    if not self._is_interrupting:
      return self._versions.hold(version, tensors_fn)
    with self._lock:
      newest = self._newest
      if newest is None or version > newest.version:
        self._newest = self._versions.hold(version, tensors_fn)
        if newest is not None:
          self._versions.release(newest)
        for replica in self._replicas:
          replica.load(self._newest)
      assert self._newest is not None
      self._versions.hold_again(self._newest)
      return self._newest

  def _tensors(self, weights: rollout.Weights) -> Mapping[str, Any]:
    if weights.params is None:
      raise ValueError(
        f"Given weights of version {int(weights.version)} without parameters,"
        " expected these with them: they are not among the last two versions"
        " that were used."
      )
    tensors = self._to_tensors(weights.params)
    given = {name: tuple(x.shape) for name, x in tensors.items()}
    if given != self._shapes:
      raise ValueError(_difference(given, self._shapes, self._folder))
    return tensors

  def _submit(
    self, call: calls.Call, rows: Iterable[int], published: versions.Published
  ) -> None:
    """Asks whoever has least to do for each prompt's samples."""
    by_prompt: dict[int, list[int]] = {}
    for row in rows:
      by_prompt.setdefault(call.prompt_of(row), []).append(int(row))
    loads = [replica.num_tokens for replica in self._replicas]
    parts: list[list[int]] = [[] for _ in self._replicas]
    for samples in by_prompt.values():
      least = loads.index(min(loads))
      parts[least] += samples
      loads[least] += sum(call.cost(row) for row in samples)
    for replica, part in zip(self._replicas, parts):
      if part:
        replica.ask(call, part, published)

  def _on_loaded(
    self, published: versions.Published, load_s: float, since_s: float
  ) -> None:
    sync = WeightSync(
      version=published.version,
      num_bytes=published.shared.num_bytes,
      publish_s=published.publish_s,
      load_s=load_s,
      end_to_end_s=published.publish_s + since_s,
    )
    last = self._last_sync
    if last is not None and last.version == sync.version:
      slowest = max(sync, last, key=lambda x: x.end_to_end_s)
      sync = dataclasses.replace(slowest, load_s=max(sync.load_s, last.load_s))
    self._last_sync = sync


def _environment(python: str, num_threads: int) -> dict[str, str]:
  """Returns the environment of a process."""
  env = {
    "HF_HUB_OFFLINE": "1",  # a folder is all that it needs
    # Huge pages: a reload of 2 GB makes 20,000 page faults, not 700,000.
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    **os.environ,
    "OMP_NUM_THREADS": str(num_threads),
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # or replicas share the same cores
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
  }
  # Without Intel's OpenMP a CPU generates many times more slowly.
  library = pathlib.Path(python).parent.parent / "lib" / "libiomp5.so"
  if library.is_file():
    preloaded = [str(library), *os.environ.get("LD_PRELOAD", "").split()]
    env["LD_PRELOAD"] = " ".join(preloaded)
  return env


def _difference(
  given: Mapping[str, tuple[int, ...]],
  expected: Mapping[str, tuple[int, ...]],
  folder: pathlib.Path,
) -> str:
  """Returns in what names or shapes differ."""
  parts = []
  for title, names in (
    ("lacking", expected.keys() - given.keys()),
    ("unknown", given.keys() - expected.keys()),
  ):
    if names:
      shown = ", ".join(sorted(names)[:4]) + (", ..." if len(names) > 4 else "")
      parts.append(f"{len(names)} {title}: {shown}")
  for name in sorted(given.keys() & expected.keys()):
    if given[name] != expected[name]:
      parts.append(f"{name} is {given[name]}, expected {expected[name]}")
      break
  return (
    f"The tensors of the weights are not those of {folder}: {'; '.join(parts)}."
    " Give the folder that the parameters were loaded from, or whose"
    " config.json was made for them; nothing was changed."
  )
