"""Checkpoints: bitwise, whole after a kill, clear when they do not fit."""

import json
import logging
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from absl import logging as absl_logging
from flax import struct

from rlinf_jax import checkpoints


@struct.dataclass
class _Learner:
  params: dict
  opt: optax.OptState
  key: jax.Array


@struct.dataclass
class _State:
  learner: _Learner
  sim: dict
  step: int


def _make_state(seed: int = 0, *, num_envs: int = 16) -> _State:
  key, noise_key = jax.random.split(jax.random.key(seed))
  params = {"w": jax.random.normal(noise_key, (3, 4)), "b": jnp.zeros(4)}
  optimizer = optax.chain(
    optax.clip_by_global_norm(1.0), optax.adam(optax.constant_schedule(1e-3))
  )
  return _State(
    learner=_Learner(params=params, opt=optimizer.init(params), key=key),
    sim={
      "bits": jnp.arange(num_envs * 2, dtype=jnp.uint32).reshape(num_envs, 2),
      "keys": jax.random.split(jax.random.key(seed, impl="rbg"), num_envs),
      "done": jnp.arange(num_envs) % 3 == 0,
      "half": jnp.full((num_envs,), 1 / 3, jnp.bfloat16),
      "mocap": jnp.zeros((num_envs, 0, 3)),
      "odd": jnp.asarray([jnp.nan, -0.0, jnp.inf, 1e-45], jnp.float32),
      "count": np.asarray(2**40 + 1),
      "nothing": None,
      "memory": (),
    },
    step=7,
  )


def _bits(tree):
  def to_bytes(leaf):
    if jax.dtypes.issubdtype(getattr(leaf, "dtype", int), jax.dtypes.prng_key):
      leaf = jax.random.key_data(leaf)
    return np.asarray(leaf).tobytes()

  return [(type(x), np.shape(x), to_bytes(x)) for x in jax.tree.leaves(tree)]


def _shard(tree, sharding):
  return jax.tree.map(
    lambda x: jax.device_put(x, sharding) if isinstance(x, jax.Array) else x,
    tree,
  )


def _shardings():
  mesh = jax.make_mesh(
    (8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,)
  )
  split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
  return split, jax.sharding.SingleDeviceSharding(jax.devices()[0])


def test_a_state_comes_back_bitwise_and_with_its_structure(tmp_path):
  state = _make_state()
  checkpoints.save(tmp_path, 5, state, metadata={"task": "cheetah_run"})
  found, metadata = checkpoints.restore(tmp_path, _make_state(1))
  assert jax.tree.structure(found) == jax.tree.structure(state)
  assert _bits(found) == _bits(state)
  assert metadata == {"task": "cheetah_run"}
  same = [jax.random.key_impl(a.sim["keys"]) == "rbg" for a in (found, state)]
  assert all(same)


def test_an_abstract_state_is_enough_to_restore(tmp_path):
  state = _make_state()
  state = state.replace(step=jnp.asarray(7), sim={"bits": state.sim["bits"]})
  checkpoints.save(tmp_path, 5, state, metadata={})
  found, _ = checkpoints.restore(tmp_path, jax.eval_shape(lambda: state))
  assert _bits(found) == _bits(state)


@pytest.mark.parametrize("num_before, num_after", [(1, 8), (8, 1), (8, 8)])
def test_devices_may_differ_between_runs(tmp_path, num_before, num_after):
  split, single = _shardings()
  placed = {1: single, 8: split}
  sim = {k: _make_state().sim[k] for k in ("bits", "keys", "done", "mocap")}
  state = _shard(sim, placed[num_before])
  checkpoints.save(tmp_path, 1, state, metadata={})
  found, _ = checkpoints.restore(tmp_path, _shard(sim, placed[num_after]))
  assert _bits(found) == _bits(sim)
  for leaf in jax.tree.leaves(found):
    assert leaf.sharding.is_equivalent_to(placed[num_after], leaf.ndim)


def test_a_part_is_found_by_its_path(tmp_path):
  state = _make_state()
  checkpoints.save(tmp_path, 1, state, metadata={})
  like = {"learner": {"params": jax.eval_shape(lambda: state.learner.params)}}
  found = checkpoints.restore_part(tmp_path, like)
  assert _bits(found) == _bits(state.learner.params)
  with pytest.raises(checkpoints.CheckpointError, match="params/v: .*none"):
    checkpoints.restore_part(tmp_path, {"learner": {"params": {"v": 1.0}}})


