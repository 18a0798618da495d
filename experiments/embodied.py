r"""Trains a robot policy by PPO.

  python -m experiments.embodied --env=cheetah_run
  python -m experiments.embodied --env=arm_reach --num_seeds=4
  python -m experiments.embodied --env=path/to/my_env.py:MyEnv --loss=my.py:loss
  python -m experiments.embodied --resume=runs/cheetah_run/20261130-101500

Hardware, duration and expected result of each tested environment stand in
experiments/README.md. A run writes into its folder: metrics.jsonl, TensorBoard
events, checkpoints/, curve.png, policy.mp4, result.json.
"""

from __future__ import annotations

import dataclasses
import datetime
import pathlib
import sys
from collections.abc import Iterable
from typing import Any

import jax
from absl import app, flags, logging

import envs
from experiments import plan_flags, recipes
from rlinf_jax import checkpoints, runtime, training
from rlinf_jax.algorithms import ppo, simulators
from rlinf_jax.reporting import curves, memory, metrics, summary
from rlinf_jax.runtime import meshes
from scheduler import errors

FLAGS = flags.FLAGS

flags.DEFINE_string(
  "env",
  "cartpole_swingup",
  "What to learn: one of "
  + ", ".join(envs.names())
  + "; playground:NAME, brax:NAME, gymnasium:NAME; or path/to/file.py:NAME.",
)
flags.DEFINE_enum(
  "physics",
  "auto",
  ["auto", "mujoco", "mjx", "warp"],
  "Physics backend. auto: warp or mjx on an accelerator, mujoco (the C engine)"
  " on a CPU-only machine.",
)
flags.DEFINE_bool(
  "randomise", False, "Draw model values (masses, friction ...) at each reset."
)
flags.DEFINE_integer(
  "num_threads", 0, "Threads of the mujoco backend; 0 takes every core.", 0
)
flags.DEFINE_integer(
  "num_steps",
  None,
  "Environment steps (of each seed); default: the recipe's.",
  1,
)
flags.DEFINE_integer("seed", 0, "The first seed.", 0)
flags.DEFINE_integer("num_seeds", 1, "Policies trained at once, by vmap.", 1)
flags.DEFINE_integer(
  "num_devices",
  None,
  "Devices to divide the environments over; default: every accelerator, or one"
  " CPU device. On CPU so many virtual devices are made.",
  1,
)
flags.adopt_module_key_flags(plan_flags)
flags.DEFINE_enum(
  "simulate_on",
  "mesh",
  simulators.PLACES,
  "host: with --plan, environments are stepped by a stage on the host's cores,"
  " beside what the mesh computes. mesh: as part of the mesh's programs.",
)
flags.DEFINE_string(
  "loss",
  None,
  "Your own loss: path/to/file.py:NAME, (policy, config) -> loss_fn.",
)
flags.DEFINE_enum("network", None, list(recipes.NETWORKS), "Kind of network.")
flags.DEFINE_enum(
  "head", None, ["auto", *recipes.HEADS], "Distribution over actions."
)
flags.DEFINE_enum(
  "activation", None, list(recipes.ACTIVATIONS), "After hidden layers."
)
flags.DEFINE_enum(
  "precision",
  None,
  list(recipes.PRECISIONS),
  "Of the networks' matrix products; physics is always computed in full.",
)
flags.DEFINE_list("policy_sizes", None, "Hidden widths of the policy: 64,64.")
flags.DEFINE_list("value_sizes", None, "Hidden widths of the critic: 64,64.")

_PPO_HELP = {
  "num_envs": "Environments simulated side by side.",
  "unroll_length": "Steps of each environment per iteration.",
  "num_epochs": "Passes over each batch.",
  "num_minibatches": "Updates per pass.",
  "learning_rate": "Adam's, at the start.",
  "learning_rate_end": "Adam's at the end of the run, reached linearly.",
  "max_grad_norm": "Gradients of a larger norm are scaled down to it.",
  "discount": "Of future rewards, per step.",
  "gae_lambda": "0 trusts the critic, 1 the rewards.",
  "clip_low": "Probability ratios below 1 - clip_low stop paying.",
  "clip_high": "Probability ratios above 1 + clip_high stop paying.",
  "dual_clip": "Bound on the ratio where the advantage is negative.",
  "value_weight": "Of the critic's loss.",
  "value_clip": "How far the critic may move per iteration.",
  "value_huber_delta": "Where the critic's error turns linear.",
  "entropy_weight": "Of the entropy bonus.",
  "reward_scale": "Rewards are multiplied by it.",
  "normalise_obs": "Whether observations are whitened by running moments.",
  "pool_size": "Fresh reset states made per iteration.",
  "quantum": "Sequences whose gradients are summed at once: sums that do not"
  " depend on the number of devices, bit by bit. Default: as many as possible.",
  "stagger": "Whether first episodes begin at random ages.",
}
for _field in dataclasses.fields(ppo.Config):
  _define: Any = flags.DEFINE_float
  if _field.type in ("int", "int | None"):
    _define = flags.DEFINE_integer
  elif _field.type == "bool":
    _define = flags.DEFINE_bool
  _define(_field.name, None, f"{_PPO_HELP[_field.name]} Default: the recipe's.")

