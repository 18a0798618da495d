"""vLLM itself, against the transformer that its weights come from.

B prompts, T tokens of a padded prompt, n samples of each, N new tokens.
"""

from __future__ import annotations

import json
import pathlib
import signal
import subprocess
import sys
import time
from concurrent import futures

import jax
import jax.numpy as jnp
import numpy as np
import psutil
import pytest

from rlinf_jax import rollout
from rlinf_jax.models import huggingface, transformer

# A start takes 10 s, and a second of four.
pytestmark = [pytest.mark.vllm, pytest.mark.slow]

NUM_NEW = 12
SAMPLING = rollout.Sampling(max_new_tokens=NUM_NEW)
# What float32 rounds differently in two orders of summation.
ROUNDING = 1e-4


def config(**changes):
  fields = dict(
    vocabulary_size=40,
    width=128,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_size=32,
    mlp_size=96,
    context_size=128,
    rope=transformer.rope.Rope(base=10000.0),
    norm_epsilon=1e-6,
    has_bias=True,
    is_tied=True,
    initial_std=0.1,  # far from uniform
  )
  return transformer.Config(**(fields | changes))


NETWORKS = {
  "qwen2, tied": config(),
  "qwen2, untied": config(is_tied=False),
  "llama": config(is_tied=False, has_bias=False, num_kv_heads=4),
}


class Setup:
  """A network, its folder and an engine; parameters by version."""

  def __init__(self, network, folder, **arguments):
    self.model = transformer.language_model(network)
    self._init = jax.jit(self.model.init)
    huggingface.save(folder / "network", network, self.params(0))
    self.engine = rollout.VllmEngine(
      folder / "network",
      SAMPLING,
      lambda params: dict(huggingface.named_tensors(params)),
      log_path=folder / "rollout.log",
      **arguments,
    )
    self._logits = jax.jit(self.model.apply)

  def params(self, version):
    return jax.tree.map(np.asarray, self._init(jax.random.key(version)))

  def weights(self, version):
    return rollout.Weights(params=self.params(version), version=version)

  def logits(self, version, request, got):
    """Returns what the transformer says before each new token, [B, n, N, V]."""
    num_samples, num_new = got.token.shape[1:]
    found = []
    for b, length in enumerate(request.length):
      prompt = np.repeat(request.prompt[b, None, :length], num_samples, axis=0)
      text = np.concatenate([prompt, got.token[b]], axis=1)
      padded = np.zeros((num_samples, 128), np.int32)
      padded[:, : text.shape[1]] = text
      position = np.broadcast_to(np.arange(128), padded.shape)
      logits = self._logits(
        self.params(version), padded, position, np.ones_like(padded)
      )
      found.append(logits[:, length - 1 : length - 1 + num_new])
    return jnp.stack(found)

  def log_probs(self, version, request, got, **sampling):
    """Returns what the transformer says of each token, [B, n, N]."""
    log_prob = rollout.log_distribution(
      self.logits(version, request, got), **sampling
    )
    return jnp.take_along_axis(log_prob, got.token[..., None], axis=-1)[..., 0]

  def drift(self, version, request, got, **sampling):
    """Returns the greatest difference from the transformer, in nats."""
    is_there = np.arange(got.token.shape[2]) < got.length[..., None]
    found = self.log_probs(version, request, got, **sampling)
    return np.abs(np.where(is_there, found - got.log_prob, 0.0)).max()


@pytest.fixture(scope="module", params=list(NETWORKS))
def family(request, tmp_path_factory):
  setup = Setup(NETWORKS[request.param], tmp_path_factory.mktemp("family"))
  yield setup
  setup.engine.close()


@pytest.fixture(scope="module")
def setup(tmp_path_factory):
  setup = Setup(NETWORKS["qwen2, tied"], tmp_path_factory.mktemp("vllm"))
  yield setup
  setup.engine.close()


def request_of(num_prompts=6, num_samples=3, seed=0):
  """Returns prompts some of which are longer than a block of the cache, 32."""
  draw = np.random.default_rng(seed)
  return rollout.Request(
    prompt=draw.integers(0, 40, (num_prompts, 80)).astype(np.int32),
    length=draw.integers(1, 80, num_prompts).astype(np.int32),
    seed=draw.integers(0, 2**32, (num_prompts, num_samples), np.uint32),
    is_asked=np.ones(num_prompts, bool),
  )


def test_log_probs_are_the_transformer_s_over_several_updates(family):
  # Four traps in one: weights are repacked, so each update must remake them;
  # the tied head's copy goes stale by itself; so does the cache of prompts that
  # are longer than a block; and none of it raises an error.
  request = request_of()
  for version in (1, 2, 3):
    got = family.engine.generate(family.weights(version), request)
    assert family.drift(version, request, got) < ROUNDING
    assert (got.version == version).all()
    again = family.engine.generate(family.weights(version), request)
    np.testing.assert_array_equal(got.token, again.token)


def test_recomputing_finds_weights_that_are_not_those(family):
  request = request_of()
  got = family.engine.generate(family.weights(1), request)
  assert family.drift(2, request, got) > 0.1


