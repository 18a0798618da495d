"""PPO under plans with stages on other devices: close to its eager numbers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs import autoreset
from rlinf_jax import models, runtime
from rlinf_jax.algorithms import ppo
from rlinf_jax.runtime import graphs, machines, tracing
from scheduler.devices import Devices
from scheduler.plans import Lanes, Run, Spatial, Temporal, TreePlan
from scheduler.profiles import Entry, Profile, Sample, Table
from tests import toy_envs

CONFIG = ppo.Config(
  num_envs=16,
  unroll_length=4,
  num_epochs=1,
  num_minibatches=2,
  pool_size=8,
)
UPDATES = "select_in_blocks+grad+apply_update"


@functools.cache  # whose stages are compiled once
def algorithm():
  env = toy_envs.counter(episode_length=3)
  obs = jax.eval_shape(env.reset, jax.random.key(0)).obs
  policy = models.mlp_policy(
    obs,
    models.tanh_gaussian(env.action.size),
    policy_hidden_sizes=(8,),
    value_hidden_sizes=(8,),
  )
  episodes = autoreset.episodes(env, stagger=CONFIG.stagger)
  return ppo.make(episodes, policy, ppo.adam(CONFIG, num_iterations=10), CONFIG)


def iteration(state, num_steps):
  return algorithm().iteration(state, CONFIG.unroll_length, num_steps)


@pytest.fixture(scope="module")
def given():
  return algorithm().init(jax.random.key(0)), jnp.int32(2**30)


@pytest.fixture(scope="module")
def eager(given):
  return iteration(*given)


def run_of(stage, devices, granule=1):
  return Run(stage=stage, devices=Devices.parse(devices), granule=granule)


def acting(act_on, simulate_on, sizes):
  join = Temporal if act_on == simulate_on else Spatial
  body = join(
    children=(
      run_of("act", act_on, sizes[0]),
      run_of("simulate", simulate_on, sizes[0]),
    )
  )
  return Lanes(loop="act+simulate", body=body, lanes=sizes)


def learning(devices, granule):
  return (
    *(run_of(name, devices, granule) for name in ("estimate", "observe")),
    run_of("moments", devices),
    run_of(UPDATES, devices),
  )


TREES = {
  "apart": Spatial(
    children=(
      Temporal(
        children=(run_of("refill", "0", 8), acting("0", "0", (16,))),
      ),
      Temporal(children=learning("1-2", 16)),
    )
  ),
  "in lanes and granules": Spatial(
    children=(
      run_of("refill", "3", 8),
      acting("0", "1", (8, 8)),
      Temporal(children=learning("2", 8)),
    )
  ),
}


@pytest.mark.slow
@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_an_iteration_under_a_plan_is_close_to_the_eager_one(
  tree, given, eager
):
  machine = machines.of_process(4)
  workflow = graphs.describe(tracing.trace(iteration, *given)).workflow
  table = Table(
    samples=(Sample(granule=1, devices=1, seconds=1e-3),), extrapolate=True
  )
  run = runtime.m2flow(
    iteration,
    plan=TreePlan(root=tree),
    machine=machine,
    profile=Profile(
      entries=tuple(
        Entry(stage=s.name, device_class=machine.mesh_class, law=table)
        for s in workflow.stages
      )
    ),
  )
  planned = run(*given)
  assert not run.is_one_program
  assert run.label == "close"
  params = [out[0].learner.params for out in (planned, eager)]
  for x, y in zip(*map(jax.tree.leaves, params)):
    assert np.max(np.abs(x - y)) <= 1e-5 * np.max(np.abs(y))
  changed = [given[0].learner.params, eager[0].learner.params]
  assert any(
    not np.array_equal(x, y) for x, y in zip(*map(jax.tree.leaves, changed))
  )
