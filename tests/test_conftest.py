"""The rules that every other test runs under."""

from __future__ import annotations

import pathlib
import types

import jax
import jax.numpy as jnp
import pytest

from tests import conftest


def test_eight_cpu_devices_stand_in_for_a_mesh():
  assert [d.platform for d in jax.devices()] == ["cpu"] * 8


def test_ranks_do_not_promote():
  with pytest.raises(ValueError, match="rank_promotion"):
    jnp.ones((3, 2)) + jnp.ones(2)


def test_dtypes_do_not_promote():
  with pytest.raises(ValueError, match="dtype_promotion"):
    jnp.ones(2, jnp.float32) + jnp.ones(2, jnp.int32)


@pytest.mark.usefixtures("standard_promotion")
def test_third_party_code_may_promote():
  x = jnp.ones((3, 2), jnp.float32) + jnp.ones(2, jnp.int32)
  assert x.shape == (3, 2) and x.dtype == jnp.float32


def test_64_bits_are_off():
  assert jnp.arange(2).dtype == jnp.int32


@pytest.mark.parametrize("markers", ["not slow", "not long", "slow", ""])
def test_a_module_of_slow_tests_is_imported_where_one_may_run(markers):
  config = types.SimpleNamespace(option=types.SimpleNamespace(markexpr=markers))
  ignored = [
    path.name
    for path in sorted(pathlib.Path(__file__).parent.rglob("test_*.py"))
    if conftest.pytest_ignore_collect(path, config)
  ]
  if markers == "not slow":
    assert "test_brax.py" in ignored and "test_ppo.py" not in ignored
  else:
    assert not ignored