def test_the_latest_ones_are_kept(tmp_path):
  for step in (100, 20, 300, 1000):
    checkpoints.save(tmp_path, step, {"x": step}, metadata={}, keep=2)
  assert checkpoints.steps(tmp_path) == [300, 1000]
  assert checkpoints.latest(tmp_path) == 1000
  assert len(list(tmp_path.iterdir())) == 2
  found, _ = checkpoints.restore(tmp_path, {"x": 0}, step=300)
  assert found == {"x": 300}


def test_a_second_save_of_a_step_replaces_the_first(tmp_path):
  for value in (1, 2):
    checkpoints.save(tmp_path, 9, {"x": value}, metadata={"value": value})
  assert checkpoints.restore(tmp_path, {"x": 0}) == ({"x": 2}, {"value": 2})
  assert [p.name for p in tmp_path.iterdir()] == ["000000000009"]


def test_a_kill_amid_a_replacement_leaves_the_replaced_one(tmp_path):
  path = checkpoints.save(tmp_path, 9, {"x": 1}, metadata={})
  path.rename(path.with_name(path.name + ".replaced"))
  assert checkpoints.latest(tmp_path) == 9
  assert checkpoints.restore(tmp_path, {"x": 0})[0] == {"x": 1}
  checkpoints.save(tmp_path, 10, {"x": 2}, metadata={})
  assert checkpoints.steps(tmp_path) == [9, 10]


_SAVE_FOR_EVER = """
import itertools, sys
import numpy as np
from rlinf_jax import checkpoints
for step in itertools.count(1):
  state = {f"leaf_{i}": np.full((300, 300), step) for i in range(8)}
  checkpoints.save(sys.argv[1], step, state, metadata={"step": step}, keep=2)
  print(step, flush=True)
"""


@pytest.mark.slow
def test_sigkill_amid_a_save_leaves_whole_checkpoints(tmp_path):
  like = {f"leaf_{i}": np.zeros((300, 300), int) for i in range(8)}
  command = [sys.executable, "-c", _SAVE_FOR_EVER]
  directories = [tmp_path / name for name in "ab"]
  children = [
    subprocess.Popen([*command, str(path)], stdout=subprocess.PIPE)
    for path in directories
  ]
  try:
    for delay_s, child, path in zip((0.0, 0.02), children, directories):
      assert child.stdout is not None
      for _ in range(4):
        reported = int(child.stdout.readline())
      _stop_amid_a_save(child, path, delay_s=delay_s)
      child.kill()
      child.wait()
      found_steps = checkpoints.steps(path)
      assert found_steps[-1] >= reported and len(found_steps) >= 2
      for step in found_steps:
        state, metadata = checkpoints.restore(path, like, step=step)
        assert metadata == {"step": step}
        assert all((leaf == step).all() for leaf in state.values())
      checkpoints.save(path, 10**6, like, metadata={}, keep=1)
      assert [p.name for p in path.iterdir()] == ["000001000000"]
  finally:
    for child in children:
      child.kill()
      child.communicate()


def _stop_amid_a_save(child, path, *, delay_s):
  """Stops the child at an instant when a checkpoint is half written."""
  while True:
    while not list(path.glob("*.unfinished")):
      time.sleep(0.001)
    time.sleep(delay_s)
    child.send_signal(signal.SIGSTOP)
    if list(path.glob("*.unfinished")):
      return
    child.send_signal(signal.SIGCONT)


def test_another_task_is_refused_with_what_differs(tmp_path):
  theirs = {"task": "cheetah_run", "config": {"num_envs": 16, "lr": 1e-3}}
  ours = {"task": "hopper_hop", "config": {"num_envs": 32, "lr": 1e-3}}
  checkpoints.save(tmp_path, 1, _make_state(), metadata=theirs)
  with pytest.raises(checkpoints.CheckpointError) as error:
    checkpoints.restore(tmp_path, _make_state(num_envs=32), metadata=ours)
  lines = str(error.value).splitlines()
  assert lines[1:4] == [
    "Settings that differ:",
    "  config.num_envs: checkpoint 16, this run 32",
    "  task: checkpoint cheetah_run, this run hopper_hop",
  ]
  assert lines[4:-1] == [
    "Leaves of the state that differ:",
    "  sim/bits: checkpoint uint32[16,2], this run uint32[32,2]",
    "  sim/done: checkpoint bool[16], this run bool[32]",
    "  sim/half: checkpoint bfloat16[16], this run bfloat16[32]",
    "  sim/keys: checkpoint key<rbg>[16], this run key<rbg>[32]",
    "  sim/mocap: checkpoint float32[16,0,3], this run float32[32,0,3]",
  ]


