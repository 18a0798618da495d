"""Stricter than production: 8 CPU devices, and no promotion by accident.

Tests run on the CPU, on a machine with a GPU too; a `gpu` test puts its arrays
on `jax.devices("gpu")` itself.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import pathlib
import re
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import jax
import pytest
from jax._src import compiler  # jax.config has no setting for XLA's flags

ROOT = pathlib.Path(__file__).parents[1]


def _has_gpu() -> bool:
  """True where JAX would find an NVIDIA GPU, without starting a backend."""
  plugins = ("jax_cuda13_plugin", "jax_cuda12_plugin")
  if not any(importlib.util.find_spec(name) for name in plugins):
    return False
  if shutil.which("nvidia-smi") is None:
    return False
  listed = subprocess.run(
    ["nvidia-smi", "-L"], capture_output=True, text=True, check=False
  )
  return listed.returncode == 0 and "GPU" in listed.stdout


HAS_GPU = _has_gpu()

# Before any test module is imported, for a backend starts with the first array.
jax.config.update("jax_platforms", "cpu,cuda" if HAS_GPU else "cpu")
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")
# What takes long to compile is compiled once per checkout, not once per test:
# tests that build the same flow anew are two or three times as fast.
jax.config.update("jax_compilation_cache_dir", str(ROOT / ".jax_cache"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


@dataclasses.dataclass(frozen=True)
class Compilation:
  """How a test's programs are compiled.

  Attributes:
    is_optimised: as users' programs are, which takes twice as long.
    has_emitters: with XLA's fusion emitters, as users' programs are. Without
      them code runs as fast and is made in less than half the time (5.4 s and
      12.6 s for the stages of two tiny runs of GRPO, December 2026); but the
      bits of a result depend on what it is fused with.
  """

  is_optimised: bool
  has_emitters: bool


# How tests compile now, see `pytest_runtest_setup`.
COMPILATION = pytest.StashKey[Compilation]()


def _follow(config: pytest.Config) -> None:
  """Lets JAX compile without emitters where `COMPILATION` says so.

  XLA reads its flags from the environment once, and `jax.config` has none for
  this one.
  """
  options_fn = compiler.get_compile_options

  def get_compile_options(*args: Any, **options: Any) -> Any:
    found = options_fn(*args, **options)
    now = config.stash.get(COMPILATION, None)
    if now is not None and not now.has_emitters:
      found.env_option_overrides = [
        *found.env_option_overrides,
        ("xla_cpu_use_fusion_emitters", False),
      ]
    return found

  compiler.get_compile_options = get_compile_options


def pytest_configure(config: pytest.Config) -> None:
  _follow(config)


# marker -> (whether its tests can run here, what they need)
NEEDS = {
  "gpu": (HAS_GPU, "an NVIDIA GPU and the extra gpu or gpu-cuda12"),
  "vllm": (
    importlib.util.find_spec("vllm") is not None,
    "vllm, which `make vllm` installs where there is no GPU",
  ),
  "ray": (importlib.util.find_spec("ray") is not None, "ray"),
}


# A module of slow tests alone.
ALL_SLOW = re.compile(r"^pytestmark = .*pytest\.mark\.slow\b", re.MULTILINE)


def pytest_ignore_collect(
  collection_path: pathlib.Path, config: pytest.Config
) -> bool | None:
  """Imports no module of which nothing runs: what it tests takes seconds."""
  if config.option.markexpr != "not slow" or collection_path.suffix != ".py":
    return None
  text = collection_path.read_text(encoding="utf-8")
  return True if ALL_SLOW.search(text) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
  """Skips the tests that need what this machine lacks, and says what."""
  for item in items:
    for marker, (is_met, need) in NEEDS.items():
      if item.get_closest_marker(marker) and not is_met:
        item.add_marker(pytest.mark.skip(reason=f"needs {need}"))


@pytest.fixture
def standard_promotion() -> Iterator[None]:
  """Lifts both promotion rules, for a test inside third-party code."""
  with (
    jax.numpy_dtype_promotion("standard"),
    jax.numpy_rank_promotion("allow"),
  ):
    yield


@pytest.hookimpl(tryfirst=True)  # before the test's fixtures of any scope
def pytest_runtest_setup(item: pytest.Item) -> None:
  """Compiles without costly optimisations, in a third of the time.

  Tests of what optimisation might change (bits, products, compensated sums)
  carry the marker `optimised` and are compiled as users' programs are; where
  only bits of unlike programs are compared, `bits` is cheaper. What tests of
  another kind have compiled is forgotten: `jax.jit` would use it.
  """
  is_optimised = item.get_closest_marker("optimised") is not None
  wanted = Compilation(
    is_optimised=is_optimised,
    has_emitters=is_optimised or item.get_closest_marker("bits") is not None,
  )
  if wanted != item.config.stash.get(COMPILATION, None):
    jax.clear_caches()
    jax.config.update("jax_disable_most_optimizations", not is_optimised)
    item.config.stash[COMPILATION] = wanted
