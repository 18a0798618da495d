"""A run of post-training: iterate, judge, save; stop, resume."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import pathlib
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from rlinf_jax import checkpoints, runtime, types
from rlinf_jax.algorithms import grpo
from rlinf_jax.reporting import interrupts, metrics, progress
from rlinf_jax.training import judgements, plans, stopping, tasks

CHECKPOINTS = "checkpoints"
# The first judgement, kept for a run that is resumed.
BEFORE = "before.json"

IterateFn = Callable[[grpo.TrainState, int], Generator[Any, None, None]]


class DriftError(RuntimeError):
  """What generates and what learns no longer agree on probabilities."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Options:
  """How a run is run; what it learns is not changed by any of these.

  Attributes:
    directory: of the run: metrics, checkpoints.
    num_iterations: in all, those before a resume included.
    judge_every: iterations between evaluations; None is at the end only.
    checkpoint_every: iterations between checkpoints; None is at the start and
      at the end only.
    keep: checkpoints left on disk.
    max_minutes: wall time after which the run saves and stops.
    resume: whether to go on from the latest checkpoint.
    trackers: see `reporting.metrics`.
    max_drift: nats by which the engine's log-probability of a token may differ
      from the trainer's of the same weights; None does not look.
  """

  directory: pathlib.Path
  num_iterations: int
  judge_every: int | None = None
  checkpoint_every: int | None = None
  keep: int = 2
  max_minutes: float | None = None
  resume: bool = False
  trackers: Sequence[str] = ("tensorboard",)
  max_drift: float | None = 0.1


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Result:
  """What a run came to.

  Attributes:
    num_iterations: those before a resume included.
    is_finished: False where it was interrupted or out of time.
    wall_time_s: of this process, from the first compilation on.
    before: of the model that the run began with, before any resume; but of
      that which was resumed where other prompts are judged than before.
    after: of the model that it came to; None where it is not finished.
    params: of that model.
  """

  num_iterations: int
  is_finished: bool
  wall_time_s: float
  before: tasks.Judgement
  after: tasks.Judgement | None
  params: types.Params


