"""The post-training command, run as a user runs it."""

import functools
import importlib.util
import json
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from rlinf_jax.models import huggingface
from tests.experiments import commands

# Each starts the command anew, up to three times.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

ROOT = pathlib.Path(__file__).parents[2]
SMALL = [
  "--engine=jax",
  "--sft_updates=3",
  "--sft_batch_size=8",
  "--num_prompts=4",
  "--group_size=2",
  "--num_eval_prompts=4",
  "--eval_every=2",
]


run = functools.partial(commands.run, "reasoning")


def rows_of(directory):
  """Returns the numbers of a run that do not depend on the clock."""
  lines = (directory / "metrics.jsonl").read_text().splitlines()
  rows = [json.loads(line) for line in lines]
  return [
    {k: v for k, v in row.items() if k not in ("wall_s", "seconds")}
    for row in rows
    if "reward" in row
  ]


def params_of(directory):
  params = huggingface.load(directory / "model").params
  return dict(huggingface.named_tensors(params))


SHOW = """
import json, sys
from experiments import reasoning, reasoning_flags, reasoning_tasks
reasoning.FLAGS(sys.argv)
config = reasoning_flags.config(reasoning_tasks.OTHER)
network = reasoning_flags.network_options()
print(json.dumps({
  "quantum": config.quantum,
  "packed_rows": config.packed_rows,
  "drift_every": config.drift_every,
  "correction": getattr(config.correction_fn, "__name__", None),
  "remat": getattr(network["remat_policy"], "__name__", None),
  "attention_block": network["attention_block_size"],
  "told": [
    reasoning.FLAGS[name].help.rpartition("else ")[2]
    for name in ("quantum", "packed_rows", "remat", "attention_block")
  ],
}))
"""


@pytest.mark.parametrize(
  ("flags", "expected"),
  [
    ([], [None, None, 0, None, None, None]),
    (["--staleness=1"], [None, None, 10, "token_truncated", None, None]),
    (
      ["--staleness=1", "--correction=none", "--drift_every=0", "--quantum=2"],
      [2, None, 0, None, None, None],
    ),
    (["--model=big"], [1, 2, 0, None, "nothing_saveable", 512]),
    (
      ["--model=big", "--quantum=0", "--packed_rows=0", "--remat=none"]
      + ["--attention_block=0"],
      [None, None, 0, None, None, None],
    ),
  ],
)
def test_flags_that_are_not_given_suit_the_model_and_the_plan(flags, expected):
  told = subprocess.run(
    [sys.executable, "-c", SHOW, *flags],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=True,
  )
  found = json.loads(told.stdout)
  # What the help says of models that are not tiny.
  assert found.pop("told") == ["1.", "2.", "all.", "512."]
  assert list(found.values()) == expected


def test_a_killed_run_resumes_bitwise(tmp_path):
  flags = [*SMALL, "--num_iterations=6", "--checkpoint_every=2"]
  run(*flags, f"--run_dir={tmp_path / 'whole'}")
  killed = tmp_path / "killed"
  process = commands.start("reasoning", *flags, f"--run_dir={killed}")
  deadline = time.monotonic() + 600
  path = killed / "metrics.jsonl"
  while not path.exists() or path.read_text().count('"reward"') < 3:
    assert process.poll() is None, "the run ended before it could be killed"
    assert time.monotonic() < deadline, "the run wrote no rows"
    time.sleep(0.01)
  process.send_signal(signal.SIGKILL)
  process.wait(timeout=60)
  # The flags of the run are remembered.
  run(f"--resume={killed}")
  assert rows_of(killed) == rows_of(tmp_path / "whole")
  whole, resumed = params_of(tmp_path / "whole"), params_of(killed)
  assert whole.keys() == resumed.keys()
  for name in whole:
    np.testing.assert_array_equal(whole[name], resumed[name])


def test_a_run_leaves_what_it_promises(tmp_path):
  flags = [*SMALL, "--num_iterations=2", f"--run_dir={tmp_path / 'first'}"]
  result = run(*flags)
  first = tmp_path / "first"
  for name in ("curve.png", "samples.md", "result.json", "metrics.jsonl"):
    assert (first / name).is_file(), name
  assert "greedy accuracy" in result.stdout
  told = json.loads((first / "result.json").read_text())
  assert told["num_iterations"] == 2
  # What it wrote is a model to begin with, tokenizer and all.
  run(
    *SMALL[:1],
    *SMALL[2:],
    f"--model={first / 'model'}",
    "--max_prompt_tokens=8",
    "--max_new_tokens=8",
    "--num_iterations=1",
    f"--run_dir={tmp_path / 'second'}",
  )
  assert "holds a run already" in run(*flags, check=False).stderr
  # A run that goes on replaces the model, and begins where it began.
  (first / "model" / "of_before").touch()
  result = run(f"--resume={first}", "--num_iterations=3")
  assert "instead of 2 the steps are others" in result.stdout
  assert len(rows_of(first)) == 3
  assert not (first / "model" / "of_before").exists()
  more = json.loads((first / "result.json").read_text())
  assert more["num_iterations"] == 3
  assert more["before"] == told["before"]


