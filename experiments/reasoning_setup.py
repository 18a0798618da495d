"""What a run of `reasoning` is made of, by the names that its flags take."""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib.metadata
import pathlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from envs import user_file
from rlinf_jax import data, losses, rollout, types
from rlinf_jax.algorithms import grpo_config
from rlinf_jax.models import huggingface, transformer
from rlinf_jax.training import tasks

TINY = "tiny"
ENGINES = ("vllm", "jax")


PPO = "ppo"
OBJECTIVES: dict[str, Callable[..., losses.Objective]] = {
  "grpo": losses.objectives.grpo,
  "dr_grpo": losses.objectives.dr_grpo,
  "dapo": losses.objectives.dapo,
  "gspo": losses.objectives.gspo,
  "cispo": losses.objectives.cispo,
  "rloo": losses.objectives.rloo,
  "reinforce_plus_plus": losses.objectives.reinforce_plus_plus,
  "reinforce_plus_plus_baseline": (
    losses.objectives.reinforce_plus_plus_baseline
  ),
  # Its advantages are the critic's; the rest is REINFORCE++'s.
  PPO: losses.objectives.reinforce_plus_plus,
}
KLS = {"k1": losses.kl_k1, "k2": losses.kl_k2, "k3": losses.kl_k3}
CORRECTIONS: dict[str, grpo_config.CorrectionFn | None] = {
  "none": None,
  "token_truncated": losses.corrections.token_truncated,
  "token_masked": losses.corrections.token_masked,
  "sequence_truncated": losses.corrections.sequence_truncated,
  "sequence_masked": losses.corrections.sequence_masked,
  "decoupled": functools.partial(
    losses.corrections.token_truncated, max_weight=float("inf")
  ),
}
DTYPES = {"float32": jax.numpy.float32, "bfloat16": jax.numpy.bfloat16}
# What the backward pass computes again of a block: nothing, all but its
# products with weights, all.
REMATS: dict[str, Callable[..., bool] | None] = {
  "none": None,
  "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
  "all": jax.checkpoint_policies.nothing_saveable,
}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Model:
  """A language model to begin with.

  Attributes:
    config: its sizes.
    params: float32, of NumPy: a run keeps them beside what learns; drawn anew
      for the tiny one.
    tokenizer: its own.
    source: the folder that it came from; None for the tiny one.
    dtype: of the weights in that folder, and of those that are written.
  """

  config: transformer.Config
  params: types.Params
  tokenizer: types.Tokenizer
  source: pathlib.Path | None
  dtype: np.typing.DTypeLike = np.float32


def load_model(name: str, *, seed: int) -> Model:
  """Returns the tiny model, or the one of a Hugging Face folder.

  Raises:
    ValueError: there is no such folder, it lacks something, or it holds another
      kind of network than those that are supported.
    ImportError: its tokenizer needs what is not installed.
  """
  if name == TINY:
    tokenizer = data.CharTokenizer()
    config = tiny_config(tokenizer.vocab_size)
    model = transformer.language_model(config)
    params = jax.jit(model.init)(jax.random.key(seed))
    return Model(
      config=config,
      params=jax.device_get(params),
      tokenizer=tokenizer,
      source=None,
    )
  folder = pathlib.Path(name)
  if not folder.is_dir():
    raise ValueError(
      f"--model={name} is no folder; give a Hugging Face checkpoint's folder"
      f" (config.json, safetensors, tokenizer), or {TINY!r}"
    )
  # First what is quickly read: an unknown architecture, a missing tokenizer.
  huggingface.read_config(folder)
  hf_tokenizer = data.HuggingFaceTokenizer(folder)
  checkpoint = huggingface.load(folder, dtype=None)
  return Model(
    config=checkpoint.config,
    params=jax.tree.map(lambda x: np.asarray(x, np.float32), checkpoint.params),
    tokenizer=hf_tokenizer,
    source=folder,
    dtype=checkpoint.params["embedding"].dtype,
  )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RewardModel:
  """A network that rates answers, and its parameters, of NumPy."""

  network: transformer.Transformer
  params: types.Params


def load_reward_model(
  name: str | None, model: Model, options: Mapping[str, Any]
) -> RewardModel | None:
  """Returns the reward model of a Hugging Face folder; None for None.

  Args:
    name: the folder.
    model: whose answers it will rate.
    options: of `transformer.critic`.

  Raises:
    ValueError: there is no such folder, it holds no network of one value, or
      one of another vocabulary than the model's.
  """
  if name is None:
    return None
  checkpoint = huggingface.load(name)
  if "value" not in checkpoint.params:
    raise ValueError(
      f"--reward_model={name} holds a language model, expected a network with"
      " one value (Qwen2ForSequenceClassification or Llama's, with one label)"
    )
  if checkpoint.config.vocabulary_size != model.config.vocabulary_size:
    raise ValueError(
      f"--reward_model={name} knows {checkpoint.config.vocabulary_size} tokens,"
      f" the model {model.config.vocabulary_size}; expected one of the same"
      " tokenizer"
    )
  return RewardModel(
    network=transformer.critic(checkpoint.config, **options),
    params=checkpoint.params,
  )


