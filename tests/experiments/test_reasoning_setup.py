"""What a run of `reasoning` is made of."""

from __future__ import annotations

import importlib.metadata

import jax
import ml_dtypes
import numpy as np
import pytest

from experiments import reasoning_setup as setup
from rlinf_jax.models import huggingface


@pytest.mark.slow
def test_a_model_takes_the_place_of_the_one_that_was_written_before(tmp_path):
  model = setup.load_model(setup.TINY, seed=0)
  folder = tmp_path / "model"
  setup.save_model(folder, model, model.params)
  # Left behind by runs that were killed while they wrote.
  for name in ("model.new", "model.old"):
    (tmp_path / name).mkdir()
    (tmp_path / name / "left").touch()
  more = jax.tree.map(lambda x: x + 1, model.params)
  setup.save_model(folder, model, more)
  assert [path.name for path in tmp_path.iterdir()] == ["model"]
  found = setup.load_model(str(folder), seed=0)
  jax.tree.map(np.testing.assert_array_equal, found.params, more)
  assert found.tokenizer.encode("1+1=") == model.tokenizer.encode("1+1=")


@pytest.mark.slow
def test_a_model_is_written_as_precisely_as_it_came(tmp_path):
  tiny = setup.load_model(setup.TINY, seed=0)
  folder = tmp_path / "bfloat16"
  huggingface.save(
    folder,
    tiny.config,
    tiny.params,
    dtype=ml_dtypes.bfloat16,
    extra={"eos_token_id": 1},
  )
  tiny.tokenizer.write(folder)
  model = setup.load_model(str(folder), seed=0)
  assert {x.dtype.name for x in jax.tree.leaves(model.params)} == {"float32"}
  written = setup.save_model(tmp_path / "model", model, model.params)
  found = huggingface.load(written, dtype=None)
  assert found.params["embedding"].dtype == ml_dtypes.bfloat16


def test_arguments_are_as_python_writes_them():
  given = ["a=2", "b=0.5", "c=True", "d=some text", "e=x=y"]
  assert setup.read_args(given, flag="rollout_arg") == {
    "a": 2,
    "b": 0.5,
    "c": True,
    "d": "some text",
    "e": "x=y",
  }
  with pytest.raises(ValueError, match="--rollout_arg=a is not of the form"):
    setup.read_args(["a"], flag="rollout_arg")


def test_little_drift_is_borne_where_both_compute_exactly():
  engine = object()  # in JAX
  assert setup.max_drift(None, engine, dtype="float32") == 1e-3
  assert setup.max_drift(None, engine, dtype="bfloat16") == 0.1
  assert setup.max_drift(0.5, engine, dtype="float32") == 0.5


def test_a_gpu_s_memory_is_divided_unless_someone_says(monkeypatch):
  assert setup.client_options({}) is None  # on this machine
  plugin = importlib.metadata.EntryPoint("xla_cuda13", "a", "jax_plugins")
  monkeypatch.setattr(
    importlib.metadata,
    "entry_points",
    lambda group: [plugin] if group == plugin.group else [],
  )
  assert setup.client_options({}) == {"memory_fraction": 0.45}
  for name in ("XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION"):
    assert setup.client_options({name: "0.9"}) is None