def test_a_run_out_of_time_leaves_its_model_and_says_so(tmp_path):
  directory = tmp_path / "run"
  result = run(*SMALL, "--max_minutes=0.001", f"--run_dir={directory}")
  assert f"model after 0 iterations: {directory / 'model'}" in result.stdout
  assert f"--resume={directory}" in result.stdout
  assert params_of(directory)


@pytest.mark.parametrize(
  "flags",
  [
    ["--plan=collocated", "--quantum=1", "--explain"],
    ["--plan=auto", "--num_devices=2"],
    pytest.param(["--plan=hybrid", "--num_devices=2"], marks=pytest.mark.long),
  ],
  ids=["collocated", "auto", "hybrid"],
)
def test_a_run_goes_under_a_plan(flags, tmp_path):
  result = run(
    *SMALL, *flags, "--num_iterations=3", f"--run_dir={tmp_path / 'run'}"
  )
  rows = rows_of(tmp_path / "run")
  assert [row["step"] for row in rows] == [1, 2, 3]
  assert rows[-1]["staleness"] == 0.0
  if "--explain" in flags:
    assert "Results are bitwise" in result.stdout
  for name in ("report.html", "trace.json", "plan.json"):
    assert (tmp_path / "run" / "plan" / name).is_file(), name


def test_a_run_of_stale_weights_goes_on_so(tmp_path):
  run(
    *SMALL,
    *("--plan=disaggregated", "--num_devices=2", "--staleness=1"),
    "--num_iterations=2",
    f"--run_dir={tmp_path}",
  )
  rows = rows_of(tmp_path)
  assert [row["step"] for row in rows] == [1, 2]
  assert rows[-1]["staleness"] == 1.0
  refused = run(f"--resume={tmp_path}", "--staleness=0", check=False)
  assert refused.returncode == 1, refused.stdout
  assert "staleness: checkpoint 1, this run 0" in refused.stderr
  result = run(f"--resume={tmp_path}", "--num_iterations=3")
  assert "the staleness of 1 begins anew" in result.stdout


@pytest.mark.long
def test_several_devices_without_a_plan_share_the_stages(tmp_path):
  flags = [*SMALL, "--quantum=1", "--num_iterations=2"]
  result = run(*flags, "--num_devices=2", f"--run_dir={tmp_path / 'two'}")
  assert "--plan=collocated over 2 devices" in result.stdout
  run(*flags, f"--run_dir={tmp_path / 'one'}")
  assert rows_of(tmp_path / "two") == rows_of(tmp_path / "one")


@pytest.mark.parametrize("objective", ["ppo", "dapo", "rloo"])
def test_other_objectives_run(objective, tmp_path):
  run(
    *SMALL,
    f"--objective={objective}",
    "--max_rounds=2",
    "--kl_weight=0.01",
    "--correction=token_truncated",
    "--num_minibatches=2",
    "--num_iterations=1",
    f"--run_dir={tmp_path / 'run'}",
  )
  assert np.isfinite(rows_of(tmp_path / "run")[0]["loss"])


def test_a_users_own_reward_and_objective_run(tmp_path):
  file = tmp_path / "mine.py"
  file.write_text(
    "from rlinf_jax import losses\n"
    "def reward(completion):\n"
    "  return float(len(completion.response))\n"
    "objective = losses.objectives.grpo(clip_high=0.3)\n"
  )
  run(
    *SMALL,
    f"--reward={file}:reward",
    f"--objective={file}:objective",
    "--num_iterations=1",
    f"--run_dir={tmp_path / 'run'}",
  )


GSM8K = [
  {
    "question": "Natalia sold 48 clips in April and 24 in May. Altogether?",
    "answer": "She sold 48+24 = <<48+24=72>>72 clips.\n#### 72",
  },
  {
    "question": "Weng earns $12 an hour. She worked 50 minutes. How much?",
    "answer": "It is 12/60*50 = $<<12/60*50=10>>10.\n#### 10",
  },
]


def test_a_file_of_gsm8k_is_learnt_from_as_it_is(tmp_path):
  path = tmp_path / "gsm8k.jsonl"
  too_long = {"question": 70 * "1+", "answer": "#### 70"}
  rows = [too_long, *GSM8K]
  path.write_text("\n".join(map(json.dumps, rows)))
  flags = [f"--task={path}", "--reward=math", "--reward=format*0.2"]
  flags += ["--max_prompt_tokens=80", "--max_new_tokens=8"]
  flags += ["--num_iterations=1", f"--run_dir={tmp_path / 'run'}"]
  refused = run(*SMALL, *flags, check=False)
  assert "1 of 3 prompts do not fit" in refused.stderr
  result = run(*SMALL, *flags, "--drop_long_prompts")
  assert "1 of 3 prompts are too long, and left out" in result.stdout
  assert "the last 1 prompts of" in result.stdout
  (row,) = rows_of(tmp_path / "run")
  assert row["failed_rewards"] == 0
  # The last row was judged.
  samples = (tmp_path / "run" / "samples.md").read_text()
  assert "| Weng earns" in samples and "| 10 |" in samples
  assert "Natalia" not in samples
  # Judged by another file, it would learn from the row that was held out.
  resume = f"--resume={tmp_path / 'run'}"
  refused = run(resume, f"--eval_task={path}", check=False)
  assert "other prompts: it had num_prompts_learnt_from 1" in refused.stderr
  assert "--eval_task too: --num_eval_prompts=4\n" in refused.stderr


