"""What a wheel holds, and what installing it asks for."""

from __future__ import annotations

import email.message
import email.parser
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

import pytest

ROOT = pathlib.Path(__file__).parents[1]
LIBRARY = ("envs", "rlinf_jax", "scheduler")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
  """The wheel of a copy of this tree, built without a network."""
  tree = tmp_path_factory.mktemp("wheel") / "tree"
  shutil.copytree(
    ROOT,
    tree,
    ignore=shutil.ignore_patterns(".*", "*.egg-info", "build", "runs"),
  )
  built = subprocess.run(
    [sys.executable, "-m", "pip", "wheel", str(tree), "--no-deps", "--no-index"]
    + ["--no-build-isolation", "--wheel-dir", str(tree / "dist")],
    capture_output=True,
    text=True,
    check=False,
  )
  assert built.returncode == 0, built.stdout + built.stderr
  (path,) = (tree / "dist").glob("*.whl")
  return zipfile.ZipFile(path)


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> email.message.Message:
  (name,) = [n for n in wheel.namelist() if n.endswith("dist-info/METADATA")]
  return email.parser.Parser().parsestr(wheel.read(name).decode())


def requirements(metadata: email.message.Message, extra: str) -> set[str]:
  """Returns the names of what `extra` asks for, through extras of our own."""
  found = set()
  for line in metadata.get_all("Requires-Dist", []):
    if not line.endswith(f'extra == "{extra}"'):
      continue
    name, extras = re.match(r"([\w.-]+)(?:\[([\w,-]+)\])?", line).groups()
    if name.replace("-", "_") == "rlinf_jax":
      for inner in extras.split(","):
        found |= requirements(metadata, inner)
    else:
      found.add(f"{name}[{extras}]" if extras else name)
  return found


def test_the_wheel_holds_every_module_and_asset_of_the_library(wheel):
  wanted = {
    path.relative_to(ROOT).as_posix()
    for name in LIBRARY
    for pattern in ("*.py", "*.xml", "py.typed")
    for path in (ROOT / name).rglob(pattern)
  }
  assert "envs/tasks/assets/scene.xml" in wanted
  assert wanted - set(wheel.namelist()) == set()


def test_the_wheel_holds_nothing_else(wheel):
  roots = {name.split("/")[0] for name in wheel.namelist()}
  (info,) = [root for root in roots if root.endswith(".dist-info")]
  assert roots == {*LIBRARY, info}


def test_the_licence_travels_with_the_wheel(wheel, metadata):
  assert metadata["License-Expression"] == "Apache-2.0"
  (name,) = [n for n in wheel.namelist() if n.endswith("/LICENSE")]
  assert wheel.read(name) == (ROOT / "LICENSE").read_bytes()


def test_cuda_comes_with_the_gpu_extras_alone(metadata):
  with_cuda = {
    extra
    for extra in metadata.get_all("Provides-Extra")
    if any("cuda" in name for name in requirements(metadata, extra))
  }
  assert with_cuda == {"gpu", "gpu-cuda12"}


def test_dev_brings_what_the_tests_run_on(metadata):
  names = requirements(metadata, "dev")
  assert {"brax", "gymnasium[mujoco]", "playground", "pytest"} <= names
  assert "torch" not in names
