"""Planners by name, or from a user's file: "path/to/mine.py:my_planner"."""

from __future__ import annotations

import importlib.util
import pathlib

from scheduler import planners


def load(name: str) -> planners.Planner:
  """Returns the planner of this name, or the function that a file defines.

  Args:
    name: a key of `planners.PLANNERS`, or "path/to/file.py:NAME", a function
      (workflow, profile, cluster, budget, seed) -> Plan.

  Raises:
    ValueError: there is no such planner, file or function.
  """
  if name in planners.PLANNERS:
    return planners.PLANNERS[name]
  path, colon, attribute = name.rpartition(":")
  if not colon:
    raise ValueError(
      f"there is no planner {name!r}; known: {', '.join(planners.PLANNERS)}, or"
      " a file's, as path/to/mine.py:my_planner"
    )
  file = pathlib.Path(path)
  spec = importlib.util.spec_from_file_location(
    f"planner_file_{file.stem}", file
  )
  if not file.is_file() or spec is None or spec.loader is None:
    raise ValueError(f"there is no Python file {path}")
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  planner = getattr(module, attribute, None)
  if not callable(planner):
    names = [n for n, x in vars(module).items() if callable(x)]
    raise ValueError(
      f"{path} defines no function {attribute!r}; it has"
      f" {', '.join(names) or 'none'}"
    )
  return planner


def label(name: str) -> str:
  """Returns what a planner is called in tables: of a file, the function."""
  return name.rpartition(":")[2]
