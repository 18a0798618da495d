"""Rigid-body physics behind one interface, with three backends.

A task writes its observation, reward and end once, over `PhysicsState.data`;
which engine computed it is chosen per run. What a task sees is the same on all:
qpos, qvel, act and time are current, and every derived field (xpos, sensordata,
...) is that of the state before the last substep, as `mj_step` leaves it; after
`reset` it is that of the initial state. A simulation that meets a number that
is not finite, or beyond 1e10, is NaN throughout until it is reset.

`mujoco`: MuJoCo's C engine on the host, on all cores, from jitted code on any
  platform. float64 inside, float32 at the border. Bitwise the same for any
  number of threads, split of the batch, vmap over seeds or shard_map. Under
  automatic sharding the batch is gathered: use shard_map. Not differentiable.
  JAX's persistent compilation cache skips programs that call it.
  `overflow` counts substeps in which contacts or constraints found no memory.
`mjx`: MJX's JAX implementation. float32, products at full precision whatever
  the caller's default. The same program on the same device gives the same bits;
  another batch size may not. Differentiable as far as MJX is. Minutes to
  compile, and on a CPU hundreds of times slower than `mujoco`.
`warp`: MuJoCo Warp through MJX, the fast one on NVIDIA GPUs; the extra `warp`.
  float32. On a GPU its atomic sums make the last bits vary from run to run. It
  also runs on a CPU, on one thread, where it is of use to test it.

`envs.physics.parity` says how far they are apart. Per-simulation model values
are those of `envs.physics.model_values.ALLOWED`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

import jax
import mujoco

from envs.physics.state import Physics, PhysicsState

__all__ = ["BACKENDS", "Physics", "PhysicsState", "choose", "make"]

BACKENDS = ("auto", "mujoco", "mjx", "warp")


def make(
  mj_model: mujoco.MjModel,
  *,
  backend: str,
  num_substeps: int,
  fields: Sequence[str] = (),
  num_threads: int = 0,
) -> Physics:
  """Returns `mj_model` as pure functions on a backend.

  Args:
    mj_model: the model; not to be edited afterwards.
    backend: one of `BACKENDS`; for "auto" see `choose`.
    num_substeps: physics steps per `step`, at least 1.
    fields: mjData fields that `PhysicsState.data` shall hold besides qpos, qvel
      and time, out of `envs.physics.fields.ALLOWED`.
    num_threads: threads of the mujoco backend; 0 is one per CPU.

  Raises:
    ValueError: for an unknown backend, no substeps, or a field or a model that
      the backend does not support.
    ImportError: for the warp backend where it cannot run.
  """
  if num_substeps < 1:
    raise ValueError(f"num_substeps is {num_substeps}; it must be at least 1")
  backend = choose(backend)
  # Imported when chosen: MJX costs a second, warp may not be installed.
  if backend == "mujoco":
    from envs.physics import mujoco_batch

    return mujoco_batch.make(
      mj_model,
      num_substeps=num_substeps,
      fields=fields,
      num_threads=num_threads,
    )
  if backend == "mjx":
    from envs.physics import mjx_jax

    return mjx_jax.make(mj_model, num_substeps=num_substeps, fields=fields)
  from envs.physics import mjx_warp

  return mjx_warp.make(mj_model, num_substeps=num_substeps, fields=fields)


def choose(backend: str) -> str:
  """Returns the backend that `backend` stands for on this machine.

  "auto" is mujoco where JAX runs on the CPU; on a CUDA device it is warp if
  that is installed, and on any other accelerator mjx.

  Raises:
    ValueError: for a name that is not in `BACKENDS`.
  """
  if backend not in BACKENDS:
    raise ValueError(
      f"physics backend {backend!r} is unknown; choose one of"
      f" {', '.join(BACKENDS)}"
    )
  if backend != "auto":
    return backend
  platform = jax.default_backend()
  if platform == "cpu":
    return "mujoco"
  if platform in ("cuda", "gpu") and importlib.util.find_spec("warp"):
    return "warp"
  return "mjx"
