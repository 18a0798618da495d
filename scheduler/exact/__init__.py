"""Proven optima of class S, the cases that planners are measured against.

`solve` returns the best plan of a case with a certificate, or the best that it
found and a bound; `solve_free` also chooses the groups. `class_s` says what
belongs to the class, `brute_force` tries all plans of tiny cases, also a little
outside of it, and `suite` is the frozen set of instances to report on.
"""

from __future__ import annotations

from scheduler.exact.certificates import Certificate, replay
from scheduler.exact.enumeration import Best, brute_force
from scheduler.exact.free import FreeSolution, solve_free
from scheduler.exact.search import Solution, solve

__all__ = [
  "Best",
  "Certificate",
  "FreeSolution",
  "Solution",
  "brute_force",
  "replay",
  "solve",
  "solve_free",
]
