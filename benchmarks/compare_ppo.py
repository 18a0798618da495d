r"""Compares our PPO with others, side by side on one machine.

  make bench
  make bench ARGS="--legs=ours,brax --setting=light"
  make bench ARGS="--mode=learning --num_seeds=3"

Each leg runs by itself, one after the other, in a process of its own: the same
task, networks and hyper-parameters. Prints markdown tables and writes every
number to --output. README.md says what each leg is and what its figures mean.
"""

from __future__ import annotations

import concurrent.futures
import concurrent.futures.process
import datetime
import importlib.metadata
import json
import multiprocessing
import os
import pathlib
import platform
import sys
from typing import Any

from absl import app, flags

from benchmarks import jobs, settings, tables

FLAGS = flags.FLAGS

# What is compared where --legs does not say; SB3 and SBX are not tuned for
# Brax's setting, and on the CPU their learning takes minutes per seed.
DEFAULT_LEGS = {
  ("speed", "light"): list(jobs.LEGS),
  ("speed", "brax"): ["ours", "brax", "brax_own"],
  ("learning", "light"): ["ours", "brax_on_c"],
  ("learning", "brax"): ["ours", "brax_on_c"],
}
PACKAGES = (
  "jax", "mujoco", "mujoco-mjx", "brax", "torch", "stable-baselines3",
  "sbx-rl", "envpool", "gymnasium", "numpy",
)  # fmt: skip

flags.DEFINE_enum(
  "mode",
  "speed",
  ["speed", "learning"],
  "speed: env-steps/s once everything is compiled. learning: returns at equal"
  " steps, and the time to a return.",
)
flags.DEFINE_list(
  "legs",
  None,
  f"Legs, out of {', '.join(jobs.LEGS)}. Default: those that suit.",
)
flags.register_validator(
  "legs",
  lambda legs: set(legs or ()) <= set(jobs.LEGS),
  message=f"--legs must be out of {', '.join(jobs.LEGS)}",
)
flags.DEFINE_enum(
  "setting",
  "both",
  [*settings.SETTINGS, "both"],
  "light: 64x64 networks, 4 epochs x 8 minibatches. brax: what Brax's PPO was"
  " tuned to for this task.",
)
flags.DEFINE_enum(
  "physics",
  "auto",
  ["auto", "mujoco", "mjx", "warp"],
  "Of ours and, on an accelerator, of Brax's. auto: warp or mjx on an"
  " accelerator, mujoco on the CPU.",
)
flags.DEFINE_integer(
  "num_envs", None, "Environments; default: the setting's.", 1
)
flags.DEFINE_integer(
  "unroll_length", None, "Steps of a sequence; default: the setting's.", 1
)
flags.DEFINE_integer(
  "num_unrolls",
  None,
  "Sequences of each environment per iteration; default: the setting's.",
  1,
)
flags.DEFINE_float(
  "seconds", 10.0, "Each measurement takes at least so long.", 0.0
)
flags.DEFINE_integer("num_seeds", 3, "Policies per leg, when learning.", 1)
flags.DEFINE_integer(
  "num_steps", 2_000_000, "Steps of each of them, rounded up.", 1
)
flags.DEFINE_integer("num_points", 10, "Evaluations of each of them.", 1)
flags.DEFINE_integer("num_episodes", 64, "Of each evaluation.", 1)
flags.DEFINE_float(
  "target_return",
  None,
  "The return to be reached. Default: 90 % of the lowest final one.",
)
flags.DEFINE_string(
  "output",
  "runs/benchmarks/compare_ppo.json",
  "Where every number goes. Records of other modes, settings and legs stay.",
)