def without_tokenizer(tmp_path):
  run(*SMALL, "--num_iterations=0", f"--run_dir={tmp_path / 'whole'}")
  folder = tmp_path / "whole" / "model"
  (folder / "tokenizer.json").unlink()
  (folder / "tokenizer_config.json").unlink()
  return [f"--model={folder}"]


def unknown_architecture(tmp_path):
  config = {"architectures": ["MambaForCausalLM"], "model_type": "mamba"}
  (tmp_path / "config.json").write_text(json.dumps(config))
  return [f"--model={tmp_path}"]


def exploding_loss(tmp_path):
  file = tmp_path / "mine.py"
  file.write_text(
    "def reward(completion):\n  return len(completion.response)\n"
  )
  more = ["--learning_rate=1e30", "--num_warmup_updates=0"]
  return [f"--reward={file}:reward", "--num_iterations=4", *more]


def empty_reward(tmp_path):
  file = tmp_path / "mine.py"
  file.write_text("def reward(completion):\n  return None\n")
  return [f"--reward={file}:reward", "--num_iterations=1"]


def python_without_numpy(tmp_path):
  python = tmp_path / "python"
  python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
  python.chmod(0o755)
  return ["--engine=vllm", f"--rollout_python={python}"]


BAD = {
  "task": (lambda p: ["--task=chess"], "--task=chess is not known"),
  "task_arg": (lambda p: ["--task_arg=digits=2"], "--task_arg of arithmetic"),
  "reward": (lambda p: ["--reward=nice"], "--reward=nice is not known"),
  "objective": (lambda p: ["--objective=a2c"], "--objective=a2c is not known"),
  "model": (lambda p: ["--model=/no/such"], "is no folder"),
  "tokenizer": (without_tokenizer, "has no tokenizer"),
  "architecture": (unknown_architecture, "expected one of"),
  "prompt": (lambda p: ["--max_prompt_tokens=3"], "max_prompt_tokens = 3"),
  "context": (lambda p: ["--max_new_tokens=1000"], "the model's context"),
  "empty_reward": (empty_reward, "expected a finite number"),
  "rollout_python": (python_without_numpy, "has no module 'numpy'"),
  "staleness": (lambda p: ["--staleness=1"], "needs --plan"),
  "value_clip": (lambda p: ["--value_clip=1"], "without --objective=ppo"),
  "kl_in_reward": (lambda p: ["--kl_in_reward"], "without --kl_weight"),
  "drop": (lambda p: ["--drop_long_prompts"], "without a file for --task"),
  "rollout_arg": (lambda p: ["--rollout_arg=a=1"], "without --engine=vllm"),
  "channel": (lambda p: ["--channel_tokens=9"], "--channel_tokens needs"),
  "loss": (exploding_loss, "are not both finite"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_gets_one_clear_error(name, tmp_path):
  make_flags, message = BAD[name]
  flags = make_flags(tmp_path)
  result = run(*SMALL, f"--run_dir={tmp_path / 'bad'}", *flags, check=False)
  assert result.returncode == 1, result.stdout
  assert message in result.stderr
  assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
  ("body", "message"),
  [
    ("  return 1\n1 / 0\n", "ZeroDivisionError"),
    ("  return completion.no_such\n", "failed on each of the first"),
  ],
  ids=["at import", "always"],
)
def test_a_reward_that_fails_is_quoted(body, message, tmp_path):
  file = tmp_path / "mine.py"
  file.write_text(f"def reward(completion):\n{body}")
  flags = [*SMALL, f"--reward={file}:reward", f"--run_dir={tmp_path / 'bad'}"]
  result = run(*flags, "--num_iterations=4", check=False)
  assert result.returncode == 1, result.stdout
  assert f"error: {file}:reward" in result.stderr
  assert message in result.stderr
  assert "experiments/reasoning.py" not in result.stderr
  if "first" in message:
    assert "go on with --resume=" in result.stderr


@pytest.mark.skipif(
  importlib.util.find_spec("vllm") is not None, reason="vllm is installed"
)
def test_a_missing_vllm_says_how_to_get_it(tmp_path):
  flags = [*SMALL[1:], f"--run_dir={tmp_path / 'run'}"]
  result = run(*flags, check=False)
  assert result.returncode == 1
  assert "make vllm" in result.stderr
  assert "--engine=jax" in result.stderr
