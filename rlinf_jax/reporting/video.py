"""Writes frames as an MP4 that browsers and players show."""

from __future__ import annotations

import os
import pathlib
import subprocess

import imageio_ffmpeg
import numpy as np


class VideoError(RuntimeError):
  """A video could not be written."""


def write_video(
  path: str | os.PathLike[str], frames: np.ndarray, *, fps: float
) -> pathlib.Path:
  """Writes `frames` as H.264 in yuv420p and returns the path.

  An odd height or width, which yuv420p has not, gets its last row or column
  twice.

  Args:
    path: of the file, with the suffix .mp4; its directory is made.
    frames: uint8 [N, height, width, 3], N >= 1.
    fps: frames per second, for instance 1 / control_dt_s.

  Raises:
    ValueError: `frames` are no frames, `fps` is not positive, or the suffix is
      another one.
    VideoError: ffmpeg is missing or failed.
  """
  path = pathlib.Path(path)
  if path.suffix != ".mp4":
    raise ValueError(f"A video's path ends in .mp4, got {path}.")
  if frames.dtype != np.uint8 or frames.ndim != 4 or frames.shape[-1] != 3:
    raise ValueError(
      "Expected frames of uint8 [N, height, width, 3], got"
      f" {frames.dtype} {list(frames.shape)}."
    )
  if 0 in frames.shape:
    raise ValueError(f"There are no frames in {list(frames.shape)}.")
  if fps <= 0:
    raise ValueError(f"fps is positive, got {fps}.")
  odd_height, odd_width = frames.shape[1] % 2, frames.shape[2] % 2
  pads = ((0, 0), (0, odd_height), (0, odd_width), (0, 0))
  frames = np.ascontiguousarray(np.pad(frames, pads, mode="edge"))
  path.parent.mkdir(parents=True, exist_ok=True)
  _, height, width, _ = frames.shape
  try:
    command = [
      *[imageio_ffmpeg.get_ffmpeg_exe(), "-y", "-loglevel", "error"],
      *["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}"],
      *["-r", f"{fps:g}", "-i", "pipe:"],
      *["-c:v", "libx264", "-crf", "18", "-pix_fmt", "yuv420p"],
      *["-movflags", "+faststart", os.fspath(path.absolute())],
    ]
    # Not imageio's writer: it forks with a preexec_fn, which JAX's threads do
    # not allow. In a session of its own ffmpeg survives the first Ctrl-C.
    subprocess.run(
      command,
      input=frames.data,
      capture_output=True,
      check=True,
      start_new_session=True,
    )
  except subprocess.CalledProcessError as error:
    reason = error.stderr.decode(errors="replace").strip()
    raise VideoError(f"No video {path}: ffmpeg said {reason!r}.") from error
  except (OSError, RuntimeError) as error:
    raise VideoError(
      f"No video {path}: {error}. Install imageio-ffmpeg, which brings an"
      " ffmpeg, or name one in IMAGEIO_FFMPEG_EXE."
    ) from error
  return path
