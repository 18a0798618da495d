"""Pictures of MuJoCo models, and what is said where there can be none."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest

from envs import rendering

XML = """
<mujoco>
  <worldbody>
    <light type="directional" pos="0 0 3" dir="0 0 -1"/>
    <camera name="above" pos="0 0 2"/>
    <geom name="floor" type="plane" size="0 0 1" rgba="0.5 0.5 0.5 1"/>
    <body name="mark" mocap="true" pos="0.5 0.5 0.1">
      <geom size="0.1" rgba="0 1 0 1"/>
    </body>
    <body name="mover">
      <joint type="slide" axis="1 0 0"/>
      <camera name="along" pos="0 0 2"/>
      <geom pos="0 0 0.4" size="0.2" rgba="1 0 0 1"/>
    </body>
  </worldbody>
</mujoco>
"""
SIZE = dict(height=48, width=64)


@pytest.fixture(scope="module")
def mj_model() -> mujoco.MjModel:
  return mujoco.MjModel.from_xml_string(XML)


def draw(*args, **settings) -> np.ndarray:
  """Returns int frames [N, 48, 64, 3]; skips where there is no GL."""
  try:
    frames = rendering.mujoco_frames(*args, **SIZE, **settings)
  except rendering.RenderingUnavailableError as error:
    pytest.skip(str(error))
  assert frames.dtype == np.uint8
  return frames.astype(int)


def centre(frame: np.ndarray, channel: int) -> np.ndarray:
  """Returns the mean row and column where a colour stands out."""
  others = [c for c in range(3) if c != channel]
  is_colour = frame[..., channel] > frame[..., others].max(axis=-1) + 40
  return np.argwhere(is_colour).mean(axis=0)


def test_a_body_is_drawn_where_it_is(mj_model):
  frames = draw(mj_model, np.asarray([[-0.4], [0.0], [0.4]]), camera="above")
  column = [centre(frame, 0)[1] for frame in frames]
  # The picture is 64 wide: its middle lies between columns 31 and 32.
  np.testing.assert_allclose(column[1], 31.5, atol=0.5)
  np.testing.assert_allclose(column[0] + column[2], 63.0, atol=1.0)
  assert column[0] < 25 < 38 < column[2]


def test_a_mocap_body_is_drawn_where_it_is_told(mj_model):
  pos = np.asarray([[[0.5, 0.5, 0.1]], [[-0.5, -0.5, 0.1]]])
  frames = draw(mj_model, np.zeros((2, 1)), mocap_pos=pos, camera="above")
  default = draw(mj_model, np.zeros((1, 1)), camera="above")
  np.testing.assert_array_equal(frames[0], default[0])
  # To the other side of the middle, row 23.5 and column 31.5, both ways.
  np.testing.assert_allclose(
    centre(frames[0], 1) + centre(frames[1], 1), [47.0, 63.0], atol=1.0
  )


def test_floor_and_light_follow_a_runner(mj_model):
  far = np.asarray([0.5, 0.5, 0.1]) + [200.0, 0.0, 0.0]
  pos = np.asarray([[[0.5, 0.5, 0.1]], [far]])
  here, there = draw(
    mj_model, np.asarray([[0.0], [200.0]]), mocap_pos=pos, camera="along"
  )
  # Float32 coordinates at 200 m cost 8 of 255; a lost shadow would be 108.
  assert np.abs(here - there).max() < 20


def test_where_there_is_no_gl_the_reason_is_told(mj_model, monkeypatch):
  monkeypatch.delenv("MUJOCO_GL", raising=False)
  with pytest.raises(
    rendering.RenderingUnavailableError,
    match=r"Tried MUJOCO_GL = nonsense: exit status 1.*Install EGL",
  ):
    rendering.mujoco_frames(mj_model, np.zeros((1, 1)), platforms=["nonsense"])


def test_what_is_wrong_with_a_request_is_told(mj_model):
  with pytest.raises(ValueError, match=r"\[2\]; the model needs \[N, 1\]"):
    rendering.mujoco_frames(mj_model, np.zeros((2,)))
  with pytest.raises(ValueError, match=r"mocap_pos .*\[1, 3\].*\[1, 1, 3\]"):
    rendering.mujoco_frames(
      mj_model, np.zeros((1, 1)), mocap_pos=np.zeros((1, 3))
    )
  with pytest.raises(ValueError, match="No camera 'side'.*'above', 'along'"):
    rendering.mujoco_frames(mj_model, np.zeros((1, 1)), camera="side")
