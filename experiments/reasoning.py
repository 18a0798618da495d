r"""Post-trains a language model with rewards that can be computed.

  make reason
  python -m experiments.reasoning --task=sorting
  python -m experiments.reasoning --model=PATH --task=gsm8k.jsonl --reward=math
  python -m experiments.reasoning --objective=dapo --max_rounds=3
  python -m experiments.reasoning --resume=runs/arithmetic/20261130-101500

PATH is a Hugging Face folder of a Qwen2, Qwen2.5 or Llama 3. Without --model a
tiny Qwen2 is first taught the task by examples, then improved. Hardware,
duration and expected result stand in experiments/README.md. A run writes into
its folder: metrics.jsonl, TensorBoard events, checkpoints/, curve.png,
before.json, samples.md, result.json, model/ (as Hugging Face's libraries load
it).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import pathlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from absl import app, flags, logging

from experiments import plan_flags, reasoning_flags, reasoning_tasks
from experiments import reasoning_setup as setup
from rlinf_jax import checkpoints, rewards, rollout, runtime, types
from rlinf_jax.algorithms import grpo, grpo_config
from rlinf_jax.models import huggingface, transformer
from rlinf_jax.reporting import curves, metrics, progress
from rlinf_jax.training import judgements, post_training, tasks, warm_start
from scheduler import errors

FLAGS = flags.FLAGS
flags.adopt_module_key_flags(plan_flags)
flags.adopt_module_key_flags(reasoning_flags)


def main(argv: list[str]) -> None:
  """Post-trains, judges and reports."""
  if len(argv) > 1:
    raise app.UsageError(f"unexpected arguments: {' '.join(argv[1:])}")
  try:
    directory = reasoning_flags.run_directory()
    _configure()
    _run(directory)
  except (
    ValueError,
    ImportError,
    errors.SchedulerError,
    runtime.StageError,
    runtime.DeadlineError,
    checkpoints.CheckpointError,
    rewards.ScorerError,
    rollout.EngineError,
    post_training.DriftError,
    FloatingPointError,
  ) as error:
    # Notes say where what was learnt so far is.
    notes = getattr(error, "__notes__", [])
    sys.exit("\n".join([f"error: {error}", *notes]))


def _configure() -> None:
  if not FLAGS["verbosity"].present:
    logging.set_verbosity(logging.WARNING)
  jax.config.update("jax_num_cpu_devices", FLAGS.num_devices)
  if FLAGS.engine == "vllm" and (options := setup.client_options(os.environ)):
    jax.config.update("jax_pjrt_client_create_options", options)
  if FLAGS.compilation_cache:
    folder = pathlib.Path(FLAGS.compilation_cache).expanduser()
    jax.config.update("jax_compilation_cache_dir", str(folder))


def _run(directory: pathlib.Path) -> None:
  plan_flags.check("channel_tokens")
  reasoning_flags.check()
  if FLAGS.plan is None and FLAGS.num_devices > 1:
    # Some stages are no program: there is nothing that could be fused.
    FLAGS["plan"].value = "collocated"
    print(
      f"--plan=collocated over {FLAGS.num_devices} devices, as none is given"
    )
  settings = reasoning_flags.settings()
  model = setup.load_model(FLAGS.model, seed=FLAGS.seed)
  recipe = reasoning_tasks.recipe(
    FLAGS.task,
    context_size=model.config.context_size,
    is_tiny=FLAGS.model == setup.TINY,
    max_prompt_tokens=FLAGS.max_prompt_tokens,
    max_new_tokens=FLAGS.max_new_tokens,
  )
  task_args = setup.read_args(FLAGS.task_arg, flag="task_arg")
  config = reasoning_flags.config(recipe)
  objective = setup.objective(
    FLAGS.objective,
    max_new_tokens=config.max_new_tokens,
    clips={
      k: getattr(FLAGS, k)
      for k in ("clip_low", "clip_high")
      if getattr(FLAGS, k) is not None
    },
  )
  asked = reasoning_tasks.prompts(
    FLAGS.task, task_args, size=1_000_000, seed=FLAGS.seed
  )
  eval_task = FLAGS.eval_task or FLAGS.task
  is_held_out = not FLAGS.eval_task and reasoning_tasks.is_file(FLAGS.task)
  judged_by: Sequence[types.Prompt] = ()
  if not is_held_out:
    is_alike = eval_task == FLAGS.task or (
      reasoning_tasks.is_file(eval_task) and reasoning_tasks.is_file(FLAGS.task)
    )
    judged_by = reasoning_tasks.prompts(
      eval_task,
      task_args if is_alike else {},
      size=FLAGS.num_eval_prompts,
      seed=FLAGS.seed + 1_000_003,
    )
  needed = config.max_prompt_tokens + config.max_new_tokens
  if needed > model.config.context_size:
    raise ValueError(
      f"--max_prompt_tokens + --max_new_tokens is {needed}, but the model's"
      f" context has {model.config.context_size}; lower one of them"
    )
  with contextlib.ExitStack() as stack:
    scorer = stack.enter_context(
      reasoning_tasks.scorer(
        FLAGS.reward or [recipe.reward],
        num_processes=FLAGS.num_scorers,
        deadline_s=FLAGS.score_deadline_s,
      )
    )
    score_fn = rewards.FailureCount(scorer)
    make_task = functools.partial(
      tasks.Task,
      tokenizer=model.tokenizer,
      score_fn=score_fn,
      max_prompt_tokens=config.max_prompt_tokens,
      system=FLAGS.system,
    )
    fit = functools.partial(
      reasoning_tasks.fit, drop_long=FLAGS.drop_long_prompts
    )
    task = fit(make_task(prompts=asked, order_seed=FLAGS.seed), FLAGS.task)
    if is_held_out:
      task, judged = tasks.hold_out(task, FLAGS.num_eval_prompts)
      print(
        f"held out: the last {len(judged.prompts):,} prompts of {FLAGS.task}"
        f" are judged, the first {len(task.prompts):,} are learnt from;"
        " --eval_task judges by others"
      )
    else:
      judged = fit(make_task(prompts=judged_by, order_seed=None), eval_task)
    sizes = {
      "num_prompts_learnt_from": len(task.prompts),
      "num_prompts_held_out": len(judged.prompts) if is_held_out else 0,
    }
    if FLAGS.resume is not None:
      saved = directory / post_training.CHECKPOINTS
      reasoning_tasks.check_resume(checkpoints.read_metadata(saved), sizes)
    settings |= sizes
    print(
      f"{FLAGS.objective} on {FLAGS.task} by {FLAGS.engine}; run folder"
      f" {directory}",
      flush=True,
    )
    options = reasoning_flags.network_options()
    language_model = transformer.language_model(model.config, **options)
    engine = stack.enter_context(
      _engine(model, language_model, config, directory)
    )
    critic = None
    if FLAGS.objective == setup.PPO:
      critic = transformer.critic(model.config, **options)
    reward_model = setup.load_reward_model(FLAGS.reward_model, model, options)
    algorithm = grpo.make(
      language_model,
      engine,
      task.ask,
      task.score,
      objective,
      grpo_config.adamw(
        learning_rate=reasoning_flags.learning_rate(),
        learning_rate_end=reasoning_flags.learning_rate_end(),
        num_updates=(
          FLAGS.num_iterations * config.num_epochs * config.num_minibatches
        ),
        max_grad_norm=FLAGS.max_grad_norm,
        weight_decay=FLAGS.weight_decay,
        num_warmup_updates=FLAGS.num_warmup_updates,
      ),
      config,
      critic=critic,
      reward_model=None if reward_model is None else reward_model.network,
    )
    parts = _Parts(
      algorithm=algorithm,
      model=model,
      language_model=language_model,
      reward_model=reward_model,
      task=task,
      judged=judged,
      failures=score_fn,
      engine=engine,
    )
    result = _post_train(parts, directory, settings)
    _report(directory, model, result)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Parts:
  """What a run is made of."""

  algorithm: grpo.Grpo
  model: setup.Model
  language_model: transformer.Transformer
  reward_model: setup.RewardModel | None
  task: tasks.Task
  judged: tasks.Task
  failures: rewards.FailureCount
  engine: rollout.Engine


def _post_train(
  parts: _Parts, directory: pathlib.Path, settings: dict[str, Any]
) -> post_training.Result:
  algorithm, engine = parts.algorithm, parts.engine
  config = algorithm.config
  key = jax.random.key(FLAGS.seed)
  reward_params: Any = ()
  if parts.reward_model is not None:
    reward_params = parts.reward_model.params

  def init(display: progress.Progress) -> grpo.TrainState:
    params, rates = jax.tree.map(
      jax.numpy.asarray, (parts.model.params, reward_params)
    )
    if reasoning_flags.num_sft_updates():
      params = warm_start.fine_tune(
        parts.language_model,
        params,
        parts.task,
        num_updates=reasoning_flags.num_sft_updates(),
        batch_size=FLAGS.sft_batch_size,
        learning_rate=FLAGS.sft_learning_rate,
        max_answer_tokens=config.max_new_tokens,
        display=display,
        rows_at_once=config.packed_rows
        or (config.quantum and config.quantum * config.group_size),
      )
    return algorithm.init(params, key, rates)

  return post_training.post_train(
    algorithm,
    setup.judge_fn(
      parts.judged,
      engine,
      num_prompts=FLAGS.num_eval_prompts,
      batch_size=config.num_prompts * config.group_size,
      max_new_tokens=config.max_new_tokens,
    ),
    post_training.Options(
      directory=directory,
      num_iterations=FLAGS.num_iterations,
      judge_every=FLAGS.eval_every,
      checkpoint_every=FLAGS.checkpoint_every,
      keep=FLAGS.keep,
      max_minutes=FLAGS.max_minutes,
      resume=FLAGS.resume is not None,
      trackers=FLAGS.tracker,
      max_drift=setup.max_drift(FLAGS.max_drift, engine, dtype=FLAGS.dtype),
    ),
    init_fn=init,
    abstract_state=jax.eval_shape(
      algorithm.init, parts.model.params, key, reward_params
    ),
    metadata=settings,
    must_match=reasoning_flags.FIXED,
    more_fn=lambda: {
      "failed_rewards": float(parts.failures.take()),
      **_sync_metrics(engine),
    },
    sync_fn=_sync_fn(engine),
    transform=plan_flags.transform(
      directory,
      num_devices=FLAGS.num_devices,
      donate=False,
      channel_budget=FLAGS.channel_tokens,
    ),
    explain=FLAGS.explain,
  )


def _sync_fn(
  engine: rollout.Engine,
) -> Callable[[types.Weights], object] | None:
  if not FLAGS.partial_rollouts:
    return None
  if not isinstance(engine, rollout.VllmEngine) or not FLAGS.staleness:
    raise ValueError(
      "--partial_rollouts needs --engine=vllm and --staleness=1 or more: only"
      " then is anything generated while the weights are updated"
    )
  return lambda weights: engine.sync(jax.device_get(weights))


def _sync_metrics(engine: rollout.Engine) -> dict[str, float]:
  """Returns how the last weights reached the engine's processes."""
  if not isinstance(engine, rollout.VllmEngine) or engine.last_sync is None:
    return {}
  return engine.last_sync.metrics()


