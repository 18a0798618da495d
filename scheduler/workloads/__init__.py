"""Workloads: what is known of real ones, and a suite to compare planners on.

`suite.SUITE` lists them with their clusters; `build` makes one, `problems_of`
a whole draw. The laws' constants are fitted to published figures by
`fitting`, and `python -m benchmarks.calibrate` shows how well.
"""

from scheduler.workloads.problems import Problem
from scheduler.workloads.suite import SUITE, build, problems_of

__all__ = ["SUITE", "Problem", "build", "problems_of"]
