"""Runs of post-training: what stops them, what is saved, what is said."""

from __future__ import annotations

import dataclasses
import datetime
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlinf_jax import checkpoints, types
from rlinf_jax.algorithms import grpo, updates
from rlinf_jax.reporting import statistics
from rlinf_jax.training import judgements, post_training, tasks

GOOD = {
  "loss": 0.5,
  "grad_norm": 1.0,
  "drift": 1e-5,
  "reward": 0.0,
  "signal": 1.0,
  "answer_tokens": 3.0,
}


def state_after(num):
  """Returns the state whose weight is the number of iterations."""
  return grpo.TrainState(
    learner=updates.Learner(
      params=grpo.Networks(jnp.float32(num), ()), opt_state=()
    ),
    reference=(),
    reward_model=(),
    version=jnp.int32(num),
    next_position=jnp.int32(0),
    key=jax.random.key(0),
  )


def counting(wrong=None):
  """Returns an algorithm that counts, and what comes instead, by iteration."""

  def iteration(state):
    done = int(state.version) + 1
    found = (wrong or {}).get(done, {})
    if isinstance(found, Exception):
      raise found
    return state_after(done), {**GOOD, **found}

  return grpo.Grpo(None, iteration, None)


def judge(weights):
  """Judges the number of iterations to be the reward."""
  num = float(weights.params)
  completion = types.Completion(prompt="1|1=", response=f"{num}\n", answer="2")
  return tasks.Judgement(
    rewards=statistics.summarise(np.array([num])),
    accuracy=statistics.wilson_interval(0, 1),
    samples=((completion, num),),
    digest="of these prompts",
  )


def run(directory, algorithm=None, *, metadata=None, judge_fn=judge, **options):
  return post_training.post_train(
    algorithm or counting(),
    judge_fn,
    post_training.Options(
      **{
        "directory": directory,
        "num_iterations": 5,
        "checkpoint_every": 50,
        "trackers": (),
        **options,
      }
    ),
    init_fn=lambda display: state_after(0),
    abstract_state=jax.eval_shape(lambda: state_after(0)),
    metadata=metadata or {},
  )


def saved(directory):
  return checkpoints.steps(directory / post_training.CHECKPOINTS)


@pytest.mark.parametrize(
  ("wrong", "error"),
  [
    ({"loss": np.nan}, FloatingPointError),
    ({"grad_norm": np.inf}, FloatingPointError),
    ({"drift": 0.2}, post_training.DriftError),
    ({"drift": np.nan}, post_training.DriftError),
    (OSError("a reward that fails"), OSError),
  ],
)
def test_what_was_learnt_before_an_error_is_saved(tmp_path, wrong, error):
  with pytest.raises(error) as raised:
    run(tmp_path, counting({4: wrong}))
  assert saved(tmp_path) == [0, 3]
  (note,) = raised.value.__notes__
  assert "after 3 iterations" in note and f"--resume={tmp_path}" in note
  # And it goes on from there, as if nothing had been.
  result = run(tmp_path, resume=True)
  assert (float(result.params), result.num_iterations) == (5.0, 5)
  lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
  steps = [row["step"] for row in map(json.loads, lines) if "reward" in row]
  assert steps == [1, 2, 3, 4, 5]


def test_the_first_state_is_saved_before_anything_can_fail(tmp_path):
  def fail(weights):
    raise ValueError("no judge")

  with pytest.raises(ValueError, match="no judge"):
    post_training.post_train(
      counting(),
      fail,
      post_training.Options(directory=tmp_path, num_iterations=1, trackers=()),
      init_fn=lambda display: state_after(0),
      abstract_state=None,
      metadata={},
    )
  assert saved(tmp_path) == [0]


def test_before_is_the_model_that_the_run_began_with(tmp_path):
  first = run(tmp_path, num_iterations=2)
  assert (first.before.rewards.mean, first.after.rewards.mean) == (0.0, 2.0)
  second = run(tmp_path, num_iterations=4, resume=True)
  assert (second.before.rewards.mean, second.after.rewards.mean) == (0.0, 4.0)
  assert second.before.samples == first.before.samples
  path = tmp_path / "samples.md"
  judgements.write_samples(path, second.before, second.after)
  assert path.read_text().splitlines()[2:] == [
    "| 1\\|1= | 2 | 0.0<br> | 0 | 4.0<br> | 4 |"
  ]


def test_a_judgement_is_kept_whatever_its_metadata(tmp_path):
  found = judge(types.Weights(jnp.float32(1), 0))
  ((completion, reward),) = found.samples
  told = dataclasses.replace(
    completion, metadata={"when": datetime.date(2026, 12, 1), "raw": b"1"}
  )
  path = tmp_path / "before.json"
  judgements.write(path, dataclasses.replace(found, samples=((told, reward),)))
  again = judgements.read(path)
  assert (again.samples, again.digest) == (found.samples, found.digest)


def test_only_judgements_of_the_same_prompts_are_compared(tmp_path, capsys):
  run(tmp_path, num_iterations=2)

  def judge_others(weights):
    return dataclasses.replace(judge(weights), digest="of others")

  for num, told in ((4, True), (6, False)):
    again = run(
      tmp_path, num_iterations=num, resume=True, judge_fn=judge_others
    )
    assert (again.before.rewards.mean, again.after.rewards.mean) == (2.0, num)
    printed = "".join(capsys.readouterr())
    assert ("of the model after 2 iterations" in printed) == told


def test_what_a_resumed_run_was_told_anew_is_remembered_at_once(tmp_path):
  folder = tmp_path / post_training.CHECKPOINTS
  run(tmp_path, num_iterations=2, metadata={"more": 2})
  with pytest.raises(KeyError):
    run(
      tmp_path,
      counting({3: KeyError()}),
      resume=True,
      metadata={"more": 5},
    )
  assert checkpoints.read_metadata(folder)["more"] == 5
  assert saved(tmp_path) == [0, 2]


def test_no_state_but_the_last_two_stays_in_memory(tmp_path):
  alive, mark = [], 12_345_000

  def iteration(state):
    # This process's arrays of the weight's kind, by values that are ours.
    values = {
      float(x)
      for x in jax.live_arrays()
      if x.shape == () and x.dtype == jnp.float32 and 0 <= float(x) - mark < 99
    }
    alive.append(len(values))
    done = int(state.version) + 1
    return marked(done), GOOD

  def marked(num):
    state = state_after(num)
    networks = grpo.Networks(jnp.float32(mark + num), ())
    return state.replace(learner=state.learner.replace(params=networks))

  post_training.post_train(
    grpo.Grpo(None, iteration, None),
    judge,
    post_training.Options(directory=tmp_path, num_iterations=6, trackers=()),
    init_fn=lambda display: marked(0),
    abstract_state=None,
    metadata={},
  )
  assert max(alive) == 1