def post_train(
  algorithm: grpo.Grpo,
  judge_fn: Callable[[types.Weights], tasks.Judgement],
  options: Options,
  *,
  init_fn: Callable[[progress.Progress], grpo.TrainState],
  abstract_state: Any,
  metadata: Mapping[str, Any],
  must_match: Sequence[str] = (),
  more_fn: Callable[[], Mapping[str, float]] = dict,
  sync_fn: Callable[[types.Weights], object] | None = None,
  transform: Callable[..., runtime.M2Flow] | None = None,
  explain: bool = False,
) -> Result:
  """Runs a run to its end, or to the first reason to stop.

  Args:
    algorithm: from `grpo.make`.
    judge_fn: what a model's answers are worth.
    options: see `Options`.
    init_fn: makes the first state; not called on a resume.
    abstract_state: its shapes.
    metadata: JSON values that describe the run; saved with each checkpoint.
    must_match: entries of it that a checkpoint must share to be resumed.
    more_fn: further numbers of each iteration, such as the engine's.
    sync_fn: given the weights after each iteration, so that what generates
      already for the next can go on with them; None gives them with the next
      request alone.
    transform: puts an iteration under a plan, see `runtime.m2flow`; None runs
      it stage by stage.
    explain: whether to print the plan, what it was predicted to take and what
      it took.

  Whatever an iteration raises, the state before it is saved first, and the
  error has a note that says so.

  Raises:
    CheckpointError: there is nothing to resume, or not of this run.
    DriftError: the engine does not generate with the trainer's weights.
    FloatingPointError: the loss is no longer a number.
  """
  start_s = time.monotonic()
  saved = options.directory / CHECKPOINTS
  first, is_saved = 0, False
  if options.resume:
    found = checkpoints.read_metadata(saved)
    first = found["progress"]["num_iterations"]
    is_saved = found == _record(metadata, first)
  with (
    progress.open_progress(
      total_steps=options.num_iterations, first_step=first
    ) as display,
    interrupts.graceful_interrupt(notify=display.show_notice) as interrupt,
  ):

    def begin() -> grpo.TrainState:
      if not options.resume:
        return init_fn(display)
      state, _ = checkpoints.restore(
        saved, abstract_state, metadata=metadata, must_match=must_match
      )
      display.print(f"resumed after {first:,} iterations from {saved}")
      return state

    with metrics.open_writers(
      options.directory,
      trackers=options.trackers,
      hparams=dict(metadata),
      resume_step=first if options.resume else None,
    ) as writer:
      run = _Run(
        options=options,
        judge_fn=judge_fn,
        metadata=metadata,
        display=display,
        writer=writer,
        start_s=start_s,
        more_fn=more_fn,
        sync_fn=sync_fn,
      )
      planned = transform and plans.put(algorithm.iteration, transform, display)
      iterate = _eagerly(algorithm)
      if planned is not None:
        iterate = _under_plan(planned, display, explain, options)
      # No name of this function's keeps the first state in memory.
      result = run.to_the_end(
        begin(), first, iterate, interrupt, is_saved=is_saved
      )
    if planned is not None and result.num_iterations > first:
      plans.report(planned, options.directory, display, explain=explain)
  return result


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Run:
  """What every part of the loop needs."""

  options: Options
  judge_fn: Callable[[types.Weights], tasks.Judgement]
  metadata: Mapping[str, Any]
  display: progress.Progress
  writer: metrics.Writer
  start_s: float
  more_fn: Callable[[], Mapping[str, float]]
  sync_fn: Callable[[types.Weights], object] | None

  def to_the_end(
    self,
    state: grpo.TrainState,
    done: int,
    iterate: IterateFn,
    interrupt: interrupts.Interrupt,
    *,
    is_saved: bool,
  ) -> Result:
    options = self.options
    judged_at = saved_at = done
    if not is_saved:
      self._save(state, done)
    try:
      after = self._judge(state, done)
      before = self._first_judgement(after, done)
      num_left = max(options.num_iterations - done, 0)
      with contextlib.closing(iterate(state, num_left)) as iterations:
        before_s = time.monotonic()
        while done < options.num_iterations and not self._must_stop(interrupt):
          after_it, row = next(iterations)
          row = {k: float(v) for k, v in jax.device_get(row).items()}
          row |= {"seconds": time.monotonic() - before_s, **self.more_fn()}
          self._report(done + 1, row)
          state, done = after_it, done + 1
          if self.sync_fn is not None:
            self.sync_fn(_weights(state))
          if options.judge_every and done - judged_at >= options.judge_every:
            after, judged_at = self._judge(state, done), done
          if options.checkpoint_every and (
            done - saved_at >= options.checkpoint_every
          ):
            self._save(state, done)
            saved_at = done
          before_s = time.monotonic()
      if saved_at < done:
        self._save(state, done)
        saved_at = done
      is_finished = done >= options.num_iterations
      if is_finished and judged_at < done:
        after = self._judge(state, done)
    except Exception as error:
      # Whatever it was: nothing of what was learnt before is to be lost.
      if saved_at < done:
        self._save(state, done)
      error.add_note(
        f"The state after {done:,} iterations is saved; go on with"
        f" --resume={options.directory}"
      )
      raise
    return Result(
      num_iterations=done,
      is_finished=is_finished,
      wall_time_s=time.monotonic() - self.start_s,
      before=before,
      after=after if is_finished else None,
      params=state.learner.params.actor,
    )

  def _must_stop(self, interrupt: interrupts.Interrupt) -> bool:
    return stopping.must_stop(
      interrupt,
      self.display,
      start_s=self.start_s,
      max_minutes=self.options.max_minutes,
    )

  def _report(self, done: int, row: dict[str, float]) -> None:
    row = {**row, "wall_s": time.monotonic() - self.start_s}
    self.writer.write(done, row)
    if not np.isfinite([row["loss"], row["grad_norm"]]).all():
      raise FloatingPointError(
        f"loss {row['loss']} and gradient norm {row['grad_norm']} in iteration"
        f" {done:,} are not both finite. Lower --learning_rate, or look at what"
        " the loss divides by."
      )
    max_drift = self.options.max_drift
    # Written so that NaN is too much as well.
    if max_drift is not None and not row["drift"] <= max_drift:
      raise DriftError(
        f"in iteration {done:,} the engine's log-probability of a token that it"
        f" sampled differs from the trainer's by {row['drift']:.3g} nats, with"
        f" the same weights; expected at most --max_drift={max_drift:g}. Either"
        " a weight sync did not arrive, or the engine computes in lower"
        " precision: then raise it, and correct by --correction."
      )
    shown = {k: row[k] for k in ("reward", "signal", "answer_tokens", "drift")}
    self.display.update(done, shown)

  def _judge(self, state: grpo.TrainState, done: int) -> tasks.Judgement:
    with self.display.phase("judge greedy answers"):
      judgement = self.judge_fn(_weights(state))
    accuracy = judgement.accuracy
    self.display.print(
      f"after {done:,} iterations: accuracy {accuracy.estimate:.1%}"
      f" [{accuracy.low:.1%}, {accuracy.high:.1%}], reward"
      f" {judgement.rewards.mean:.3f}"
    )
    self.writer.write(
      done,
      {
        "evaluation/reward": judgement.rewards.mean,
        "evaluation/accuracy": accuracy.estimate,
      },
    )
    return judgement

  def _first_judgement(
    self, judgement: tasks.Judgement, done: int
  ) -> tasks.Judgement:
    """Returns that of the run's begin, which is written there."""
    path = self.options.directory / BEFORE
    if self.options.resume and path.is_file():
      first = judgements.read(path)
      if first.digest == judgement.digest:
        return first
      self.display.print(
        f"other prompts are judged than before: {BEFORE} is now of the model"
        f" after {done:,} iterations"
      )
    judgements.write(path, judgement)
    return judgement

  def _save(self, state: grpo.TrainState, done: int) -> None:
    checkpoints.save(
      self.options.directory / CHECKPOINTS,
      done,
      state,
      metadata=_record(self.metadata, done),
      keep=self.options.keep,
    )


