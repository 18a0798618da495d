"""Planners compared: on whole draws of problems, to bounds and to optima.

`rank` is for a few problems within one process; `experiments.compare_planners`
runs whole draws in parallel, keeps what is done, and writes tables and figures.
"""

from __future__ import annotations

from scheduler.comparison.cases import DRAWS, Case, cases_of
from scheduler.comparison.outcomes import Outcome
from scheduler.comparison.regrets import Regret, to_regrets
from scheduler.comparison.scores import (
  Score,
  Standing,
  is_closed,
  to_scores,
  to_standings,
)
from scheduler.comparison.tables import (
  format_advantages,
  format_open,
  format_ranking,
  format_regrets,
  format_scores,
  write_csv,
)
from scheduler.comparison.trials import (
  bound_of,
  optimum_of,
  rank,
  realism_of,
  try_planner,
)

__all__ = [
  "DRAWS",
  "Case",
  "Outcome",
  "Regret",
  "Score",
  "Standing",
  "bound_of",
  "cases_of",
  "format_advantages",
  "format_open",
  "format_ranking",
  "format_regrets",
  "format_scores",
  "is_closed",
  "optimum_of",
  "rank",
  "realism_of",
  "to_regrets",
  "to_scores",
  "to_standings",
  "try_planner",
  "write_csv",
]
