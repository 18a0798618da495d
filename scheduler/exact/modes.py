"""Modes of a case: which can be left out, and what dividing them would give."""

from __future__ import annotations

from scheduler.exact.class_s import Mode, Problem


def undominated(problem: Problem) -> list[list[int]]:
  """Returns for each stage the modes that can be part of the best plan.

  A mode is left out if another uses no other groups, is no longer and takes no
  more memory.
  """
  fits = sum(max(m.state_bytes for m in own) for own in problem.modes)
  fits += max(m.transient_bytes for own in problem.modes for m in own)
  always_fit = fits <= problem.memory_bytes
  kept = []
  for own in problem.modes:
    keep: list[int] = []
    # Better modes come before those that they replace; of equal ones the first.
    order = sorted(range(len(own)), key=lambda i: _rank(own[i], i))
    for i in order:
      if not any(_replaces(own[j], own[i], always_fit) for j in keep):
        keep.append(i)
    kept.append(sorted(keep))
  return kept


def _rank(mode: Mode, index: int) -> tuple[int, ...]:
  return (
    mode.groups.bit_count(),
    mode.duration,
    mode.state_bytes,
    mode.transient_bytes,
    mode.swap,
    index,
  )


def _replaces(mode: Mode, other: Mode, always_fit: bool) -> bool:
  return (
    not mode.groups & ~other.groups
    and mode.duration <= other.duration
    and (
      always_fit
      or (
        mode.state_bytes <= other.state_bytes
        and mode.transient_bytes <= other.transient_bytes
        and mode.swap <= other.swap
      )
    )
  )


def relaxed_period(problem: Problem) -> tuple[float, list[float]]:
  """Returns the least load when stages may be divided between modes.

  Second, the groups' weights: the linear program's duals, which add up to 1.
  """
  import numpy as np
  from scipy.optimize import linprog

  columns = [(v, m) for v, own in enumerate(problem.modes) for m in own]
  size, groups = len(columns), len(problem.groups)
  loads = np.zeros((groups, size + 1))
  loads[:, size] = -1
  once = np.zeros((len(problem.modes), size + 1))
  for k, (v, m) in enumerate(columns):
    once[v, k] = 1
    for g in range(groups):
      loads[g, k] = problem.num_granules * m.duration * (m.groups >> g & 1)
  solved = linprog(
    np.append(np.zeros(size), 1.0),
    A_ub=loads,
    b_ub=np.zeros(groups),
    A_eq=once,
    b_eq=np.ones(len(problem.modes)),
  )
  return float(solved.fun), [max(0.0, -y) for y in solved.ineqlin.marginals]
