"""An exported policy gives the numbers of the one that was exported."""

import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlinf_jax import export


def _make_policy():
  key_w, key_mean = jax.random.split(jax.random.key(0))
  w = jax.random.normal(key_w, (3, 2))
  mean = jax.random.normal(key_mean, (3,))

  def policy_fn(obs):
    return jnp.tanh(((obs["policy"] - mean) / 2.0) @ w)

  return policy_fn, {"policy": jnp.zeros(3)}


@pytest.mark.slow
def test_any_batch_gives_the_same_actions(tmp_path):
  policy_fn, obs = _make_policy()
  path = export.save_policy(tmp_path / "a" / "p.stablehlo", policy_fn, obs)
  loaded_fn = export.load_policy(path)
  for batch_size in (1, 5, 64):
    obs_b = {"policy": jax.random.normal(jax.random.key(1), (batch_size, 3))}
    np.testing.assert_array_equal(
      loaded_fn(obs_b), jax.jit(jax.vmap(policy_fn))(obs_b)
    )


_RUN_ALONE = """
import sys
import jax.export
import numpy as np
with open(sys.argv[1], "rb") as file:
  program = jax.export.deserialize(bytearray(file.read()))
action = program.call({"policy": np.ones((2, 3), np.float32)})
assert "rlinf_jax" not in sys.modules
print(np.asarray(action).tobytes().hex())
"""


@pytest.mark.slow
@pytest.mark.optimised  # as the child does, which knows no conftest
def test_the_file_runs_without_this_project(tmp_path):
  policy_fn, obs = _make_policy()
  path = export.save_policy(tmp_path / "p.stablehlo", policy_fn, obs)
  child = subprocess.run(
    [sys.executable, "-c", _RUN_ALONE, str(path)],
    capture_output=True,
    text=True,
    check=True,
  )
  expected = jax.jit(jax.vmap(policy_fn))({"policy": jnp.ones((2, 3))})
  assert child.stdout.strip() == np.asarray(expected).tobytes().hex()


def test_the_json_says_what_goes_in_and_comes_out(tmp_path):
  policy_fn, obs = _make_policy()
  export.save_policy(
    tmp_path / "p.stablehlo", policy_fn, obs, platforms=("cpu",)
  )
  description = json.loads((tmp_path / "p.json").read_text())
  assert description["platforms"] == ["cpu"]
  assert description["observation"] == {
    "policy": {"shape": ["B", 3], "dtype": "float32"}
  }
  assert description["action"] == {"shape": ["B", 2], "dtype": "float32"}


def test_other_files_are_refused(tmp_path):
  (tmp_path / "p.stablehlo").write_bytes(b"not a policy")
  with pytest.raises(ValueError, match="no exported policy"):
    export.load_policy(tmp_path / "p.stablehlo")
  with pytest.raises(ValueError, match="ends in .stablehlo"):
    export.load_policy(tmp_path / "p.onnx")
  with pytest.raises(FileNotFoundError):
    export.load_policy(tmp_path / "gone.stablehlo")
