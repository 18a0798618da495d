"""Nodes of a program as compiled functions on given devices.

Each function takes flat leaves and is jitted once for each node and mesh; JAX
compiles it anew for each granule's shape. On several devices a stage divides
its items by `shard_map` (`rlinf_jax.flow`).
"""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend import core as jex_core

from rlinf_jax.flow import granules
from rlinf_jax.runtime import meshes, programs

P = jax.sharding.PartitionSpec


class Place:
  """The devices that a granule runs on, and layouts on them.

  Args:
    devices: JAX devices, in order.
  """

  def __init__(self, devices: Sequence[jax.Device]) -> None:
    self.devices = tuple(devices)
    self.mesh = meshes.mesh_of(self.devices)
    self._layouts: dict[int | None, jax.sharding.Sharding] = {}

  def sharding(self, axis: int | None, size: int) -> jax.sharding.Sharding:
    """Returns the layout of an array with `size` items on `axis`."""
    if axis is not None and size % len(self.devices):
      axis = None
    if axis not in self._layouts:
      self._layouts[axis] = self._layout(axis)
    return self._layouts[axis]

  def _layout(self, axis: int | None) -> jax.sharding.Sharding:
    if len(self.devices) == 1:
      return jax.sharding.SingleDeviceSharding(self.devices[0])
    if axis is None:
      return jax.NamedSharding(self.mesh, P())
    return jax.NamedSharding(self.mesh, P(*[None] * axis, meshes.ITEMS))

  def replicated(self) -> jax.sharding.Sharding:
    """Returns the layout of an array that every device holds whole."""
    return self.sharding(None, 1)


@functools.lru_cache(maxsize=4096)
def place_of(devices: tuple[jax.Device, ...]) -> Place:
  """Returns the one `Place` of these devices."""
  return Place(devices)


def for_items(place: Place, num_items: int, quantum: int | None) -> Place:
  """Returns as many of a place's devices as divide a granule evenly."""
  parts = num_items // (quantum or 1)
  count = len(place.devices)
  while parts % count:
    count -= 1
  return place_of(place.devices[:count])


def for_loop(place: Place, node: programs.LoopNode) -> Place:
  """Returns as many of a place's devices as divide every stage of a loop."""
  parts = [
    programs.num_items(program, inner) // (inner.spec.quantum or 1)
    for program, inner in programs.stage_nodes(node.body)
    if not inner.is_barrier
  ]
  return for_items(place, math.gcd(*parts), None) if parts else place


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Compilation:
  """One thing that was compiled.

  Attributes:
    stage: the stage that it is of; of a loop its name, of glue "".
    seconds: of tracing, compiling and the first run.
    num_bytes: temporaries and results, per device, by XLA's analysis; 0 where
      there is none.
  """

  stage: str
  seconds: float
  num_bytes: int


class Executables:
  """Compiled functions of a program's nodes.

  Args:
    program: the traced macro flow.

  Attributes:
    compilations: what was compiled so far, in order.
  """

  def __init__(self, program: programs.Program) -> None:
    self._program = program
    self._made: dict[Any, Any] = {}
    self.compilations: list[Compilation] = []

  def stage(
    self,
    node: programs.StageNode,
    place: Place,
    donate: tuple[int, ...] = (),
  ) -> Any:
    """Returns (*leaves) -> pieces, see `granules.run_granule`.

    Args:
      node: the stage.
      place: where.
      donate: positions of the leaves whose buffers it may reuse.
    """
    num_items = programs.num_items(self._program, node)

    def run(*leaves: Any) -> list[Any]:
      sizes = {x.shape[a] for x, a in zip(leaves, node.axes) if a is not None}
      return granules.run_granule(
        node.call,
        node.axes,
        node.out_axis,
        leaves,
        is_whole=sizes == {num_items},
      )

    key = ("stage", node.name, place, donate)
    return self.custom(key, run, place, node.name, donate)

  def loop(
    self,
    node: programs.LoopNode,
    place: Place,
    donate: tuple[int, ...] = (),
  ) -> Any:
    """Returns (*leaves) -> outputs: a whole loop as one program."""

    def run(*leaves: Any) -> list[Any]:
      return programs.call_loop(node, leaves)

    key = ("loop", node.name, place, donate)
    return self.custom(key, run, place, node.name, donate)

  def glue(self, glue: programs.Glue) -> Any:
    """Returns the glue as a jitted function of its inputs."""
    run = jex_core.jaxpr_as_fun(glue.jaxpr)
    return self.custom(("glue", id(glue)), run, None, "")

  def custom(
    self,
    key: Any,
    fn: Callable[..., Any],
    place: Place | None,
    stage: str,
    donate: tuple[int, ...] = (),
  ) -> Any:
    """Returns any function of leaves, jitted on a place for a stage."""
    if key not in self._made:
      if place is not None and len(place.devices) > 1:
        fn = _on_mesh(fn, place.mesh)
      self._made[key] = self._noted(jax.jit(fn, donate_argnums=donate), stage)
    return self._made[key]

  def _noted(self, jitted: Any, stage: str) -> Callable[..., Any]:
    """Returns a jitted function that notes when it is compiled."""

    def run(*leaves: Any) -> Any:
      known, start = jitted._cache_size(), time.perf_counter()
      out = jitted(*leaves)
      if jitted._cache_size() > known:
        jax.block_until_ready(out)
        compilation = Compilation(
          stage=stage,
          seconds=time.perf_counter() - start,
          num_bytes=_transient_bytes(jitted, leaves),
        )
        self.compilations.append(compilation)
      return out

    return run


def _transient_bytes(jitted: Any, leaves: Sequence[Any]) -> int:
  """Returns what a function that has been compiled takes beside its inputs."""
  analysis = jitted.lower(*leaves).compile().memory_analysis()
  if analysis is None:
    return 0
  return analysis.temp_size_in_bytes + analysis.output_size_in_bytes


def _on_mesh(fn: Callable[..., Any], mesh: jax.sharding.Mesh) -> Any:
  @functools.wraps(fn)
  def run(*leaves: Any) -> Any:
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
      return fn(*leaves)

  return run
