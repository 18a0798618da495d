r"""Judges a trained policy: returns, success, a video, an exported program.

  python -m experiments.evaluate --run_dir=runs/cheetah_run/20261130-101500
  python -m experiments.evaluate --run_dir=... --export=policy.stablehlo

Takes seconds to a minute. `--export` writes a StableHLO program (observation ->
action, normalisation inside, any batch size) that `rlinf_jax.export` and any
StableHLO runtime load without this project.
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import sys

import jax
import numpy as np
from absl import app, flags, logging

import envs
from experiments import recipes
from rlinf_jax import checkpoints, export, training
from rlinf_jax.algorithms import evaluation, ppo
from rlinf_jax.reporting import progress, statistics

FLAGS = flags.FLAGS

flags.DEFINE_string("run_dir", None, "Folder of the run.", required=True)
flags.DEFINE_integer(
  "checkpoint", None, "Step of the checkpoint. Default: the latest.", 0
)
flags.DEFINE_enum(
  "physics",
  None,
  ["auto", "mujoco", "mjx", "warp"],
  "Physics backend. Default: as in training.",
)
flags.DEFINE_bool(
  "randomise", None, "Draw model values at reset. Default: as in training."
)
flags.DEFINE_integer("num_episodes", 128, "Episodes of each seed.", 1)
flags.DEFINE_integer("seed", 1, "Of the episodes.", 0)
flags.DEFINE_string(
  "video", "", "Where to write an MP4. Default: RUN_DIR/policy.mp4; no: none."
)
flags.DEFINE_string("export", None, "Where to write a StableHLO program.")


def main(argv: list[str]) -> None:
  """Evaluates, renders, exports."""
  if len(argv) > 1:
    raise app.UsageError(f"unexpected arguments: {' '.join(argv[1:])}")
  if not FLAGS["verbosity"].present:
    logging.set_verbosity(logging.WARNING)
  directory = pathlib.Path(FLAGS.run_dir)
  saved = directory / training.CHECKPOINTS
  try:
    settings = recipes.from_json(
      checkpoints.read_metadata(saved, step=FLAGS.checkpoint)
    )
    changes = {
      k: getattr(FLAGS, k)
      for k in ("physics", "randomise")
      if getattr(FLAGS, k) is not None
    }
    settings = dataclasses.replace(settings, **changes)
    env, judge, algorithm = recipes.build(
      settings, num_eval_episodes=FLAGS.num_episodes
    )
    actor = _restore_actor(algorithm, settings, saved)
  except (ValueError, ImportError) as error:
    sys.exit(f"error: {error}")
  episodes = jax.device_get(judge.evaluate(actor, jax.random.key(FLAGS.seed)))
  _print_results(env.name, episodes, env.success_metric is not None)
  if FLAGS.video != "no":
    path = pathlib.Path(FLAGS.video or directory / "policy.mp4")
    print(
      recipes.write_video(
        env, judge, actor, path, num_seeds=settings.num_seeds, seed=FLAGS.seed
      )
    )
  if FLAGS.export is not None:
    print(f"exported: {_export(env, algorithm, actor, settings)}")


def _restore_actor(
  algorithm: ppo.Ppo, settings: recipes.Settings, saved: pathlib.Path
) -> ppo.Actor:
  """Returns what acts in a checkpoint, whatever devices it was trained on."""
  init = algorithm.init
  key = jax.random.key(0)
  if settings.num_seeds > 1:
    init, key = jax.vmap(init), jax.random.split(key, settings.num_seeds)
  state = jax.eval_shape(init, key)
  part = checkpoints.restore_part(
    saved,
    {
      "learner": {"params": state.learner.params},
      "normaliser": state.normaliser,
    },
    step=FLAGS.checkpoint,
  )
  return ppo.Actor(part["learner"]["params"], part["normaliser"])


def _print_results(
  name: str, episodes: evaluation.Episodes, has_success: bool
) -> None:
  returns_n = np.atleast_2d(episodes.returns)
  for i, returns in enumerate(returns_n):
    summary = statistics.summarise(returns)
    number = progress.format_number
    line = (
      f"{name}: return {number(summary.mean)}"
      f" [{number(summary.low)}, {number(summary.high)}],"
      f" standard deviation {number(summary.standard_deviation)}"
    )
    if has_success:
      solved = np.atleast_2d(episodes.is_solved)[i]
      rate = statistics.wilson_interval(int(solved.sum()), solved.size)
      line += f"; success {rate.estimate:.1%} [{rate.low:.1%}, {rate.high:.1%}]"
    line += f"; {len(returns)} episodes"
    if len(returns_n) > 1:
      line += f", policy {i + 1} of {len(returns_n)}"
    print(line)
  num_cut = int(np.sum(~episodes.is_whole))
  if num_cut:
    print(f"{num_cut} episodes did not end by themselves or went NaN")


def _export(
  env: envs.Env,
  algorithm: ppo.Ppo,
  actor: ppo.Actor,
  settings: recipes.Settings,
) -> pathlib.Path:
  if settings.recipe.network.kind == "gru":
    sys.exit("error: a policy with memory cannot be exported as obs -> action")
  if settings.num_seeds > 1:
    actor = jax.tree.map(lambda x: x[0], actor)
  act = functools.partial(algorithm.act_best, actor)
  obs = jax.eval_shape(env.reset, jax.random.key(0)).obs
  return export.save_policy(
    FLAGS.export, lambda obs: act(obs, (), np.ones((), bool))[0], obs
  )


if __name__ == "__main__":
  app.run(main)
