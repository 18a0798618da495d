"""The post-training command with vLLM, run as a user runs it."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest

from rlinf_jax.models import huggingface

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(1500)]

ROOT = pathlib.Path(__file__).parents[2]
SMALL = [
  "--sft_updates=20",
  "--sft_batch_size=32",
  "--num_prompts=8",
  "--group_size=4",
  "--num_eval_prompts=8",
  "--quantum=1",
]


def command(*flags):
  return [sys.executable, "-m", "experiments.reasoning", *flags]


def run(*flags):
  result = subprocess.run(
    command(*flags), cwd=ROOT, capture_output=True, text=True, timeout=900
  )
  assert result.returncode == 0, result.stdout + result.stderr
  return result.stdout


def start(*flags):
  return subprocess.Popen(
    command(*flags),
    cwd=ROOT,
    stdout=subprocess.DEVNULL,
    stderr=subprocess.DEVNULL,
  )


def rows_of(directory):
  lines = (directory / "metrics.jsonl").read_text().splitlines()
  return [row for row in map(json.loads, lines) if "reward" in row]


def params_of(directory):
  params = huggingface.load(directory / "model").params
  return dict(huggingface.named_tensors(params))


def assert_equal_params(first, second):
  first, second = params_of(first), params_of(second)
  assert first.keys() == second.keys()
  for name in first:
    np.testing.assert_array_equal(first[name], second[name], name)


def wait_for_rows(process, directory, num):
  path = directory / "metrics.jsonl"
  deadline = time.monotonic() + 600
  while not path.exists() or path.read_text().count('"reward"') < num:
    assert process.poll() is None, "the run ended before it could be killed"
    assert time.monotonic() < deadline, "the run wrote no rows"
    time.sleep(0.01)


def is_running(pid):
  return psutil.pid_exists(pid) and (
    psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
  )


def test_any_plan_gives_the_same_tokens_and_parameters(tmp_path):
  flags = [*SMALL, "--num_iterations=3"]
  run(*flags, f"--run_dir={tmp_path / 'eager'}")
  run(*flags, "--plan=collocated", f"--run_dir={tmp_path / 'collocated'}")
  run(
    *flags,
    "--plan=disaggregated",
    "--num_devices=2",
    f"--run_dir={tmp_path / 'streaming'}",
  )
  for row in rows_of(tmp_path / "eager"):
    assert row["drift"] < 1e-4
  assert_equal_params(tmp_path / "eager", tmp_path / "collocated")
  assert_equal_params(tmp_path / "eager", tmp_path / "streaming")


def test_a_killed_engine_is_replaced_and_nothing_changes(tmp_path):
  flags = [*SMALL, "--num_iterations=12"]
  run(*flags, f"--run_dir={tmp_path / 'whole'}")
  process = start(*flags, f"--run_dir={tmp_path / 'hit'}")
  wait_for_rows(process, tmp_path / "hit", 3)
  children = psutil.Process(process.pid).children(recursive=True)
  engines = [c for c in children if "vllm" in " ".join(c.cmdline())]
  assert engines
  os.kill(engines[0].pid, signal.SIGKILL)
  assert process.wait(timeout=600) == 0
  assert_equal_params(tmp_path / "whole", tmp_path / "hit")


def test_a_killed_trainer_leaves_nothing_and_resumes(tmp_path):
  flags = [*SMALL, "--num_iterations=8", "--checkpoint_every=2"]
  run(*flags, f"--run_dir={tmp_path / 'whole'}")
  killed = tmp_path / "killed"
  process = start(*flags, f"--run_dir={killed}")
  wait_for_rows(process, killed, 3)
  family = psutil.Process(process.pid).children(recursive=True)
  process.send_signal(signal.SIGKILL)
  process.wait()
  deadline = time.monotonic() + 20
  while any(is_running(child.pid) for child in family):
    assert time.monotonic() < deadline, family
    time.sleep(0.1)
  run(f"--resume={killed}")
  assert [r["step"] for r in rows_of(killed)] == list(range(1, 9))
  rewards = [
    [row["reward"] for row in rows_of(tmp_path / name)]
    for name in ("whole", "killed")
  ]
  assert rewards[0] == rewards[1]
  assert_equal_params(tmp_path / "whole", killed)
