"""Devices that have nothing left to do, given to stages that have.

The long tail of an iteration: when the rollout has begun its last granule, its
devices stand idle until the next iteration, while training has granules left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rlinf_jax.runtime import tasks
from scheduler.devices import Devices

# What growing must save of a granule's predicted time to be worth moving for.
LEAST_GAIN = 0.1

# (stage, items, devices) -> predicted seconds.
SecondsFn = Callable[[str, int, int], float]


def grown(
  left: Sequence[tasks.Task], idle: Devices, seconds_fn: SecondsFn
) -> tuple[str, Devices] | None:
  """Returns a stage and the devices that it should have; None: as it is.

  It is the stage whose granules that have not begun take longest together, if
  each is faster with the idle devices.

  Args:
    left: tasks that have not begun, of stages that may have these devices, with
      the devices that they have.
    idle: devices.
    seconds_fn: predicts a granule.
  """
  of_stage: dict[str, list[tasks.Task]] = {}
  for task in left:
    of_stage.setdefault(task.stage, []).append(task)

  def seconds(stage: str, extra: Devices) -> float:
    return sum(
      seconds_fn(stage, t.items[1] - t.items[0], len(t.devices | extra))
      for t in of_stage[stage]
    )

  if not of_stage or not idle.spans:
    return None
  longest = max(of_stage, key=lambda stage: seconds(stage, Devices()))
  if seconds(longest, idle) > (1 - LEAST_GAIN) * seconds(longest, Devices()):
    return None
  return longest, of_stage[longest][0].devices | idle
