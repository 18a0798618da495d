"""Every task takes the same step on every physics backend."""

import jax
import numpy as np
import pytest

import envs
from envs.physics import parity

# Unoptimised, the arm's MJX program runs for many minutes.
pytestmark = pytest.mark.optimised

NUM = 16
TASKS = [n for n in envs.names() if not n.startswith("pendulum")]
# What MJX compiles for a minute or two. arm_pick stands for arm_push, and
# test_arm.py steps arm_reach.
LONG = ("hopper_hop", "humanoid_walk", "arm_pick")
MJX_TASKS = [
  pytest.param(n, "mjx", marks=pytest.mark.long if n in LONG else ())
  for n in TASKS
  if n not in ("arm_reach", "arm_push")
]


def two_steps(name, physics):
  """Returns the states after one step and after two, leaves [NUM, ...]."""
  env = envs.make(name, physics=physics)
  keys = jax.random.split(jax.random.key(0), NUM)
  action_key, _ = jax.random.split(jax.random.key(1))
  actions = jax.random.uniform(
    action_key, (2, NUM, env.action.size), minval=-1.0
  )
  step = jax.jit(jax.vmap(env.step))
  first = step(jax.jit(jax.vmap(env.reset))(keys), actions[0])
  return first, step(first, actions[1])


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
  "name, physics",
  MJX_TASKS + [(n, "warp") for n in TASKS],
)
def test_a_step_agrees_with_the_c_engine(name, physics):
  for ours, theirs in zip(two_steps(name, "mujoco"), two_steps(name, physics)):
    seen = lambda s: {"obs": s.obs, "reward": s.reward, "metrics": s.metrics}
    assert parity.disagreements(seen(ours), seen(theirs)) == {}
    np.testing.assert_array_equal(ours.terminated, theirs.terminated)