flags.DEFINE_string(
  "run_dir", None, "Folder of the run. Default: runs/ENV/DATE-TIME."
)
flags.DEFINE_string(
  "resume",
  None,
  "Folder of a run to go on with, from its latest checkpoint and with its"
  " settings; flags given beside it must agree (--num_steps may grow).",
)
flags.DEFINE_integer(
  "eval_every", None, "Steps between evaluations; default: at the end only.", 1
)
flags.DEFINE_integer("num_eval_episodes", 128, "Per evaluation and seed.", 1)
flags.DEFINE_integer(
  "checkpoint_every",
  None,
  "Steps between checkpoints; default: a tenth of the run.",
  1,
)
flags.DEFINE_integer("keep", 2, "Checkpoints left on disk.", 1)
flags.DEFINE_float(
  "max_minutes", None, "Wall time after which the run saves and stops.", 0.0
)
flags.DEFINE_multi_enum(
  "tracker",
  ["tensorboard"],
  list(metrics.TRACKERS),
  "Where numbers go besides metrics.jsonl; may be given several times.",
)
flags.DEFINE_bool("video", True, "Whether to render the policy at the end.")
flags.DEFINE_string(
  "compilation_cache",
  "~/.cache/rlinf_jax",
  "Folder of compiled programs, reused by later runs; empty for none.",
)


# What a resumed run goes on with, besides what `plan_flags` remembers.
_OF_PLANS = ("simulate_on", "num_devices")


