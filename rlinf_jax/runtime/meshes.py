"""Meshes, and how arrays are laid out on them.

The only module that builds a mesh.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np

P = jax.sharding.PartitionSpec
ITEMS = "items"


def items_mesh(num_devices: int | None = None) -> jax.sharding.Mesh:
  """Returns a mesh of one axis, "items", over which a batch is divided.

  Args:
    num_devices: how many of `jax.devices()`; all by default.

  Raises:
    ValueError: there are not so many devices.
  """
  devices = jax.devices()
  num = len(devices) if num_devices is None else num_devices
  if not 1 <= num <= len(devices):
    raise ValueError(
      f"num_devices is {num}, but {len(devices)} {devices[0].platform} devices"
      " are visible; ask for 1 to that many (on CPU, --num_devices makes as"
      " many virtual ones as it says)"
    )
  return jax.make_mesh(
    (num,),
    (ITEMS,),
    axis_types=(jax.sharding.AxisType.Auto,),
    devices=devices[:num],
  )


@functools.lru_cache(maxsize=256)
def mesh_of(devices: tuple[jax.Device, ...]) -> jax.sharding.Mesh:
  """Returns the mesh of one axis, "items", of these devices in this order."""
  return jax.sharding.Mesh(
    np.asarray(devices), (ITEMS,), axis_types=(jax.sharding.AxisType.Auto,)
  )


def split(tree: Any, mesh: jax.sharding.Mesh, *, axis: int = 0) -> Any:
  """Returns the shardings that divide `axis` of each leaf over the mesh."""
  spec = P(*[None] * axis, ITEMS)
  return jax.tree.map(lambda x: jax.NamedSharding(mesh, spec), tree)


def replicate(tree: Any, mesh: jax.sharding.Mesh) -> Any:
  """Returns the shardings that hold each leaf whole on every device."""
  return jax.tree.map(lambda x: jax.NamedSharding(mesh, P()), tree)
