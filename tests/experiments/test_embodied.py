"""The training command, run as a user runs it."""

import functools
import json
import signal
import time

import numpy as np
import pytest

from tests.experiments import commands

# Each starts the command anew, up to three times, and MJX compiles slowly.
pytestmark = pytest.mark.timeout(1500)

SMALL = [
  "--num_envs=16",
  "--unroll_length=4",
  "--num_epochs=1",
  "--num_minibatches=2",
  "--pool_size=8",
  "--num_eval_episodes=4",
  "--policy_sizes=8",
  "--value_sizes=8",
  "--novideo",
]


run = functools.partial(commands.run, "embodied")


def rows_of(directory):
  """Returns the numbers of a run that do not depend on the clock."""
  lines = (directory / "metrics.jsonl").read_text().splitlines()
  rows = [json.loads(line) for line in lines]
  return [
    {k: v for k, v in row.items() if k not in ("wall_s", "steps_per_s")}
    for row in rows
  ]


def kill_after_rows(num_rows, directory, *flags):
  """Starts a run and ends it by SIGKILL once it has written so many rows."""
  process = commands.start("embodied", f"--run_dir={directory}", *flags)
  path = directory / "metrics.jsonl"
  deadline = time.monotonic() + 600
  while not path.exists() or path.read_text().count("\n") < num_rows:
    assert process.poll() is None, "the run ended before it could be killed"
    assert time.monotonic() < deadline, "the run wrote no rows"
    time.sleep(0.005)
  process.send_signal(signal.SIGKILL)
  process.wait(timeout=60)


@pytest.mark.slow
@pytest.mark.parametrize(
  "physics", ["mujoco", pytest.param("mjx", marks=pytest.mark.long)]
)
def test_a_killed_run_resumes_bitwise(physics, tmp_path):
  flags = [
    *SMALL,
    "--env=cartpole_swingup",
    f"--physics={physics}",
    "--num_steps=1280",  # 20 iterations
    "--checkpoint_every=192",
  ]
  run(f"--run_dir={tmp_path / 'whole'}", *flags)
  kill_after_rows(8, tmp_path / "killed", *flags)
  resume = [f"--resume={tmp_path / 'killed'}", "--num_eval_episodes=4"]
  commands.run_anew("embodied", *resume, "--novideo")
  assert rows_of(tmp_path / "killed") == rows_of(tmp_path / "whole")
  results = [
    json.loads((tmp_path / name / "result.json").read_text())["returns"]
    for name in ("whole", "killed")
  ]
  assert results[0] == results[1]


@pytest.mark.slow
def test_ctrl_c_saves_exits_cleanly_and_says_how_to_go_on(tmp_path):
  flags = [*SMALL, "--env=pendulum", "--num_steps=100_000_000"]
  process = commands.start("embodied", *flags, f"--run_dir={tmp_path}")
  path = tmp_path / "metrics.jsonl"
  deadline = time.monotonic() + 600
  while not path.exists() and time.monotonic() < deadline:
    time.sleep(0.1)
  process.send_signal(signal.SIGINT)
  code = process.wait(timeout=60)
  output = process.stdout.read_text() + process.stderr.read_text()
  assert code == 0, output
  assert f"--resume={tmp_path}" in output
  assert "Traceback" not in output


@pytest.mark.slow
def test_a_run_can_be_evaluated_exported_and_continued(tmp_path):
  flags = [*SMALL, "--env=pendulum", f"--run_dir={tmp_path}"]
  first = run(*flags, "--num_steps=640")
  assert "return" in first.stdout.splitlines()[-1]
  again = run(*flags, "--num_steps=640", check=False)
  assert again.returncode == 1
  assert f"--resume={tmp_path}" in again.stderr
  judged = commands.run(
    "evaluate",
    f"--run_dir={tmp_path}",
    "--num_episodes=4",
    f"--export={tmp_path / 'policy.stablehlo'}",
    f"--video={tmp_path / 'p.mp4'}",
  )
  assert "4 episodes" in judged.stdout
  assert (tmp_path / "policy.stablehlo").exists()
  assert (tmp_path / "p.mp4").stat().st_size > 1000
  other = run(f"--resume={tmp_path}", "--num_envs=32", check=False)
  assert other.returncode == 1
  assert "num_envs" in other.stderr and "Traceback" not in other.stderr


@pytest.mark.slow
def test_a_host_environment_goes_on_with_new_episodes(tmp_path):
  flags = [*SMALL, "--env=gymnasium:CartPole-v1"]
  run(*flags, f"--run_dir={tmp_path}", "--num_steps=640")
  output = run(f"--resume={tmp_path}", "--num_steps=1280", "--novideo").stdout
  assert "resumed at 640 steps" in output
  assert "goes on with fresh episodes" in output.replace("\n", " ")


