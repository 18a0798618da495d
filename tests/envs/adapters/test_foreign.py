"""Packages that may be missing, and what Playground and Brax observe."""

import sys

import jax.numpy as jnp
import pytest

import envs
from envs.adapters import foreign


def test_a_missing_package_is_told_the_extra_that_installs_it():
  with pytest.raises(foreign.MissingExtraError, match=r"\.\[brax\]"):
    foreign.require("no_such_package.part", extra="brax")


@pytest.mark.parametrize(
  ("name", "package"),
  [
    ("playground:CheetahRun", "mujoco_playground"),
    ("brax:ant", "brax"),
    ("gymnasium:CartPole-v1", "gymnasium"),
  ],
)
def test_an_adapter_without_its_package_names_its_extra(
  name, package, monkeypatch
):
  for module in [m for m in sys.modules if m.partition(".")[0] == package]:
    monkeypatch.delitem(sys.modules, module)
  missing = _Missing(package)
  monkeypatch.setattr(sys, "meta_path", [missing, *sys.meta_path])
  extra = name.partition(":")[0]
  with pytest.raises(ImportError, match=rf"\.\[{extra}\]"):
    envs.make(name)


class _Missing:
  """Finds that `package` is not there."""

  def __init__(self, package):
    self._package = package

  def find_spec(self, name, path=None, target=None):
    if name.partition(".")[0] == self._package:
      raise ModuleNotFoundError(f"No module named {name!r}", name=self._package)
    return None


def test_what_a_package_itself_misses_is_shown_as_it_is(tmp_path, monkeypatch):
  (tmp_path / "half_there.py").write_text("import no_such_package\n")
  monkeypatch.syspath_prepend(str(tmp_path))
  with pytest.raises(ModuleNotFoundError, match="no_such_package") as raised:
    foreign.require("half_there", extra="brax")
  assert not isinstance(raised.value, foreign.MissingExtraError)


def test_dict_observations_get_the_names_that_models_look_for():
  obs = foreign.observation(
    {"state": jnp.ones(2), "privileged_state": jnp.zeros(3, jnp.int32)}
  )
  assert sorted(obs) == ["critic", "policy"]
  assert obs["policy"].shape == (2,)
  assert obs["critic"].dtype == jnp.float32
