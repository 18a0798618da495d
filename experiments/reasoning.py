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
samples.md, result.json, model/ (as Hugging Face's libraries load it).
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import pathlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from absl import app, flags, logging

from experiments import plan_flags
from experiments import reasoning_setup as setup
from rlinf_jax import checkpoints, rollout, runtime, types
from rlinf_jax.algorithms import grpo, grpo_config
from rlinf_jax.models import huggingface, transformer
from rlinf_jax.reporting import curves, metrics, progress
from rlinf_jax.training import post_training, tasks, warm_start
from scheduler import errors

FLAGS = flags.FLAGS

flags.DEFINE_string(
  "model", setup.TINY, "Folder of a Hugging Face checkpoint, or tiny."
)
flags.DEFINE_string(
  "task",
  "arithmetic",
  "What to learn: one of "
  + ", ".join(setup.PROCEDURAL)
  + "; gym:NAME of reasoning-gym; or a .jsonl or .parquet file.",
)
flags.DEFINE_multi_string(
  "task_arg",
  [],
  "Setting of the task, as name=value; may be given several times.",
)
flags.DEFINE_string(
  "eval_task", None, "Another file to judge by; default: --task, other seed."
)
flags.DEFINE_string(
  "reward",
  None,
  f"One of {', '.join(setup.REWARDS)}, or path/to/file.py:NAME. Default: the"
  " task's.",
)
flags.DEFINE_string(
  "reward_model",
  None,
  "Folder of a network with one value, of the same tokenizer. What it says at"
  " an answer's end is added to the reward.",
)
flags.DEFINE_string("system", None, "A message before each chat.")
flags.DEFINE_string(
  "objective",
  "grpo",
  f"Algorithm: one of {', '.join(setup.OBJECTIVES)}, or path/to/file.py:NAME.",
)
flags.DEFINE_enum(
  "engine", "vllm", setup.ENGINES, "What generates; jax needs no vLLM."
)
flags.DEFINE_string(
  "rollout_python",
  None,
  "Python that has vLLM, where it has an environment of its own.",
)
flags.DEFINE_integer("num_replicas", 1, "Engines of vLLM, taken by load.", 1)
flags.DEFINE_integer(
  "rollout_threads",
  None,
  "Threads that a vLLM on a CPU computes with. Default: the cores, divided by"
  " --num_replicas.",
  1,
)
flags.DEFINE_bool(
  "partial_rollouts",
  False,
  "With --staleness: new weights reach vLLM at once; answers under way go on"
  " with them, and each token has its version.",
)
flags.DEFINE_integer("num_iterations", 400, "Trips through the flow.", 0)
flags.DEFINE_integer(
  "sft_updates",
  None,
  "Updates by examples first. Default: 350 for the tiny model, else 0.",
  0,
)
flags.DEFINE_integer("sft_batch_size", 128, "Examples of such an update.", 1)
flags.DEFINE_float("sft_learning_rate", 2e-3, "Of those updates.", 0.0)
flags.DEFINE_float(
  "learning_rate",
  None,
  "AdamW's, at its greatest. Default: 5e-4 for the tiny model, else 1e-6.",
  0.0,
)
flags.DEFINE_float(
  "learning_rate_end",
  None,
  "At the end, reached linearly. Default: 0 for the tiny model, else the same.",
  0.0,
)
flags.DEFINE_integer(
  "num_warmup_updates", 10, "Over which its step size rises at first.", 0
)
flags.DEFINE_float("weight_decay", 0.0, "AdamW's, of matrices.", 0.0)
flags.DEFINE_float("max_grad_norm", 1.0, "Larger gradients are scaled.", 0.0)
flags.DEFINE_enum(
  "dtype", "float32", list(setup.DTYPES), "Of the trainer's products."
)
flags.DEFINE_float("clip_low", None, "The objective's.", 0.0)
flags.DEFINE_float("clip_high", None, "The objective's.", 0.0)
flags.DEFINE_enum("kl", "k3", list(setup.KLS), "Estimator of the divergence.")
flags.DEFINE_enum(
  "correction",
  "none",
  list(setup.CORRECTIONS),
  "Weights of tokens that the engine sampled with other probabilities.",
)

_HELP = {
  "num_prompts": "Prompts of an iteration.",
  "group_size": "Answers to each.",
  "max_prompt_tokens": "Of the longest prompt. Default: the task's.",
  "max_new_tokens": "Of the longest answer. Default: the task's.",
  "temperature": "Of sampling.",
  "num_epochs": "Passes over an iteration's answers.",
  "num_minibatches": "Updates per pass.",
  "kl_weight": "Of the divergence from the first model.",
  "kl_in_reward": "Whether it is taken from rewards, and not added to losses.",
  "entropy_weight": "Of the entropy bonus.",
  "overlong_tokens": "Over how many tokens before the limit rewards fall by 1.",
  "max_rounds": "How often to ask for more prompts while too few groups differ"
  " in their rewards (DAPO's dynamic sampling).",
  "discount": "Per token, with --objective=ppo.",
  "gae_lambda": "With --objective=ppo.",
  "reward_model_weight": "Of what --reward_model says.",
  "value_weight": "Of the critic's loss.",
  "value_clip": "How far the critic may move per iteration.",
  "quantum": "Prompts computed at once: bounds memory, and makes numbers the"
  " same under any plan.",
  "seed": "Of the model, of the prompts' order, and of answers.",
}
for _field in dataclasses.fields(grpo.Config):
  if _field.name in ("kl_fn", "correction_fn"):
    continue
  _define: Any = flags.DEFINE_float
  if _field.type in ("int", "int | None"):
    _define = flags.DEFINE_integer
  elif _field.type == "bool":
    _define = flags.DEFINE_bool
  _default = _field.default
  if _field.name in ("max_prompt_tokens", "max_new_tokens"):
    _default = None
  _define(_field.name, _default, _HELP[_field.name])

flags.DEFINE_integer("num_eval_prompts", 512, "Of each evaluation.", 1)
flags.DEFINE_integer("eval_every", 50, "Iterations between evaluations.", 1)
flags.DEFINE_integer("num_scorers", 2, "Processes that compute rewards.", 1)
flags.DEFINE_float(
  "score_deadline_s", 5.0, "For a reward computed in a process.", 0.0
)
flags.DEFINE_float(
  "max_drift",
  0.1,
  "Nats by which the engine's log-probabilities may differ from the trainer's"
  " under the same weights, before the run stops.",
  0.0,
)
flags.DEFINE_integer("num_devices", 1, "Devices; on CPU virtual ones.", 1)
flags.adopt_module_key_flags(plan_flags)
flags.DEFINE_string("run_dir", None, "Default: runs/TASK/DATE-TIME.")
flags.DEFINE_string("resume", None, "Folder of a run to go on with.")
flags.DEFINE_integer(
  "checkpoint_every", 50, "Iterations between checkpoints.", 1
)
flags.DEFINE_integer("keep", 2, "Checkpoints left on disk.", 1)
flags.DEFINE_float("max_minutes", None, "Wall time of the run.", 0.0)
flags.DEFINE_multi_enum(
  "tracker", ["tensorboard"], list(metrics.TRACKERS), "Besides metrics.jsonl."
)
flags.DEFINE_string(
  "compilation_cache", "~/.cache/rlinf_jax", "Of compiled programs."
)

# What a checkpoint remembers, and a resumed run cannot differ in.
_REMEMBERED = (
  "model", "task", "task_arg", "eval_task", "reward", "reward_model", "system",
  "objective",
  "engine", "learning_rate", "learning_rate_end", "num_warmup_updates",
  "weight_decay", "max_grad_norm", "dtype", "clip_low", "clip_high", "kl",
  "correction", *_HELP,
)  # fmt: skip


def main(argv: list[str]) -> None:
  """Post-trains, judges and reports."""
  if len(argv) > 1:
    raise app.UsageError(f"unexpected arguments: {' '.join(argv[1:])}")
  _configure()
  try:
    _run()
  except (
    ValueError,
    ImportError,
    errors.SchedulerError,
    runtime.StageError,
    runtime.DeadlineError,
    checkpoints.CheckpointError,
    post_training.DriftError,
    FloatingPointError,
  ) as error:
    sys.exit(f"error: {error}")


def _configure() -> None:
  if not FLAGS["verbosity"].present:
    logging.set_verbosity(logging.WARNING)
  jax.config.update("jax_num_cpu_devices", FLAGS.num_devices)
  if FLAGS.compilation_cache:
    folder = pathlib.Path(FLAGS.compilation_cache).expanduser()
    jax.config.update("jax_compilation_cache_dir", str(folder))


def _run() -> None:
  directory = _directory()
  plan_flags.check()
  settings = {name: getattr(FLAGS, name) for name in _REMEMBERED}
  recipe = setup.recipe(FLAGS.task)
  task_args = setup.read_args(FLAGS.task_arg)
  reward = FLAGS.reward or recipe.reward
  config = _config(recipe)
  objective = setup.objective(
    FLAGS.objective,
    max_new_tokens=config.max_new_tokens,
    clips={
      k: getattr(FLAGS, k)
      for k in ("clip_low", "clip_high")
      if getattr(FLAGS, k) is not None
    },
  )
  asked = setup.prompts(FLAGS.task, task_args, size=1_000_000, seed=FLAGS.seed)
  judged_by = setup.prompts(
    FLAGS.eval_task or FLAGS.task,
    {} if FLAGS.eval_task else task_args,
    size=FLAGS.num_eval_prompts,
    seed=FLAGS.seed + 1_000_003,
  )
  model = setup.load_model(FLAGS.model, seed=FLAGS.seed)
  needed = config.max_prompt_tokens + config.max_new_tokens
  if needed > model.config.context_size:
    raise ValueError(
      f"--max_prompt_tokens + --max_new_tokens is {needed}, but the model's"
      f" context has {model.config.context_size}; lower one of them"
    )
  with contextlib.ExitStack() as stack:
    score_fn = stack.enter_context(
      setup.scorer(
        reward,
        num_processes=FLAGS.num_scorers,
        deadline_s=FLAGS.score_deadline_s,
      )
    )
    make_task = functools.partial(
      tasks.Task,
      tokenizer=model.tokenizer,
      score_fn=score_fn,
      max_prompt_tokens=config.max_prompt_tokens,
      system=FLAGS.system,
    )
    task = make_task(prompts=asked, order_seed=FLAGS.seed)
    judged = make_task(prompts=judged_by, order_seed=None)
    _check_prompts(task, judged)
    print(
      f"{FLAGS.objective} on {FLAGS.task} by {FLAGS.engine}; run folder"
      f" {directory}",
      flush=True,
    )
    language_model = transformer.language_model(
      model.config, compute_dtype=setup.DTYPES[FLAGS.dtype]
    )
    engine = stack.enter_context(
      _engine(model, language_model, config, directory)
    )
    critic = None
    if FLAGS.objective == setup.PPO:
      critic = transformer.critic(
        model.config, compute_dtype=setup.DTYPES[FLAGS.dtype]
      )
    reward_model = setup.load_reward_model(FLAGS.reward_model, model)
    algorithm = grpo.make(
      language_model,
      engine,
      task.ask,
      task.score,
      objective,
      grpo_config.adamw(
        learning_rate=_learning_rate(),
        learning_rate_end=_learning_rate_end(),
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
    params = parts.model.params
    if _num_sft_updates():
      params = warm_start.fine_tune(
        parts.language_model,
        params,
        parts.task,
        num_updates=_num_sft_updates(),
        batch_size=FLAGS.sft_batch_size,
        learning_rate=FLAGS.sft_learning_rate,
        max_answer_tokens=config.max_new_tokens,
        display=display,
      )
    return algorithm.init(params, key, reward_params)

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
      max_drift=FLAGS.max_drift,
    ),
    init_fn=init,
    abstract_state=jax.eval_shape(
      algorithm.init, parts.model.params, key, reward_params
    ),
    metadata=settings,
    must_match=[k for k in _REMEMBERED if k != "eval_task"],
    more_fn=functools.partial(_sync_metrics, engine),
    sync_fn=_sync_fn(engine),
    transform=plan_flags.transform(
      directory, num_devices=FLAGS.num_devices, donate=False
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


def _directory() -> pathlib.Path:
  """Returns the run's folder; flags of a resumed run are what it was."""
  if FLAGS.resume is None:
    default = (
      pathlib.Path("runs") / pathlib.Path(FLAGS.task.replace(":", "_")).stem
    )
    default /= datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    directory = pathlib.Path(FLAGS.run_dir or default)
    if checkpoints.steps(directory / post_training.CHECKPOINTS):
      raise ValueError(
        f"{directory} holds a run already; go on with it by"
        f" --resume={directory}, or name another --run_dir"
      )
    directory.mkdir(parents=True, exist_ok=True)
    return directory
  directory = pathlib.Path(FLAGS.resume)
  if FLAGS.run_dir not in (None, FLAGS.resume):
    raise ValueError("give --resume or --run_dir, not both")
  saved = checkpoints.read_metadata(directory / post_training.CHECKPOINTS)
  for name in _REMEMBERED:
    if not FLAGS[name].present and name in saved:
      setattr(FLAGS, name, saved[name])
  return directory


def _config(recipe: setup.Recipe) -> grpo.Config:
  given = {name: getattr(FLAGS, name) for name in _HELP}
  for name in ("max_prompt_tokens", "max_new_tokens"):
    if given[name] is None:
      given[name] = getattr(recipe, name)
  return grpo.Config(
    **given,
    kl_fn=setup.KLS[FLAGS.kl],
    correction_fn=setup.CORRECTIONS[FLAGS.correction],
  )


def _check_prompts(*every: tasks.Task) -> None:
  """Raises ValueError where one of the first prompts cannot be asked."""
  for task in every:
    for position in range(min(len(task.prompts), 1000)):
      task.encode(task.prompts[position])


def _num_sft_updates() -> int:
  if FLAGS.sft_updates is not None:
    return FLAGS.sft_updates
  return 350 if FLAGS.model == setup.TINY else 0


def _learning_rate() -> float:
  if FLAGS.learning_rate is not None:
    return FLAGS.learning_rate
  return 5e-4 if FLAGS.model == setup.TINY else 1e-6


def _learning_rate_end() -> float:
  if FLAGS.learning_rate_end is not None:
    return FLAGS.learning_rate_end
  return 0.0 if FLAGS.model == setup.TINY else _learning_rate()


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
  if result.after is None:
    print(
      f"stopped after {result.num_iterations:,} iterations; go on with\n"
      f"  python -m experiments.reasoning --resume={directory}"
    )
    return
  post_training.write_samples(
    directory / "samples.md", result.before, result.after
  )
  folder = directory / "model"
  if not folder.exists():
    print(f"model: {setup.save_model(folder, model, result.params)}")
  print(
    f"greedy accuracy {result.before.accuracy.estimate:.1%} ->"
    f" {result.after.accuracy.estimate:.1%}"
    f" [{result.after.accuracy.low:.1%}, {result.after.accuracy.high:.1%}] in"
    f" {result.num_iterations:,} iterations,"
    f" {progress.format_duration(result.wall_time_s)}; answers before and"
    f" after: {directory / 'samples.md'}"
  )


if __name__ == "__main__":
  app.run(main)
