"""Why a flow has the plan it has, and what came of it: text, page and trace."""

from __future__ import annotations

import itertools
import pathlib
import statistics
from collections.abc import Sequence

from rlinf_jax.runtime import choices, preparation
from scheduler import bounds, documents, errors, reports, timelines, workflows

# What reports are of: the last iterations, and activities that differ most.
MOST_ITERATIONS, MOST_DIFFERENT = 50, 10


def timeline(ready: preparation.Prepared) -> timelines.Timeline:
  """Returns what ran when, in the last call."""
  if ready.program is not None:
    return ready.program.timeline()
  assert ready.executor is not None
  return ready.executor.timeline


def label(ready: preparation.Prepared) -> str:
  """Returns whether the numbers are the eager ones: "bitwise", or "close"."""
  return "close" if ready.why_close else "bitwise"


def explain(ready: preparation.Prepared) -> str:
  """Returns why the plan is as it is, and what it was predicted to take."""
  workflow, choice = ready.graph.workflow, ready.choice
  lines = [
    workflows.format_workflow(workflow),
    "",
    f"Results are {label(ready)}.",
    *(f"  not bitwise: {why}" for why in ready.why_close[:5]),
  ]
  if ready.program is not None:
    lines.append("Everything is on the same devices: one program.")
  lines.append(f"Predicted on this machine: {choice.prediction}.")
  for name, other in choice.alternatives.items():
    if isinstance(other, choices.Choice):
      lines.append(f"  {name} instead: {other.prediction}")
  lines.append(f"Profile: {ready.profile.provenance}.")
  text = reports.explain(
    choice.evaluation,
    workflow,
    ready.machine.cluster,
    alternatives={
      name: other if isinstance(other, str) else other.evaluation
      for name, other in choice.alternatives.items()
    },
    bound=_bound(ready),
  )
  return "\n".join([*lines, "", text])


def compare(ready: preparation.Prepared, away_s: Sequence[float]) -> str:
  """Returns what the last call took, beside what was predicted.

  In all, of each stage, and of the activities that differ most.

  Args:
    ready: the flow.
    away_s: seconds that the caller took before each iteration but the first.
      Without staleness an iteration begins when the caller asks for it: they
      are not counted, but where one program runs.
  """
  recent = _recent(ready)
  n, prediction = recent.num_iterations, ready.choice.prediction
  if n < 2:
    return "nothing to compare: fewer than two iterations"
  stops = [recent.iteration_stop_ns(i) for i in range(n)]
  # The median: checkpoints and evaluations come between some iterations.
  took_s = [(b - a) * 1e-9 for a, b in itertools.pairwise(stops)]
  away_s = away_s[-len(took_s) :]
  if ready.program is not None or ready.graph.workflow.staleness or not away_s:
    away_s = [0.0] * len(took_s)
  measured_s = statistics.median(a - b for a, b in zip(took_s, away_s))
  lines = [
    f"an iteration took {measured_s:.6f} s; {prediction} were predicted,"
    f" {prediction.seconds / measured_s - 1:+.1%}"
  ]
  if any(away_s):
    lines[0] += f"; the caller took {statistics.median(away_s):.6f} s between"
  if ready.program is not None:
    return lines[0]
  busy_ns = _busy_ns([e for e in recent.events if e.iteration])
  for stage, ns in busy_ns.items():
    lines.append(
      f"  {stage}: {ns / (n - 1) * 1e-9:.6f} s,"
      f" {prediction.stage_s.get(stage, 0.0):.6f} s predicted"
    )
  compared = reports.compare_timelines(prediction.timeline, recent)
  lines.append(reports.format_differences(compared, limit=MOST_DIFFERENT))
  return "\n".join(lines)


def write_report(
  ready: preparation.Prepared,
  away_s: Sequence[float],
  directory: str | pathlib.Path,
) -> list[pathlib.Path]:
  """Writes what the last call did; returns the files.

  plan.json, workflow.mmd (a picture of the stages, for Mermaid) and, if
  anything ran, report.html (what ran when, use of devices, what to try next)
  and trace.json (for Perfetto or chrome://tracing). Of a call of more than
  `MOST_ITERATIONS` they show the last ones.

  Args:
    ready: the flow.
    away_s: see `compare`.
    directory: is made.
  """
  folder = pathlib.Path(directory)
  folder.mkdir(parents=True, exist_ok=True)
  page, trace = folder / "report.html", folder / "trace.json"
  recent, workflow = _recent(ready), ready.graph.workflow
  documents.write(ready.choice.plan, folder / "plan.json")
  picture = reports.to_mermaid(workflow, places=ready.graph.place)
  (folder / "workflow.mmd").write_text(f"{picture}\n", encoding="utf-8")
  if not recent.events:
    return [folder / "plan.json", folder / "workflow.mmd"]
  reports.write_page(
    recent,
    page,
    title=workflow.name,
    text=f"{explain(ready)}\n\n{compare(ready, away_s)}\n\n{picture}",
    advice=_advice(ready, recent),
  )
  reports.write_perfetto(recent, trace)
  return [page, trace, folder / "plan.json", folder / "workflow.mmd"]


def _recent(ready: preparation.Prepared) -> timelines.Timeline:
  """Returns what the last iterations did: a run may have had thousands."""
  return timelines.last_iterations(timeline(ready), MOST_ITERATIONS)


def _bound(ready: preparation.Prepared) -> bounds.Bound | None:
  """Returns what no plan can be faster than, None where it is not known."""
  try:
    return bounds.lower_bound(
      ready.graph.workflow, ready.profile, ready.machine.cluster
    )
  except errors.SchedulerError:
    return None


def _advice(
  ready: preparation.Prepared, recent: timelines.Timeline
) -> tuple[str, ...]:
  """Returns what to try next."""
  summary, bound = reports.summarise(recent), _bound(ready)
  # What is one program may be faster than the sum of its stages.
  is_bound = bound is not None and bound.seconds <= summary.iteration_s
  return reports.advise(
    summary,
    staleness=ready.graph.workflow.staleness,
    bound_s=bound.seconds if bound is not None and is_bound else None,
  )


def _busy_ns(events: Sequence[timelines.Event]) -> dict[str, int]:
  """Returns how long each stage was at work; calls at once count once."""
  busy_ns: dict[str, int] = {}
  until_ns: dict[str, int] = {}
  for event in events:  # by start
    from_ns = max(event.start_ns, until_ns.get(event.stage, 0))
    spent = max(0, event.stop_ns - from_ns)
    busy_ns[event.stage] = busy_ns.get(event.stage, 0) + spent
    until_ns[event.stage] = max(event.stop_ns, from_ns)
  return busy_ns
