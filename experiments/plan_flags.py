"""The flags by which a run goes under a plan; shared by experiments."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from absl import flags

from rlinf_jax import runtime
from rlinf_jax.runtime import machines
from scheduler import planners

FLAGS = flags.FLAGS

flags.DEFINE_string(
  "plan",
  None,
  "How stages are placed and ordered: a planner ("
  + ", ".join(planners.PLANNERS)
  + ") or the path of a plan's JSON. The stages are then measured first."
  " Default: without a plan, all in turn on all devices.",
)
flags.DEFINE_integer(
  "staleness",
  0,
  "With --plan: how many updates old the weights that act or generate may be;"
  " iterations then overlap.",
  0,
)
flags.DEFINE_float(
  "memory_gb",
  None,
  "With --plan: memory of each device; less than it has emulates smaller ones.",
  0.0,
)
flags.DEFINE_string(
  "profile",
  None,
  "With --plan: file of a measured profile, read if it is of this run's stages"
  " and shapes, else measured and written. Default: in the run's folder.",
)
flags.DEFINE_bool(
  "explain", False, "With --plan: print the plan, and predicted and real times."
)


def check(*others: str) -> None:
  """Raises ValueError for flags that --plan lacks, or for a plan unknown.

  Args:
    *others: flags of an experiment of which the same is true.
  """
  plan = FLAGS.plan
  if plan is None:
    for name in ("staleness", "memory_gb", "profile", "explain", *others):
      if FLAGS[name].present and FLAGS[name].value:
        raise ValueError(f"--{name} needs --plan, such as --plan=auto")
  elif plan not in planners.PLANNERS and not pathlib.Path(plan).is_file():
    raise ValueError(
      f"--plan={plan} is neither a planner ({', '.join(planners.PLANNERS)}) nor"
      " a file"
    )


def to_json(*others: str) -> dict[str, Any]:
  """Returns what a checkpoint remembers of the flags: those not by default.

  Args:
    *others: flags of an experiment that go with a plan.
  """
  names = ("plan", "staleness", "memory_gb", *others)
  return {name: FLAGS[name].value for name in names if FLAGS[name].value}


def restore(before: Mapping[str, Any], *others: str) -> None:
  """Sets the flags that were not given to what a checkpoint remembers.

  Args:
    before: what that is.
    *others: see `to_json`.
  """
  for name in ("plan", "staleness", "memory_gb", *others):
    if name in before and not FLAGS[name].present:
      FLAGS[name].value = before[name]


def describe_resume(before: Mapping[str, Any]) -> str:
  """Returns what to tell where a run goes on under another plan, else "".

  Args:
    before: what the checkpoint remembers.
  """
  plan = before.get("plan")
  if plan == FLAGS.plan:
    return ""
  return (
    f"the plan was {plan or 'none'} and is {FLAGS.plan or 'none'}: without"
    " --quantum sums are rounded otherwise, and the run is close to one that"
    " was never interrupted, not bitwise it"
  )


def transform(
  directory: pathlib.Path,
  *,
  num_devices: int | None,
  donate: bool,
  channel_budget: float | None = None,
) -> Callable[..., runtime.M2Flow] | None:
  """Returns what puts an iteration under --plan; None without one.

  Args:
    directory: of the run, where a measured profile goes.
    num_devices: that the plan may use; None is all.
    donate: see `runtime.m2flow`.
    channel_budget: likewise.
  """
  if FLAGS.plan is None:
    return None
  budget_bytes = FLAGS.memory_gb and int(FLAGS.memory_gb * 1e9)
  directory.mkdir(parents=True, exist_ok=True)
  return functools.partial(
    runtime.m2flow,
    plan=FLAGS.plan,
    staleness=FLAGS.staleness,
    machine=machines.of_process(num_devices, memory_bytes=budget_bytes),
    budget_bytes=budget_bytes,
    profile_path=FLAGS.profile or directory / "profile.json",
    donate=donate,
    channel_budget=channel_budget,
  )
