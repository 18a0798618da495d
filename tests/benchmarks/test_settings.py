"""Settings are what they say they are."""

from __future__ import annotations

import inspect
import math

import pytest

from benchmarks import settings


def test_a_cut_batch_keeps_what_is_done_with_a_sample():
  whole = settings.resolve("brax", is_cpu=False)
  cut = settings.resolve("brax", is_cpu=True)
  assert whole == settings.BRAX
  assert whole.steps_per_iteration == 983_040  # 1,024 x 32 x 30
  assert cut.steps_per_iteration == 30_720  # 1,024 x 30
  for name in ("num_epochs", "num_minibatches", "policy_sizes", "value_sizes"):
    assert getattr(cut, name) == getattr(whole, name)


def test_given_sizes_have_their_way():
  setting = settings.resolve(
    "brax", is_cpu=True, num_envs=64, unroll_length=5, num_unrolls=2
  )
  assert setting.steps_per_env == 10
  assert setting.steps_per_iteration == 640


def test_minibatches_must_divide_the_environments():
  with pytest.raises(ValueError, match="--num_envs=40 .* 32 minibatches"):
    settings.resolve("brax", is_cpu=True, num_envs=40)


@pytest.mark.slow
def test_brax_is_what_playground_tuned_brax_to():
  params = pytest.importorskip(
    "mujoco_playground.config.dm_control_suite_params"
  )
  tuned, ours = params.brax_ppo_config("CheetahRun"), settings.BRAX
  assert ours.num_envs == tuned.num_envs
  assert ours.unroll_length == tuned.unroll_length
  num_sequences = tuned.batch_size * tuned.num_minibatches
  assert ours.num_envs * ours.num_unrolls == num_sequences
  assert ours.num_epochs == tuned.num_updates_per_batch
  assert ours.num_minibatches == tuned.num_minibatches
  assert ours.learning_rate == tuned.learning_rate
  assert ours.discount == tuned.discounting
  assert ours.entropy_weight == tuned.entropy_cost
  assert ours.reward_scale == tuned.reward_scaling
  assert settings.EPISODE_LENGTH == tuned.episode_length


@pytest.mark.slow
def test_and_otherwise_what_brax_does_by_default():
  ppo = pytest.importorskip("brax.training.agents.ppo.train")
  networks = pytest.importorskip("brax.training.agents.ppo.networks")
  defaults = _defaults(ppo.train)
  ours = settings.BRAX
  assert defaults["max_grad_norm"] is None
  assert math.isinf(ours.max_grad_norm)
  assert ours.clip == defaults["clipping_epsilon"]
  assert ours.gae_lambda == defaults["gae_lambda"]
  assert ours.value_weight == defaults["vf_loss_coefficient"]
  sizes = _defaults(networks.make_ppo_networks)
  assert ours.policy_sizes == sizes["policy_hidden_layer_sizes"]
  assert ours.value_sizes == sizes["value_hidden_layer_sizes"]
  # `jax.nn.swish` is another name of `silu`.
  assert sizes["activation"].__name__ in ("swish", "silu")
  assert ours.activation == "swish"


def _defaults(fn) -> dict[str, object]:
  return {
    name: parameter.default
    for name, parameter in inspect.signature(fn).parameters.items()
  }