@pytest.mark.parametrize(
  "flags, message",
  [
    (["--env=cheetah_rum"], "cheetah_run"),
    (["--physics=bullet"], "auto|mujoco|mjx|warp"),
    (["--env=pendulum", "--num_minibatches=7"], "num_minibatches=7"),
    (["--env=pendulum", "--policy_sizes=64,x"], "--policy_sizes=64,x must be"),
    (["--env=pendulum", "--head=categorical"], "does not fit pendulum"),
    (["--env=pendulum", "--num_devices=3"], "3 devices do not divide"),
    (["--env=nothing.py:Env"], "There is no file"),
    (["--env=pendulum", "--loss=nothing.py:loss"], "There is no file"),
    (["--resume=/nowhere"], "There is no directory"),
  ],
)
@pytest.mark.slow
def test_what_cannot_be_had_is_one_sentence(flags, message):
  result = run(*flags, check=False)
  assert result.returncode == 1
  assert message in result.stderr
  assert "Traceback" not in result.stderr


@pytest.mark.slow
def test_eight_devices_share_the_c_engine(tmp_path):
  result = run(
    *SMALL,
    "--num_devices=8",
    "--num_minibatches=1",
    "--num_steps=192",
    f"--run_dir={tmp_path / 'run'}",
  )
  assert "8 x cpu" in result.stdout
  assert [row["step"] for row in rows_of(tmp_path / "run")][:3] == [
    64,
    128,
    192,
  ]


@pytest.mark.slow
def test_a_run_under_a_plan_says_what_it_did(tmp_path):
  result = run(
    *SMALL,
    "--env=pendulum",
    "--plan=disaggregated",
    "--num_devices=2",
    "--staleness=1",
    "--explain",
    "--num_steps=256",
    f"--run_dir={tmp_path / 'run'}",
  )
  assert "apply_update" in result.stdout or "learn" in result.stdout
  assert "an iteration took" in result.stdout
  # What was planned can be gone on with, as it stands.
  resume = [
    f"--plan={tmp_path / 'run' / 'plan' / 'plan.json'}",
    f"--resume={tmp_path / 'run'}",
    "--num_steps=384",
  ]
  refused = run(*resume, "--staleness=0", check=False)
  assert refused.returncode != 0
  assert "staleness" in refused.stderr
  resumed = run(*resume, "--num_eval_episodes=4", "--novideo")
  assert "the plan was disaggregated and is" in resumed.stdout
  assert "the staleness of 1 begins anew" in resumed.stdout
  for name in ("report.html", "trace.json", "plan.json", "workflow.mmd"):
    assert (tmp_path / "run" / "plan" / name).is_file()


@pytest.mark.slow
def test_c_physics_on_the_host_has_a_place_of_its_own(tmp_path):
  result = run(
    *SMALL,
    "--plan=disaggregated",
    "--simulate_on=host",
    "--explain",
    "--num_steps=160",  # not a multiple of an iteration's
    f"--run_dir={tmp_path / 'run'}",
  )
  assert "simulate: host" in result.stdout
  assert "an iteration took" in result.stdout
  assert rows_of(tmp_path / "run")[-1]["step"] == 160
  # It is gone on with where it was, without its flags.
  resumed = run(
    f"--resume={tmp_path / 'run'}",
    "--num_steps=224",
    "--num_eval_episodes=4",
    "--novideo",
    "--explain",
  )
  assert "simulate: host" in resumed.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
  "flags",
  [
    ["--plan=collocated", "--env=pendulum", "--memory_gb=1"],
    ["--plan=hybrid", "--env=pendulum", "--num_devices=2", "--num_seeds=2"],
    ["--plan=online", "--num_devices=8"],
    pytest.param(
      ["--plan=hybrid", "--physics=mjx", "--num_devices=2"],
      marks=pytest.mark.long,
    ),
  ],
)
def test_a_plan_trains_by_the_numbers_of_one_program(flags, tmp_path):
  # One iteration: rounding decides about more, where contacts are.
  common = [*SMALL, "--num_steps=64", *[f for f in flags if "plan" not in f]]
  common = [f for f in common if not f.startswith(("--num_dev", "--memory"))]
  run(*common, f"--run_dir={tmp_path / 'direct'}")
  run(*common, *flags, f"--run_dir={tmp_path / 'planned'}")
  (direct,), (planned,) = (
    [row for row in rows_of(tmp_path / name) if "loss" in row]
    for name in ("direct", "planned")
  )
  assert planned.keys() == direct.keys()
  for name, value in direct.items():
    np.testing.assert_allclose(
      np.asarray(planned[name], float),
      np.asarray(value, float),
      rtol=1e-4,
      atol=1e-5,
      err_msg=name,
    )


@pytest.mark.slow
def test_too_little_memory_is_an_error_with_the_numbers(tmp_path):
  result = run(
    *SMALL,
    "--env=pendulum",
    "--plan=collocated",
    "--memory_gb=0.000003",
    "--num_steps=64",
    f"--run_dir={tmp_path / 'run'}",
    check=False,
  )
  assert result.returncode != 0
  assert "error: stage " in result.stderr and " 3,000" in result.stderr
  assert "Traceback" not in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
  ("flags", "message"),
  [
    (["--staleness=1"], "needs --plan"),
    (["--plan=best"], "neither a planner"),
    (["--simulate_on=host"], "needs --plan"),
  ],
)
def test_flags_of_plans_are_checked(flags, message, tmp_path):
  result = run(*SMALL, *flags, f"--run_dir={tmp_path / 'run'}", check=False)
  assert result.returncode != 0
  assert message in result.stderr
