"""One leg of a comparison, to be run in a process of its own."""

from __future__ import annotations

import dataclasses
import importlib
import math
import pathlib
from typing import Any

# name: (module of benchmarks.legs, what it is)
LEGS = {
  "ours": ("ours", "rlinf_jax"),
  "brax": ("brax_ppo", "Brax PPO on our task"),
  "brax_on_c": ("brax_ppo", "Brax PPO on our C backend"),
  "brax_own": ("brax_ppo", "Brax PPO on Brax's halfcheetah"),
  "sb3": ("stable_baselines", "Stable-Baselines3 PPO"),
  "sbx": ("stable_baselines", "SBX PPO"),
  "envpool": ("envpool_ppo", "EnvPool with a jitted PPO"),
}
CACHE = pathlib.Path(__file__).parents[1] / ".jax_cache"


class LegUnavailableError(RuntimeError):
  """A leg cannot run here; the message says what it lacks."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Job:
  """What a leg is asked for.

  Attributes:
    leg: a key of `LEGS`.
    setting: a key of `settings.SETTINGS`.
    num_envs: overrides the setting's; so with the next two.
    unroll_length: see `settings.Setting`.
    num_unrolls: see `settings.Setting`.
    physics: of `ours` and, on an accelerator, of `brax`.
    seconds: of each measurement, at least.
    num_seeds: policies learnt one after the other, where learning.
    num_steps: environment steps of each of them.
    num_points: evaluations along the way.
    num_episodes: of each evaluation.
  """

  leg: str
  setting: str
  num_envs: int | None = None
  unroll_length: int | None = None
  num_unrolls: int | None = None
  physics: str = "auto"
  seconds: float = 10.0
  num_seeds: int = 1
  num_steps: int = 0
  num_points: int = 10
  num_episodes: int = 64

  def iterations_per_point(self, steps_per_iteration: int) -> int:
    """Iterations between two evaluations, the same for every leg."""
    return max(1, -(-self.num_steps // (self.num_points * steps_per_iteration)))


def run(job: Job, *, is_learning: bool) -> dict[str, Any]:
  """Returns what a leg measured, as JSON values.

  A speed has "steps_per_s", "num_steps", "seconds" and what `timing.Rate` says
  more; "physics", "device", "sizes", and what only that leg has. Learning has
  "curves" in place of the rate: of each seed a list of points with "step",
  "seconds" (of training alone) and "return".

  Args:
    job: see `Job`.
    is_learning: whether to learn rather than to measure speed.

  Raises:
    LegUnavailableError: a package is missing, or the leg does not learn.
    ValueError: sizes do not fit together.
  """
  import jax

  from benchmarks import settings

  jax.config.update("jax_compilation_cache_dir", str(CACHE))
  setting = settings.resolve(
    job.setting,
    is_cpu=jax.default_backend() == "cpu",
    num_envs=job.num_envs,
    unroll_length=job.unroll_length,
    num_unrolls=job.num_unrolls,
  )
  name, _ = LEGS[job.leg]
  try:
    leg = importlib.import_module(f"benchmarks.legs.{name}")
  except ImportError as error:
    raise LegUnavailableError(
      f"{job.leg}: {error}; `make bench` installs what the legs need"
    ) from error
  record = (
    leg.learning(job, setting) if is_learning else leg.speed(job, setting)
  )
  return {
    "device": jax.devices()[0].device_kind,
    "sizes": {
      name: None if value == math.inf else value  # JSON has no infinity
      for name, value in dataclasses.asdict(setting).items()
    },
    **record,
  }
