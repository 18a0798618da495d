"""Says before a run whether its programs fit into memory."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Iterable, Sequence

import jax
import psutil

Path = str | os.PathLike[str]


class InsufficientMemoryError(ValueError):
  """A run needs more memory than there is."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
  """What one compiled program needs while it runs, per device.

  Attributes:
    name: of the program.
    device_bytes: arguments, results and temporaries on each device; results
      that reuse a donated argument count once.
    host_bytes: of host memory on this machine, over all its devices.
    devices: those of this process that run the program.
  """

  name: str
  device_bytes: int
  host_bytes: int
  devices: tuple[jax.Device, ...]


def estimate(
  compiled: jax.stages.Compiled, *, name: str, host_bytes: int = 0
) -> Estimate:
  """Returns what `compiled` needs, by XLA's own analysis of it.

  Args:
    compiled: a program compiled ahead of time.
    name: how errors call it.
    host_bytes: what its callbacks hold on the host; XLA cannot know.

  Raises:
    ValueError: the backend has no analysis.
  """
  stats = compiled.memory_analysis()
  if stats is None:
    raise ValueError(
      f"This backend cannot say how much memory {name} needs. Skip the check."
    )
  shardings = (compiled.input_shardings, compiled.output_shardings)
  devices = {
    device
    for sharding in jax.tree.leaves(shardings)
    for device in sharding.addressable_devices
  } or {jax.local_devices()[0]}
  device_bytes = (
    stats.argument_size_in_bytes
    + stats.output_size_in_bytes
    - stats.alias_size_in_bytes
    + stats.temp_size_in_bytes
    + stats.generated_code_size_in_bytes
  )
  per_device_host_bytes = (
    stats.host_argument_size_in_bytes
    + stats.host_output_size_in_bytes
    - stats.host_alias_size_in_bytes
    + stats.host_temp_size_in_bytes
  )
  return Estimate(
    name=name,
    device_bytes=device_bytes,
    host_bytes=host_bytes + per_device_host_bytes * len(devices),
    devices=tuple(sorted(devices, key=lambda device: device.id)),
  )


def check_fits(
  estimates: Sequence[Estimate],
  *,
  suggestions: Iterable[str] = (),
  device_limit_bytes: int | None = None,
  host_limit_bytes: int | None = None,
) -> str:
  """Returns a line that says what is needed and what there is.

  The programs run in turn: the largest one decides. Where devices have no
  memory of their own (CPU), theirs is added to the host's.

  Args:
    estimates: of the run's programs.
    suggestions: what lowers the need, for instance "--num_envs".
    device_limit_bytes: of one device; None asks the device.
    host_limit_bytes: what the run may use; None asks the system.

  Raises:
    InsufficientMemoryError: a program needs more than there is.
    ValueError: there are no estimates.
  """
  if not estimates:
    raise ValueError("There is nothing to check: give at least one estimate.")
  if host_limit_bytes is None:
    host_limit_bytes = find_available_host_bytes()
  needs = []
  for item in estimates:
    limit = device_limit_bytes
    if limit is None:
      limit = _find_device_limit(item.devices[0])
    host_bytes = item.host_bytes
    if limit is None:
      host_bytes += item.device_bytes * len(item.devices)
    else:
      kind = item.devices[0].device_kind
      needs.append((item.device_bytes, limit, item.name, f"of each {kind}"))
    needs.append(
      (host_bytes, host_limit_bytes, item.name, "that the host has left")
    )
  lines = {}
  for needed, limit, name, place in sorted(needs, key=lambda n: n[0] / n[1]):
    lines[place] = (
      f"{name} needs {format_bytes(needed)} of the {format_bytes(limit)}"
      f" {place}"
    )
    if needed > limit:
      lower = ", ".join(suggestions)
      raise InsufficientMemoryError(
        f"Not enough memory: {lines[place]}."
        + (f" Lower {lower}." if lower else "")
      )
  return "; ".join(reversed(lines.values()))


def find_available_host_bytes(
  *, cgroup_root: Path = "/sys/fs/cgroup", cgroup_of: Path = "/proc/self/cgroup"
) -> int:
  """Returns how much host memory this process can still get.

  That is what the system has available or what is left of the control groups
  (v1 or v2) that the process is in, whichever is less: a container sees the
  whole machine's memory, but is killed at its own limit.
  """
  available = psutil.virtual_memory().available
  for group in _find_memory_groups(pathlib.Path(cgroup_root), cgroup_of):
    for limit_name, usage_name, file_cache_name in (
      ("memory.max", "memory.current", "inactive_file"),
      (
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "total_inactive_file",
      ),
    ):
      limit = _read_number(group / limit_name)
      usage = _read_number(group / usage_name)
      if limit is None or usage is None:
        continue
      # The kernel gives a file cache up before it kills.
      cache = _read_table(group / "memory.stat").get(file_cache_name, 0)
      available = min(available, max(0, limit - usage + cache))
  return available


def format_bytes(num_bytes: float) -> str:
  """Returns for instance "1.5 GiB"."""
  for unit in ("B", "KiB", "MiB", "GiB"):
    if num_bytes < 1024:
      return f"{num_bytes:.4g} {unit}"
    num_bytes /= 1024
  return f"{num_bytes:.4g} TiB"


def _find_device_limit(device: jax.Device) -> int | None:
  stats = device.memory_stats()
  return stats.get("bytes_limit") if stats else None


def _find_memory_groups(
  root: pathlib.Path, cgroup_of: Path
) -> list[pathlib.Path]:
  """Returns this process's control groups and all that contain them."""
  try:
    lines = pathlib.Path(cgroup_of).read_text().splitlines()
  except OSError:  # not Linux
    return []
  groups = []
  for line in lines:
    _, controllers, path = line.split(":", 2)
    if controllers and "memory" not in controllers.split(","):
      continue
    base = root / "memory" if controllers else root
    group = base / path.lstrip("/")
    groups += [group, *group.parents[: len(group.relative_to(base).parts)]]
  return groups


def _read_number(path: pathlib.Path) -> int | None:
  try:
    text = path.read_text().strip()
  except OSError:
    return None
  return int(text) if text.isdigit() else None  # "max" is no limit


def _read_table(path: pathlib.Path) -> dict[str, int]:
  try:
    rows = [line.split() for line in path.read_text().splitlines()]
  except OSError:
    return {}
  return {row[0]: int(row[1]) for row in rows if len(row) == 2}
