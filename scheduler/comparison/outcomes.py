"""Outcomes: what came of one piece of work on a problem, as JSON lines."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Literal

from scheduler import documents, errors

Work = Literal["plan", "bound", "optimum", "realism"]
Status = Literal["ok", "infeasible", "refused", "timeout", "error"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
  """What came of one piece of work on one problem.

  Attributes:
    work: what was done.
    problem: its name.
    workload: what it is one size of.
    num_devices: of its cluster.
    planner: of "plan" and "realism", whose plan; else "".
    status: "infeasible" where the planner says that it has no plan, "refused"
      where it has one that cannot run.
    message: why it is not ok.
    values: by name; seconds but for `peak_memory`, a share of a device's, and
      `activities`, a number.
      plan: period_s, planning_s and planning_cpu_s, evaluation_s, peak_memory,
        activities;
      bound: bound_s, single_mode_s;
      optimum: optimum_s and its bound_s; first_s and first_bound_s, the same
        before any proof; search_s;
      realism: seconds per iteration, by "noise seed".
    words: binds and single_mode_binds, of "bound"; critical, of "plan".
    key: what the work depends on; equal keys need not be worked on twice.
    limit_s: time that it was allowed; 0: any.
    sources: of the code that did it.
  """

  work: Work
  problem: str
  workload: str
  num_devices: int
  planner: str = ""
  status: Status = "ok"
  message: str = ""
  values: dict[str, float] = dataclasses.field(default_factory=dict)
  words: dict[str, str] = dataclasses.field(default_factory=dict)
  key: str = ""
  limit_s: float = 0.0
  sources: str = ""


def append(outcome: Outcome, path: pathlib.Path) -> None:
  """Adds an outcome to a file of JSON lines."""
  with path.open("a", encoding="utf-8") as file:
    file.write(json.dumps(documents.encode(outcome)) + "\n")


def read(path: pathlib.Path) -> tuple[Outcome, ...]:
  """Returns the outcomes in a file, none if there is no file.

  A last line that was cut off, as by a power failure, is removed.

  Raises:
    DocumentError: another line is no outcome.
  """
  if not path.exists():
    return ()
  text = path.read_text(encoding="utf-8")
  whole, _, rest = text.rpartition("\n")
  if rest:
    path.write_text(f"{whole}\n" if whole else "", encoding="utf-8")
  found = []
  for number, line in enumerate(whole.splitlines(), 1):
    try:
      data = json.loads(line)
    except ValueError as error:
      raise errors.DocumentError(
        f"{path}, line {number} is not JSON: {error}"
      ) from None
    place = f"{path}, line {number}"
    found.append(documents.decode(Outcome, data, path=place))
  return tuple(found)
