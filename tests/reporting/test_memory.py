"""Estimates by hand, and control groups laid out in files."""

import dataclasses

import jax
import jax.numpy as jnp
import psutil
import pytest

from rlinf_jax.reporting import memory

_KIB = 1024


@pytest.fixture(name="doubled", scope="module")
def _doubled_estimate():
  program = jax.jit(lambda x: 2 * x)
  spec = jax.ShapeDtypeStruct((256, 1024), jnp.float32)
  return memory.estimate(program.lower(spec).compile(), name="double")


def _make(name, **sizes):
  sizes = {"device_bytes": 0, "host_bytes": 0, **sizes}
  return memory.Estimate(name=name, devices=(jax.devices()[0],), **sizes)


def test_arguments_and_results_are_counted(doubled):
  # float32 [256, 1024] in and out: 2 * 1 MiB.
  assert doubled.device_bytes == 2 * _KIB**2
  assert doubled.devices == (jax.devices()[0],)


def test_a_donated_argument_counts_once():
  program = jax.jit(lambda x: 2 * x, donate_argnums=0)
  spec = jax.ShapeDtypeStruct((256, 1024), jnp.float32)
  found = memory.estimate(program.lower(spec).compile(), name="double")
  assert found.device_bytes == _KIB**2


def test_a_sharded_program_counts_per_device_and_knows_its_devices():
  mesh = jax.make_mesh((8,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
  split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("d"))
  spec = jax.ShapeDtypeStruct((256, 1024), jnp.float32, sharding=split)
  compiled = jax.jit(lambda x: 2 * x).lower(spec).compile()
  found = memory.estimate(compiled, name="double")
  assert found.device_bytes == 2 * _KIB**2 // 8
  assert found.devices == tuple(jax.devices()[:8])
  # CPU devices share the host: 8 * 256 KiB and 1 MiB of its own.
  found = dataclasses.replace(found, host_bytes=_KIB**2)
  line = memory.check_fits([found], host_limit_bytes=4 * _KIB**2)
  assert line == "double needs 3 MiB of the 4 MiB that the host has left"


def test_the_largest_program_decides():
  estimates = [_make("act", device_bytes=100), _make("update", host_bytes=300)]
  line = memory.check_fits(estimates, host_limit_bytes=400)
  assert line == "update needs 300 B of the 400 B that the host has left"


def test_what_does_not_fit_is_refused_with_numbers_and_advice():
  estimates = [_make("update", device_bytes=3 * _KIB**2, host_bytes=_KIB**2)]
  with pytest.raises(memory.InsufficientMemoryError) as error:
    memory.check_fits(
      estimates,
      host_limit_bytes=2 * _KIB**2,
      suggestions=["--num_envs", "--unroll_length"],
    )
  assert str(error.value) == (
    "Not enough memory: update needs 4 MiB of the 2 MiB that the host has left."
    " Lower --num_envs, --unroll_length."
  )


def test_devices_with_memory_of_their_own_are_apart_from_the_host():
  estimates = [_make("update", device_bytes=300, host_bytes=50)]
  line = memory.check_fits(
    estimates, device_limit_bytes=400, host_limit_bytes=100
  )
  assert line == (
    "update needs 300 B of the 400 B of each cpu;"
    " update needs 50 B of the 100 B that the host has left"
  )
  with pytest.raises(memory.InsufficientMemoryError, match="of each cpu"):
    memory.check_fits(estimates, device_limit_bytes=200, host_limit_bytes=100)


def _lay_out(root, files):
  for name, text in files.items():
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")
  return memory.find_available_host_bytes(
    cgroup_root=root / "sys", cgroup_of=root / "cgroup"
  )


def test_the_tightest_control_group_decides(tmp_path):
  # The inner group has 1000 - 900 + 300 of cache left, the outer 350 - 200.
  found = _lay_out(
    tmp_path,
    {
      "cgroup": "0::/outer/inner",
      "sys/outer/inner/memory.max": 1000,
      "sys/outer/inner/memory.current": 900,
      "sys/outer/inner/memory.stat": "anon 5\ninactive_file 300",
      "sys/outer/memory.max": 350,
      "sys/outer/memory.current": 200,
    },
  )
  assert found == 150


def test_version_one_groups_are_read_and_no_limit_is_none(tmp_path):
  found = _lay_out(
    tmp_path,
    {
      "cgroup": "5:cpu:/a\n4:cpuset,memory:/a\n0::/b",
      "sys/memory/a/memory.limit_in_bytes": 1000,
      "sys/memory/a/memory.usage_in_bytes": 600,
      "sys/memory/a/memory.stat": "total_inactive_file 50",
      "sys/b/memory.max": "max",
      "sys/b/memory.current": 10,
    },
  )
  assert found == 450


def test_a_container_sees_its_own_group_at_the_root(tmp_path):
  files = {
    "cgroup": "0::/not/visible/here",
    "sys/memory.max": 700,
    "sys/memory.current": 100,
  }
  assert _lay_out(tmp_path, files) == 600


def test_without_groups_the_system_is_asked(tmp_path):
  found = _lay_out(tmp_path, {})
  total = psutil.virtual_memory().total
  assert 0 < found <= total


def test_bytes_are_formatted_in_binary_units():
  numbers = [512, 1536, 3 * _KIB**3, 2.5 * _KIB**4]
  assert [memory.format_bytes(n) for n in numbers] == [
    "512 B",
    "1.5 KiB",
    "3 GiB",
    "2.5 TiB",
  ]
