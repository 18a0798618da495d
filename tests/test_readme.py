"""The README's own code runs, and its commands exist."""

import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from envs import autoreset
from rlinf_jax import flow, models
from rlinf_jax.algorithms import ppo
from tests import toy_envs

ROOT = pathlib.Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
SNIPPETS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def defined_by(snippet, **names):
  exec(compile(snippet, "README.md", "exec"), names)
  return names


@pytest.mark.slow
def test_the_custom_loss_of_the_readme_trains():
  my_loss = defined_by(SNIPPETS[0])["my_loss"]
  env = toy_envs.target(at=0.5)
  config = ppo.Config(
    num_envs=64, unroll_length=8, num_minibatches=4, pool_size=8
  )
  obs = jax.eval_shape(env.reset, jax.random.key(0)).obs
  policy = models.mlp_policy(obs, models.tanh_gaussian(1))
  algorithm = ppo.make(
    autoreset.episodes(env),
    policy,
    optax.adam(1e-3),
    config,
    loss_fn=my_loss(policy, config),
  )
  run = flow.fuse(lambda s: algorithm.iteration(s, 8, jnp.int32(2**30)))
  state, first = run(algorithm.init(jax.random.key(0)))
  for _ in range(20):
    state, last = run(state)
  assert last["reward"] > first["reward"]
  assert np.isfinite(last["kl"])


def test_the_flow_of_the_readme_is_a_template_that_parses():
  names = defined_by(SNIPPETS[1].partition("run = ")[0])
  assert isinstance(names["grad"], flow.Stage)
  assert names["grad"].spec.reduces == "sum"


def test_the_readme_is_short_enough_to_be_read():
  assert README.count("\n") <= 150


def test_every_make_target_of_the_readme_exists():
  makefile = (ROOT / "Makefile").read_text()
  for target in set(re.findall(r"make ([a-z]+(?:-[a-z]+)*)", README)):
    assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


@pytest.mark.slow
def test_the_training_page_runs_as_it_stands():
  page = (ROOT / "docs" / "training.md").read_text()
  (snippet,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
  names = defined_by(snippet)
  assert names["state"].iteration == 3
  assert np.isfinite(names["metrics"]["loss"])