def test_an_older_version_can_be_asked_for_again(setup):
  request = request_of()
  first = setup.engine.generate(setup.weights(1), request)
  setup.engine.generate(setup.weights(2), request)
  again = setup.engine.generate(setup.weights(1), request)
  np.testing.assert_array_equal(first.token, again.token)
  assert setup.drift(1, request, again) < ROUNDING


@pytest.mark.parametrize(
  "sampling",
  [
    {"temperature": 0.6},
    {"top_p": 0.7},
    {"top_k": 5},
    {"temperature": 1.5, "top_p": 0.9, "top_k": 8},
  ],
)
def test_log_probs_are_those_of_the_sampled_distribution(setup, sampling):
  request = request_of(seed=1)
  got = setup.engine.generate(
    setup.weights(1),
    request,
    sampling=rollout.Sampling(max_new_tokens=NUM_NEW, **sampling),
  )
  assert setup.drift(1, request, got, **sampling) < ROUNDING


def test_temperature_zero_takes_the_likeliest_token(setup):
  request = request_of(num_samples=1)
  got = setup.engine.generate(
    setup.weights(1),
    request,
    sampling=rollout.Sampling(max_new_tokens=NUM_NEW, temperature=0.0),
  )
  assert setup.drift(1, request, got) < ROUNDING
  likeliest = setup.logits(1, request, got).argmax(axis=-1)
  np.testing.assert_array_equal(got.token, likeliest)


def test_a_stop_token_is_the_last_and_is_counted(setup):
  request = request_of(num_prompts=12)
  stops = (3, 4, 5, 6, 7)
  got = setup.engine.generate(
    setup.weights(1),
    request,
    sampling=rollout.Sampling(max_new_tokens=NUM_NEW, stop_tokens=stops),
  )
  assert 0 < got.is_stopped.sum() < got.is_stopped.size
  last = np.take_along_axis(got.token, got.length[..., None] - 1, axis=-1)
  is_stop = np.isin(got.token, stops)
  is_there = np.arange(NUM_NEW) < got.length[..., None]
  np.testing.assert_array_equal(np.isin(last[..., 0], stops), got.is_stopped)
  np.testing.assert_array_equal((is_stop & is_there).sum(-1), got.is_stopped)
  assert setup.drift(1, request, got) < ROUNDING


def test_a_sampled_token_0_is_a_token_as_any_other(setup):
  # Where it pads it has no probability; where it was sampled it has.
  request = request_of(num_prompts=16, seed=3)
  got = setup.engine.generate(
    setup.weights(1),
    request,
    sampling=rollout.Sampling(max_new_tokens=NUM_NEW, stop_tokens=(9, 10)),
  )
  is_there = np.arange(NUM_NEW) < got.length[..., None]
  is_zero = got.token == 0
  assert (is_zero & is_there).any() and (is_zero & ~is_there).any()
  assert (got.log_prob[is_zero & is_there] < 0).all()
  assert (got.log_prob[is_zero & ~is_there] == 0).all()


def test_samples_depend_on_nothing_beside_them(setup):
  request = request_of(num_prompts=8)
  together = setup.engine.generate(setup.weights(1), request)
  alone = lambda b: setup.engine.generate(
    setup.weights(1), request.replace(is_asked=np.arange(8) == b)
  )
  with futures.ThreadPoolExecutor(4) as pool:
    for b, got in enumerate(pool.map(alone, range(8))):
      np.testing.assert_array_equal(got.token[b], together.token[b])
      np.testing.assert_allclose(
        got.log_prob[b], together.log_prob[b], atol=ROUNDING
      )
      assert got.length.sum() == got.length[b].sum()


def test_more_prompts_than_a_step_reads_are_no_harm(setup):
  # 120 prompts of 70 tokens: more than the 2,048 or so of a step, so that some
  # would be read in parts, which a generator on a CPU does not survive.
  request = request_of(num_prompts=120, num_samples=1)
  request = request.replace(length=np.full(120, 70, np.int32))
  got = setup.engine.generate(setup.weights(1), request)
  assert setup.drift(1, request, got) < ROUNDING


def test_equal_seeds_give_equal_samples_and_others_others(setup):
  request = request_of(num_prompts=1, num_samples=4)
  request = request.replace(seed=np.array([[7, 7, 8, 2**32 - 1]], np.uint32))
  token = setup.engine.generate(setup.weights(1), request).token[0]
  np.testing.assert_array_equal(token[0], token[1])
  assert (token[0] != token[2]).any() and (token[2] != token[3]).any()


def test_other_tensors_are_refused_and_the_engine_goes_on(setup):
  request = request_of()
  wrong = setup.params(2)
  wrong["blocks"]["up"]["kernel"] = wrong["blocks"]["up"]["kernel"][:, 1:]
  with pytest.raises(ValueError, match=r"mlp.up_proj.weight is \(95, 128\)"):
    setup.engine.generate(rollout.Weights(params=wrong, version=99), request)
  missing = setup.params(2)
  del missing["blocks"]["query"]["bias"]
  with pytest.raises(ValueError, match=r"2 lacking: .*q_proj.bias"):
    setup.engine.generate(rollout.Weights(params=missing, version=99), request)
  got = setup.engine.generate(setup.weights(1), request)
  assert setup.drift(1, request, got) < ROUNDING