@contextlib.contextmanager
def _engine(
  model: setup.Model,
  language_model: transformer.Transformer,
  config: grpo.Config,
  directory: pathlib.Path,
) -> Iterator[rollout.Engine]:
  sampling = rollout.Sampling(
    max_new_tokens=config.max_new_tokens,
    temperature=config.temperature,
    stop_tokens=model.tokenizer.stop_ids,
  )
  if FLAGS.engine == "jax":
    yield rollout.JaxEngine(language_model, sampling)
    return
  folder = model.source or directory / "initial"
  if not folder.exists():
    setup.save_model(folder, model, model.params)
  print("starting vLLM ...", flush=True)
  start_s = time.monotonic()
  with rollout.VllmEngine(
    folder,
    sampling,
    # Of NumPy the tensors are views.
    lambda params: dict(
      huggingface.named_tensors(jax.tree.map(np.asarray, params))
    ),
    log_path=directory / "vllm.log",
    python=FLAGS.rollout_python or sys.executable,
    num_replicas=FLAGS.num_replicas,
    num_threads=FLAGS.rollout_threads,
    context_size=config.max_prompt_tokens + config.max_new_tokens,
    engine_arguments=setup.read_args(FLAGS.rollout_arg, flag="rollout_arg"),
    interrupt=FLAGS.partial_rollouts,
  ) as engine:
    print(
      "vLLM is ready after"
      f" {progress.format_duration(time.monotonic() - start_s)}",
      flush=True,
    )
    yield engine


