"""Videos, decoded again."""

import re
import subprocess

import imageio_ffmpeg
import numpy as np
import pytest

from rlinf_jax.reporting import video


def _read(path):
  """Returns what ffmpeg says of the video, and its frames."""
  ffmpeg = imageio_ffmpeg.get_ffmpeg_exe()
  decoded = subprocess.run(
    [ffmpeg, "-i", path, "-f", "rawvideo", "-pix_fmt", "rgb24", "pipe:"],
    capture_output=True,
    check=True,
  )
  about = decoded.stderr.decode()
  width, height = map(int, re.search(r" (\d+)x(\d+)[ ,]", about).groups())
  frames = np.frombuffer(decoded.stdout, np.uint8)
  return about, frames.reshape(-1, height, width, 3)


def _make_frames(num, height, width):
  """Returns frames whose left half brightens and whose right half is red."""
  frames = np.zeros((num, height, width, 3), np.uint8)
  frames[:, :, : width // 2] = np.linspace(0, 255, num).astype(np.uint8)[
    :, None, None, None
  ]
  frames[:, :, width // 2 :, 0] = 200
  return frames


def test_frames_come_back_about_as_they_were(tmp_path):
  frames = _make_frames(25, 48, 64)
  path = video.write_video(tmp_path / "runs" / "a.mp4", frames, fps=12.5)
  about, found = _read(path)
  assert re.search(r"Video: h264 .* yuv420p", about)
  assert "12.50 fps" in about
  assert "Duration: 00:00:02.00" in about
  assert found.shape == frames.shape
  assert np.abs(found.astype(int) - frames).mean() < 3


def test_odd_sizes_gain_a_row_and_a_column(tmp_path):
  path = video.write_video(tmp_path / "a.mp4", _make_frames(3, 33, 47), fps=10)
  assert _read(path)[1].shape == (3, 34, 48, 3)


@pytest.mark.parametrize(
  "frames, settings, message",
  [
    (np.zeros((2, 4, 4, 3)), {}, "got float64"),
    (np.zeros((4, 4, 3), np.uint8), {}, r"got uint8 \[4, 4, 3\]"),
    (np.zeros((0, 4, 4, 3), np.uint8), {}, "no frames"),
    (np.zeros((2, 4, 4, 3), np.uint8), {"fps": 0}, "fps is positive"),
    (np.zeros((2, 4, 4, 3), np.uint8), {"name": "a.gif"}, "ends in .mp4"),
  ],
)
def test_what_is_no_video_is_refused(tmp_path, frames, settings, message):
  settings = {"name": "a.mp4", "fps": 10, **settings}
  with pytest.raises(ValueError, match=message):
    video.write_video(tmp_path / settings["name"], frames, fps=settings["fps"])


def test_a_missing_ffmpeg_is_said_with_what_to_do(tmp_path, monkeypatch):
  monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", str(tmp_path / "gone"))
  with pytest.raises(video.VideoError, match="Install imageio-ffmpeg"):
    video.write_video(tmp_path / "a.mp4", _make_frames(2, 8, 8), fps=10)


def test_what_ffmpeg_says_is_passed_on(tmp_path):
  (tmp_path / "a.mp4").mkdir()
  with pytest.raises(video.VideoError, match="ffmpeg said .*directory"):
    video.write_video(tmp_path / "a.mp4", _make_frames(2, 8, 8), fps=10)
