"""What the post-training command learns, and by which of its flags."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import reasoning_setup
from rlinf_jax.models import huggingface, transformer
from tests.experiments import commands, test_reasoning

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def learnt(tmp_path_factory):
  """Returns the folder of a run that adds two digits; about half is known."""
  directory = tmp_path_factory.mktemp("learnt") / "run"
  commands.run(
    "reasoning",
    "--engine=jax",
    "--task_arg=max_digits=1",
    "--sft_updates=70",
    "--num_prompts=64",
    "--group_size=16",
    "--learning_rate=8e-4",
    "--num_iterations=60",
    "--num_eval_prompts=128",
    f"--run_dir={directory}",
    optimised=True,
  )
  return directory


def test_accuracy_rises_clearly(learnt):
  told = json.loads((learnt / "result.json").read_text())
  before, after = told["before"]["accuracy"], told["after"]["accuracy"]
  # 45 % and 89 % on 2026-12-01.
  assert after["low"] > before["high"]
  assert after["estimate"] > 0.8


def test_transformers_reads_a_runs_model_as_we_do(learnt):
  torch = pytest.importorskip("torch")
  transformers = pytest.importorskip("transformers")
  checkpoint = huggingface.load(learnt / "model")
  token = np.random.default_rng(0).integers(
    0, checkpoint.config.vocabulary_size, (2, 10)
  )
  place = jnp.broadcast_to(jnp.arange(10)[None], token.shape)
  ours = jax.jit(transformer.language_model(checkpoint.config).apply)(
    jax.tree.map(jnp.asarray, checkpoint.params),
    jnp.asarray(token, jnp.int32),
    place,
    jnp.ones_like(place),
  )
  model = transformers.AutoModelForCausalLM.from_pretrained(
    learnt / "model", dtype=torch.float32
  )
  with torch.no_grad():
    theirs = model(torch.tensor(token)).logits.numpy()
  np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


def rows_of(tmp_path, name, *flags):
  """Returns the numbers of two iterations that reward length."""
  file = tmp_path / "mine.py"
  file.write_text(
    "def reward(completion):\n  return float(len(completion.response))\n"
  )
  directory = tmp_path / name
  test_reasoning.run(
    *test_reasoning.SMALL,
    f"--reward={file}:reward",
    "--num_iterations=2",
    f"--run_dir={directory}",
    *flags,
  )
  return test_reasoning.rows_of(directory)


def test_bfloat16_is_near_float32_and_not_it(tmp_path):
  low = rows_of(tmp_path, "low", "--dtype=bfloat16")[0]
  exact = rows_of(tmp_path, "exact")[0]
  assert low["entropy"] != exact["entropy"]
  np.testing.assert_allclose(low["entropy"], exact["entropy"], rtol=1e-2)


def test_a_divergence_in_the_reward_is_learnt_from(tmp_path):
  flags = ["--kl_in_reward", "--kl=k1", "--objective=reinforce_plus_plus"]
  flags += ["--overlong_tokens=3"]
  found = {
    weight: rows_of(tmp_path, f"at_{weight}", f"--kl_weight={weight}", *flags)
    for weight in (0.1, 10.0)
  }
  # In the first iteration the model is its reference.
  assert found[0.1][0] == found[10.0][0]
  assert found[0.1][1]["kl_to_reference"] == found[10.0][1]["kl_to_reference"]
  assert found[0.1][1]["grad_norm"] != found[10.0][1]["grad_norm"]


def test_what_a_reward_model_says_is_in_the_reward(tmp_path):
  model = reasoning_setup.load_model(reasoning_setup.TINY, seed=0)
  params = transformer.critic_params(model.params)
  params["value"] = jax.random.normal(jax.random.key(1), (1, 128))
  folder = tmp_path / "rates"
  huggingface.save(folder, model.config, jax.device_get(params))
  row = rows_of(tmp_path, "run", f"--reward_model={folder}")[0]
  assert row["reward_max"] % 1.0  # the score is a whole number