def _report(
  directory: pathlib.Path, model: setup.Model, result: post_training.Result
) -> None:
  post_training.write_result(directory / "result.json", result)
  with contextlib.suppress(ValueError):  # no iteration was run
    curve = curves.plot_learning_curve(
      directory / metrics.FILE_NAME,
      directory / "curve.png",
      title=f"{FLAGS.objective} on {FLAGS.task}",
      return_name="reward",
      success_name="accuracy",
      step_name="iterations",
    )
    print(f"curve: {curve}")
  folder = setup.save_model(directory / "model", model, result.params)
  print(f"model after {result.num_iterations:,} iterations: {folder}")
  if result.after is None:
    print(
      f"stopped after {result.num_iterations:,} iterations; go on with\n"
      f"  python -m experiments.reasoning --resume={directory}"
    )
    return
  judgements.write_samples(
    directory / "samples.md", result.before, result.after
  )
  print(
    f"greedy accuracy {result.before.accuracy.estimate:.1%} ->"
    f" {result.after.accuracy.estimate:.1%}"
    f" [{result.after.accuracy.low:.1%}, {result.after.accuracy.high:.1%}]"
    f" after {result.num_iterations:,} iterations,"
    f" {progress.format_duration(result.wall_time_s)}; answers before and"
    f" after: {directory / 'samples.md'}"
  )


if __name__ == "__main__":
  app.run(main)