def _record(metadata: Mapping[str, Any], done: int) -> dict[str, Any]:
  return {**metadata, "progress": {"num_iterations": done}}


def _weights(state: grpo.TrainState) -> types.Weights:
  return types.Weights(state.learner.params.actor, state.version)


def _eagerly(algorithm: grpo.Grpo) -> IterateFn:
  """Returns what runs iterations stage by stage."""

  def iterate(state: grpo.TrainState, num: int) -> Generator[Any, None, None]:
    for _ in range(num):
      state, row = algorithm.iteration(state)
      yield state, row

  return iterate


def _under_plan(
  planned: runtime.M2Flow,
  display: progress.Progress,
  explain: bool,
  options: Options,
) -> IterateFn:
  """Returns what runs iterations under a plan."""

  def iterate(state: grpo.TrainState, num: int) -> Generator[Any, None, None]:
    with display.phase("trace, measure and plan"):
      planned.prepare(state)
    if explain:
      display.print(planned.explain())
    if options.resume:
      plans.tell_of_resume(planned, display)
    iterations = planned.iterate(state, [()] * num)
    del state  # or the first would stay in memory
    yield from iterations

  return iterate


def write_result(path: pathlib.Path, result: Result) -> None:
  """Writes a run's result as JSON."""

  def told(judgement: tasks.Judgement | None) -> Any:
    return judgement and {
      "reward": judgement.rewards.mean,
      "accuracy": dataclasses.asdict(judgement.accuracy),
      "num_prompts": judgement.rewards.num,
    }

  record = {
    "num_iterations": result.num_iterations,
    "is_finished": result.is_finished,
    "wall_time_s": result.wall_time_s,
    "before": told(result.before),
    "after": told(result.after),
  }
  path.write_text(json.dumps(record, indent=2) + "\n")