def main(argv: list[str]) -> None:
  """Trains, evaluates and reports."""
  if len(argv) > 1:
    raise app.UsageError(f"unexpected arguments: {' '.join(argv[1:])}")
  try:
    if FLAGS.resume is not None:
      saved = pathlib.Path(FLAGS.resume) / training.CHECKPOINTS
      plan_flags.restore(checkpoints.read_metadata(saved), *_OF_PLANS)
    _configure()
    plan_flags.check()
    if FLAGS.simulate_on == "host" and FLAGS.plan is None:
      raise ValueError(
        "--simulate_on=host needs --plan, such as --plan=auto: a stage on the"
        " host is no part of one program"
      )
    settings, directory = _settings()
    env, judge, algorithm = recipes.build(
      settings,
      num_threads=FLAGS.num_threads,
      num_eval_episodes=FLAGS.num_eval_episodes,
      simulate_on=FLAGS.simulate_on,
    )
    mesh = _mesh()
    ppo.check_config(
      settings.recipe.ppo, num_devices=1 if mesh is None else mesh.size
    )
  except (ValueError, ImportError) as error:
    # What was asked for cannot be had; the message is for whoever asked.
    sys.exit(f"error: {error}")
  print(
    f"{env.name} on {env.backend} physics, {_describe_devices(mesh)};"
    f" run folder {directory}"
  )
  if not env.is_resumable:
    print(
      f"{env.name} keeps state outside the program: a resumed run goes on with"
      " fresh episodes, not bitwise as if never interrupted"
    )
  if FLAGS.resume is not None and FLAGS["num_steps"].present:
    print(
      "with another --num_steps the learning rate falls along another line: the"
      " run is not bitwise one that was never interrupted"
    )
  if FLAGS.resume is not None:
    saved = directory / training.CHECKPOINTS
    if told := plan_flags.describe_resume(checkpoints.read_metadata(saved)):
      print(told)
  num_steps = settings.recipe.num_steps
  options = training.Options(
    directory=directory,
    num_steps=num_steps,
    seed=settings.seed,
    num_seeds=settings.num_seeds,
    eval_every=FLAGS.eval_every,
    checkpoint_every=FLAGS.checkpoint_every or max(num_steps // 10, 1),
    keep=FLAGS.keep,
    max_minutes=FLAGS.max_minutes,
    resume=FLAGS.resume is not None,
    trackers=FLAGS.tracker,
  )
  try:
    result = training.train(
      algorithm,
      judge,
      options,
      metadata={
        **recipes.to_json(settings),
        **plan_flags.to_json(*_OF_PLANS),
        "backend": env.backend,
      },
      must_match=["backend", "staleness", *recipes.must_match(settings)],
      mesh=mesh,
      has_success=env.success_metric is not None,
      is_resumable=env.is_resumable,
      transform=plan_flags.transform(
        directory, num_devices=_num_planned(), donate=True
      ),
      explain=FLAGS.explain,
    )
  except (
    errors.SchedulerError,
    runtime.StageError,
    runtime.DeadlineError,
    checkpoints.CheckpointError,
    memory.InsufficientMemoryError,
    FloatingPointError,
    ModuleNotFoundError,
  ) as error:
    sys.exit(f"error: {error}")
  _report(settings, env, judge, result, directory)


def _configure() -> None:
  if not FLAGS["verbosity"].present:
    logging.set_verbosity(logging.WARNING)
  num_devices = FLAGS.num_devices
  if FLAGS.simulate_on == "host":
    num_devices = (num_devices or 1) + 1  # the last is the simulator's
  if num_devices is not None:
    jax.config.update("jax_num_cpu_devices", num_devices)
  if FLAGS.compilation_cache:
    folder = pathlib.Path(FLAGS.compilation_cache).expanduser()
    jax.config.update("jax_compilation_cache_dir", str(folder))


def _settings() -> tuple[recipes.Settings, pathlib.Path]:
  """Returns settings and folder, from flags or from what is resumed."""
  if FLAGS.resume is None:
    base = recipes.Settings(
      env=FLAGS.env,
      recipe=recipes.RECIPES.get(FLAGS.env, recipes.DEFAULT),
    )
    default = pathlib.Path("runs") / base.name
    default /= datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    directory = pathlib.Path(FLAGS.run_dir or default)
    if checkpoints.steps(directory / training.CHECKPOINTS):
      raise ValueError(
        f"{directory} holds a run already; go on with it by"
        f" --resume={directory}, or name another --run_dir"
      )
  else:
    directory = pathlib.Path(FLAGS.resume)
    if FLAGS.run_dir not in (None, FLAGS.resume):
      raise ValueError("give --resume or --run_dir, not both")
    base = recipes.from_json(
      checkpoints.read_metadata(directory / training.CHECKPOINTS)
    )
  return _with_flags(base), directory


def _with_flags(base: recipes.Settings) -> recipes.Settings:
  """Returns settings in which every flag that was given has its way."""

  def given(names: Iterable[str]) -> dict[str, Any]:
    return {k: getattr(FLAGS, k) for k in names if FLAGS[k].present}

  sizes: dict[str, Any] = {
    k: _to_sizes(k, v)
    for k, v in given(["policy_sizes", "value_sizes"]).items()
  }
  network = dataclasses.replace(
    base.recipe.network,
    **given(["head", "activation", "precision"]),
    **sizes,
    **({"kind": FLAGS.network} if FLAGS["network"].present else {}),
  )
  recipe = dataclasses.replace(
    base.recipe,
    ppo=dataclasses.replace(base.recipe.ppo, **given(_PPO_HELP)),
    network=network,
    **given(["num_steps"]),
  )
  names = ["env", "physics", "randomise", "seed", "num_seeds", "loss"]
  return dataclasses.replace(base, recipe=recipe, **given(names))


def _num_planned() -> int | None:
  """Returns how many devices a plan may use; None is all."""
  if FLAGS.simulate_on == "host" and jax.default_backend() == "cpu":
    return FLAGS.num_devices or 1
  return FLAGS.num_devices


def _to_sizes(flag: str, names: list[str]) -> tuple[int, ...]:
  if not all(name.isdecimal() and int(name) > 0 for name in names):
    raise ValueError(
      f"--{flag}={','.join(names)} must be positive whole numbers, such as"
      f" --{flag}=64,64"
    )
  return tuple(int(name) for name in names)


def _mesh() -> jax.sharding.Mesh | None:
  num = FLAGS.num_devices
  if FLAGS.plan is not None:
    return None  # the plan says what runs where
  if num is None:
    num = 1 if jax.default_backend() == "cpu" else len(jax.devices())
  return None if num == 1 else meshes.items_mesh(num)


def _describe_devices(mesh: jax.sharding.Mesh | None) -> str:
  num = 1 if mesh is None else mesh.size
  return f"{num} x {jax.devices()[0].device_kind}"


def _report(
  settings: recipes.Settings,
  env: envs.Env,
  judge: training.Evaluation,
  result: training.Result,
  directory: pathlib.Path,
) -> None:
  training.write_result(directory / "result.json", result)
  try:
    curve = curves.plot_learning_curve(
      directory / metrics.FILE_NAME,
      directory / "curve.png",
      title=env.name,
      success_name=None if env.success_metric is None else "success",
    )
    print(f"curve: {curve}")
  except ValueError as error:  # no episode has ended yet
    print(f"no curve: {error}")
  if not result.is_finished:
    print(
      f"stopped at {result.num_steps:,} steps; go on with\n"
      f"  python -m experiments.embodied --resume={directory}"
    )
    return
  if FLAGS.video:
    print("rendering the policy ...", flush=True)
    print(
      recipes.write_video(env, judge, result.actor, directory / "policy.mp4")
    )
  if result.returns is not None:
    print(
      summary.describe_run(
        returns=result.returns,
        success=result.success,
        num_steps=result.num_steps,
        wall_time_s=result.wall_time_s,
        steps_per_s=result.steps_per_s,
      )
    )


if __name__ == "__main__":
  app.run(main)