def tiny_config(vocab_size: int) -> transformer.Config:
  """Returns a Qwen2 of about 0.3M parameters: seconds of training on a CPU."""
  return transformer.Config(
    vocabulary_size=vocab_size,
    width=128,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_size=32,
    mlp_size=256,
    context_size=128,
    rope=transformer.rope.Rope(base=10_000.0),
    norm_epsilon=1e-6,
    has_bias=True,
    is_tied=True,
  )


def save_model(
  folder: pathlib.Path, model: Model, params: types.Params
) -> pathlib.Path:
  """Writes a folder that `transformers` and vLLM load; returns it.

  What was there before is replaced when the new folder is complete.
  """
  tokenizer = model.tokenizer
  written, replaced = (
    folder.with_name(f"{folder.name}.{name}") for name in ("new", "old")
  )
  for left in (written, replaced):  # by a run that was killed here
    shutil.rmtree(left, ignore_errors=True)
  huggingface.save(
    written,
    model.config,
    jax.device_get(params),
    source=model.source,
    dtype=model.dtype,
    extra={"eos_token_id": tokenizer.eos_id, "pad_token_id": tokenizer.pad_id}
    if model.source is None
    else None,
  )
  if model.source is None:
    tokenizer.write(written)
  if folder.exists():
    folder.rename(replaced)
  written.rename(folder)
  shutil.rmtree(replaced, ignore_errors=True)
  return folder


def max_drift(
  given: float | None, engine: rollout.Engine, *, dtype: str
) -> float:
  """Returns by how many nats engine and trainer may differ.

  Args:
    given: what was asked for; None is 1e-3 where both compute in float32, on
      CPUs (GPUs round the factors of their products), else 0.1.
    engine: what generates.
    dtype: of the trainer's products, and of those of an engine in JAX.
  """
  if given is not None:
    return given
  dtypes = {dtype}
  if isinstance(engine, rollout.VllmEngine):
    dtypes.add(engine.dtype)
  is_exact = dtypes == {"float32"} and jax.default_backend() == "cpu"
  return 1e-3 if is_exact else 0.1


def client_options(environ: Mapping[str, str]) -> dict[str, float] | None:
  """Returns options of JAX's client by which vLLM has room on the same GPU.

  JAX would take 75 % of the memory as it starts, and vLLM then not begin.

  Args:
    environ: None is returned where it says what JAX may take.
  """
  said = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")
  is_said = any(
    name in environ for name in (*said, "XLA_PYTHON_CLIENT_PREALLOCATE")
  )
  plugins = importlib.metadata.entry_points(group="jax_plugins")
  if is_said or not any("cuda" in plugin.name for plugin in plugins):
    return None
  return {"memory_fraction": 0.45}


def read_args(given: Sequence[str], *, flag: str) -> dict[str, Any]:
  """Returns {"name": value} of "name=value", values as Python writes them.

  Args:
    given: such texts.
    flag: what they were given by.

  Raises:
    ValueError: one is not of that form.
  """
  found = {}
  for text in given:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
      raise ValueError(f"--{flag}={text} is not of the form name=value")
    try:
      found[name] = ast.literal_eval(value)
    except (ValueError, SyntaxError):
      found[name] = value
  return found


def objective(
  name: str, *, max_new_tokens: int, clips: Mapping[str, float]
) -> losses.Objective:
  """Returns an algorithm by name, or a user's, "path/to/file.py:NAME".

  Args:
    name: a key of `OBJECTIVES`; of a file, an `Objective` or a function that
      returns one.
    max_new_tokens: by which Dr. GRPO divides.
    clips: clip_low, clip_high, where they were given.

  Raises:
    ValueError: there is no such objective, or it takes no such clips.
  """
  if name in OBJECTIVES:
    more = {"max_tokens": max_new_tokens} if name == "dr_grpo" else {}
    try:
      return OBJECTIVES[name](**more, **clips)
    except TypeError as error:
      raise ValueError(
        f"--objective={name} does not clip: leave out --clip_low, --clip_high"
      ) from error
  if ":" not in name:
    raise ValueError(
      f"--objective={name} is not known; give one of {', '.join(OBJECTIVES)},"
      " or path/to/file.py:NAME"
    )
  made = user_file.load(name)
  made = made() if not isinstance(made, losses.Objective) else made
  if not isinstance(made, losses.Objective):
    raise ValueError(
      f"--objective={name} gave {type(made).__name__}, expected a"
      " losses.Objective, or a function that returns one"
    )
  return made


def judge_fn(
  task: tasks.Task,
  engine: rollout.Engine,
  *,
  num_prompts: int,
  batch_size: int,
  max_new_tokens: int,
) -> Callable[[types.Weights], tasks.Judgement]:
  """Returns what judges a model's greedy answers to an evaluation task."""
  greedy = rollout.Sampling(
    max_new_tokens=max_new_tokens,
    temperature=0.0,
    stop_tokens=task.tokenizer.stop_ids,
  )

  def judge(weights: types.Weights) -> tasks.Judgement:
    given = weights
    if engine.place != "mesh":
      given = jax.device_get(weights)
    return tasks.judge(
      task,
      lambda request: engine.generate(given, request, sampling=greedy),
      num_prompts=num_prompts,
      batch_size=min(batch_size, num_prompts),
    )

  return judge
