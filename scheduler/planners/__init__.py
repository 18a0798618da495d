"""Planners: functions from (workflow, profile, cluster) to a plan.

A planner is one file here and one line in `PLANNERS`.
"""

from __future__ import annotations

from scheduler.planners.auto import auto
from scheduler.planners.collocated import collocated
from scheduler.planners.disaggregated import disaggregated
from scheduler.planners.exact import exact
from scheduler.planners.hybrid import hybrid
from scheduler.planners.protocol import Budget, Planner
from scheduler.planners.rlinf_dp import rlinf_dp
from scheduler.planners.rlinf_toolkit import rlinf_toolkit

PLANNERS: dict[str, Planner] = {
  "auto": auto,
  "collocated": collocated,
  "disaggregated": disaggregated,
  "exact": exact,
  "hybrid": hybrid,
  "rlinf_dp": rlinf_dp,
  "rlinf_toolkit": rlinf_toolkit,
}

__all__ = ["PLANNERS", "Budget", "Planner"]
