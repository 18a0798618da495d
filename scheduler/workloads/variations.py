"""What differs between draws of a workload."""

from __future__ import annotations

import dataclasses
import random

_MIN_SEQUENCES, _MAX_SEQUENCES = 512, 65_536


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Variation:
  """Settings that users of a workload choose differently.

  Attributes:
    length_scale: factor of the mean length, or of an episode's turns.
    sequences_per_device: so that the batch grows with the cluster.
    group: sequences of one prompt.
    updates: of one iteration.
    seed: of random graphs.
  """

  length_scale: float = 1.0
  sequences_per_device: int = 64
  group: int = 16
  updates: int = 4
  seed: int = 0

  def sequences(self, num_devices: int) -> int:
    """Returns the sequences of one iteration on so many devices.

    From 512 to 65,536, and a multiple of 256, so that groups and updates
    divide it.
    """
    wanted = self.sequences_per_device * num_devices
    return min(max(-(-wanted // 256) * 256, _MIN_SEQUENCES), _MAX_SEQUENCES)


def draw(seed: int, name: str, num_devices: int) -> Variation:
  """Returns a variation, different for each workload and cluster size.

  Args:
    seed: of the whole draw.
    name: of the workload.
    num_devices: of its cluster.
  """
  rng = random.Random(f"{seed} {name} {num_devices}")
  return Variation(
    length_scale=round(rng.uniform(0.7, 1.2), 2),
    sequences_per_device=rng.choice((32, 64, 128)),
    group=rng.choice((8, 16)),
    updates=rng.choice((1, 2, 4, 8)),
    seed=rng.randrange(1 << 30),
  )
