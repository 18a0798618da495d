"""The program that draws frames in a process of its own.

`envs.rendering` runs it as `python offscreen.py FOLDER` with MUJOCO_GL set. The
folder holds `model.mjb` and `request.npz`; the program adds an empty file
`ready` once it has a GL context, and then `frames.npy`. A broken GL driver ends
this process only.

It imports nothing of ours, so that starting it takes a fraction of a second.
"""

from __future__ import annotations

import pathlib
import sys

import mujoco
import numpy as np


def draw(folder: pathlib.Path) -> None:
  """Writes `frames.npy`: uint8 [N, height, width, 3]."""
  mj_model = mujoco.MjModel.from_binary_path(str(folder / "model.mjb"))
  with np.load(folder / "request.npz") as request:
    qpos_nq = request["qpos"]
    mocap_pos, mocap_quat = request["mocap_pos"], request["mocap_quat"]
    height, width = (int(x) for x in request["size"])
    camera = int(request["camera"])
  # A model may declare a smaller offscreen buffer than the frames asked for.
  mj_model.vis.global_.offheight = max(height, mj_model.vis.global_.offheight)
  mj_model.vis.global_.offwidth = max(width, mj_model.vis.global_.offwidth)
  data = mujoco.MjData(mj_model)
  frames = np.zeros((len(qpos_nq), height, width, 3), np.uint8)
  with mujoco.Renderer(mj_model, height=height, width=width) as renderer:
    (folder / "ready").touch()
    for i in range(len(qpos_nq)):
      data.qpos[:] = qpos_nq[i]
      data.mocap_pos[:], data.mocap_quat[:] = mocap_pos[i], mocap_quat[i]
      mujoco.mj_forward(mj_model, data)
      # Twice, since an endless floor is laid around where the camera last was.
      renderer.update_scene(data, camera=camera)
      renderer.update_scene(data, camera=camera)
      # Shadows reach only so far from a light: it walks along with the robot.
      # subtree_com[0] is the centre of mass of all that can move.
      for light in renderer.scene.lights[: renderer.scene.nlight]:
        light.pos[:2] += data.subtree_com[0, :2]
      renderer.render(out=frames[i])
  np.save(folder / "frames.npy", frames)


if __name__ == "__main__":
  draw(pathlib.Path(sys.argv[1]))
