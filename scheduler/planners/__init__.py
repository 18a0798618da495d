"""Planners: functions from (workflow, profile, cluster) to a plan.

A planner is one file here, with a function of its name, and one line in
`PLANNERS`.
"""

from __future__ import annotations

from scheduler.planners import (
  auto,
  collocated,
  disaggregated,
  exact,
  hybrid,
  local_search,
  online,
  pareto_dp,
  rlinf_dp,
  rlinf_toolkit,
)
from scheduler.planners.protocol import Budget, Planner

PLANNERS: dict[str, Planner] = {
  "auto": auto.auto,
  "collocated": collocated.collocated,
  "disaggregated": disaggregated.disaggregated,
  "exact": exact.exact,
  "hybrid": hybrid.hybrid,
  "local_search": local_search.local_search,
  "online": online.online,
  "pareto_dp": pareto_dp.pareto_dp,
  "rlinf_dp": rlinf_dp.rlinf_dp,
  "rlinf_toolkit": rlinf_toolkit.rlinf_toolkit,
}

__all__ = ["PLANNERS", "Budget", "Planner"]
