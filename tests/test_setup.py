"""What `.ci/venv` does, seen through Pythons that only pretend."""

from __future__ import annotations

import pathlib
import shutil
import subprocess

import pytest

SCRIPT = pathlib.Path(__file__).parents[1] / ".ci" / "venv"
TOOLS = "bash cat cksum cp dirname flock mkdir rm tail tee".split()

# Answers what `.ci/venv` asks of a Python, and notes every call of pip.
PYTHON = """#!/usr/bin/env bash
case "$*" in
  "-c import sys"*) echo {version} ;;
  "-c import ensurepip"*) exit {venv_status} ;;
  "-c import pip") ;;
  "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
  "-m pip install"*) echo {version} >>pip_calls
    echo "No matching distribution" && exit $(cat pip_status) ;;
esac
"""


class Machine:
  """A project with `.ci/venv` on a machine with few programs."""

  def __init__(self, root: pathlib.Path):
    self.project, self.bin = root / "project", root / "bin"
    (self.project / ".ci").mkdir(parents=True)
    self.bin.mkdir()
    shutil.copy(SCRIPT, self.project / ".ci" / "venv")
    (self.project / "pyproject.toml").write_text("version = 1\n")
    (self.project / "pip_status").write_text("0")
    for tool in TOOLS:
      if found := shutil.which(tool):
        (self.bin / tool).symlink_to(found)

  def add_python(self, name: str, version: str, *, has_venv: bool = True):
    file = self.bin / name
    file.write_text(
      PYTHON.format(version=version, venv_status=int(not has_venv))
    )
    file.chmod(0o755)

  def run(self, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
      ["bash", ".ci/venv", ".venv", "-e", ".[dev]"],
      cwd=self.project,
      env={"PATH": str(self.bin), **env},
      capture_output=True,
      text=True,
      check=False,
    )

  def pip_calls(self) -> list[str]:
    file = self.project / "pip_calls"
    return file.read_text().split() if file.exists() else []


@pytest.fixture
def machine(tmp_path: pathlib.Path) -> Machine:
  return Machine(tmp_path)


def test_without_any_python_it_says_which_is_needed(machine):
  result = machine.run()
  assert result.returncode == 1
  assert "Python 3.11 or newer is needed. Found: none." in result.stderr


def test_an_old_and_a_broken_python_are_named(machine):
  machine.add_python("python3", "3.10.13")
  machine.add_python("python3.12", "")  # a shim without its Python
  result = machine.run()
  assert result.returncode == 1
  assert "python3 is 3.10.13, python3.12 does not run." in result.stderr
  assert machine.pip_calls() == []


def test_without_the_venv_module_it_names_the_package(machine):
  machine.add_python("python3", "3.12.3", has_venv=False)
  result = machine.run()
  assert result.returncode == 1
  assert "apt install python3.12-venv" in result.stderr


def test_plain_python3_is_preferred_where_it_will_do(machine):
  machine.add_python("python3", "3.11.2")
  machine.add_python("python3.13", "3.13.0")
  assert machine.run().returncode == 0
  assert machine.pip_calls() == ["3.11.2"]


def test_an_old_python3_gives_way_to_a_newer_name(machine):
  machine.add_python("python3", "3.9.2")
  machine.add_python("python3.12", "3.12.1")
  assert machine.run().returncode == 0
  assert machine.pip_calls() == ["3.12.1"]


def test_nothing_is_installed_until_pyproject_changes(machine):
  machine.add_python("python3", "3.11.2")
  assert machine.run().returncode == 0
  second = machine.run()
  assert second.returncode == 0 and second.stdout == ""
  assert len(machine.pip_calls()) == 1
  (machine.project / "pyproject.toml").write_text("version = 2\n")
  assert machine.run().returncode == 0
  assert len(machine.pip_calls()) == 2


def test_what_has_a_stamp_of_its_own_is_installed_beside_the_rest(machine):
  machine.add_python("python3", "3.11.2")
  for stamp in ("installed", "installed-more", "installed", "installed-more"):
    assert machine.run(STAMP=stamp).returncode == 0
  assert len(machine.pip_calls()) == 2


def test_a_failed_install_shows_pip_s_words_and_is_tried_again(machine):
  machine.add_python("python3", "3.11.2")
  (machine.project / "pip_status").write_text("1")
  result = machine.run()
  assert result.returncode == 1
  assert "No matching distribution" in result.stderr
  assert "Traceback" not in result.stderr
  (machine.project / "pip_status").write_text("0")
  assert machine.run().returncode == 0
  assert len(machine.pip_calls()) == 2


def test_an_environment_is_kept_until_another_python_is_named(machine):
  machine.add_python("python3", "3.11.2")
  assert machine.run().returncode == 0
  machine.add_python("python3", "3.12.1")
  assert machine.run().returncode == 0
  assert machine.pip_calls() == ["3.11.2"]
  assert machine.run(PYTHON="python3").returncode == 0
  assert machine.pip_calls() == ["3.11.2", "3.12.1"]


def test_a_named_python_that_is_not_there_is_an_error(machine):
  machine.add_python("python3", "3.11.2")
  assert machine.run().returncode == 0
  result = machine.run(PYTHON="python3.14")
  assert result.returncode == 1
  assert "Found: no python3.14." in result.stderr
  assert machine.run().returncode == 0  # what stood still stands
  assert machine.pip_calls() == ["3.11.2"]


def test_an_environment_whose_python_is_gone_is_made_anew(machine):
  machine.add_python("python3", "3.11.2")
  assert machine.run().returncode == 0
  (machine.project / ".venv" / "bin" / "python").write_text("#!/nowhere\n")
  assert machine.run().returncode == 0
  assert machine.pip_calls() == ["3.11.2", "3.11.2"]
