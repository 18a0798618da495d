"""Cases: problems by name, to be built where they are worked on."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Callable
from typing import Literal

from scheduler import documents, workloads
from scheduler.exact import suite as class_s_suite
from scheduler.workloads import Problem, suite

Draw = Literal[
  "development", "test", "classS", "classS_development"
]  # fmt: skip

DRAWS: tuple[Draw, ...] = (
  "development", "test", "classS", "classS_development"
)  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Case:
  """A problem by name.

  Attributes:
    name: of the problem, unique within its draw.
    workload: what it is one size of.
    num_devices: of its cluster, host cores left out.
    is_class_s: whether it belongs to the class that `scheduler.exact` solves.
    build: returns the problem.
  """

  name: str
  workload: str
  num_devices: int
  is_class_s: bool
  build: Callable[[], Problem]


def cases_of(draw: Draw) -> tuple[Case, ...]:
  """Returns the cases of a draw, in a fixed order.

  Args:
    draw: "development" to tune planners on or "test" to report on, of
      `workloads.suite`; "classS" and "classS_development" the same of
      `exact.suite`.

  Raises:
    ValueError: there is no such draw.
  """
  if draw == "classS":
    return _of_class_s("test")
  if draw == "classS_development":
    return _of_class_s("development")
  if draw not in DRAWS:
    raise ValueError(f"no draw {draw!r}; there are {', '.join(DRAWS)}")
  found = []
  for workload, case in suite.SUITE.items():
    sizes = case.test if draw == "test" else case.development
    for num_devices in sizes:
      found.append(_of_workload(workload, num_devices, draw))
  return tuple(found)


def digest(problem: Problem) -> str:
  """Returns what tells a problem from all others, as one short word."""
  parts = (problem.workflow, problem.profile, problem.cluster)
  text = "".join(map(documents.to_json, parts))
  return hashlib.sha256(text.encode()).hexdigest()[:16]


def _of_workload(
  workload: str, num_devices: int, draw: Literal["development", "test"]
) -> Case:
  return Case(
    name=f"{workload}_{num_devices}_{draw}",
    workload=workload,
    num_devices=num_devices,
    is_class_s=False,
    build=functools.partial(workloads.build, workload, num_devices, draw),
  )


def _of_class_s(draw: class_s_suite.Draw) -> tuple[Case, ...]:
  return tuple(
    Case(
      name=instance.name,
      workload=f"v{instance.num_stages}",
      num_devices=instance.cluster.num_devices,
      is_class_s=True,
      build=functools.partial(
        Problem,
        name=instance.name,
        workflow=instance.workflow,
        profile=instance.profile,
        cluster=instance.cluster,
        split=draw,
      ),
    )
    for instance in class_s_suite.draw(draw)
  )
