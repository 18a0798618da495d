"""The flags of `reasoning`, and what they say."""

from __future__ import annotations

import dataclasses
import datetime
import pathlib
from typing import Any

from absl import flags

from experiments import reasoning_setup as setup
from experiments import reasoning_tasks
from rlinf_jax import checkpoints
from rlinf_jax.algorithms import grpo
from rlinf_jax.reporting import metrics
from rlinf_jax.training import post_training

FLAGS = flags.FLAGS

# Of models that are not tiny.
_AT_SCALE = {
  "quantum": 1, "packed_rows": 2, "remat": "all", "attention_block": 512
}  # fmt: skip

flags.DEFINE_string(
  "model", setup.TINY, "Folder of a Hugging Face checkpoint, or tiny."
)
flags.DEFINE_string(
  "task",
  "arithmetic",
  "What to learn: one of "
  + ", ".join(reasoning_tasks.PROCEDURAL)
  + "; gym:NAME of reasoning-gym; or a .jsonl or .parquet file.",
)
flags.DEFINE_multi_string(
  "task_arg",
  [],
  "Setting of the task, as name=value; may be given several times.",
)
flags.DEFINE_string(
  "eval_task",
  None,
  "What to judge by, as --task. Default: of a file its last rows, which are not"
  " learnt from; else --task with another seed.",
)
flags.DEFINE_bool(
  "drop_long_prompts",
  False,
  "Whether prompts of a file that are longer than --max_prompt_tokens are left"
  " out. Default: they are an error.",
)
flags.DEFINE_multi_string(
  "reward",
  None,
  f"One of {', '.join(reasoning_tasks.REWARDS)}, or path/to/file.py:NAME."
  " Default: the task's. Given several times, each perhaps with a weight"
  " (format*0.2), they are summed; the first says what is right.",
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
flags.DEFINE_multi_string(
  "rollout_arg",
  [],
  "Argument of vLLM's engine, as name=value, such as tensor_parallel_size=2,"
  " max_num_seqs=256 or gpu_memory_utilization=0.6 (default: 0.45, beside a"
  " trainer with as much); may be given several times.",
)
flags.DEFINE_bool(
  "partial_rollouts",
  False,
  "With --staleness: new weights reach vLLM at once; answers under way go on"
  " with them, and each token has its version.",
)
flags.DEFINE_integer(
  "num_iterations", 400, "Trips through the flow, those before a resume too.", 0
)
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
  "AdamW's, at its greatest. Default: 4e-4 for the tiny model, else 1e-6.",
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
flags.DEFINE_enum(
  "remat",
  None,
  list(setup.REMATS),
  "What the backward pass computes again of each block, to keep less: none, all"
  " but its products with weights (dots), or all. Default: none for the tiny"
  f" model, else {_AT_SCALE['remat']}.",
)
flags.DEFINE_integer(
  "attention_block",
  None,
  "Queries that attend at once; 0 is all, whose scores are kept. Default: 0 for"
  f" the tiny model, else {_AT_SCALE['attention_block']}.",
  0,
)
flags.DEFINE_float("clip_low", None, "The objective's.", 0.0)
flags.DEFINE_float("clip_high", None, "The objective's.", 0.0)
flags.DEFINE_enum("kl", "k3", list(setup.KLS), "Estimator of the divergence.")
flags.DEFINE_enum(
  "correction",
  None,
  list(setup.CORRECTIONS),
  "Weights of tokens that the engine sampled with other probabilities. Default:"
  " token_truncated with --staleness, as tokens are then of older weights, else"
  " none.",
)

_HELP = {
  "num_prompts": "Prompts of an iteration.",
  "group_size": "Answers to each.",
  "max_prompt_tokens": "Of the longest prompt. Default: the task's for the tiny"
  f" model, else {reasoning_tasks.OTHER.max_prompt_tokens}, or what"
  " --max_new_tokens leaves of the model's context (a third, if not given).",
  "max_new_tokens": "Of the longest answer. Default: the task's for the tiny"
  f" model, else {reasoning_tasks.OTHER.max_new_tokens}, or what the prompt"
  " leaves of the model's context.",
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
  " same under any plan; 0 is all. Default: 0 for the tiny model, else"
  f" {_AT_SCALE['quantum']}.",
  "packed_rows": "Answers are packed into rows as long as the longest could be,"
  " and so many rows are read at once; 0 is a row for each answer. Default: 0"
  f" for the tiny model, else {_AT_SCALE['packed_rows']}.",
  "drift_every": "Updates between looks at whether answers have the"
  " probabilities of the weights that generated them, at the cost of reading"
  " them again; 0 is never. Default: 10 with --staleness, else 0, as current"
  " weights are looked at anyway.",
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
  if _field.name in ("max_prompt_tokens", "max_new_tokens", "drift_every"):
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
  None,
  "Nats by which the engine's log-probabilities may differ from the trainer's"
  " under the same weights, before the run stops. Default: 1e-3 where both"
  " compute in float32 on CPUs, else 0.1.",
  0.0,
)
flags.DEFINE_integer(
  "channel_tokens",
  None,
  "With --plan: no more is generated while answers of more tokens than this"
  " wait for a trainer on other devices. Default: without a limit.",
  0,
)
flags.DEFINE_integer(
  "num_devices",
  1,
  "Devices; on CPU virtual ones. Several without --plan are --plan=collocated.",
  1,
)
flags.DEFINE_string("run_dir", None, "Default: runs/TASK/DATE-TIME.")
flags.DEFINE_string(
  "resume",
  None,
  "Folder of a run to go on with, from its latest checkpoint and with its"
  " flags; those that say what is learnt must stay as they are.",
)
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
FIXED = (
  "model", "task", "task_arg", "drop_long_prompts", "reward", "reward_model",
  "system", "objective", "engine", "dtype", "clip_low", "clip_high", "kl",
  "correction", "staleness", "partial_rollouts",
  *(name for name in _HELP if name != "packed_rows"),
)  # fmt: skip
# What it remembers besides: a flag given to the resumed run has its way. By the
# first ones it is no longer the run that was begun.
STEPS = (
  "num_iterations", "learning_rate", "learning_rate_end", "num_warmup_updates",
  "weight_decay", "max_grad_norm",
)  # fmt: skip
CHANGEABLE = (
  *STEPS, "plan", "memory_gb", "profile",
  "channel_tokens", "packed_rows", "num_devices",
  "remat", "attention_block",
  "rollout_python", "num_replicas", "rollout_threads", "rollout_arg",
  "max_drift", "eval_task", "num_eval_prompts", "eval_every",
  "checkpoint_every", "keep", "num_scorers", "score_deadline_s", "tracker",
)  # fmt: skip


def run_directory() -> pathlib.Path:
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
  for name in (*FIXED, *CHANGEABLE):
    if not FLAGS[name].present and name in saved:
      setattr(FLAGS, name, saved[name])
  is_falling = learning_rate_end() != learning_rate()
  changed = [
    f"--{name}={getattr(FLAGS, name)} instead of {saved[name]}"
    for name in (STEPS if is_falling else STEPS[1:])
    if name in saved and getattr(FLAGS, name) != saved[name]
  ]
  if changed:
    print(
      f"with {', '.join(changed)} the steps are others: the run is not bitwise"
      " one that was never interrupted"
    )
  return directory


def settings() -> dict[str, Any]:
  """Returns what a checkpoint is to remember."""
  return {name: getattr(FLAGS, name) for name in (*FIXED, *CHANGEABLE)}


def check() -> None:
  """Raises ValueError for flags that do nothing without others; warns of one.

  What a resumed run remembers was checked when it began.
  """
  for needed, is_given, names in (
    (
      f"--objective={setup.PPO}",
      FLAGS.objective == setup.PPO,
      ("discount", "gae_lambda", "value_weight", "value_clip"),
    ),
    (
      "a file for --task or --eval_task",
      any(map(reasoning_tasks.is_file, (FLAGS.task, FLAGS.eval_task or ""))),
      ("drop_long_prompts",),
    ),
    ("--kl_weight", FLAGS.kl_weight, ("kl", "kl_in_reward")),
    ("--reward_model", FLAGS.reward_model, ("reward_model_weight",)),
    (
      "--engine=vllm",
      FLAGS.engine == "vllm",
      ("num_replicas", "rollout_threads", "rollout_arg"),
    ),
  ):
    for name in names:
      if not is_given and FLAGS[name].value != FLAGS[name].default:
        raise ValueError(
          f"--{name} does nothing without {needed}; give both, or neither"
        )
  if FLAGS.kl_weight and FLAGS.kl == "k1" and not FLAGS.kl_in_reward:
    print(
      "--kl=k1 in a loss has a gradient of mean zero, and pulls nowhere: give"
      " --kl_in_reward, or --kl=k2 or k3"
    )


def config(recipe: reasoning_tasks.Recipe) -> grpo.Config:
  """Returns how answers are asked for; their lengths are the recipe's."""
  given = {name: getattr(FLAGS, name) for name in _HELP}
  for name in ("max_prompt_tokens", "max_new_tokens"):
    given[name] = getattr(recipe, name)
  for name in ("quantum", "packed_rows"):
    given[name] = _unless_tiny(name)
  if given["drift_every"] is None:
    given["drift_every"] = 10 if FLAGS.staleness else 0
  by_default = "token_truncated" if FLAGS.staleness else "none"
  return grpo.Config(
    **given,
    kl_fn=setup.KLS[FLAGS.kl],
    correction_fn=setup.CORRECTIONS[FLAGS.correction or by_default],
  )


def network_options() -> dict[str, Any]:
  """Returns how networks compute: arguments of `transformer.language_model`."""
  return {
    "compute_dtype": setup.DTYPES[FLAGS.dtype],
    "remat_policy": setup.REMATS[_unless_tiny("remat") or "none"],
    "attention_block_size": _unless_tiny("attention_block"),
  }


def num_sft_updates() -> int:
  """Returns the updates by examples, before those by rewards."""
  if FLAGS.sft_updates is not None:
    return FLAGS.sft_updates
  return 350 if FLAGS.model == setup.TINY else 0


def learning_rate() -> float:
  """Returns AdamW's step size at its greatest."""
  if FLAGS.learning_rate is not None:
    return FLAGS.learning_rate
  return 4e-4 if FLAGS.model == setup.TINY else 1e-6


def learning_rate_end() -> float:
  """Returns AdamW's step size at the end."""
  if FLAGS.learning_rate_end is not None:
    return FLAGS.learning_rate_end
  return 0.0 if FLAGS.model == setup.TINY else learning_rate()


def _unless_tiny(name: str) -> Any:
  """Returns a flag that bounds memory, None for 0.

  Where it was not given, a model that is not tiny gets what any can do with.
  """
  given = getattr(FLAGS, name)
  if given is None and FLAGS.model != setup.TINY:
    given = _AT_SCALE[name]
  return given or None
