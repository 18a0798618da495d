"""Host environments are functions of seed and actions, and say when not."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
from envs import autoreset, validation
from envs.adapters import gymnasium as adapter

pytestmark = pytest.mark.slow

# What a callback raises arrives as either, by whether it was waited for.
CALLBACK_ERRORS = (jax.errors.JaxRuntimeError, ValueError)


def cartpole(**config: Any) -> envs.Env:
  return envs.make(
    "gymnasium:CartPole-v1", num_threads=2, config=adapter.Config(**config)
  )


def start(env: envs.Env, num: int, seed: int = 0) -> envs.State:
  return jax.vmap(env.reset)(jax.random.split(jax.random.key(seed), num))


def draw(num: int, seed: int) -> np.ndarray:
  return np.random.default_rng(seed).integers(0, 2, num).astype(np.int32)


def plain(seed: int, actions: list[int]) -> tuple[np.ndarray, float]:
  """Returns the last observation and reward of a plain gymnasium loop."""
  env = gymnasium.make("CartPole-v1")
  env.reset(seed=int(seed))
  for action in actions:
    obs, reward, *_ = env.step(action)
  return obs, reward


def assert_same(a: Any, b: Any) -> None:
  jax.tree.map(np.testing.assert_array_equal, a, b)


def test_steps_equal_a_plain_gymnasium_loop_exactly_until_each_ends():
  num = 5
  env = cartpole()
  state = start(env, num)
  step = jax.jit(jax.vmap(env.step))
  theirs = [gymnasium.make("CartPole-v1") for _ in range(num)]
  firsts = [e.reset(seed=int(s))[0] for e, s in zip(theirs, state.physics.seed)]
  np.testing.assert_array_equal(state.obs, np.stack(firsts))
  is_over = np.zeros(num, bool)
  for t in range(80):
    action = draw(num, t)
    state = step(state, action)
    for i in np.flatnonzero(~is_over):
      obs, reward, terminated, truncated, _ = theirs[i].step(action[i])
      np.testing.assert_array_equal(state.obs[i], np.float32(obs))
      assert state.reward[i] == reward
      assert state.terminated[i] == terminated
      assert state.truncated[i] == truncated
      is_over[i] = terminated or truncated
  assert is_over.all()  # a random policy drops the pole well before 80 steps
  assert step._cache_size() == 1


def test_an_episode_that_is_over_stays_as_it_is_and_pays_nothing():
  env = cartpole()
  state = start(env, 1)
  step = jax.vmap(env.step)
  while not state.terminated[0]:
    state = step(state, np.ones(1, np.int32))  # falls over in some 10 steps
  after = step(step(state, np.zeros(1, np.int32)), np.ones(1, np.int32))
  np.testing.assert_array_equal(after.obs, state.obs)
  assert after.reward[0] == 0.0
  assert after.terminated[0] and not after.truncated[0]


def test_truncated_is_gymnasiums_time_limit():
  env = cartpole(arguments={"max_episode_steps": 3})
  state = start(env, 1)
  flags = []
  for t in range(3):
    state = jax.vmap(env.step)(state, draw(1, t))
    flags.append((bool(state.terminated[0]), bool(state.truncated[0])))
  assert flags == [(False, False), (False, False), (False, True)]


def test_a_step_from_a_state_left_behind_raises():
  env = cartpole()
  step = jax.vmap(env.step)
  first = step(start(env, 3), np.asarray([0, 1, 0], np.int32))
  step(first, np.zeros(3, np.int32))
  with pytest.raises(CALLBACK_ERRORS, match="is stale"):
    jax.block_until_ready(step(first, np.asarray([0, 0, 1], np.int32)))


def test_the_same_step_twice_gives_the_same_numbers():
  env = cartpole()
  step = jax.vmap(env.step)
  first = step(start(env, 3), np.asarray([0, 1, 0], np.int32))
  second = step(first, np.ones(3, np.int32))
  assert_same(second, step(first, np.ones(3, np.int32)))
  third = step(second, np.zeros(3, np.int32))  # and the episode goes on
  assert_same(
    third.obs[1], plain(first.physics.seed[1], [1, 1, 0])[0].astype(np.float32)
  )


def test_a_state_from_another_process_is_stale_once_it_has_begun():
  state = start(cartpole(), 2)
  other = jax.vmap(cartpole().step)
  begun = other(state, np.zeros(2, np.int32))  # a seed is all it takes
  with pytest.raises(CALLBACK_ERRORS, match="is stale"):
    jax.block_until_ready(jax.vmap(cartpole().step)(begun, draw(2, 0)))


def test_rows_find_their_simulators_when_permuted_and_split():
  env = cartpole()
  step = jax.vmap(env.step)
  whole = start(env, 6)
  seeds = np.asarray(whole.physics.seed)
  actions = [draw(6, t) for t in range(4)]
  state = step(whole, actions[0])
  order = np.asarray([3, 1, 5, 0, 2, 4])
  state = jax.tree.map(lambda x: x[order], state)
  state = step(state, actions[1][order])
  halves = [
    jax.tree.map(lambda x: x[:3], state),
    jax.tree.map(lambda x: x[3:], state),
  ]
  for t in (2, 3):
    halves = [
      step(half, actions[t][order[i : i + 3]])
      for i, half in zip((0, 3), halves)
    ]
  obs = np.concatenate([np.asarray(half.obs) for half in halves])
  for place, row in enumerate(order):
    expected, _ = plain(seeds[row], [a[row] for a in actions])
    np.testing.assert_array_equal(obs[place], np.float32(expected))


def test_another_batch_in_between_changes_nothing():
  env = cartpole()
  step = jax.vmap(env.step)
  state = step(start(env, 2), draw(2, 0))
  evaluation = start(env, 4, seed=9)
  for t in range(5):
    evaluation = step(evaluation, draw(4, 10 + t))
  state = step(state, draw(2, 1))
  expected, _ = plain(state.physics.seed[1], [draw(2, 0)[1], draw(2, 1)[1]])
  np.testing.assert_array_equal(state.obs[1], np.float32(expected))


def test_seeds_under_vmap_are_as_many_separate_batches():
  env = cartpole()
  keys = jax.random.split(jax.random.key(3), (2, 3))
  nested_step = jax.jit(jax.vmap(jax.vmap(env.step)))
  flat_step = jax.jit(jax.vmap(env.step))
  nested = jax.vmap(jax.vmap(env.reset))(keys)
  flat = jax.vmap(env.reset)(keys.reshape(-1))
  for t in range(4):
    action = draw(6, t)
    nested = nested_step(nested, action.reshape(2, 3))
    flat = flat_step(flat, action)
  assert_same(jax.tree.map(lambda x: x.reshape(6, *x.shape[2:]), nested), flat)


def test_devices_of_a_mesh_share_the_simulators():
  env = cartpole()
  mesh = jax.make_mesh((2,), ("b",), axis_types=(jax.sharding.AxisType.Auto,))
  rows = jax.sharding.PartitionSpec("b")
  step = jax.vmap(env.step)
  on_mesh = jax.jit(
    jax.shard_map(step, mesh=mesh, in_specs=(rows, rows), out_specs=rows)
  )
  here = there = start(env, 4)
  for t in range(4):
    here, there = step(here, draw(4, t)), on_mesh(there, draw(4, t))
  assert_same(here, there)


def test_pool_entries_shared_by_rows_become_episodes_of_their_own():
  # Three rows begin with one pool entry; two of them act alike at first.
  env = cartpole()
  step = jax.vmap(env.step)
  one = start(env, 1)
  state = jax.tree.map(lambda x: jnp.repeat(x, 3, axis=0), one)
  actions = np.asarray([[0, 0, 1], [1, 1, 1], [0, 1, 0]], np.int32)  # [T, B]
  for t in range(3):
    state = step(state, actions[t])
  for row in range(3):
    expected, _ = plain(one.physics.seed[0], list(actions[:, row]))
    np.testing.assert_array_equal(state.obs[row], np.float32(expected))


def test_auto_reset_from_a_pool_begins_the_pools_episodes():
  num, num_steps = 4, 60
  env = cartpole()
  wrapped = autoreset.episodes(env)
  pool = start(env, 3, seed=5)
  key = jax.random.key(1)

  @jax.jit
  def run(sim):
    def body(sim, t):
      action = jax.random.bernoulli(jax.random.fold_in(key, t), shape=(num,))
      keys = jax.random.split(jax.random.fold_in(key, 1000 + t), num)
      sim, outcome = jax.vmap(wrapped.step, in_axes=(0, 0, None, 0))(
        sim, action.astype(jnp.int32), pool, keys
      )
      return sim, (action, outcome, sim.env.physics)

    return jax.lax.scan(body, sim, jnp.arange(num_steps))

  reset_keys = jax.random.split(jax.random.key(0), num)
  first = jax.vmap(wrapped.reset)(reset_keys)
  _, (actions, outcome, episode) = run(first)
  num_ended = 0
  theirs = gymnasium.make("CartPole-v1")
  for row in range(num):
    theirs.reset(seed=int(first.env.physics.seed[row]))
    for t in range(num_steps):
      obs, *_ = theirs.step(int(actions[t, row]))
      np.testing.assert_array_equal(outcome.final_obs[t, row], np.float32(obs))
      if outcome.terminated[t, row]:
        num_ended += 1
        seed = int(episode.seed[t, row])
        assert seed in pool.physics.seed
        theirs.reset(seed=seed)
  assert num_ended > num


def test_results_do_not_depend_on_threads_or_processes():
  def roll(env: envs.Env) -> envs.State:
    state = start(env, 5)
    for t in range(5):
      state = jax.vmap(env.step)(state, draw(5, t))
    return state

  expected = roll(envs.make("gymnasium:CartPole-v1", num_threads=1))
  assert_same(roll(envs.make("gymnasium:CartPole-v1", num_threads=3)), expected)
  assert_same(roll(cartpole(num_processes=2)), expected)


def test_more_open_episodes_than_simulators_are_told_what_to_raise():
  env = cartpole(max_simulators=4)
  step = jax.vmap(env.step)
  training = step(start(env, 3), draw(3, 0))
  step(start(env, 3, seed=9), draw(3, 1))
  message = "max_simulators=4 .*episodes were open"
  with pytest.raises(CALLBACK_ERRORS, match=message):
    jax.block_until_ready(step(training, draw(3, 2)))


def test_ended_episodes_leave_their_simulators_to_new_ones(monkeypatch):
  num_made = []
  make = gymnasium.make
  counting = lambda *a, **k: (num_made.append(1), make(*a, **k))[1]
  monkeypatch.setattr(gymnasium, "make", counting)
  env = cartpole(arguments={"max_episode_steps": 2})
  step = jax.vmap(env.step)
  for seed in range(5):
    state = start(env, 4, seed=seed)
    for t in range(2):
      state = step(state, draw(4, t))
  # One per row, and for resets one in each of the two threads.
  assert len(num_made) == 4 + 2


@functools.cache
def register() -> None:
  gymnasium.register("Goal-v0", entry_point=Goal)


class Goal(gymnasium.Env):
  """Observes a dict, acts in {3, 4}, is solved by a 4, prints a lot."""

  observation_space = gymnasium.spaces.Dict(
    {
      "at": gymnasium.spaces.Box(-1, 1, (2,), np.float64),
      "kind": gymnasium.spaces.Discrete(3),
    }
  )
  action_space = gymnasium.spaces.Discrete(2, start=3)
  metadata = {"render_fps": 20}

  def reset(self, *, seed=None, options=None):
    super().reset(seed=seed)
    return {"at": np.asarray([0.25, -0.5]), "kind": 2}, {}

  def step(self, action):
    assert self.action_space.contains(action)
    obs = {"at": np.asarray([0.5, 0.75]), "kind": 0}
    return obs, 1.5, False, False, {"is_success": action == 4}


def test_dict_observations_are_flat_and_success_is_a_metric():
  register()
  env = envs.make("gymnasium:Goal-v0", num_threads=1)
  validation.check(env, source="Goal-v0")
  assert env.action == envs.Discrete(num=2)
  assert env.success_metric == "success"
  assert env.control_dt_s == 1 / 20
  state = env.reset(jax.random.key(0))
  np.testing.assert_array_equal(state.obs, [0.25, -0.5, 0.0, 0.0, 1.0])
  solved = env.step(state, jnp.int32(1))  # 3 + 1
  np.testing.assert_array_equal(solved.obs, [0.5, 0.75, 1.0, 0.0, 0.0])
  assert solved.reward == 1.5
  assert solved.metrics["success"] == 1.0
  assert env.step(solved, jnp.int32(0)).metrics["success"] == 0.0