def test_a_differing_entry_that_must_match_is_refused(tmp_path):
  checkpoints.save(tmp_path, 1, {"x": 1}, metadata={"env": {"task": "a"}})
  like, ours = {"x": 0}, {"env": {"task": "b"}}
  assert checkpoints.restore(tmp_path, like, metadata=ours)[0] == {"x": 1}
  for name in ("env", "env.task"):
    with pytest.raises(checkpoints.CheckpointError, match="task: .* a, .* b"):
      checkpoints.restore(tmp_path, like, metadata=ours, must_match=(name,))


def test_dtype_and_structure_differences_are_named(tmp_path):
  checkpoints.save(tmp_path, 1, {"x": jnp.ones(2), "y": 1}, metadata={})
  like = {"x": jnp.ones(2, jnp.int32), "z": 1}
  with pytest.raises(checkpoints.CheckpointError) as error:
    checkpoints.restore(tmp_path, like)
  assert str(error.value).splitlines()[2:-1] == [
    "  x: checkpoint float32[2], this run int32[2]",
    "  y: checkpoint int, this run none",
    "  z: checkpoint none, this run int",
  ]


def test_missing_checkpoints_are_named(tmp_path):
  with pytest.raises(checkpoints.CheckpointError, match="no directory .*/gone"):
    checkpoints.restore(tmp_path / "gone", {"x": 0})
  with pytest.raises(checkpoints.CheckpointError, match="no finished"):
    checkpoints.read_metadata(tmp_path)
  assert checkpoints.latest(tmp_path / "gone") is None
  checkpoints.save(tmp_path, 3, {"x": 0}, metadata={})
  with pytest.raises(checkpoints.CheckpointError, match=r"step 4; .* \[3\]"):
    checkpoints.restore(tmp_path, {"x": 0}, step=4)


@pytest.mark.parametrize("harm", ["cut", "flip", "remove"])
def test_any_damaged_file_is_noticed(tmp_path, harm):
  path = checkpoints.save(tmp_path, 2, {"x": jnp.ones(5)}, metadata={})
  checkpoints.save(tmp_path, 1, {"x": jnp.ones(5)}, metadata={})
  files = [p for p in path.rglob("*") if p.is_file() and p.stat().st_size]
  assert len(files) > 3
  for file in files:
    content = file.read_bytes()
    middle = len(content) // 2
    if harm == "cut":
      file.write_bytes(content[:middle])
    elif harm == "flip" and file.name != "metadata.json":
      flipped = bytes([content[middle] ^ 16])
      file.write_bytes(content[:middle] + flipped + content[middle + 1 :])
    elif harm == "remove":
      file.unlink()
    else:
      continue
    with pytest.raises(checkpoints.CheckpointError, match=r"another step: \[1"):
      checkpoints.restore(tmp_path, {"x": jnp.ones(5)})
    file.write_bytes(content)
  assert checkpoints.restore(tmp_path, {"x": jnp.ones(5)})


def test_metadata_records_versions_and_stays_readable(tmp_path):
  path = checkpoints.save(tmp_path, 2, {"x": 1}, metadata={"seed": 3})
  record = json.loads((path / "metadata.json").read_text())
  assert record["step"] == 2
  assert record["versions"]["jax"] == jax.__version__
  assert record["leaves"] == {"x": "int"}
  assert checkpoints.read_metadata(tmp_path) == {"seed": 3}


def test_nothing_is_logged_at_info(tmp_path, caplog):
  before = absl_logging.get_verbosity()
  absl_logging.set_verbosity(absl_logging.INFO)
  try:
    with caplog.at_level(logging.INFO):
      checkpoints.save(tmp_path, 2, {"x": jnp.ones(3)}, metadata={})
      checkpoints.restore(tmp_path, {"x": jnp.ones(3)})
    assert absl_logging.get_verbosity() == absl_logging.INFO
  finally:
    absl_logging.set_verbosity(before)
  assert caplog.records == []


def test_what_cannot_be_saved_is_refused_before_writing(tmp_path):
  with pytest.raises(ValueError, match="name is of type str"):
    checkpoints.save(tmp_path, 1, {"name": "x"}, metadata={})
  with pytest.raises(ValueError, match="at least 0, got -1"):
    checkpoints.save(tmp_path, -1, {"x": 1}, metadata={})
  with pytest.raises(ValueError, match="keep is at least 1"):
    checkpoints.save(tmp_path, 1, {"x": 1}, metadata={}, keep=0)
  assert list(tmp_path.iterdir()) == []