def main(argv: list[str]) -> None:
  """Runs the legs and prints what came of them."""
  if len(argv) > 1:
    raise app.UsageError(f"unexpected arguments: {' '.join(argv[1:])}")
  command = " ".join(["python -m benchmarks.compare_ppo", *sys.argv[1:]])
  names = (
    list(settings.SETTINGS) if FLAGS.setting == "both" else [FLAGS.setting]
  )
  _warn_of_load()
  for name in names:
    records = []
    for leg in FLAGS.legs or DEFAULT_LEGS[FLAGS.mode, name]:
      record = _run(leg, name)
      if record is not None:
        records.append(record | {"command": command})
        _save(records[-1])
    if records:
      print(f"\n{_title(name, records[0])}\n\n{_table(records)}\n", flush=True)
  print(f"command: {command}\nnumbers: {FLAGS.output}")


def _run(leg: str, setting: str) -> dict[str, Any] | None:
  """Returns the record of one leg, or None, having said why."""
  names = (
    "num_envs", "unroll_length", "num_unrolls", "physics", "seconds",
    "num_seeds", "num_steps", "num_points", "num_episodes",
  )  # fmt: skip
  job = jobs.Job(
    leg=leg, setting=setting, **{name: getattr(FLAGS, name) for name in names}
  )
  print(f"{setting}: {leg} ...", flush=True)
  load = os.getloadavg()[0]
  # A process per leg: JAX, torch and EnvPool would share threads and memory.
  with concurrent.futures.ProcessPoolExecutor(
    1, mp_context=multiprocessing.get_context("spawn")
  ) as pool:
    future = pool.submit(jobs.run, job, is_learning=FLAGS.mode == "learning")
    try:
      record = future.result()
    except jobs.LegUnavailableError as error:
      print(f"  left out: {error}", flush=True)
      return None
    except (ValueError, ImportError) as error:
      sys.exit(f"error: {error}")
    except concurrent.futures.process.BrokenProcessPool as error:
      print(f"  left out: {leg} died: {error}", flush=True)
      return None
  if "steps_per_s" in record:
    print(f"  {record['steps_per_s']:,.0f} env-steps/s", flush=True)
  now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
  return {
    "mode": FLAGS.mode,
    "setting": setting,
    "leg": leg,
    "at": now,
    "load_before": load,
    "machine": _machine(),
    **record,
  }


def _table(records: list[dict[str, Any]]) -> str:
  if FLAGS.mode == "speed":
    return tables.speed(records)
  return tables.learning(records, target=FLAGS.target_return)


def _title(name: str, record: dict[str, Any]) -> str:
  sizes = record["sizes"]
  return (
    f"Setting `{name}`: {sizes['num_envs']:,} envs x"
    f" {sizes['num_unrolls']} x {sizes['unroll_length']} steps,"
    f" {sizes['num_epochs']} epochs x {sizes['num_minibatches']} minibatches,"
    f" {record['machine']['cpu']}, {record['machine']['num_cpus']} cores,"
    f" {record['device']}"
  )


def _save(record: dict[str, Any]) -> None:
  """Puts a record in the place of the one of the same run before."""
  path = pathlib.Path(FLAGS.output)
  path.parent.mkdir(parents=True, exist_ok=True)
  kept = json.loads(path.read_text()) if path.exists() else []
  key = ("mode", "setting", "leg")
  kept = [r for r in kept if any(r[k] != record[k] for k in key)]
  path.write_text(json.dumps([*kept, record], indent=1) + "\n")


def _machine() -> dict[str, Any]:
  """Returns what the figures depend on."""
  cpu = platform.processor() or platform.machine()
  info = pathlib.Path("/proc/cpuinfo")
  if info.exists():
    lines = info.read_text().splitlines()
    models = [x.split(":", 1)[1].strip() for x in lines if "model name" in x]
    cpu = models[0] if models else cpu
  versions = {}
  for name in PACKAGES:
    try:
      versions[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
      continue
  return {
    "cpu": cpu,
    "num_cpus": os.cpu_count(),
    "python": platform.python_version(),
    "versions": versions,
  }


def _warn_of_load() -> None:
  load = os.getloadavg()[0]
  if load > 0.5:
    print(
      f"warning: the load average is {load:.1f}: something else runs on this"
      " machine, and the figures will say so",
      flush=True,
    )


if __name__ == "__main__":
  app.run(main)