def test_a_prompt_longer_than_the_context_is_refused(setup):
  request = rollout.Request(
    prompt=np.ones((1, 120), np.int32),
    length=np.array([120], np.int32),
    seed=np.zeros((1, 1), np.uint32),
    is_asked=np.ones(1, bool),
  )
  with pytest.raises(ValueError, match="the context has 128"):
    setup.engine.generate(setup.weights(1), request)


def of_engine(kill_signal):
  """Sends a signal to this process's engine."""
  for child in psutil.Process().children():
    if any(part.endswith("vllm/child/main.py") for part in child.cmdline()):
      child.send_signal(kill_signal)


@pytest.mark.parametrize("harm", [signal.SIGKILL, signal.SIGSTOP])
def test_harmed_in_mid_generation_it_goes_on_by_the_same_weights(
  tmp_path, harm
):
  # A process that is stopped says nothing, as one that hangs in a collective.
  setup = Setup(NETWORKS["qwen2, tied"], tmp_path, deadline_s=15.0)
  with setup.engine as engine:
    request = request_of(num_prompts=64, num_samples=4)
    sampling = rollout.Sampling(max_new_tokens=40)
    request = request.replace(length=np.minimum(request.length, 60))
    calm = engine.generate(setup.weights(1), request, sampling=sampling)
    with futures.ThreadPoolExecutor(1) as pool:
      pending = pool.submit(
        engine.generate, setup.weights(1), request, sampling=sampling
      )
      time.sleep(0.2)
      of_engine(harm)
      got = pending.result()
    # What it samples beside others is rounded differently, so that of
    # thousands of tokens a few may fall the other way.
    assert (got.token == calm.token).mean() > 0.99
    assert setup.drift(1, request, got) < ROUNDING
    log = (tmp_path / "rollout_0.log").read_text()
    assert log.count("init engine") == 2


def test_interrupted_samples_go_on_as_if_the_newer_weights_had_read_them(
  tmp_path,
):
  setup = Setup(NETWORKS["qwen2, tied"], tmp_path, interrupt=True)
  with setup.engine as engine:
    request = request_of(num_prompts=48, num_samples=4)
    sampling = rollout.Sampling(max_new_tokens=60)
    request = request.replace(length=np.minimum(request.length, 60))
    engine.generate(setup.weights(0), request_of())
    for attempt, wait_s in enumerate((0.2, 0.4, 0.8, 1.6)):
      first, second = 2 * attempt + 1, 2 * attempt + 2
      with futures.ThreadPoolExecutor(1) as pool:
        pending = pool.submit(
          engine.generate, setup.weights(first), request, sampling=sampling
        )
        time.sleep(wait_s)
        engine.generate(setup.weights(second), request_of())
        got = pending.result()
      if set(np.unique(got.version)) == {first, second}:
        break  # else none, or all, was sampled before
  assert set(np.unique(got.version)) == {first, second}
  assert (np.diff(got.version, axis=-1) >= 0).all()
  old, new = (setup.log_probs(v, request, got) for v in (first, second))
  expected = np.where(got.version == first, old, new)
  np.testing.assert_allclose(got.log_prob, expected, atol=ROUNDING)


TRAINER = """
import sys
import numpy as np
from rlinf_jax import rollout
engine = rollout.VllmEngine(
  sys.argv[1], rollout.Sampling(max_new_tokens=1), lambda x: x,
  log_path=sys.argv[2],
)
print("ready", flush=True)
input()
"""


def test_a_killed_trainer_leaves_nothing_behind(tmp_path):
  network = NETWORKS["llama"]
  params = jax.jit(transformer.language_model(network).init)(jax.random.key(0))
  huggingface.save(tmp_path / "network", network, params)
  trainer = subprocess.Popen(
    [sys.executable, "-c", TRAINER, str(tmp_path / "network")]
    + [str(tmp_path / "rollout.log")],
    cwd=pathlib.Path(__file__).parents[2],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
  )
  assert trainer.stdout.readline() == b"ready\n"
  found = psutil.Process(trainer.pid).children(recursive=True)
  assert found
  trainer.kill()
  trainer.communicate()
  _, alive = psutil.wait_procs(found, timeout=5)
  assert alive == []


def test_an_unknown_architecture_is_named(tmp_path):
  content = {"architectures": ["OddForCausalLM"], "model_type": "qwen2"}
  (tmp_path / "config.json").write_text(json.dumps(content))
  with pytest.raises(ValueError, match="OddForCausalLM") as error:
    rollout.VllmEngine(
      tmp_path, SAMPLING, lambda x: x, log_path=tmp_path / "rollout.log"
    )
  assert str(tmp_path / "rollout_0.log") in str(error.value)
