"""Stricter than production: 8 CPU devices, and no promotion by accident.

Tests run on the CPU, on a machine with a GPU too; a `gpu` test puts its arrays
on `jax.devices("gpu")` itself.
"""

from __future__ import annotations

import importlib.util
import pathlib
import shutil
import subprocess
from collections.abc import Iterator

import jax
import pytest

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
# What takes seconds to compile (MJX) is compiled once per checkout.
jax.config.update("jax_compilation_cache_dir", str(ROOT / ".jax_cache"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 2.0)

# How tests compile now, see `pytest_runtest_setup`.
IS_QUICK = pytest.StashKey[bool]()

# marker -> (whether its tests can run here, what they need)
NEEDS = {
  "gpu": (HAS_GPU, "an NVIDIA GPU and the extra gpu or gpu-cuda12"),
  "vllm": (
    importlib.util.find_spec("vllm") is not None,
    "vllm, which `make vllm` installs where there is no GPU",
  ),
  "ray": (importlib.util.find_spec("ray") is not None, "ray"),
}


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
  """Compiles without costly optimisations, in half the time.

  Tests of what optimisation might change (bits, products, compensated sums)
  carry the marker `optimised` and are compiled as users' programs are. What
  tests of the other kind have compiled is forgotten: `jax.jit` would use it.
  """
  is_quick = item.get_closest_marker("optimised") is None
  if is_quick != item.config.stash.get(IS_QUICK, None):
    jax.clear_caches()
    jax.config.update("jax_disable_most_optimizations", is_quick)
    item.config.stash[IS_QUICK] = is_quick
