"""The training loop: steps, checkpoints, evaluations and reasons to stop."""

import functools
import pathlib

import jax
import numpy as np
import pytest

from envs import autoreset
from rlinf_jax import checkpoints, models, training
from rlinf_jax.algorithms import ppo
from rlinf_jax.reporting import memory, metrics
from rlinf_jax.runtime import meshes
from tests import toy_envs

CONFIG = ppo.Config(
  num_envs=16, unroll_length=2, num_epochs=1, num_minibatches=2, pool_size=8
)
ROWS = CONFIG.num_envs * CONFIG.unroll_length  # steps per iteration: 32


@functools.cache  # so that most runs find compiled what they need
def make(loss_fn, num_seeds):
  """Returns an algorithm and how it is judged."""
  env = toy_envs.target()
  obs = jax.eval_shape(env.reset, jax.random.key(0)).obs
  policy = models.mlp_policy(
    obs,
    models.tanh_gaussian(1),
    policy_hidden_sizes=(4,),
    value_hidden_sizes=(4,),
  )
  algorithm = ppo.make(
    autoreset.episodes(env),
    policy,
    ppo.adam(CONFIG, num_iterations=10),
    CONFIG,
    loss_fn=loss_fn,
  )
  judge = training.make_evaluation(
    algorithm, env, (), num_episodes=4, num_seeds=num_seeds
  )
  return algorithm, judge


def run(directory, *, num_steps, loss_fn=None, mesh=None, **options):
  algorithm, judge = make(loss_fn, options.get("num_seeds", 1))
  return training.train(
    algorithm,
    judge,
    training.Options(
      directory=pathlib.Path(directory),
      num_steps=num_steps,
      trackers=(),
      **options,
    ),
    metadata={"env": "target"},
    must_match=["env"],
    mesh=mesh,
    has_success=True,
  )


def rows_of(directory):
  return metrics.read_jsonl(pathlib.Path(directory) / metrics.FILE_NAME)


def assert_same_actor(a, b):
  jax.tree.map(np.testing.assert_array_equal, a.actor, b.actor)


@pytest.mark.slow
def test_exactly_the_steps_asked_for_are_run(tmp_path):
  result = run(tmp_path, num_steps=3 * ROWS + 10)
  assert result.num_steps == 106 and result.is_finished
  steps = [row["step"] for row in rows_of(tmp_path) if "loss" in row]
  assert steps == [32, 64, 96, 106]


@pytest.mark.slow
def test_a_resumed_run_ends_with_the_same_bits(tmp_path):
  whole = run(tmp_path / "whole", num_steps=4 * ROWS)
  run(tmp_path / "parts", num_steps=2 * ROWS)
  parts = run(tmp_path / "parts", num_steps=4 * ROWS, resume=True)
  assert_same_actor(whole, parts)
  keep = lambda rows: [
    {k: v for k, v in r.items() if k not in ("wall_s", "steps_per_s")}
    for r in rows
    if "loss" in r
  ]
  assert keep(rows_of(tmp_path / "whole")) == keep(rows_of(tmp_path / "parts"))


@pytest.mark.slow
def test_a_run_on_8_devices_resumes_on_1(tmp_path):
  mesh = meshes.items_mesh(8)
  run(tmp_path, num_steps=2 * ROWS, mesh=mesh)
  result = run(tmp_path, num_steps=3 * ROWS, resume=True)
  assert result.is_finished


@pytest.mark.slow
def test_evaluations_and_checkpoints_come_when_asked(tmp_path):
  run(
    tmp_path,
    num_steps=6 * ROWS,
    eval_every=2 * ROWS,
    checkpoint_every=ROWS,
    keep=3,
  )
  evaluated = [r["step"] for r in rows_of(tmp_path) if "evaluation/return" in r]
  assert evaluated == [2 * ROWS, 4 * ROWS, 6 * ROWS]
  saved = checkpoints.steps(tmp_path / training.CHECKPOINTS)
  assert saved == [4 * ROWS, 5 * ROWS, 6 * ROWS]


@pytest.mark.slow
def test_out_of_time_it_saves_and_says_so(tmp_path):
  result = run(tmp_path, num_steps=100 * ROWS, max_minutes=0.0)
  assert not result.is_finished and result.returns is None
  assert checkpoints.steps(tmp_path / training.CHECKPOINTS) == [0]


@pytest.mark.slow
def test_seeds_are_reported_apart(tmp_path):
  result = run(tmp_path, num_steps=ROWS, num_seeds=3)
  (row,) = [r for r in rows_of(tmp_path) if "loss" in r]
  assert len(row["loss"]) == 3
  assert result.returns.num == 3 * 4


@pytest.mark.slow
def test_a_nan_loss_stops_the_run_and_keeps_the_checkpoint(tmp_path):
  run(tmp_path, num_steps=ROWS)

  def broken(params, batch, key):
    del key
    total = sum(x.sum() for x in jax.tree.leaves(params))
    return batch.reward * total / 0.0, {}

  with pytest.raises(FloatingPointError, match="loss and grad_norm became NaN"):
    run(tmp_path, num_steps=2 * ROWS, resume=True, loss_fn=broken)
  assert checkpoints.steps(tmp_path / training.CHECKPOINTS) == [ROWS]


@pytest.mark.slow
def test_what_cannot_fit_is_refused_before_it_starts(tmp_path, monkeypatch):
  monkeypatch.setattr(memory, "find_available_host_bytes", lambda: 1000)
  with pytest.raises(memory.InsufficientMemoryError, match="Lower --num_envs"):
    run(tmp_path, num_steps=ROWS)
  assert not (tmp_path / metrics.FILE_NAME).exists()


@pytest.mark.slow
def test_a_checkpoint_of_another_shape_is_refused(tmp_path):
  run(tmp_path, num_steps=ROWS)
  with pytest.raises(checkpoints.CheckpointError):
    run(tmp_path, num_steps=2 * ROWS, resume=True, num_seeds=2)
