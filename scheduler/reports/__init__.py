"""Plans and timelines for people: text, pictures, and a page to explore.

Simulated timelines and measured ones are reported alike.
"""

from scheduler.reports.advice import advise
from scheduler.reports.comparisons import (
  Comparison,
  compare_timelines,
  format_comparison,
  format_differences,
)
from scheduler.reports.explanations import explain
from scheduler.reports.formatting import format_plan
from scheduler.reports.gantt import write_gantt
from scheduler.reports.mermaid import to_mermaid
from scheduler.reports.pages import write_page
from scheduler.reports.perfetto import write_perfetto
from scheduler.reports.summaries import Summary, Usage, summarise

__all__ = [
  "Comparison",
  "Summary",
  "Usage",
  "advise",
  "compare_timelines",
  "explain",
  "format_comparison",
  "format_differences",
  "format_plan",
  "summarise",
  "to_mermaid",
  "write_gantt",
  "write_page",
  "write_perfetto",
]
