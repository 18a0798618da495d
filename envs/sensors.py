"""Reading a model's sensors by name."""

from __future__ import annotations

import jax
import mujoco


def read(
  mj_model: mujoco.MjModel, data: dict[str, jax.Array], name: str
) -> jax.Array:
  """Returns what one sensor measures, float32 [dim].

  Args:
    mj_model: the model that has the sensor.
    data: of a `PhysicsState` whose physics was made with the field
      "sensordata"; hence the reading is from before the last substep.
    name: the sensor's name; a typo is a static error, not a traced one.

  Raises:
    KeyError: if the model has no such sensor; the message lists those it has.
  """
  sensor = mj_model.sensor(name)
  begin = int(sensor.adr[0])
  return data["sensordata"][begin : begin + int(sensor.dim[0])]
