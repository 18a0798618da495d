"""What an online policy sees, and what it may answer."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Literal

from scheduler import errors
from scheduler.devices import Devices
from scheduler.plans import FlatPlan, Plan


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Leave:
  """Devices go: what runs on them ends, and nothing else begins."""

  at_ns: int
  devices: Devices


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Join:
  """Devices come, or return. Those that only come are away before."""

  at_ns: int
  devices: Devices


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Drift:
  """A stage takes `factor` times as long, for what it begins from now on."""

  at_ns: int
  stage: str
  factor: float

  def __post_init__(self) -> None:
    if self.factor <= 0:
      raise errors.SchedulerError(
        f"stage {self.stage!r} cannot take {self.factor} times as long; a drift"
        " needs a positive factor"
      )


Disturbance = Leave | Join | Drift
Reason = Literal["tail", "leave", "join", "drift"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
  """What a policy knows when it is asked.

  Attributes:
    reason: "tail": few items of a decode are left in an iteration; "leave",
      "join": devices did; "drift": a stage took another time than was known.
    stage: that the reason is about; "" for devices.
    now_ns: the instant.
    plan: in force.
    devices: that are there.
    iteration: the first that is not done.
    begun: by stage the items of that iteration that are done or under way, as
      ascending intervals; in a loop, those of the last turn.
    ratios: by stage how long it took in the iteration that it finished last,
      over what the plan said; 1 before that.
  """

  reason: Reason
  stage: str
  now_ns: int
  plan: FlatPlan
  devices: Devices
  iteration: int
  begun: Mapping[str, tuple[tuple[int, int], ...]]
  ratios: Mapping[str, float]


# Returns a plan of the whole workflow, or None to go on as before.
OnlinePolicy = Callable[[Snapshot], Plan | None]
