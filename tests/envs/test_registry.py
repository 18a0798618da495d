"""Environments are found by name, and faults are told one at a time."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import pytest

import envs
from envs import registry, validation

# A proper env, as a user writes it.
PROPER = """
import envs
import jax
import jax.numpy as jnp

def reset(key):
  at = jax.random.uniform(key, (2,))
  return envs.initial_state(at, physics=at, metrics={"near": 0.0})

def step(state, action):
  at = state.physics + 0.1 * jnp.clip(action, -1.0, 1.0)
  distance = jnp.sum(jnp.square(at))
  return envs.next_state(
    state, at, reward=1.0 - distance, physics=at,
    metrics={"near": distance < 0.1},
  )

env = envs.Env(
  name="walk", reset=reset, step=step, action=envs.Box(size=2),
  episode_length=20, control_dt_s=0.1, backend="jax", success_metric="near",
)
"""


@pytest.fixture(autouse=True)
def forget_registered(monkeypatch):
  monkeypatch.setattr(registry, "_REGISTERED", {})


def write(tmp_path, text: str) -> str:
  path = tmp_path / "my_env.py"
  path.write_text(PROPER + textwrap.dedent(text))
  return str(path)


def test_importing_envs_imports_no_simulator_and_no_task():
  code = (
    "import envs, sys; print([m for m in sys.modules if m.split('.')[0] in "
    "('mujoco', 'brax', 'gymnasium', 'mujoco_playground') or "
    "m.startswith(('envs.tasks', 'envs.adapters', 'envs.physics'))])"
  )
  out = subprocess.run(
    [sys.executable, "-c", code], capture_output=True, text=True, check=True
  )
  assert out.stdout.strip() == "[]"


def test_unknown_name_is_told_the_nearest_and_all():
  with pytest.raises(ValueError) as error:
    envs.make("cartpole_swing")
  message = str(error.value)
  assert "Did you mean 'cartpole_swingup'?" in message
  for name in envs.names():
    assert name in message
  assert "'playground:NAME'" in message and "my_env.py:MyEnv" in message


@pytest.mark.parametrize("name", ["", "isaac:Ant", "playground:", "a.py"])
def test_names_that_lead_nowhere_are_refused(name):
  with pytest.raises(ValueError, match="No environment is called"):
    envs.make(name)


def test_registered_function_gets_the_settings_of_make():
  seen = {}

  def make_fn(*, physics, config, randomise, num_threads):
    seen.update(p=physics, c=config, r=randomise, n=num_threads)
    return envs.make("pendulum")

  envs.register("mine", make_fn)
  env = envs.make(
    "mine", physics="mjx", config=3, randomise=True, num_threads=2
  )
  assert env.name == "pendulum"
  assert seen == dict(p="mjx", c=3, r=True, n=2)
  assert envs.names()[-1] == "mine"


@pytest.mark.parametrize(
  ("name", "make_fn", "message"),
  [
    ("pendulum", lambda: None, "already registered"),
    ("a:b", lambda: None, "no colon"),
    ("", lambda: None, "at least one character"),
    ("new", "envs.mine", "must be a function"),
  ],
)
def test_register_refuses(name, make_fn, message):
  with pytest.raises(ValueError, match=message):
    envs.register(name, make_fn)


def test_registered_function_that_returns_no_env_is_named():
  envs.register("mine", lambda **_: 3)
  with pytest.raises(ValueError, match="'mine' must be an envs.Env, not int"):
    envs.make("mine")


@pytest.mark.parametrize(
  ("text", "attribute"),
  [
    ("", "env"),
    ("def make():\n  return env", "make"),
    ("def make(*, randomise, other=1):\n  return env", "make"),
    ("def make(**settings):\n  return env", "make"),
    (
      """
      class MyEnv:
        action = envs.Box(size=2)
        episode_length = 20
        control_dt_s = 0.1
        success_metric = "near"
        def reset(self, key): return reset(key)
        def step(self, state, action): return step(state, action)
      """,
      "MyEnv",
    ),
  ],
)
def test_file_gives_an_env_by_value_function_or_class(
  tmp_path, text, attribute
):
  env = envs.make(f"{write(tmp_path, text)}:{attribute}")
  assert env.success_metric == "near"
  state = env.step(env.reset(jax.random.key(0)), jnp.zeros((2,)))
  assert state.reward == 1.0 - jnp.sum(jnp.square(state.obs))


def test_file_function_gets_the_settings_that_it_names(tmp_path):
  path = write(
    tmp_path,
    """
    def make(*, randomise, num_threads=0):
      return env._replace(name=f"{randomise} {num_threads}")
    """,
  )
  env = envs.make(f"{path}:make", randomise=True, num_threads=3)
  assert env.name == "True 3"


@pytest.mark.parametrize(
  ("text", "message"),
  [
    ("", r"has no 'MyEnv'; it has .*env"),
    ("MyEnv = 3", "gives int, which is no envs.Env and has no 'reset'"),
    ("def MyEnv(size): return env", "needs an argument 'size'"),
    ("def MyEnv(): return None", "gives NoneType"),
    ("MyEnv = env._replace(reset=3)", "reset must be a function, not int"),
    ("MyEnv = env._replace(action=2)", "action must be envs.Box"),
    ("MyEnv = env._replace(episode_length=0)", "at least 1 step.*not 0"),
    ("MyEnv = env._replace(control_dt_s=0.0)", "positive seconds, not 0.0"),
    (
      "MyEnv = env._replace(reset=lambda key: jnp.zeros(2))",
      "reset must return an envs.State",
    ),
    (
      "MyEnv = env._replace(success_metric='won')",
      r"metrics \['near'\] without the success_metric 'won'",
    ),
    (
      """
      def short(state, action):
        return step(state, action).replace(obs=state.obs[:1])
      MyEnv = env._replace(step=short)
      """,
      r"step turns State.obs from float32\[2\] into float32\[1\]",
    ),
    (
      """
      def weak(state, action):
        return step(state, action).replace(reward=1.0)
      MyEnv = env._replace(step=weak)
      """,
      r"State.reward from float32\[\] into weak float32\[\]",
    ),
    (
      """
      def many(state, action):
        return step(state, action).replace(terminated=jnp.zeros((2,), bool))
      MyEnv = env._replace(step=many)
      """,
      r"terminated as bool\[2\]; it must be bool\[\]",
    ),
    (
      """
      def whole(key):
        return reset(key).replace(obs=jnp.zeros((2,), jnp.int32))
      MyEnv = env._replace(reset=whole)
      """,
      r"returns obs as int32\[2\]; observations are float32",
    ),
    (
      """
      def named(key):
        return reset(key).replace(obs={"pixels": jnp.zeros((2,))})
      MyEnv = env._replace(reset=named)
      """,
      r"entries \['pixels'\]; a dict needs 'policy'",
    ),
    (
      """
      def more(state, action):
        state = step(state, action)
        return state.replace(metrics=state.metrics | {"far": state.reward})
      MyEnv = env._replace(step=more)
      """,
      r"step returns State.metrics\['far'\] and reset does not",
    ),
  ],
)
def test_a_fault_in_a_file_is_told_in_one_error(tmp_path, text, message):
  with pytest.raises(ValueError, match=message):
    envs.make(f"{write(tmp_path, text)}:MyEnv")


def test_a_setting_that_a_file_would_ignore_is_refused(tmp_path):
  path = write(tmp_path, "def make(physics): return env")
  with pytest.raises(ValueError, match="takes no argument 'randomise'"):
    envs.make(f"{path}:make", randomise=True)
  with pytest.raises(ValueError, match="takes no argument 'physics'"):
    envs.make(f"{path}:env", physics="mjx")


def test_a_missing_file_is_told_with_its_full_path(tmp_path):
  path = tmp_path / "none.py"
  with pytest.raises(ValueError, match=f"There is no file {path}"):
    envs.make(f"{path}:MyEnv")


def test_dict_observations_and_discrete_actions_are_proper():
  def reset(key):
    obs = {"policy": jnp.zeros((2,)), "critic": jnp.zeros((3,))}
    return envs.initial_state(obs, physics=key)

  env = envs.Env(
    name="two",
    reset=reset,
    step=lambda s, a: envs.next_state(
      s, s.obs, reward=jnp.float32(a), physics=s.physics
    ),
    action=envs.Discrete(num=2),
    episode_length=None,
    control_dt_s=0.1,
    backend="jax",
  )
  validation.check(env, source="two")
