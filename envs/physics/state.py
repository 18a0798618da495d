"""What every physics backend offers: `reset` and `step` over `PhysicsState`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import mujoco
from flax import struct


@struct.dataclass
class PhysicsState:
  """One simulation.

  `data` holds the mjData fields the task asked for, float32, under MuJoCo's
  names and in MuJoCo's shapes: `data["xpos"]` is [nbody, 3]. "qpos", "qvel" and
  "time" are always there and always current. Derived fields (xpos, sensordata,
  ...) are those of the state *before the last substep*, as `mj_step` leaves
  them, on every backend; after `reset` they are those of the initial state.
  """

  internal: Any  # the backend's own; opaque
  data: dict[str, jax.Array]
  model_values: dict[str, jax.Array]  # mjModel fields of this simulation
  overflow: jax.Array  # [] int32: contacts or constraints dropped this step


class Physics(NamedTuple):
  """A compiled model on one backend.

  Attributes:
    backend: "mujoco", "mjx" or "warp".
    mj_model: the model, for names, ranges and rendering.
    num_substeps: physics steps per `step`.
    reset: (qpos [nq], qvel [nv], model_values, mocap_pos [nmocap, 3],
      mocap_quat [nmocap, 4]) -> PhysicsState, with derived fields computed. All
      but qpos are keyword arguments with defaults (zeros, {}, the model's).
    step: (PhysicsState, ctrl [nu]) -> PhysicsState, `num_substeps` later.
  """

  backend: str
  mj_model: mujoco.MjModel
  num_substeps: int
  reset: Callable[..., PhysicsState]
  step: Callable[[PhysicsState, jax.Array], PhysicsState]
