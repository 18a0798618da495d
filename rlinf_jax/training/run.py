"""A training run: iterate, report, evaluate, save; stop cleanly, resume."""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from rlinf_jax import checkpoints, runtime
from rlinf_jax.algorithms import evaluation, ppo
from rlinf_jax.reporting import (
  interrupts,
  memory,
  metrics,
  progress,
  statistics,
)
from rlinf_jax.training import plans, stopping
from rlinf_jax.training import programs as programs_lib

CHECKPOINTS = "checkpoints"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Options:
  """How a run is run; what it learns is not changed by any of these.

  Attributes:
    directory: of the run: metrics, checkpoints, pictures.
    num_steps: environment steps of each seed.
    seed: the first seed.
    num_seeds: policies trained at once.
    eval_every: steps between evaluations; None evaluates at the end only.
    num_eval_episodes: per evaluation and seed.
    checkpoint_every: steps between checkpoints; None saves at the end only.
    keep: checkpoints left on disk.
    max_minutes: wall time after which the run saves and stops.
    resume: whether to go on from the latest checkpoint.
    trackers: see `reporting.metrics`.
    suggestions: what a user can lower where memory does not suffice.
  """

  directory: pathlib.Path
  num_steps: int
  seed: int = 0
  num_seeds: int = 1
  eval_every: int | None = None
  num_eval_episodes: int = 128
  checkpoint_every: int | None = None
  keep: int = 2
  max_minutes: float | None = None
  resume: bool = False
  trackers: Sequence[str] = ("tensorboard",)
  suggestions: Sequence[str] = ("--num_envs", "--unroll_length")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Result:
  """What a run came to.

  Attributes:
    num_steps: environment steps of each seed, those before a resume included.
    is_finished: False where it was interrupted or out of time.
    wall_time_s: of this process, from the first compilation on.
    steps_per_s: over all seeds, of training alone.
    returns: over all evaluation episodes; None where none was made.
    success: the share of them that were solved; None without such a metric.
    actor: what acts, on the first device.
  """

  num_steps: int
  is_finished: bool
  wall_time_s: float
  steps_per_s: float
  returns: statistics.Summary | None
  success: statistics.Interval | None
  actor: ppo.Actor


