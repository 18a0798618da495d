"""Frames of MuJoCo simulations, drawn headless.

GL chooses its platform when it is loaded, by an environment variable, and a
broken driver can end the process that loads it. So frames are drawn in a child
process (`envs/offscreen.py`), which gets that variable in its own environment.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence

import jax
import mujoco
import numpy as np

from envs import state as state_lib

MocapFn = Callable[[state_lib.State], tuple[jax.Array, jax.Array]]

_PLATFORMS = ("egl", "osmesa")
_PROGRAM = pathlib.Path(__file__).with_name("offscreen.py")


class RenderingUnavailableError(RuntimeError):
  """No OpenGL that works without a display; the message says what was tried."""


def mujoco_frames(
  mj_model: mujoco.MjModel,
  qpos_nq: np.ndarray,
  *,
  mocap_pos: np.ndarray | None = None,
  mocap_quat: np.ndarray | None = None,
  height: int = 480,
  width: int = 640,
  camera: str | None = None,
  platforms: Sequence[str] = _PLATFORMS,
) -> np.ndarray:
  """Returns one picture for each row of `qpos_nq`.

  N frames, nq positions, nmocap mocap bodies.

  Args:
    mj_model: the model to draw.
    qpos_nq: [N, nq] positions.
    mocap_pos: [N, nmocap, 3] metres; None leaves the model's.
    mocap_quat: [N, nmocap, 4]; None leaves the model's.
    height: of a frame, pixels.
    width: of a frame, pixels.
    camera: a camera's name. None takes "main", or else the first one, or else
      the free camera.
    platforms: values of MUJOCO_GL to try in turn. Where MUJOCO_GL is set, its
      value is tried before them.

  Returns:
    uint8 [N, height, width, 3].

  Raises:
    RenderingUnavailableError: if no platform gives a GL context.
    RuntimeError: if drawing failed although there was one.
    ValueError: if a shape is wrong or there is no such camera.
  """
  qpos_nq = np.asarray(qpos_nq, np.float64)
  if qpos_nq.ndim != 2 or qpos_nq.shape[1] != mj_model.nq:
    raise ValueError(
      f"qpos_nq has shape {list(qpos_nq.shape)}; the model needs "
      f"[N, {mj_model.nq}]."
    )
  num = len(qpos_nq)
  with tempfile.TemporaryDirectory(prefix="frames_") as name:
    folder = pathlib.Path(name)
    mujoco.mj_saveModel(mj_model, str(folder / "model.mjb"), None)
    np.savez(
      folder / "request.npz",
      qpos=qpos_nq,
      mocap_pos=_mocap(mj_model, mocap_pos, num=num, field="pos"),
      mocap_quat=_mocap(mj_model, mocap_quat, num=num, field="quat"),
      size=np.asarray([height, width]),
      camera=np.asarray(_camera_id(mj_model, camera)),
    )
    _draw(folder, platforms=_with_wish(platforms), timeout_s=120 + 2 * num)
    return np.load(folder / "frames.npy")


def mujoco_render_fn(
  mj_model: mujoco.MjModel,
  *,
  mocap_fn: MocapFn | None = None,
  height: int = 480,
  width: int = 640,
  camera: str | None = None,
) -> state_lib.RenderFn:
  """Returns the `render` of an Env whose `physics` is a `PhysicsState`.

  Args:
    mj_model: the model to draw.
    mocap_fn: State -> (pos [nmocap, 3], quat [nmocap, 4]) of its mocap bodies;
      None leaves them where the model has them.
    height: of a frame, pixels.
    width: of a frame, pixels.
    camera: as in `mujoco_frames`.
  """

  def render(states: Sequence[state_lib.State]) -> np.ndarray:
    qpos = np.stack([np.asarray(s.physics.data["qpos"]) for s in states])
    pos = quat = None
    if mocap_fn is not None:
      pairs = [mocap_fn(s) for s in states]
      pos = np.stack([np.asarray(p) for p, _ in pairs])
      quat = np.stack([np.asarray(q) for _, q in pairs])
    return mujoco_frames(
      mj_model,
      qpos,
      mocap_pos=pos,
      mocap_quat=quat,
      height=height,
      width=width,
      camera=camera,
    )

  return render


def _draw(
  folder: pathlib.Path, *, platforms: Sequence[str], timeout_s: float
) -> None:
  reasons = []
  for platform in platforms:
    env = {k: v for k, v in os.environ.items() if k != "PYOPENGL_PLATFORM"}
    # -P: the program's folder must not be searched for modules.
    command = [sys.executable, "-P", str(_PROGRAM), str(folder)]
    try:
      child = subprocess.run(
        command,
        env=env | {"MUJOCO_GL": platform},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout_s,
      )
    except subprocess.TimeoutExpired:
      reasons.append(f"{platform}: no answer after {timeout_s:.0f} s")
      continue
    if child.returncode == 0:
      return
    lines = child.stderr.strip().splitlines() or ["it said nothing"]
    if (folder / "ready").exists():
      raise RuntimeError(
        f"Drawing with MUJOCO_GL={platform} failed with exit status "
        f"{child.returncode}:\n" + "\n".join(lines[-8:])
      )
    reasons.append(f"{platform}: exit status {child.returncode}, {lines[-1]}")
  raise RenderingUnavailableError(
    "No OpenGL that works without a display. Tried MUJOCO_GL = "
    + "; ".join(reasons)
    + ". Install EGL (Debian and Ubuntu: apt-get install libegl1 "
    "libgl1-mesa-dri) or OSMesa (libosmesa6)."
  )


def _with_wish(platforms: Sequence[str]) -> list[str]:
  wish = os.environ.get("MUJOCO_GL", "").strip().lower()
  return list(dict.fromkeys([wish, *platforms] if wish else platforms))


def _mocap(
  mj_model: mujoco.MjModel,
  values: np.ndarray | None,
  *,
  num: int,
  field: str,
) -> np.ndarray:
  default = getattr(mujoco.MjData(mj_model), f"mocap_{field}")
  if values is None:
    return np.broadcast_to(default, (num, *default.shape))
  values = np.asarray(values, np.float64)
  if values.shape != (num, *default.shape):
    raise ValueError(
      f"mocap_{field} has shape {list(values.shape)}; the model needs "
      f"{[num, *default.shape]}."
    )
  return values


def _camera_id(mj_model: mujoco.MjModel, camera: str | None) -> int:
  names = [mj_model.camera(i).name for i in range(mj_model.ncam)]
  if camera is None:
    return names.index("main") if "main" in names else min(0, len(names) - 1)
  if camera not in names:
    raise ValueError(f"No camera {camera!r}; the model has {names}.")
  return names.index(camera)