def train(
  algorithm: ppo.Ppo,
  judge: programs_lib.Evaluation,
  options: Options,
  *,
  metadata: Mapping[str, Any],
  must_match: Sequence[str] = (),
  mesh: jax.sharding.Mesh | None = None,
  has_success: bool = False,
  is_resumable: bool = True,
  transform: Callable[..., runtime.M2Flow] | None = None,
  explain: bool = False,
) -> Result:
  """Runs a training run to its end, or to the first reason to stop.

  Args:
    algorithm: from `ppo.make`.
    judge: from `programs.make_evaluation`.
    options: see `Options`.
    metadata: JSON values that describe the run; saved with each checkpoint.
    must_match: entries of it that a checkpoint must share to be resumed.
    mesh: devices to divide the environments over; None is the first device.
    has_success: whether the environment says when a task is solved.
    is_resumable: False where the environment keeps state outside the program;
      a resumed run then begins new episodes.
    transform: puts an iteration under a plan, see `runtime.m2flow`.
    explain: whether to print the plan, what it was predicted to take and what
      it took.

  Raises:
    InsufficientMemoryError: the programs do not fit.
    CheckpointError: there is nothing to resume, or not of this run.
    FloatingPointError: the loss or the parameters are no longer numbers. The
      last checkpoint is from before.
  """
  start_s = time.monotonic()
  first_step = 0
  saved = options.directory / CHECKPOINTS
  if options.resume:
    record = checkpoints.read_metadata(saved)
    first_step = record["progress"]["num_steps"]
  with (
    progress.open_progress(
      total_steps=options.num_steps * options.num_seeds,
      first_step=first_step * options.num_seeds,
    ) as display,
    interrupts.graceful_interrupt(notify=display.show_notice) as interrupt,
  ):
    programs = programs_lib.compile_programs(
      algorithm,
      num_steps=max(options.num_steps - first_step, 0),
      seed=options.seed,
      num_seeds=options.num_seeds,
      mesh=mesh,
      display=display,
      transform=transform,
    )
    if explain and programs.flow is not None:
      display.print(programs.flow.explain())
    display.print(
      memory.check_fits(programs.estimates, suggestions=options.suggestions)
    )
    if options.resume:
      state, _ = checkpoints.restore(
        saved, programs.state, metadata=metadata, must_match=must_match
      )
      if not is_resumable:
        fresh = programs.init()
        state = dataclasses.replace(state, sim=fresh.sim, carry=fresh.carry)
      display.print(f"resumed at {first_step:,} steps from {saved}")
      if programs.flow is not None:
        plans.tell_of_resume(programs.flow, display)
    else:
      state = programs.init()
    with metrics.open_writers(
      options.directory,
      trackers=options.trackers,
      hparams=dict(metadata),
      resume_step=first_step if options.resume else None,
    ) as writer:
      run = _Run(
        options=options,
        config=algorithm.config,
        programs=programs,
        judge=judge,
        metadata=metadata,
        shown=("return", "success") if has_success else ("return",),
        display=display,
        writer=writer,
        start_s=start_s,
      )
      result = run.to_the_end(state, first_step, interrupt)
    if programs.flow is not None:
      plans.report(programs.flow, options.directory, display, explain=explain)
    return result


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Run:
  """What every part of the loop needs."""

  options: Options
  config: ppo.Config
  programs: programs_lib.Programs
  judge: programs_lib.Evaluation
  metadata: Mapping[str, Any]
  shown: Sequence[str]
  display: progress.Progress
  writer: metrics.Writer
  start_s: float

  def to_the_end(
    self,
    state: ppo.TrainState,
    step: int,
    interrupt: interrupts.Interrupt,
  ) -> Result:
    options = self.options
    first_step, training_s = step, 0.0
    evaluated_at = saved_at = step
    episodes = None
    before_s = time.monotonic()
    counts = self._counts(step)
    iterations = self.programs.iterate(state, counts)
    for num_new in counts:
      if self._must_stop(interrupt):
        break
      state, row = next(iterations)
      row = jax.device_get(row)
      duration_s = time.monotonic() - before_s
      training_s += duration_s
      step += num_new
      row["steps_per_s"] = num_new * options.num_seeds / duration_s
      self._report(step, row)
      if options.eval_every and step - evaluated_at >= options.eval_every:
        episodes, evaluated_at = self._evaluate(state, step), step
      if options.checkpoint_every and (
        step - saved_at >= options.checkpoint_every
      ):
        self._save(state, step)
        saved_at = step
      before_s = time.monotonic()
    iterations.close()
    is_finished = step >= options.num_steps
    if saved_at < step or step == first_step:
      self._save(state, step)
    if is_finished and (evaluated_at < step or episodes is None):
      episodes = self._evaluate(state, step)
    num_trained = (step - first_step) * options.num_seeds
    returns, success = _summarise(episodes, "success" in self.shown)
    return Result(
      num_steps=step,
      is_finished=is_finished,
      wall_time_s=time.monotonic() - self.start_s,
      steps_per_s=num_trained / training_s if training_s else math.nan,
      returns=returns,
      success=success,
      actor=_actor(state),
    )

  def _must_stop(self, interrupt: interrupts.Interrupt) -> bool:
    return stopping.must_stop(
      interrupt,
      self.display,
      start_s=self.start_s,
      max_minutes=self.options.max_minutes,
    )

  def _counts(self, step: int) -> list[int]:
    """Returns the steps of each iteration that is still to be run."""
    whole = self.config.num_envs * self.config.unroll_length
    full, rest = divmod(max(self.options.num_steps - step, 0), whole)
    return [whole] * full + [rest] * bool(rest)

  def _report(self, step: int, row: dict[str, Any]) -> None:
    row = {**row, "wall_s": time.monotonic() - self.start_s}
    self.writer.write(step, row)
    broken = [
      k for k in ("loss", "grad_norm") if not np.all(np.isfinite(row[k]))
    ]
    if broken:
      raise FloatingPointError(
        f"{' and '.join(broken)} became NaN or infinite before step {step:,}."
        " Lower --learning_rate or --max_grad_norm, or look at what the loss"
        " divides by. Checkpoints, where there are any, are from before."
      )
    shown = {k: row[k] for k in self.shown if np.all(np.isfinite(row[k]))}
    self.display.update(step * self.options.num_seeds, shown)

  def _evaluate(self, state: ppo.TrainState, step: int) -> evaluation.Episodes:
    with self.display.phase("compile and run evaluation"):
      # The same episodes every time, so that curves compare policies.
      key = jax.random.key(self.options.seed + 1_000_003)
      episodes = jax.device_get(self.judge.evaluate(_actor(state), key))
    self.writer.write(
      step,
      {
        "evaluation/return": episodes.returns.mean(axis=-1),
        "evaluation/length": episodes.lengths.mean(axis=-1),
        "evaluation/success": episodes.is_solved.mean(axis=-1),
      },
    )
    return episodes

  def _save(self, state: ppo.TrainState, step: int) -> None:
    checkpoints.save(
      self.options.directory / CHECKPOINTS,
      step,
      state,
      metadata={**self.metadata, "progress": {"num_steps": step}},
      keep=self.options.keep,
    )


def write_result(path: pathlib.Path, result: Result) -> None:
  """Writes a run's result as JSON."""
  record = {
    "num_steps": result.num_steps,
    "is_finished": result.is_finished,
    "wall_time_s": result.wall_time_s,
    "steps_per_s": result.steps_per_s,
    "returns": result.returns and dataclasses.asdict(result.returns),
    "success": result.success and dataclasses.asdict(result.success),
  }
  path.write_text(json.dumps(record, indent=2) + "\n")


def _actor(state: ppo.TrainState) -> ppo.Actor:
  actor = ppo.Actor(state.learner.params, state.normaliser)
  return jax.device_put(actor, jax.devices()[0])


def _summarise(
  episodes: evaluation.Episodes | None, has_success: bool
) -> tuple[statistics.Summary | None, statistics.Interval | None]:
  if episodes is None:
    return None, None
  returns = statistics.summarise(np.ravel(episodes.returns))
  if not has_success:
    return returns, None
  solved = np.ravel(episodes.is_solved)
  return returns, statistics.wilson_interval(int(solved.sum()), solved.size)
